#!/usr/bin/env bash
# usage: models.sh [--full] [filter...]: the models of what threads share, under loom, with their planted
# bugs. --full interrupts threads more often.
set -euo pipefail
source "$(dirname "$0")/tools.sh"

if [ "${1:-}" = --full ]; then
    shift
    export TCUDA_MODELS_FULL=1
fi
CARGO_TARGET_DIR=$root/target/models cargo test --locked --release --no-fail-fast \
    --manifest-path models/Cargo.toml --tests -- --show-output "$@" |
    awk '/: [0-9]+ interleavings$/ { print; total += $(NF - 1); next }
        /^(test|running|error|thread|assertion)|panicked|Causality|found/ { print }
        END { printf "%d interleavings tried\n", total }'
