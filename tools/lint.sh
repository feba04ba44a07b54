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

# Architectures are data: a family is a page, and nothing outside src/model/families knows one by its
# name (src/text has the names of tokenizers, some of which are the same).
families=src/model/families
mapfile -t pages < <(git ls-files "$families/*.cpp" |
  grep -v -E '/(family|families|samples|latent|mamba2)\.cpp$')
mean=$(($(cat "${pages[@]}" | wc -l) / ${#pages[@]}))
[ "$mean" -lt 60 ] || { echo "lint: a file of $families has $mean lines on average (under 60)" >&2; failed=1; }
names=$(sed 's://.*::' "$families/families.cpp" | grep -o '"[a-z][a-z0-9_-]*"' | sort -u)
for file in "${sources[@]}"; do
  case $file in src/text/* | $families/* | tests/* | bench/* | fuzz/* | examples/*) continue ;; esac
  if found=$(sed 's://.*::' "$file" | grep -n -F "$names"); then
    echo "lint: $file names a family: $found" >&2
    failed=1
  fi
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
