#!/usr/bin/env bash
# Every check there is, in order of how soon it tells something; ends with 'N passed, N failed'.
# A stage that fails does not stop the later ones.
#   FUZZ_SECONDS=n   for each fuzz target (10; 60 in CI)
#   STAGES="a b"     only these: release lint arm64 asan tsan fuzz
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)}
stages=${STAGES:-release asan tsan fuzz lint arm64}
fuzz_seconds=${FUZZ_SECONDS:-$([ "${CI:-}" = true ] && echo 60 || echo 10)}
# Where memory errors and races can be: parsers, arenas, bridges, threads. Kernels run on every
# shape in the release stage; under a sanitizer that takes too long for what it adds.
asan_folders="base text format pack io stream"
tsan_folders="base io stream"

passed=0 failed=0
declare -a failures=()
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); failures+=("$1"); }

stage() { printf '\n==== %s (%s s so far)\n' "$1" "$SECONDS"; }
wanted() { [[ " $stages " == *" $1 "* ]]; }

# Adds up a ctest log: the cases of GoogleTest binaries one by one, any other test as one.
count_log() {
  local log=$1/Testing/Temporary/LastTest.log line
  [ -f "$log" ] || return 0
  line=$(awk '
    / Testing: / { cases = 0; bad = 0 }
    /^\[  PASSED  \] [0-9]+ test/ { passed += $4; cases = 1 }
    /^\[  FAILED  \] [0-9]+ test.*listed below/ { failed += $4; cases = 1; bad = 1 }
    /^Test Passed\./ { if (!cases) passed++ }
    /^Test Failed\./ { if (!bad) failed++ }
    END { print passed + 0, failed + 0 }' "$log")
  passed=$((passed + ${line% *}))
  failed=$((failed + ${line#* }))
}

# build_and_test PRESET [FOLDER...]: all tests, or those of some folders below tests/
build_and_test() {
  local preset=$1 folder dir=build/$1
  local -a targets=() select=()
  shift
  if [ $# -gt 0 ]; then
    local label=
    for folder in "$@"; do
      compgen -G "tests/$folder/*.cpp" >/dev/null || continue
      targets+=("test_$folder")
      label+="${label:+|}$folder"
    done
    [ ${#targets[@]} -gt 0 ] || { echo "no tests in: $*"; return; }
    targets=(--target "${targets[@]}")
    select=(-L "^($label)\$" -E '^text_rs$')
  fi
  rm -f "$dir/Testing/Temporary/LastTest.log"
  if ! cmake --preset "$preset" >"$dir.configure.log" 2>&1; then
    cat "$dir.configure.log"
    bad "$preset: configure"
  elif ! cmake --build "$dir" -j "$jobs" "${targets[@]}"; then
    bad "$preset: build"
  else
    local before=$failed
    ctest --test-dir "$dir" -j 2 --output-on-failure "${select[@]}" || failures+=("$preset: tests")
    count_log "$dir"
    # ctest can fail without a failed test (none found, a crash before any case).
    [ "${failures[*]: -1}" != "$preset: tests" ] || [ "$failed" -gt "$before" ] || failed=$((failed + 1))
  fi
}

fuzz() {
  if ! cmake --preset fuzz >build/fuzz.configure.log 2>&1; then
    cat build/fuzz.configure.log
    bad "fuzz: configure"
    return
  fi
  cmake --build build/fuzz -j "$jobs" --target fuzzers || { bad "fuzz: build"; return; }
  local target name
  for target in fuzz/fuzz_*.cpp; do
    name=$(basename "$target" .cpp)
    name=${name#fuzz_}
    if fuzz/run.sh "$fuzz_seconds" build/fuzz "$name" >"build/fuzz/$name.log" 2>&1; then
      echo "fuzz $name: ok, $fuzz_seconds s"
      ok
    else
      tail -n 40 "build/fuzz/$name.log"
      bad "fuzz: $name"
    fi
  done
}

mkdir -p build
# The exactness test also runs on a real model; without a network it is skipped.
tools/fetch_model.sh build/models >/dev/null || true
if wanted release; then stage "release build, all tests"; build_and_test release; fi
if wanted lint; then
  stage "lint"
  if tools/lint.sh; then ok; else bad "lint"; fi
fi
# Kernels for arm64 on an emulated processor: every format, operation and instruction set, fewer shapes.
if wanted arm64; then
  stage "arm64 kernels under an emulator"
  if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
    build_and_test arm64 kernels
  else
    echo "left out: no cross compiler or no qemu-aarch64 (tools/setup.sh arm64 installs them)"
  fi
fi
# shellcheck disable=SC2086  # lists of words
if wanted asan; then stage "address and undefined-behaviour sanitizers"; build_and_test asan $asan_folders; fi
# shellcheck disable=SC2086
if wanted tsan; then stage "thread sanitizer"; build_and_test tsan $tsan_folders; fi
if wanted fuzz && [ -f fuzz/CMakeLists.txt ]; then stage "fuzzers"; fuzz; fi

stage "result"
[ ${#failures[@]} = 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
