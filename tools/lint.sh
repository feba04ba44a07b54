#!/usr/bin/env bash
# Formatting of every C++ file, and clang-tidy on a bounded set: the files that differ from the main
# branch, or a sample of the tree (TIDY_ALL=1 takes everything; that takes long).
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

tidy_files() {
  local all=(src/cli/*.cpp src/base/*.cpp src/format/*.cpp src/stream/*.cpp src/decode/*.cpp src/model/*.cpp)
  if [ -n "${TIDY_ALL:-}" ]; then
    printf '%s\n' "${all[@]}"
  else
    # A different twelfth of the tree each day, so that all of it passes by within two weeks.
    printf '%s\n' "${all[@]}" | awk -v day="$(($(date +%s) / 86400))" 'NR % 12 == day % 12'
  fi
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
