#!/usr/bin/env bash
# usage: differential.sh [--fetch] [--traces] [option...]: the same random operations on PyTorch's
# own allocator and on ours, without a GPU; the statistics must be equal after each of them. --fetch
# gets PyTorch's allocator (530 MB to download) where it is not in target/c10 yet, --traces adds
# those of data/traces; options are those of tests/differential/main.cc.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"

c10=$root/target/c10
if [ "${1:-}" = --fetch ]; then
    shift
    benches/c10_without_gpu.sh "$c10" >/dev/null ||
        { echo "skipped: PyTorch's allocator cannot be fetched from PyPI"; exit 0; }
elif [ ! -e "$c10/torch/lib/libc10_cuda.so" ]; then
    echo "skipped: PyTorch's allocator is not in target/c10 (scripts/ci/differential.sh --fetch)"
    exit 0
fi
traces=()
if [ "${1:-}" = --traces ]; then
    shift
    python3 scripts/tools/unpack_traces.py data/traces "$root/target/traces"
    traces=("$root"/target/traces/*.trace)
fi
command -v g++ >/dev/null || { echo "skipped: g++ is not installed"; exit 0; }
include=$(dirname "$(find "$c10/rt" -name cuda_runtime_api.h | head -1)")

cargo build --locked --quiet --release --lib
cargo build --locked --quiet --release --package tcuda_sim_library
export TCUDA_SIM_PATH=$CARGO_TARGET_DIR/release/libtcuda_sim.so
out=$root/target/differential
mkdir -p "$out"
library=$CARGO_TARGET_DIR/release/libtcuda.so
ln -sf "$library" "$out/$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')"
gcc -std=gnu11 -O2 -fPIC -shared -I"$include" benches/c10_without_gpu/cudart.c \
    -o "$out/libcudart.so.13" -Wl,-soname,libcudart.so.13 \
    -Wl,--version-script=benches/c10_without_gpu/v.map -lpthread
flags=(-std=c++20 -O2 -Wall -Wextra -Wpedantic -Werror)
# The headers of others are not held to these.
others=(-isystem "$c10/torch/include" -isystem "$include")
objects=()
for file in tests/differential/*.cc; do
    object=$out/$(basename "$file" .cc).o
    [ "$object" -nt "$file" ] && [ "$object" -nt include/tcuda.h ] &&
        [ -z "$(find tests/differential -name '*.h' -newer "$object")" ] ||
        g++ "${flags[@]}" "${others[@]}" -Iinclude -c "$file" -o "$object"
    objects+=("$object")
done
g++ "${objects[@]}" -o "$out/differential" -L "$c10/torch/lib" -L "$out" "$library" \
    -lc10 -lc10_cuda -l:libcudart.so.13 -lpthread -Wl,--allow-shlib-undefined \
    -Wl,--disable-new-dtags,-rpath,"$c10/torch/lib:$out"
exec "$out/differential" "$@" "${traces[@]}"
