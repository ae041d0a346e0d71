#!/usr/bin/env bash
# Runs the main job on synthetic reports, without a server or network: data, a formal release, three coded reports.
set -euo pipefail
BIN=$1
HOME_FOLDER=$2
mkdir -p "$HOME_FOLDER"
started=$SECONDS
log=$HOME_FOLDER/demo.log
planned=$HOME_FOLDER/planned.json
released=$HOME_FOLDER/released.json

step() { printf '[%s/3] %s\n' "$1" "$2"; }
fail() { echo "demo: step $1 failed. The log is $log; its end:" >&2; tail -n 5 "$log" >&2; exit 1; }
indented() { tee -a "$log" | sed -u 's/^/      /' >&2; }
field() { "$BIN/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$@"; }

echo "Demo, three steps, about a minute:"
step 1 "1,800 synthetic injury reports with their codes, in $HOME_FOLDER/data"
"$BIN/autocoder" demo-data --out "$HOME_FOLDER/data" >"$log" 2>&1 || fail 1
step 2 "A classifier trained with a formal guarantee (epsilon 5), and its release (log: $log)"
"$BIN/autocoder" train --profile demo-formal --data "$HOME_FOLDER/data/injuries.csv" \
  --codelist "$HOME_FOLDER/data/codelist.csv" --home "$HOME_FOLDER" --json >"$planned" 2> >(indented) || fail 2
plan=$(field "$planned" plan)
"$BIN/autocoder" release "$plan" --home "$HOME_FOLDER" --json >"$released" 2> >(indented) || fail 2
step 3 "Three new reports, coded with the release"
"$BIN/autocoder" code --home "$HOME_FOLDER" --top-k 1 \
  "Employee fell from a ladder and broke his left wrist." \
  "A worker's glove was caught in the conveyor and the tip of her index finger was amputated." \
  "Cook spilled hot oil from the fryer and was burned on both forearms." 2>>"$log" || fail 3

echo
"$BIN/python" - "$plan" "$released" "$BIN/autocoder" "$HOME_FOLDER" $((SECONDS - started)) <<'PY'
import json
import os
import sys

plan, file, program, home, seconds = sys.argv[1:]
with open(file, encoding="utf-8") as opened:
    release = json.load(opened)
release["bundle"] = os.path.relpath(release["bundle"])
print(f"""Done in {seconds} s. You made one release from synthetic reports:
  {release["release_id"]}  {release["guarantee_kind"]}, ε {float(release["epsilon"]):.4g}, in {release["bundle"]}
Look:  {program} plan {os.path.relpath(plan)}
       {program} ledger show --home {home}
Try:   {program} code --home {home} "Worker slipped on ice and sprained her ankle."
       {program} handover {release["release_id"]} --to "Statistics Office" --out outbox --home {home}
Next:  docs/tutorials/own-data.md""")
PY
