#!/usr/bin/env bash
# install_test.sh BUILD SOURCE COMPILER SANITIZERS: install BUILD, build the example with
# find_package(millrace) outside the tree, and compare its text with the program's.
set -euo pipefail
build=$1 source=$2 compiler=$3 sanitizers=$4

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
for file in bin/millrace include/millrace/millrace.h include/millrace/status.h; do
  [ -f "$work/prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done

# Nothing of the source tree may be needed: the example is copied, and paths into it are looked for.
if grep -rl -e "$source" -e "$build" "$work"/prefix/lib*/cmake; then
  echo "the package configuration names the source or build folder"
  exit 1
fi
cp -r "$source/examples" "$work/examples"
cmake -S "$work/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release \
  ${sanitizers:+-DCMAKE_EXE_LINKER_FLAGS=-fsanitize=$sanitizers} >"$work/configure.log"
cmake --build "$work/build" >"$work/build.log" || { cat "$work/build.log"; exit 1; }

model=$source/models/tiny-moe-4bit
prompt="def fibonacci(n):"
"$work/build/generate" "$model" "$prompt" 12 >"$work/example.txt"
"$work/prefix/bin/millrace" run "$model" --prompt "$prompt" -n 48 --quiet >"$work/program.txt"
# Both end in a newline of their own; the text before it must be the same.
if [ "$(cat "$work/example.txt")" != "$(cat "$work/program.txt")" ]; then
  echo "the example and the program give different text:"
  cat "$work/example.txt" "$work/program.txt"
  exit 1
fi
[ -n "$(cat "$work/example.txt")" ] || { echo "no text"; exit 1; }
echo "installed, built outside the tree, same text"
