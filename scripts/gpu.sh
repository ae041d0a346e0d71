#!/usr/bin/env bash
# Runs the GPU benchmark (benchmarks/gpu.py) on a minimal machine: a Python with torch for CUDA, transformers and
# safetensors. The mechanisms' other dependencies come from a folder of wheels, built where a package index is available.
#   scripts/gpu.sh wheels FOLDER 3.12      # at most 60 MiB, for that Python on x86-64 Linux
#   scripts/gpu.sh run FOLDER [--device card --small] [--json FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
NEEDED=(pydantic pydantic-core annotated-types typing-inspection typing-extensions cryptography cffi pycparser
  dp-accounting absl-py attrs dm-tree wrapt mpmath scipy pytest pluggy iniconfig packaging pygments)

usage() { sed -n 's/^#   //p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
action=$1 folder=$2
shift 2
case $action in
  wheels)
    [ $# -eq 1 ] || usage
    pins=()
    for name in "${NEEDED[@]}"; do
      pin=$(grep -iE "^${name//-/[-_]}==" requirements.lock | sed -E 's/ (;.*)?\\$//' | head -n 1); pin=${pin:-$name}
      pins+=("${pin%%[; ]*}")
    done
    platforms=()
    for glibc in 34 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version "$1" \
      --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 --dest "$folder" "${pins[@]}"
    size=$(du -sm "$folder" | cut -f1)
    echo "$(ls "$folder"/*.whl | wc -l) wheels, $size MiB, in $folder"
    [ "$size" -le 60 ] || { echo "gpu: more than 60 MiB of wheels in $folder; empty it first" >&2; exit 1; } ;;
  run)
    if compgen -G "$folder/*.whl" >/dev/null; then
      site=$(mktemp -d)
      trap 'rm -rf "$site"' EXIT
      "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$folder"/*.whl
      export PYTHONPATH="$site"
    fi
    PYTHONPATH="$PWD:${PYTHONPATH:-}" "$PYTHON" benchmarks/gpu.py "$@" ;;
  *) usage ;;
esac
