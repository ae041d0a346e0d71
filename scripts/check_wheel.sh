#!/usr/bin/env bash
# Builds the wheel, installs it in an environment of its own outside the checkout, and runs the main job there: data, a formal
# retrain with its release, one narrative coded.  check_wheel.sh .venv/bin
set -euo pipefail
BIN=$(cd "${1:-.venv/bin}" && pwd)
HERE=$(cd "$(dirname "$0")/.." && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
log=$WORK/log
run() { "$@" >"$log" 2>&1 || { echo "wheel: '$*' failed:" >&2; tail -n 30 "$log" >&2; exit 1; }; }

run "$BIN/uv" build --wheel --out-dir "$WORK/dist" "$HERE"
python3 -m venv --without-pip "$WORK/env"
sed -e '/^ *--hash/d' -e 's/ \\$//' "$HERE/requirements.lock" >"$WORK/pins.txt"
torch=$(grep -E '^torch==' "$WORK/pins.txt")
install() { "$BIN/uv" pip install --python "$WORK/env/bin/python" "$@" >"$log" 2>&1; }
# torch as scripts/setup.sh chooses it: a wheel in the site's own folder wins.
links=$("$BIN/python" -m pip config list 2>/dev/null | sed -n "s/^[a-z:]*\.find-links='\(.*\)'$/\1/p" | head -n 1)
{ [ -n "$links" ] && install --no-index --no-deps --find-links "$links" "$torch"; } || install --torch-backend cpu "$torch" || install "$torch"
run "$BIN/uv" pip install --python "$WORK/env/bin/python" -c "$WORK/pins.txt" "$(echo "$WORK"/dist/*.whl)[minilm]"
cd "$WORK"
autocoder=$WORK/env/bin/autocoder
run "$autocoder" demo-data --out data
run "$autocoder" retrain --profile demo-formal --data data/injuries.csv --codelist data/codelist.csv --home workspace --release --quiet
run "$autocoder" code --home workspace "Employee fell from a ladder and broke his left wrist."
echo "wheel: built, installed outside the checkout, trained, released and coded"
