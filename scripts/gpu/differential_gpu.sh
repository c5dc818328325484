#!/usr/bin/env bash
# usage: differential_gpu.sh LIBDIR TRACES OUT [option...]: the same operations on PyTorch's own
# allocator and on ours, on one GPU, side by side in one process; the statistics must be equal after
# each of them.
#
# LIBDIR has a release build of libtcuda.so, TRACES the files of data/traces, OUT gets the program
# and differential.json. Needs g++, CUDA's headers and a python3 that has PyTorch; tcuda is not
# built here. Options are those of tests/differential/main.cc; 1,000,000 random operations is the
# default.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
usage="usage: differential_gpu.sh LIBDIR TRACES OUT [option...]"
library=$(cd "${1:?$usage}" && pwd)/libtcuda.so traces=${2:?$usage} out=${3:?$usage}
shift 3
skip() {
    echo "skipped: $1"
    exit 77
}
[ -e "$library" ] || { echo "$library does not exist" >&2; exit 2; }
mkdir -p "$out"
out=$(cd "$out" && pwd)

command -v g++ >/dev/null || skip "g++ is not installed"
torch=$(python3 -c 'import os, torch; torch.cuda.is_available() or exit(1)
print(os.path.dirname(torch.__file__))' 2>/dev/null) ||
    skip "python3 has no PyTorch that sees a GPU"
# The runtime that PyTorch itself would load.
runtime=$(ldd "$torch/lib/libc10_cuda.so" | sed -n 's/.*libcudart[^ ]* => \([^ ]*\) .*/\1/p')
[ -e "$runtime" ] || skip "PyTorch's libcudart was not found"
# The toolkit's headers are whole; those of PyTorch's wheels may lack crt/.
includes=()
for folder in "$(dirname "$(command -v nvcc || echo /usr/bin/nvcc)")/../include" \
    "${CUDA_HOME:-/usr/local/cuda}/include" /usr/local/cuda*/include \
    "$(dirname "$runtime")/../include" \
    "$torch"/../nvidia/*/include; do
    [ ! -e "$folder/cuda_runtime.h" ] || [ ! -e "$folder/crt/host_config.h" ] ||
        includes+=("$folder")
done
[ ${#includes[@]} -gt 0 ] || skip "CUDA's headers are not installed"

ln -sf "$library" "$out/$(python3 - "$library" <<'PY'
import re, sys
print(re.search(rb"libtcuda\.so\.\d+\.\d+", open(sys.argv[1], "rb").read()).group().decode())
PY
)"
build() {
    g++ -std=c++20 -O2 -Wall -Wextra -DDIFFERENTIAL_ON_GPU -isystem "$torch/include" -isystem "$1" \
        -I"$root/include" "$root"/tests/differential/*.cc -o "$out/differential_gpu" "$library" \
        "$runtime" -L"$torch/lib" -lc10 -lc10_cuda -lpthread -Wl,--allow-shlib-undefined \
        -Wl,--disable-new-dtags,-rpath,"$torch/lib:$(dirname "$runtime"):$out"
}
is_built=
for folder in "${includes[@]}"; do
    echo "building with the headers in $folder"
    if build "$folder"; then
        is_built=1
        break
    fi
done
[ -n "$is_built" ] || { echo "the differential test could not be built"; exit 1; }
# A small share first: what is wrong from the beginning shows at once.
"$out/differential_gpu" --operations 5000 --seconds 20 --seed 1
python3 "$root/scripts/tools/unpack_traces.py" "$traces" "$out/traces"
"$out/differential_gpu" --operations 1000000 --seconds 80 --json "$out/differential.json" "$@" \
    "$out"/traces/*.trace
