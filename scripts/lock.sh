#!/usr/bin/env bash
# Resolves pyproject.toml with all extras into requirements.lock (exact versions of the whole closure).
set -euo pipefail
BIN=${1:-.venv/bin}
"$BIN/pip-compile" --quiet --all-extras --strip-extras --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
  --no-header --output-file requirements.lock pyproject.toml
# A local build tag (+cpu) exists on one machine only: the version is what is pinned.
sed -i -E 's/^(torch==[0-9.]+)\+[a-z0-9.]+/\1/' requirements.lock
