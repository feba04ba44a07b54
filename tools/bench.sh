#!/usr/bin/env bash
# What this machine does: its roofs, the kernels against them, and tokens per second of the bundled
# model from full residency down to the smallest budget.
set -euo pipefail
cd "$(dirname "$0")/.."

millrace=build/release/millrace
model=${1:-models/tiny-moe-4bit}

"$millrace" doctor
for bench in build/release/bench/bench_*; do
  [ -f "$bench" ] && [ -x "$bench" ] || continue
  printf '\n== %s\n' "$(basename "$bench")"
  "$bench" --benchmark_min_time=0.2
done

printf '\n== %s, tokens per second by budget\n' "$model"
python3 - "$millrace" "$model" <<'PY'
import json, statistics, subprocess, sys
millrace, model = sys.argv[1:]

def call(*arguments):
    return json.loads(subprocess.run([millrace, "-q", *arguments], check=True, capture_output=True).stdout)

plan = call("plan", model, "--no-probe", "--json")
total, least = plan["total_bytes"], plan["smallest_budget"]
print(f"{'budget':>10} {'prefill':>10} {'decode':>18} {'hit rate':>9} {'read/token':>11}")
for share in (1.0, 0.7, 0.5, 0.0):
    budget = max(int(total * share), least)
    runs = [call("run", model, "--prompt", "def quicksort(items):", "-n", "96", "--ignore-eos",
                 "--budget", str(budget), "--json") for _ in range(5)]
    tps = sorted(r["timings"]["decode_tps"] for r in runs)
    middle = min(runs, key=lambda r: abs(r["timings"]["decode_tps"] - statistics.median(tps)))
    assert all(r["token_ids"] == runs[0]["token_ids"] for r in runs)
    print(f"{budget / 2**20:7.1f} MB {middle['timings']['prefill_tps']:8.1f} /s "
          f"{statistics.median(tps):7.1f} ({tps[0]:.1f}-{tps[-1]:.1f}) "
          f"{middle['io']['hit_rate']:9.3f} {middle['io']['bytes_per_token'] / 2**20:8.2f} MB")
PY
