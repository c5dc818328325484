#!/usr/bin/env bash
# usage: properties.sh [SECONDS] [FILTER...]: the property tests of memory again and again, on new
# random programs each time, for 300 seconds; optimised, with every assertion. A program that fails
# is made smaller and printed.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"

seconds=300
[[ ${1:-} =~ ^[0-9]+$ ]] && { seconds=$1; shift; }
filters=("$@")
[ ${#filters[@]} -gt 0 ] ||
    filters=(memory::tests::{direct,exported,extent,guarantee,model,pinned_model}
        memory::tests::{scopes,segments,settings,starts})

export CARGO_TARGET_DIR=$root/target/properties CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
# Cargo says which program it built.
program=$(cargo test --locked --release -p tcuda --lib --no-run 2>&1 |
    sed -n 's/.*Executable .*(\(.*\))/\1/p')
[ -x "$program" ] || { echo "the tests were not built"; exit 1; }

logs=$CARGO_TARGET_DIR/logs
rm -rf "$logs" && mkdir -p "$logs"
# The machine is one for a process, so that its tests run one after the other: a process for each
# core.
worker() {
    local rounds=0 end=$((SECONDS + seconds))
    while [ $SECONDS -lt $end ] && [ ! -e "$logs/failed" ]; do
        "$program" --test-threads 1 "${filters[@]}" >"$logs/$1" 2>&1 ||
            { cp "$logs/$1" "$logs/failed"; break; }
        rounds=$((rounds + 1))
    done
    echo "$rounds" >"$logs/rounds.$1"
}
for ((core = 0; core < $(jobs); core++)); do worker "$core" & done
wait
[ ! -e "$logs/failed" ] || { grep -v ' \.\.\. ok$' "$logs/failed" | head -200; exit 1; }
echo "figure: rounds = $(($(cat "$logs"/rounds.* | paste -sd+)))"
echo "figure: tests of a round = $(grep -c ' \.\.\. ok$' "$logs/0")"
