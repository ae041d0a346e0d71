#!/usr/bin/env bash
# Run in the layer that installed the packages: removes what no server and no worker opens, compiles what they import.
# What is imported is said by imported.txt; one of its modules that misses what was removed ends the build here.
set -euo pipefail
packages=$(python -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
cd "$packages"
# torch: its C++ tests, headers and compilers' tools; pyarrow: its server, which nothing here asks for.
rm -rf torch/test torch/include torch/share torch/bin/*test* torch/bin/TCPStoreTest torch/bin/protoc* pyarrow/include pyarrow/src \
  pyarrow/libarrow_flight* pyarrow/libarrow_python_flight* pyarrow/_flight*
# botocore: descriptions of Amazon's services, of which S3, and what gives credentials for it, are asked.
find botocore/data -mindepth 1 -maxdepth 1 -type d -not -name s3 -not -name 'sso*' -not -name sts -exec rm -rf {} +
# The packages' own tests. Not numpy.testing, torch.testing and the like: packages import those.
find . -type d -name tests -path '*/*' -not -path './transformers/*' -not -path './opacus/*' -prune -exec rm -rf {} +
find . -type d -name __pycache__ -prune -exec rm -rf {} +
# Symbols for debuggers, where Debian's binutils can be had: a fifth of torch's library.
if ! command -v strip >/dev/null && command -v apt-get >/dev/null; then
  { apt-get update -qq && apt-get install -yqq --no-install-recommends binutils; } >/dev/null 2>&1 || echo "slim.sh: no binutils, libraries keep their symbols"
fi
if command -v strip >/dev/null; then
  strip --strip-unneeded torch/lib/*.so
  apt-get purge -yqq --auto-remove binutils >/dev/null 2>&1 || true
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
fi
# Compiled once, here: the containers' file system is read-only, and the packages as a whole would take three times the room.
mapfile -t modules < <(grep -v '^#' "$(dirname "$0")/imported.txt")
(cd / && HOME=/tmp/warm python - "${modules[@]}" <<'PY'
import importlib
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)
PY
)
rm -rf /tmp/warm
