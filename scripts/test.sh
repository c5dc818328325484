#!/usr/bin/env bash
# Everything that CI checks. Every step runs, also after a failure; the summary is at the end.
set -euo pipefail
source "$(dirname "$0")/tools.sh"

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

skip() { summary+=("skipped  $1: $2"); }

# suite PRESET [option...]: builds and runs the C and C++ tests, both linkages.
suite() {
    configure_and_build "$@" && "$ctest" --preset "$1" --parallel "$(jobs)"
}

# valgrind cannot reserve as much as a large device; uninitialised reads and leaks end a test.
under_valgrind() {
    local name
    for name in "$@"; do
        echo "valgrind $name"
        TCUDA_BACKEND=sim TCUDA_SIM=memory=256MiB valgrind --quiet --error-exitcode=9 \
            --leak-check=full --errors-for-leak-kinds=definite "build/dev/c_tests/${name}_shared" ||
            return 1
    done
}

# Those of the named tests that exist.
existing_tests() {
    local name
    for name in "$@"; do
        [ ! -f "c_tests/$name.c" ] || echo "$name"
    done
}

# A file is one room. What is generated, or not ours, has no limit.
files_are_short() {
    local file lines long=0
    while read -r file; do
        lines=$(wc -l <"$file")
        [ "$lines" -le 500 ] || { echo "$file has $lines lines: look for a second noun"; long=1; }
    done < <(git ls-files --cached --others --exclude-standard -- \
        '*.rs' '*.c' '*.cc' '*.h' '*.hpp' '*.py' '*.sh' '*.cu' '*.cmake' ':!include/tcuda.h')
    return $long
}

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    step "files of at most 500 lines" files_are_short
fi
if cargo fmt --version >/dev/null 2>&1; then
    step "format" cargo fmt --check
else
    skip "format" "rustfmt is not installed"
fi
if cargo clippy --version >/dev/null 2>&1; then
    step "clippy" cargo clippy --locked --all-targets -- -D warnings
else
    skip "clippy" "it is not installed"
fi
step "Rust tests" cargo test --locked --no-fail-fast
# Its own directory: with the feature on, everything would be built twice in the common one.
step "fault loop, a share" env CARGO_TARGET_DIR=target/faults \
    cargo test --locked --features host_faults --test faults
step "fuzz targets on their corpora" cargo test --locked --manifest-path fuzz/Cargo.toml
step "models of the lock-free pieces" scripts/models.sh
step "C tests, debug" suite dev
step "fault loop over the C tests, a share" python3 scripts/fault_loop.py build/dev/c_tests --seconds 40
step "C tests under ASan and UBSan" suite asan
if command -v valgrind >/dev/null; then
    # shellcheck disable=SC2046 # names without blanks
    step "C tests under valgrind" under_valgrind $(existing_tests library stream event copy memory snapshot)
else
    skip "C tests under valgrind" "it is not installed"
fi
step "C tests, release; installed and consumed" suite release
step "exports of the release library" env TCUDA_TEST_LIBRARY=build/release/lib/libtcuda.so \
    cargo test --locked --test exports

printf '\n==== Summary (%d s)\n' "$SECONDS"
printf '%s\n' "${summary[@]}"
[ "$failures" -eq 0 ] || { echo "$failures step(s) failed"; exit 1; }
