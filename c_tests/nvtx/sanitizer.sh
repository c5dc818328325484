#!/usr/bin/env bash
# usage: sanitizer.sh PROGRAM: what compute-sanitizer says of planted writes.
set -uo pipefail
program=$1
command -v compute-sanitizer >/dev/null ||
    { echo "skipped: compute-sanitizer is not installed"; exit 77; }
export TCUDA_ALLOC_CONF=expandable_segments:False,nvtx_suballocations:True
failed=0

# check WHERE STATUS: a run that writes there must end so.
check() {
    local out status
    out=$(timeout 100 compute-sanitizer --nvtx=yes --error-exitcode=9 "$program" "$1" 2>&1)
    status=$?
    [ "$status" -ne 77 ] || { echo "$out"; exit 77; }
    if [ "$status" -ne "$2" ]; then
        printf '%s: exit status %d, not %d\n%s\n' "$1" "$status" "$2" "$out"
        failed=1
    elif [ "$2" -ne 0 ] && ! grep -q "is out of bounds" <<<"$out"; then
        printf '%s: nothing is out of bounds\n%s\n' "$1" "$out"
        failed=1
    fi
}

check inside 0
check beside 9
check past 9
check freed 9
exit "$failed"
