#!/usr/bin/env bash
# The model tests at length, optimised but with every check, one test on each core. PROPTEST_CASES
# sets the number of programs of each test.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
export CARGO_TARGET_DIR=$root/target/model CARGO_PROFILE_DEV_OPT_LEVEL=2 TCUDA_GAUNTLET=1
cargo test --locked --quiet --test model --no-run
tests=()
for schedule in at_once on_threads as_late_as_it_may; do
    tests+=("programs_agree_when_work_runs_$schedule" "crowds_agree_when_work_runs_$schedule")
done
printf '%s\n' "${tests[@]}" | xargs -P "$(jobs)" -I '{}' \
    cargo test --locked --quiet --test model -- --exact '{}' --nocapture
