#!/usr/bin/env bash
# usage: sanitize_rust.sh [filter...]: the Rust unit tests, and all tests of sim/, under
# AddressSanitizer, leaks included.
# The stable compiler has the sanitizer, behind a switch; a target makes build scripts go without
# it.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
get_nvrtc
# libtcuda_sim.so, which tests open, uses the sanitizer of the program.
flags='-Zsanitizer=address -Clink-arg=-Wl,--export-dynamic-symbol=__asan_*'
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags ASAN_OPTIONS=detect_leaks=1
export CARGO_TARGET_DIR=$root/target/asan
export LSAN_OPTIONS=suppressions=$root/scripts/ci/lsan_rust.supp:print_suppressions=0
tests() { cargo test --locked --target x86_64-unknown-linux-gnu "$@"; }
tests --package tcuda_sim -- "$@"
tests --lib -- "$@"
