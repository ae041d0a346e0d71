#!/usr/bin/env bash
# Resolves pyproject.toml with all extras into requirements.lock: exact versions of all dependencies, with hashes. Versions
# that still satisfy it are kept. torch has no hash, because a site chooses its build (scripts/setup.sh), which includes CUDA.
set -euo pipefail
BIN=${1:-.venv/bin}
# It includes the build dependencies.
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
