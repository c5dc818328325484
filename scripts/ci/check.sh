#!/usr/bin/env bash
# The second floor of tests: what test.sh leaves out and needs no hours. docs/testing.md says which
# is where.
set -euo pipefail
source "$(dirname "$0")/steps.sh"

# suite PRESET [option of ctest...]: builds and runs the C and C++ tests, both linkages.
suite() {
    local preset=$1
    shift
    # Twice: on a busy machine a time limit may run out (a fork waits a second for other threads),
    # and a leak checker that could not stop a running thread reports false leaks. The gauntlet
    # repeats nothing.
    configure_and_build "$preset" &&
        "$ctest" --preset "$preset" --parallel "$(jobs)" --repeat until-pass:2 "$@"
}

checked "clippy, every crate and feature" scripts/ci/lint.sh
checked "licences, versions and sources of crates" scripts/ci/deny.sh
checked "types of the Python package" scripts/ci/types.sh
checked "the ABI of the last release" scripts/ci/abi.sh
step "documentation site" scripts/tools/docs.sh
# A directory for what has the feature host_faults: libraries have the same names with and without
# it.
step "fault loop, a share" env CARGO_TARGET_DIR=target/faults \
    cargo test --locked --features host_faults --test faults
step "fuzz targets on their corpora" env CARGO_TARGET_DIR="$root/target/faults" \
    cargo test --locked --manifest-path fuzz/Cargo.toml
step "models of the lock-free pieces" scripts/ci/models.sh
step "C tests, static library and other machines" suite dev --exclude-regex '_shared$'
step "fault loop over the C programs, a share" python3 scripts/ci/fault_loop.py build/dev/c_tests \
    --seconds 300
# The static library's turn is above, and in the gauntlet.
step "C tests under ASan and UBSan" suite asan --exclude-regex '_static$'
checked "C tests under valgrind" scripts/ci/valgrind.sh --share
step "C tests, release; installed and consumed" suite release --exclude-regex '_static$'
if [ -n "${TCUDA_NVRTC_PATH:-}" ]; then
    step "300 generated CUDA programs" python3 scripts/ci/generated_programs.py \
        build/release/lib/libtcuda.so
    step "300 generated CUDA programs, fused" python3 scripts/ci/generated_programs.py \
        build/release/lib/libtcuda.so --unmodified
else
    skip "300 generated CUDA programs" "there is no NVRTC"
fi
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
finish
