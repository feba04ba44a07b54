#!/usr/bin/env bash
# Formatting and length of every C++ file, and clang-tidy on a bounded set of folders.
#   tools/lint.sh [--fix]
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(git ls-files 'src/*.h' 'src/*.cpp' 'include/*.h' 'tests/*.cpp' 'tests/*.h' \
  'bench/*.cpp' 'bench/*.h' 'fuzz/*.cpp' 'fuzz/*.h' 'examples/*.cpp')
if [ "${1:-}" = --fix ]; then
  clang-format -i "${sources[@]}"
  exit
fi

failed=0
clang-format --dry-run -Werror "${sources[@]}" || { echo "lint: run 'make format'" >&2; failed=1; }

for script in tools/*.sh tests/*/*.sh .ci/run; do
  [ ! -f "$script" ] || bash -n "$script" || failed=1
done

# A file has one idea; past this length it has two.
for file in "${sources[@]}"; do
  lines=$(wc -l <"$file")
  [ "$lines" -le 600 ] || { echo "lint: $file has $lines lines (600 at most)" >&2; failed=1; }
done

# The folders below the parsers and kernels; TIDY_ALL=1 takes the others too, which takes long.
tidy_files() {
  printf '%s\n' src/base/*.cpp src/decode/*.cpp src/api/*.cpp src/stream/*.cpp
  [ -z "${TIDY_ALL:-}" ] || printf '%s\n' src/cli/*.cpp src/format/*.cpp src/model/*.cpp
}
if [ -f build/release/compile_commands.json ]; then
  mapfile -t tidy < <(tidy_files | while read -r file; do [ ! -f "$file" ] || echo "$file"; done)
  echo "lint: clang-tidy on ${#tidy[@]} files" >&2
  printf '%s\0' "${tidy[@]}" |
    xargs -0 -r -n 1 -P "$(nproc)" clang-tidy --quiet -p build/release || failed=1
else
  echo "lint: build/release is not configured, clang-tidy is left out" >&2
fi
exit $failed
