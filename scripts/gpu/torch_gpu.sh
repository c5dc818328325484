#!/usr/bin/env bash
# usage: torch_gpu.sh LIBDIR TRACES OUT: everything that needs PyTorch and a GPU: about 4 minutes.
#
# LIBDIR has a release build of libtcuda.so, TRACES the files of data/traces, OUT gets what the
# parts write. A part that fails, or that cannot run here, leaves the others alone; a table comes
# last.
set -uo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage="usage: torch_gpu.sh LIBDIR TRACES OUT"
library=${1:?$usage} traces=${2:?$usage} out=${3:?$usage}
mkdir -p "$out"
rows=()

part() {
    local name=$1 limit=$2 start=$SECONDS status
    shift 2
    echo "=== $name"
    timeout "$limit" "$@" 2>&1 | tee "$out/${name// /_}.txt"
    status=${PIPESTATUS[0]}
    case $status in
    0) status=passed ;;
    77) status=skipped ;;
    124) status="FAILED (not over after $limit s)" ;;
    *) status="FAILED ($status)" ;;
    esac
    rows+=("$(printf '%-24s %5d s  %s' "$name" $((SECONDS - start)) "$status")")
}

part "PyTorch on tcuda" 110 python3 "$scripts/torch_check.py" "$library" "$out/torch"
part "differential" 140 "$scripts/differential_gpu.sh" "$library" "$traces" "$out/differential"

echo "=== summary"
printf '%s\n' "${rows[@]}"
! printf '%s\n' "${rows[@]}" | grep -q FAILED
