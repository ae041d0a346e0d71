#!/usr/bin/env bash
# The main job on invented narratives, with no server and no network: data, retrain, release, three narratives coded.
set -euo pipefail
BIN=$1
HOME_FOLDER=$2
mkdir -p "$HOME_FOLDER"

echo "== narratives"
"$BIN/autocoder" demo-data --out "$HOME_FOLDER/data"
echo "== retrain and release: one draw by SWAG-PPM, whose epsilon is estimated on these records"
"$BIN/autocoder" retrain --profile demo --data "$HOME_FOLDER/data/injuries.csv" --codelist "$HOME_FOLDER/data/codelist.csv" --home "$HOME_FOLDER"
echo "== and the release to choose where an epsilon has to be believed: a formally private fit of two thirds of the records"
"$BIN/autocoder" retrain --profile demo-formal --data "$HOME_FOLDER/data/injuries.csv" --codelist "$HOME_FOLDER/data/codelist.csv" \
  --home "$HOME_FOLDER" --release
echo "== ledger"
"$BIN/autocoder" ledger list --home "$HOME_FOLDER"
echo "== three new narratives, coded with the formal release"
"$BIN/autocoder" code --home "$HOME_FOLDER" --top-k 3 \
  "Employee fell from a ladder while changing a light bulb and broke his left wrist." \
  "A worker's glove was caught in the conveyor and the tip of her index finger was cut off." \
  "Cook spilled hot oil from the fryer and was burned on both forearms."
