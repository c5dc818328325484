# Sourced by test.sh and check.sh: steps that all run, also after a failure, and a summary at the
# end.
source "$(dirname "${BASH_SOURCE[0]}")/../tools/tools.sh"
get_nvrtc

summary=()
failures=0

# step NAME COMMAND...: runs it and records the result.
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

logged() { "$@" 2>&1 | tee target/step.log; }

# checked NAME SCRIPT...: a step whose script may print "skipped: " and the reason.
checked() {
    mkdir -p target
    step "$1" logged "${@:2}"
    if [[ ${summary[-1]} == passed* ]] && grep -q '^skipped: ' target/step.log; then
        summary[-1]="skipped  $1: $(sed -n 's/^skipped: //p' target/step.log | head -1)"
    fi
}

skip() { summary+=("skipped  $1: $2"); }

# Prints the summary; the exit status is 1 after a failure.
finish() {
    printf '\n==== Summary (%d s)\n' "$SECONDS"
    printf '%s\n' "${summary[@]}"
    [ "$failures" -eq 0 ] || { echo "$failures step(s) failed"; exit 1; }
}
