#!/usr/bin/env bash
# Everything that CI checks. Every step runs, also after a failure; the summary is at the end.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"

summary=()
failures=0

# step NAME COMMAND...: runs it and notes how it went.
step() {
    local name=$1 start=$SECONDS
    shift
    printf '\n==== %s: %s\n' "$name" "$*"
    if "$@"; then
        summary+=("passed   $name ($((SECONDS - start)) s)")
    else
        summary+=("FAILED   $name ($((SECONDS - start)) s)")
        failures=$((failures + 1))
    fi
}

told() { "$@" 2>&1 | tee target/step.log; }

# checked NAME SCRIPT...: a step whose script may say "skipped: " and why.
checked() {
    mkdir -p target
    step "$1" told "${@:2}"
    if [[ ${summary[-1]} == passed* ]] && grep -q '^skipped: ' target/step.log; then
        summary[-1]="skipped  $1: $(sed -n 's/^skipped: //p' target/step.log | head -1)"
    fi
}

skip() { summary+=("skipped  $1: $2"); }

# suite PRESET [option...]: builds and runs the C and C++ tests, both linkages.
suite() {
    # A leak checker that could not stop a running thread says itself that its leaks may be false.
    local again=1
    [ "$1" != asan ] || again=2
    configure_and_build "$@" &&
        "$ctest" --preset "$1" --parallel "$(jobs)" --repeat "until-pass:$again"
}

if cargo fmt --version >/dev/null 2>&1; then
    step "format" cargo fmt --check
else
    skip "format" "rustfmt is not installed"
fi
checked "clippy" scripts/ci/lint.sh
checked "licences, versions and sources of crates" scripts/ci/deny.sh
checked "the ABI of the last release" scripts/ci/abi.sh
# The model runs the same programs each time here, and others each time in the gauntlet.
step "Rust tests" env TCUDA_MODEL_SEED=1 cargo test --locked --no-fail-fast
# A directory for what has the feature host_faults: libraries have the same names with and without it.
step "fault loop, a share" env CARGO_TARGET_DIR=target/faults \
    cargo test --locked --features host_faults --test faults
step "fuzz targets on their corpora" env CARGO_TARGET_DIR="$root/target/faults" \
    cargo test --locked --manifest-path fuzz/Cargo.toml
step "models of the lock-free pieces" scripts/ci/models.sh
step "C tests, debug" suite dev
step "fault loop over the C programs, a share" python3 scripts/ci/fault_loop.py build/dev/c_tests
step "C tests under ASan and UBSan" suite asan
checked "C tests under valgrind" scripts/ci/valgrind.sh --share
step "C tests, release; installed and consumed" suite release
if [ -e target/c10/torch/lib/libc10_cuda.so ]; then
    step "differential against PyTorch's allocator, a share" scripts/ci/differential.sh
    step "differential, when memory is short" scripts/ci/differential.sh --tight
    step "differential, every statistic of segments" scripts/ci/differential.sh --segments
else
    skip "differential against PyTorch's allocator" \
        "it is not in target/c10: scripts/ci/differential.sh --fetch gets it (530 MB)"
fi
step "exports of the release library" env TCUDA_TEST_LIBRARY=build/release/lib/libtcuda.so \
    cargo test --locked --test exports

printf '\n==== Summary (%d s)\n' "$SECONDS"
printf '%s\n' "${summary[@]}"
[ "$failures" -eq 0 ] || { echo "$failures step(s) failed"; exit 1; }
