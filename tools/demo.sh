#!/usr/bin/env bash
# From nothing to generated text: install, build, fetch a model, pack it, run it under a budget that
# is smaller than its weights.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*" >&2; }

step "1/5  what building needs"
tools/setup.sh build

step "2/5  build (the first time takes some minutes)"
cmake --preset release >/dev/null
cmake --build build/release --target millrace_cli
millrace=build/release/millrace

step "3/5  a model"
model=$(tools/fetch_model.sh build/models)
printf 'using %s\n' "$model" >&2

step "4/5  pack it"
packed=build/models/$(basename "$model" .gguf).packed
[ -d "$packed" ] || "$millrace" pack "$model" "$packed"

# Between the least that runs and all of it, well below the weights.
budget=$("$millrace" plan "$packed" --no-probe --json | python3 -c '
import json, sys
plan = json.load(sys.stdin)
print(max(plan["smallest_budget"], plan["total_bytes"] * 6 // 10))')

step "5/5  run it with $((budget >> 20)) MiB for its weights"
"$millrace" plan "$packed" --budget "$budget"
case $model in
  *.gguf) prompt=(--chat --prompt "What is a millrace? Answer in two sentences.") ;;
  *) prompt=(--prompt "def fibonacci(n):") ;;  # the bundled model knows Python, not chat
esac
"$millrace" run "$packed" --budget "$budget" "${prompt[@]}" -n 80 --metrics

cat >&2 <<END

Try next:
  $millrace run $packed --chat
  $millrace doctor
  $millrace --help
END
