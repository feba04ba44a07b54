#!/usr/bin/env bash
# Runs a model for a while under memory ceilings that move, each inside a memory cgroup of the size of the ceiling where
# one may be made (v1 or v2; as root, or in a delegated group), else watched by the process's own peak alone.
#
#   tools/soak.sh MODEL MINUTES [CEILING...]        MINUTES for each ceiling; ceilings: 1G 2G 4G 8G
#
# Fails when an answer changed, when a ceiling was passed, when anything was killed, or when two ceilings disagree.
set -euo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
model=$1 minutes=$2
shift 2
ceilings=("$@")
[ $# -gt 0 ] || ceilings=(1G 2G 4G 8G)
millrace=${MILLRACE:-$(dirname "$0")/../build/release/millrace}
work=$(mktemp -d)
group=
trap 'rm -rf "$work"; [ -z "$group" ] || rmdir "$group" 2>/dev/null || true' EXIT

# Makes a cgroup with the limit; its folder, or nothing.
make_group() {
  local name=millrace-soak-$$ bytes=$1 base file
  for base in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    file=memory.max
    [ "$base" = /sys/fs/cgroup/memory ] && file=memory.limit_in_bytes
    mkdir "$base/$name" 2>/dev/null || continue
    if [ -w "$base/$name/$file" ] && echo "$bytes" > "$base/$name/$file" 2>/dev/null; then
      [ "$file" = memory.limit_in_bytes ] || echo 0 > "$base/$name/memory.swap.max" 2>/dev/null || true
      echo "$base/$name"
      return
    fi
    rmdir "$base/$name"
  done
}

failed=0
digests=
printf '%-8s %-6s %10s %10s %10s %8s %8s %9s %9s %s\n' ceiling ok VmHWM cgroup over answers changes longest tokens digest
for ceiling in "${ceilings[@]}"; do
  bytes=$(numfmt --from=iec "$ceiling")
  group=$(make_group "$bytes" || true)
  code=0
  (
    [ -z "$group" ] || echo "$BASHPID" > "$group/cgroup.procs"
    exec "$millrace" soak "$model" --memory "$ceiling" --minutes "$minutes" --json ${SOAK_FLAGS:-}
  ) > "$work/out.json" || code=$?
  if [ -n "$group" ]; then
    rmdir "$group" 2>/dev/null || true
    group=
  fi
  if [ ! -s "$work/out.json" ]; then
    printf '%-8s died with exit code %s\n' "$ceiling" "$code"
    failed=1
    continue
  fi
  [ "$code" = 0 ] || failed=1
  python3 - "$ceiling" "$work/out.json" <<'PY'
import json, sys
r = json.load(open(sys.argv[2]))
mib = lambda b: f"{b / 2**20:.1f}M"
peak = mib(r["cgroup"]["peak"]) if r["cgroup"] else "none"
print(f"{sys.argv[1]:<8} {'yes' if r['ok'] else 'NO':<6} {mib(r['peak_rss']):>10} {peak:>10} {mib(r['over']):>10} "
      f"{r['answers']:>8} {r['changes']:>8} {r['longest_change_s'] * 1e3:>7.0f}ms {r['tokens']:>9} {r['answers_digest']}")
PY
  digests+=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["answers_digest"])' "$work/out.json")$'\n'
done
if [ "$(printf '%s' "$digests" | sort -u | wc -l)" -gt 1 ]; then
  echo "the ceilings do not give the same answers" >&2
  failed=1
fi
exit $failed
