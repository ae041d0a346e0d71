#!/usr/bin/env bash
# Creates the virtual environment and installs the pinned versions: `setup.sh run` for the program, `setup.sh dev` with the
# tests' tools. uv installs and checks the lock file's hashes; if uv is not available, pip does both (scripts/hashed_install.py). TORCH=cuda selects the CUDA
# build of torch, TORCH=cpu the CPU build; the default is CUDA if `nvidia-smi` answers.
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
case "${1:-dev}" in
  run) extras=train,minilm ;;
  dev) extras=train,minilm,studies,postgres,stack,s3,skos,stats,kubernetes,dev ;;
  *) echo "setup: '$1' is unknown. Use 'run' or 'dev'." >&2; exit 2 ;;
esac
started=$SECONDS
log=$VENV/install.log

fail() { echo "setup: $1. The log is $log; its end:" >&2; tail -n 5 "$log" >&2; exit 1; }
step() { printf 'setup [%s/3] %s\n' "$1" "$2"; }

command -v "$PYTHON" >/dev/null || { echo "setup: '$PYTHON' is not installed. Install Python 3.11 to 3.13, or call make with PYTHON=/path/to/python3." >&2; exit 1; }
"$PYTHON" - <<'PY' || exit 1
import sys
if not (3, 11) <= sys.version_info[:2] < (3, 14):
    sys.exit(f"setup: this is Python {sys.version.split()[0]}. Python 3.11 to 3.13 is needed: call make with PYTHON=/path/to/python3.12.")
PY

step 1 "$("$PYTHON" --version) in $VENV"
if [ ! -x "$VENV/bin/pip" ] && ! "$PYTHON" -m venv --clear "$VENV" 2>/dev/null; then
  # Debian ships venv's pip in a separate package.
  package="$("$PYTHON" -c 'import sys; print(f"python3.{sys.version_info[1]}-venv")')"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "      installing Debian's $package"
    apt-get update -qq && apt-get install -y -qq "$package" >/dev/null
    "$PYTHON" -m venv --clear "$VENV"
  else
    echo "setup: '$PYTHON -m venv' failed. On Debian: sudo apt-get install $package." >&2
    exit 1
  fi
fi
: >"$log"

# uv ignores pip's settings, so a site's mirror, folder of wheels and certificates are passed on explicitly.
setting() { "$VENV/bin/pip" config list 2>/dev/null | sed -n "s/^[a-z:]*\.$1='\(.*\)'$/\1/p" | head -n 1; }
hand_on() { local value; value=$(setting "$2"); [ -z "$value" ] || [ -n "${!1:-}" ] || export "$1=$value"; }
hand_on UV_DEFAULT_INDEX index-url
hand_on UV_FIND_LINKS find-links
hand_on SSL_CERT_FILE cert

pins=$VENV/pins.txt
sed -e '/^ *--hash/d' -e 's/ \\$//' requirements.lock >"$pins"
torch=$(grep -E '^torch==' "$pins")
if [ -z "${TORCH:-}" ]; then TORCH=cpu; ! command -v nvidia-smi >/dev/null || TORCH=cuda; fi

uv="$VENV/bin/uv"
"$VENV/bin/pip" install --quiet --disable-pip-version-check "$(grep -E '^uv==' "$pins")" >>"$log" 2>&1 && "$uv" --version >>"$log" 2>&1 || uv=""
installed() { "$VENV/bin/python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null; }
with_uv() { VIRTUAL_ENV=$VENV "$uv" pip install --python "$VENV/bin/python" "$@" >>"$log" 2>&1; }
with_pip() { "$VENV/bin/pip" install --disable-pip-version-check "$@" >>"$log" 2>&1; }

step 2 "$torch, its $TORCH build"
# torch is installed first and alone, so that no other package's version range selects another build.
case "$(installed)" in
  "${torch#torch==}"*) ;;
  *)
    if [ -n "$uv" ]; then
      # A wheel in the site's own folder takes precedence, then PyTorch's index, then the default index with its CUDA build for Linux.
      { [ "$TORCH" = cpu ] && [ -n "${UV_FIND_LINKS:-}" ] && with_uv --no-index --no-deps "$torch" && with_uv "$torch"; } ||
        with_uv --torch-backend "$([ "$TORCH" = cpu ] && echo cpu || echo auto)" "$torch" || with_uv "$torch" || fail "$torch was not installed"
    else
      { [ "$TORCH" = cpu ] && with_pip --index-url https://download.pytorch.org/whl/cpu "$torch"; } || with_pip "$torch" || fail "$torch was not installed"
    fi
    ;;
esac

step 3 "the program and $(grep -cE '^[a-zA-Z0-9_.-]+==' "$pins") pinned versions (extras: $extras), by $([ -n "$uv" ] && echo uv || echo pip)"
if [ -n "$uv" ]; then
  with_uv -c requirements.lock -e ".[$extras]" || fail "the packages were not installed"
else
  "$VENV/bin/python" scripts/hashed_install.py "$extras" >>"$log" 2>&1 || fail "the packages were not installed"
fi
echo "Installed in $((SECONDS - started)) s: torch $(installed). Log: $log"
