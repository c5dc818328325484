#!/usr/bin/env bash
# usage: branches.sh [--report]: which branches the Rust and the C tests take, file by file, with a
# floor for the core. --report: only counts anew what the last run left. Reports: build/coverage.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
get_nvrtc

host=$(rustc -vV | sed -n 's/^host: //p')
llvm=$(rustc --print sysroot)/lib/rustlib/$host/bin
if [ ! -x "$llvm/llvm-cov" ]; then
    # Of rustc's own version: no other reads its files.
    rustup component add llvm-tools >/dev/null 2>&1 ||
        { echo "skipped: llvm-tools is not installed (rustup component add llvm-tools)"; exit 0; }
fi

out=$root/build/coverage
export CARGO_TARGET_DIR=$root/target/coverage
# Branches are behind a switch of the stable compiler; a target leaves build scripts as they are.
export RUSTC_BOOTSTRAP=1 CARGO_BUILD_TARGET=$host
export RUSTFLAGS="-Cinstrument-coverage -Zcoverage-options=branch"
# Processes add up in a few files for each binary.
export LLVM_PROFILE_FILE=$out/raw/%4m.profraw

failed=0
# run NAME COMMAND...: a test that fails is reported, and its share counts all the same.
run() {
    local name=$1 start=$SECONDS
    shift
    if "$@" >"$out/$name.log" 2>&1; then
        echo "ran $name ($((SECONDS - start)) s)"
    else
        echo "FAILED $name ($((SECONDS - start)) s): see $out/$name.log"
        tail -15 "$out/$name.log"
        failed=1
    fi
}

c_tests() {
    "$cmake" -S . -B "$out/c" -DCMAKE_BUILD_TYPE=Debug -DTCUDA_INSTALL=OFF -DTCUDA_RACE_SEEDS=0 \
        -DTCUDA_CARGO_TARGET_DIR="$CARGO_TARGET_DIR" \
        -DTCUDA_CARGO_OUTPUT="$CARGO_TARGET_DIR/$host/debug" &&
        "$cmake" --build "$out/c" --parallel "$(jobs)" &&
        "$ctest" --test-dir "$out/c" --output-on-failure --parallel "$(jobs)" \
            --exclude-regex 'adversarial_[1-9]|header_|readme|shrink'
}

if [ "${1:-}" != --report ]; then
    rm -rf "$out/raw"
    mkdir -p "$out/raw"
    # Counting is slow: a few programs of the model are enough to take its branches.
    run rust env PROPTEST_CASES=40 cargo test --workspace --locked --no-fail-fast
    run faults env CARGO_TARGET_DIR="$CARGO_TARGET_DIR-faults" \
        cargo test --locked --features host_faults --test faults
    run c c_tests
fi

# Every binary that wrote a profile: cargo's test programs, and the library in both forms.
programs() {
    cargo test --locked --no-run --quiet --message-format=json "$@" 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}
# Without them the figures would be of nothing.
binaries=$(programs --workspace &&
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR-faults programs --features host_faults --test faults &&
    echo "$out/c/lib/libtcuda.so" && echo "$out/c/c_tests/library_static") ||
    { echo "FAILED report: cargo test --no-run does not build the tests"; exit 1; }
objects=()
while read -r binary; do
    objects+=(-object "$binary")
done <<<"$binaries"
"$llvm/llvm-profdata" merge -sparse "$out"/raw/*.profraw -o "$out/tests.profdata"
"$llvm/llvm-cov" export -instr-profile "$out/tests.profdata" "${objects[@]}" -skip-expansions \
    -sources "$root/src" "$root/sim/src" >"$out/export.json" 2>"$out/export.log" ||
    { echo "FAILED report: see $out/export.log"; tail -5 "$out/export.log"; exit 1; }
python3 scripts/ci/branches.py "$out/export.json" "$root" --branches 87 --json "$out/summary.json"
exit $failed
