#!/usr/bin/env bash
# tcuda beside PyTorch on a GPU. Needs nvcc and a python3 that has PyTorch; tcuda is built already.
#
#   benches/gpu.sh BUILD_DIR [OUTPUT_DIR]
#
# BUILD_DIR holds examples/replay and benches/replay_threads. OUTPUT_DIR (default: BUILD_DIR) gets
# torch_replay and compare.json. ROUNDS is the number of rounds, ARCH nvcc's architecture.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?usage: benches/gpu.sh BUILD_DIR [OUTPUT_DIR]}
out=${2:-$build}
mkdir -p "$out"

torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')
abi=$(python3 -c 'import torch; print(int(torch.compiled_with_cxx11_abi()))')
nvcc -O3 -std=c++20 -x cu -arch="${ARCH:-native}" -D_GLIBCXX_USE_CXX11_ABI="$abi" \
    "$here/torch_replay.cpp" -o "$out/torch_replay" \
    -I"$torch/include" -I"$torch/include/torch/csrc/api/include" \
    -L"$torch/lib" -ltorch -ltorch_cpu -ltorch_cuda -lc10 -lc10_cuda -Xlinker -rpath="$torch/lib"

python3 "$here/compare.py" --backend cuda --rounds "${ROUNDS:-5}" \
    --ours "$build/examples/replay" --micro "$build/benches/replay_threads" \
    --torch "$out/torch_replay" --json "$out/compare.json" "$here"/../data/traces/*.xz
