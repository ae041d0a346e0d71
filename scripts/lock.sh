#!/usr/bin/env bash
# Resolves pyproject.toml with all extras into requirements.lock: exact versions of the whole closure, with hashes. Versions
# that still fit are kept. torch has no hash, since a site chooses its build (scripts/setup.sh), and CUDA's libraries come with it.
set -euo pipefail
BIN=${1:-.venv/bin}
# What builds the program is in it too.
"$BIN/python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
  | "$BIN/uv" pip compile pyproject.toml - --quiet --all-extras --universal --generate-hashes --no-header --no-annotate --output-file requirements.lock
"$BIN/python" - <<'PY'
import re
from pathlib import Path

lock = Path("requirements.lock")
pins = re.split(r"\n(?=[a-zA-Z0-9])", lock.read_text().rstrip("\n"))
pins = [pin for pin in pins if not re.match(r"(nvidia-|cuda-|triton=)", pin)]
pins = [re.sub(r"(==[0-9.]+)\S*.*", r"\1", pin, flags=re.DOTALL) if pin.startswith("torch==") else pin for pin in pins]
lock.write_text("\n".join(pins) + "\n")
PY
