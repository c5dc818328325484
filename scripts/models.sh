#!/usr/bin/env bash
# usage: models.sh [filter...]: the models of lock-free pieces, under loom, with their planted bugs.
set -euo pipefail
source "$(dirname "$0")/tools.sh"
CARGO_TARGET_DIR=$root/target/models exec cargo test --locked --release \
    --manifest-path models/Cargo.toml --tests -- "$@"
