# Sourced by test.sh and check.sh: steps that all run, also after a failure, and a summary at the
# end. What a step prints is also in target/steps/NAME.log; the summary, with what explains each
# failure, is in target/steps/test.txt or check.txt.
source "$(dirname "${BASH_SOURCE[0]}")/../tools/tools.sh"
get_nvrtc
get_nvjitlink

summary=()
failed=()
mkdir -p target/steps

log_of() { echo "target/steps/${1//[^a-zA-Z0-9]/-}.log"; }

# step NAME COMMAND...: runs it and records the result.
step() {
    local name=$1 start=$SECONDS
    shift
    printf '\n==== %s: %s\n' "$name" "$*"
    if "$@" 2>&1 | tee "$(log_of "$name")"; then
        summary+=("passed   $name ($((SECONDS - start)) s)")
    else
        summary+=("FAILED   $name ($((SECONDS - start)) s)")
        failed+=("$name")
    fi
}

# checked NAME SCRIPT...: a step whose script may print "skipped: " and the reason.
checked() {
    local log
    log=$(log_of "$1")
    step "$@"
    if [[ ${summary[-1]} == passed* ]] && grep -q '^skipped: ' "$log"; then
        summary[-1]="skipped  $1: $(sed -n 's/^skipped: //p' "$log" | head -1)"
    fi
}

skip() { summary+=("skipped  $1: $2"); }

# The lines around each message of a failed test or compilation, and the end of the log.
explain() {
    printf '\n---- %s failed:\n' "$1"
    grep -nE -A12 'panicked at|\*\*\*(Failed|Exception|Timeout)|^error|^FAILED|FAILED$' \
        "$(log_of "$1")" | head -80 || true
    echo "..."
    tail -12 "$(log_of "$1")"
}

# Prints the summary; the exit status is 1 after a failure.
finish() {
    local name
    {
        printf '\n==== Summary (%d s)\n' "$SECONDS"
        printf '%s\n' "${summary[@]}"
        for name in "${failed[@]}"; do explain "$name"; done
    } | tee "target/steps/$(basename "$0" .sh).txt"
    [ "${#failed[@]}" -eq 0 ] || { echo "${#failed[@]} step(s) failed"; exit 1; }
}
