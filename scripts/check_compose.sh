#!/usr/bin/env bash
# Checks docker-compose.yml and its profiles with Docker's own tool. No engine has to run. Skipped if the tool is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
if docker compose version >/dev/null 2>&1; then tool=(docker compose)
elif command -v docker-compose >/dev/null; then tool=(docker-compose)
else echo "check: docker-compose.yml was not read, there is no docker compose (Debian: docker-compose)"; exit 0; fi
"${tool[@]}" --profile gpu --profile storage --profile serve --profile cluster config --quiet && echo "docker-compose.yml: sound"
