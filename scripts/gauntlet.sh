#!/usr/bin/env bash
# usage: gauntlet.sh [--only NAME]: every check in full. A failure does not stop it; how each step went
# and how long it took is in build/gauntlet/summary.txt and summary.json.
set -euo pipefail
source "$(dirname "$0")/tools.sh"

only=
if [ "${1:-}" = --only ]; then
    only=${2:?--only needs the name of a step}
fi
out=build/gauntlet
mkdir -p "$out"
text=() json=() failures=0

note() {
    text+=("$(printf '%-8s %-14s %5d s  %s' "$2" "$1" "$3" "$4")")
    json+=("{\"step\": \"$1\", \"outcome\": \"$2\", \"seconds\": $3, \"figures\": \"$4\"}")
}

# step NAME COMMAND...: runs it; its output goes to build/gauntlet/NAME.log.
step() {
    local name=$1 start=$SECONDS outcome=passed figures
    shift
    [ -z "$only" ] || [ "$only" = "$name" ] || return 0
    echo "==== $name: $*"
    if ! "$@" >"$out/$name.log" 2>&1; then
        outcome=FAILED
        failures=$((failures + 1))
        tail -20 "$out/$name.log"
    fi
    # What cargo and ctest count, added up.
    figures=$(awk '/^test result:/ { passed += $4; failed += $6 }
        /tests passed,|tests failed out of/ { ctest = $0 }
        /injections in/ { injections = $0 }
        END { if (injections) { printf "%s", injections; exit }
              if (passed + failed) printf "%d passed, %d failed", passed, failed
              else if (ctest) printf "%s", ctest }' "$out/$name.log")
    note "$name" "$outcome" $((SECONDS - start)) "$figures"
    echo "$outcome"
}

suite() { configure_and_build "$1" && "$ctest" --preset "$1" --parallel "$(jobs)"; }

# Leaks of host memory on the way of each fault: the leak checker looks at every process.
sanitized_faults() {
    TCUDA_TEST_PRELOAD=$(gcc -print-file-name=libasan.so) \
        LSAN_OPTIONS=suppressions=c_tests/lsan.supp:print_suppressions=0 \
        python3 scripts/fault_loop.py "$PWD/build/asan/c_tests" --seconds 240 --kinds '*@{}' --no-libc
}

step tests cargo test --locked --no-fail-fast
step models scripts/models.sh
step rust-faults scripts/rust_faults.sh
step rust-asan scripts/sanitize_rust.sh
step c-debug suite dev
step c-asan suite asan
step c-release suite release
step c-faults python3 scripts/fault_loop.py build/dev/c_tests --all --seconds 480 \
    --json target/c_faults.json
step c-faults-asan sanitized_faults
if [ -f scripts/races.py ]; then
    step races python3 scripts/races.py build/release/c_tests --racy 1000 --twin 10000 \
        --workload 1000 --json target/races.json
fi

printf '%s\n' "${text[@]}" | tee "$out/summary.txt"
(IFS=,; printf '[%s]\n' "${json[*]}") >"$out/summary.json"
[ "$failures" -eq 0 ] || { echo "$failures step(s) failed"; exit 1; }
