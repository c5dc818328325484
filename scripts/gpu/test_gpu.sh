#!/usr/bin/env bash
# The tests in C and Python on a real GPU: the same as on the simulated machine, one at a time.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
"$cmake" --preset release -B build/gpu -DTCUDA_CARGO_TARGET_DIR="$CARGO_TARGET_DIR" \
    -DTCUDA_TEST_BACKEND=cuda
"$cmake" --build build/gpu --parallel "$(jobs)"
"$ctest" --test-dir build/gpu --label-regex gpu --output-on-failure
