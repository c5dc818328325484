#!/usr/bin/env bash
# usage: lint.sh [--library]: clippy over every crate and feature (the library with and without
# host_faults, sim/, fuzz/ and models/), or over the library and sim/ alone. Then the types for
# aarch64, where its target is installed.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
cargo clippy --version >/dev/null 2>&1 || { echo "skipped: clippy is not installed"; exit 0; }
clippy() { cargo clippy --locked "$@"; }
clippy --workspace --all-targets -- -D warnings
[ "${1:-}" != --library ] || exit 0
# Libraries have the same names with and without the feature.
CARGO_TARGET_DIR=$root/target/faults clippy --all-targets --features host_faults -- -D warnings
CARGO_TARGET_DIR=$root/target/faults clippy --all-targets --manifest-path fuzz/Cargo.toml \
    -- -D warnings
# The same sources under types of which few are const, so that constructors look different.
CARGO_TARGET_DIR=$root/target/models clippy --release --manifest-path models/Cargo.toml --tests \
    --  -D warnings -A clippy::new_without_default -A clippy::redundant_closure
# The C file is compiled for this machine: nothing is linked.
if [ -d "$(rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-gnu" ]; then
    CC_aarch64_unknown_linux_gnu=cc cargo check --locked --target aarch64-unknown-linux-gnu \
        -p tcuda -p tcuda_sim --lib
fi
