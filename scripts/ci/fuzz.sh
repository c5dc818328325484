#!/usr/bin/env bash
# Fuzzes with libFuzzer and AddressSanitizer: scripts/ci/fuzz.sh [SECONDS] [TARGET...], 60 seconds
# each. New inputs go to target/fuzz/corpus; what crashes to fuzz/artifacts, with the command that
# repeats it. scripts/ci/fuzz.sh --minimise [TARGET...] makes fuzz/corpus of them: the fewest that
# reach every edge.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
get_nvrtc

seconds=60 minimise=no
[ "${1:-}" = --minimise ] && { minimise=yes; shift; }
[[ ${1:-} =~ ^[0-9]+$ ]] && { seconds=$1; shift; }
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for file in fuzz/targets/*.rs; do
        targets+=("$(basename "$file" .rs)")
    done
fi

command -v "${CXX:-c++}" >/dev/null || { echo "skipped: a C++ compiler is not installed"; exit 0; }
cargo fetch --locked --manifest-path fuzz/Cargo.toml >/dev/null 2>&1 ||
    { echo "skipped: the crates of fuzz/ cannot be fetched"; exit 0; }

host=x86_64-unknown-linux-gnu
[ "$(rustc -vV | sed -n 's/^host: //p')" = $host ] || { echo "skipped: this is not $host"; exit 0; }
# cargo-fuzz's flags; stable Rust takes the sanitizer with RUSTC_BOOTSTRAP.
flags="--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Ccodegen-units=1"
for flag in -level=4 -inline-8bit-counters -pc-table -trace-compares; do
    flags+=" -Cllvm-args=-sanitizer-coverage$flag"
done
work=$root/target/fuzz
RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$work RUSTFLAGS=$flags cargo build --locked --quiet --release \
    --manifest-path fuzz/Cargo.toml --features libfuzzer --bins --target $host

cargo build --locked --quiet --release --package tcuda_sim_library
export TCUDA_SIM_PATH=${CARGO_TARGET_DIR:-$root/target}/release/libtcuda_sim.so

# figure NAME LOG: the last number behind a word of libFuzzer's status lines.
figure() { grep -o "$1: [0-9]*" "$2" | tail -1 | sed 's/.*: //'; }

# Seldom worth its price here: what is returned from a stack is no memory of the library.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=0}

# minimise_corpus TARGET: edges alone decide, not how often they were taken.
minimise_corpus() {
    local target=$1 binary=$work/$host/release/$1 kept log=$work/$1.minimise.log
    kept=$(mktemp -d "$work/minimised.XXXXXX")
    mkdir -p "$work/corpus/$target" "fuzz/corpus/$target"
    "$binary" -set_cover_merge=1 -use_counters=0 -max_len=2048 -timeout=20 -rss_limit_mb=3072 \
        "$kept" "$work/corpus/$target" "fuzz/corpus/$target" >"$log" 2>&1 ||
        { tail -20 "$log"; return 1; }
    rm -rf "fuzz/corpus/$target"
    mv "$kept" "fuzz/corpus/$target"
    chmod 755 "fuzz/corpus/$target"
    "$binary" -use_counters=0 -runs=0 "fuzz/corpus/$target" >"$log" 2>&1
    echo "$target: $(find "fuzz/corpus/$target" -type f | wc -l) inputs of" \
        "$(cat "fuzz/corpus/$target"/* | wc -c) bytes, $(figure cov "$log") edges"
}

if [ "$minimise" = yes ]; then
    for target in "${targets[@]}"; do
        minimise_corpus "$target"
    done
    exit 0
fi

failures=0
mkdir -p fuzz/artifacts
for target in "${targets[@]}"; do
    binary=$work/$host/release/$target
    log=$work/$target.log
    grown=$work/corpus/$target
    mkdir -p "$grown" "fuzz/corpus/$target" "fuzz/regressions/$target"
    # Everything that an input may print is in the log.
    if "$binary" "$grown" "fuzz/corpus/$target" "fuzz/regressions/$target" \
        -max_total_time="$seconds" -max_len=2048 -len_control=0 -entropic=0 -timeout=20 \
        -rss_limit_mb=3072 -print_final_stats=1 \
        -artifact_prefix="$root/fuzz/artifacts/$target-" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
        echo "$target: $runs runs, $speed/s, $(figure cov "$log") edges," \
            "$(figure ft "$log") features"
    else
        failures=$((failures + 1))
        found=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
        grep -E -m 3 'panicked at|ERROR: |SUMMARY: ' -A 2 "$log" || tail -20 "$log"
        echo "$target: FAILED; again: $binary $found (calls: TCUDA_FUZZ_TRACE=1; log: $log)"
    fi
done
[ "$failures" -eq 0 ] || { echo "$failures target(s) failed"; exit 1; }
