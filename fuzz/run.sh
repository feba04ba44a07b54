#!/bin/sh
# Runs every fuzz target on its corpus for SECONDS (default 60) each; fails on the first crash, hang or leak.
#   fuzz/run.sh [SECONDS] [BUILD_FOLDER] [TARGET...]
# A finding is left in BUILD_FOLDER/findings; add it to fuzz/corpus/<name> once it is fixed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-60}
build=${2:-$here/../build/fuzz}
[ $# -ge 1 ] && shift
[ $# -ge 1 ] && shift
if [ $# -eq 0 ]; then
  for file in "$here"/fuzz_*.cpp; do
    name=$(basename "$file" .cpp)
    set -- "$@" "${name#fuzz_}"
  done
fi
mkdir -p "$build/findings"
for name in "$@"; do
  program=$build/fuzz/fuzz_$name
  [ -x "$program" ] || program=$build/fuzz_$name
  if [ ! -x "$program" ]; then
    echo "$program is not built: cmake --build --preset fuzz --target fuzzers" >&2
    exit 1
  fi
  # New inputs stay out of the kept corpus.
  found=$build/found/$name
  mkdir -p "$found"
  echo "== fuzz_$name for ${seconds}s"
  set +e
  "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=8192 \
    -verbosity=0 -artifact_prefix="$build/findings/$name-" "$found" "$here/corpus/$name"
  code=$?
  set -e
  if [ $code -ne 0 ]; then
    echo "fuzz_$name failed: see $build/findings" >&2
    exit 1
  fi
done
echo "no findings"
