#!/usr/bin/env bash
# usage: models.sh [--quick|--full] [filter...]: the models of what threads share, under loom, with
# their planted bugs. --full interrupts threads more often.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"

case ${1:-} in
--full)
    shift
    export TCUDA_MODELS_FULL=1
    ;;
--quick) shift ;;
esac
CARGO_TARGET_DIR=$root/target/models cargo test --locked --release --no-fail-fast \
    --manifest-path models/Cargo.toml --tests -- --show-output "$@" |
    awk '/: [0-9]+ interleavings$/ { print; total += $(NF - 1); next }
        /^(test|error|thread|assertion)|panicked|Causality|not found|found otherwise/ { print }
        END { printf "figure: interleavings = %d\n", total }'
