#!/usr/bin/env bash
# usage: rust_faults.sh: the whole fault loop of tests/faults, a process for each scenario, as many
# at a time as there are cores. The logs are in target/faults/loop; the last line adds them up.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
get_nvrtc

export CARGO_TARGET_DIR=target/faults
logs=target/faults/loop
rm -rf "$logs"
mkdir -p "$logs"
# What cargo says last is the program that it built.
program=$(cargo test --locked --features host_faults --test faults --no-run 2>&1 |
    sed -n 's/.*Executable .*(\(.*\))/\1/p')
[ -x "$program" ] || { echo "tests/faults was not built"; exit 1; }

status=0
"$program" --scenarios | xargs -P "$(jobs)" -I{} \
    sh -c '"$1" "$2" >"$3/$2.log" 2>&1 || { echo "FAILED $2"; exit 1; }' _ "$program" {} "$logs" ||
    status=1
# A process that crashed has no last line.
sed -n '/^FAILED\|^signal\|^hangs\|^    [^ ]/p' "$logs"/*.log | head -60
awk -v status="$status" '
    /injections in/ { injections += $1; runs += $4; failed += $(NF - 1); loops++ }
    END {
        printf "%d injections in %d runs of %d scenarios, %d failed\n",
            injections, runs, loops, failed
    }' "$logs"/*.log
exit "$status"
