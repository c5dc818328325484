#!/usr/bin/env bash
# usage: aarch64.sh [PROGRAM...]: C programs with the aarch64 libraries of scripts/tools/release.sh,
# on the simulated machine, under qemu-aarch64 (Debian: qemu-user or qemu-user-static). The aarch64
# C library comes from Debian into target/tools, without root. PROGRAM is a name in c_tests.
# qemu runs threads with the memory order of this machine, which is stronger than Arm's.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
triple=aarch64-unknown-linux-gnu
libraries=$root/target/release-build/$triple/lib
system=$tools/aarch64
out=$root/target/aarch64

qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
[ -n "$qemu" ] || { echo "skipped: there is no qemu-aarch64"; exit 0; }
command -v apt-get >/dev/null || { echo "skipped: there is no apt-get"; exit 0; }

get_aarch64 "$system" libc6 libgcc-s1

[ -e "$libraries/libtcuda.so" ] || scripts/tools/release.sh "$triple"
zig=("$tools"/zigbuild-*/ziglang/zig)
mkdir -p "$out"
ln -sf "$libraries"/libtcuda*.so "$out"
ln -sf libtcuda.so "$out/libtcuda.so.0.1"

# run SOURCE: compiles and runs it; 77 is a skipped program.
run() {
    local program status=0
    program=$out/$(basename "$1" .c)
    "${zig[0]}" cc -target aarch64-linux-gnu.2.17 -std=c11 -O1 -D_POSIX_C_SOURCE=200809L \
        -Iinclude -Ic_tests "$1" -L"$out" -ltcuda -lpthread -ldl -lm -o "$program"
    TCUDA_BACKEND=sim timeout 600 "$qemu" -L "$system/root" -E LD_LIBRARY_PATH="$out" \
        "$program" || status=$?
    case $status in
    0) echo "passed  $1" ;;
    77) echo "skipped $1" ;;
    *) echo "FAILED  $1: status $status" && return 1 ;;
    esac
}

sources=(examples/quickstart.c)
# Programs with alarms for their children are too slow under qemu.
[ $# -gt 0 ] || set -- memory stream event copy host capture graph graph_memory random \
    random_order comm tensor snapshot statistics threads mem_pool sanitizer
for name in "$@"; do sources+=("c_tests/$name.c"); done
failures=0
for source in "${sources[@]}"; do run "$source" || failures=$((failures + 1)); done
echo "figure: failures = $failures"
[ "$failures" -eq 0 ]
