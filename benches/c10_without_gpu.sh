#!/usr/bin/env bash
# Gets PyTorch's own allocator for a machine without a GPU into DIR (default: target/c10): its
# libc10_cuda.so and headers, and the stub runtime of c10_without_gpu/ in DIR/stub. Host times and
# the layout of memory are PyTorch's; driver calls cost nothing.
#
#   benches/c10_without_gpu.sh [DIR]
#
# Takes two packages from PyPI: torch 2.11.0 (530 MB to download, of which 2 MB and the headers are
# kept) and the CUDA 13.0 runtime's headers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$here/../target/c10}
mkdir -p "$dir"
cd "$dir"

if [ ! -e torch/lib/libc10_cuda.so ]; then
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_28_x86_64 -d wheel torch==2.11.0
    python3 - <<'PY'
import glob, zipfile
with zipfile.ZipFile(glob.glob("wheel/torch-2.11.0*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if (name.startswith(("torch/include/c10/", "torch/include/torch/headeronly/"))
                or name in ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so")):
            wheel.extract(name)
PY
    rm -rf wheel
fi
if [ ! -d rt ]; then
    python3 -m pip install -q --no-deps --target rt \
        'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*'
fi
include=$(dirname "$(find rt -name cuda_runtime_api.h | head -1)")

mkdir -p stub
gcc -std=gnu11 -O2 -fPIC -shared -I"$include" "$here/c10_without_gpu/cudart.c" \
    -o stub/libcudart.so.13 -Wl,-soname,libcudart.so.13 \
    -Wl,--version-script="$here/c10_without_gpu/v.map" -lpthread
echo "ready: $PWD"
