#!/usr/bin/env bash
# The first floor of tests: all that guards behaviour, once. check.sh has the rest; docs/testing.md
# says which is where.
set -euo pipefail
source "$(dirname "$0")/steps.sh"

# The C and C++ programs with the shared library, and the Python package, on the default simulated
# machine.
programs() {
    "$cmake" --preset dev -DTCUDA_CARGO_TARGET_DIR="$CARGO_TARGET_DIR" &&
        "$cmake" --build --preset dev --parallel "$(jobs)" --target shared_tests &&
        "$ctest" --preset dev --parallel "$(jobs)" --tests-regex '_shared$|^python$'
}

if cargo fmt --version >/dev/null 2>&1; then
    step "format" cargo fmt --all --check
else
    skip "format" "rustfmt is not installed"
fi
step "widths of lines, and words" python3 scripts/ci/style.py
checked "clippy" scripts/ci/lint.sh --library
# The model runs the same programs each time here, and others each time in the gauntlet.
step "Rust tests" env TCUDA_MODEL_SEED=1 cargo test --workspace --locked --no-fail-fast
step "C tests" programs
step "fault loop, 40 s" python3 scripts/ci/fault_loop.py build/dev/c_tests --seconds 40
finish
