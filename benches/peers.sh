#!/usr/bin/env bash
# tcuda beside its peers in one run: tables, peers.json and plots.
#
#   benches/peers.sh LIBDIR OUT [--wheels DIR] [--backend sim] [--quick] [option of peers.py...]
#
# LIBDIR has a release build of libtcuda.so (or libtcuda.so.*); nothing of tcuda is built here. OUT
# gets peers.json, tables.md and the plots; --build DIR keeps the programs. Peers: PyTorch's C++
# allocator (of the python3 that has it), cudaMallocAsync, cudaMalloc, CUB (of the CUDA toolkit) and
# RMM (the wheels librmm-cu13 and rapids-logger, in the DIR of --wheels). What a machine lacks is
# left out, and said. Needs g++ and CUDA's headers.
#
# With --backend sim the simulated machine runs beside PyTorch and CUB over a stub of the CUDA
# runtime (c10_without_gpu.sh, which fetches PyTorch); what needs a GPU is left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
usage="usage: peers.sh LIBDIR OUT [--wheels DIR] [--backend sim] [--quick] [--rounds N]
    [--only GROUP] [--limits] [--peer PEER] [--build DIR]
    [--again N] [--seconds N]"
libdir=$(cd "${1:?$usage}" && pwd) out=${2:?$usage}
shift 2
wheels='' backend=cuda build='' options=()
while [ $# -gt 0 ]; do
    case $1 in
    --wheels) wheels=$(cd "${2:?$usage}" && pwd); shift 2 ;;
    --build) build=${2:?$usage}; shift 2 ;;
    --backend) backend=${2:?$usage}; shift 2 ;;
    *) options+=("$1"); shift ;;
    esac
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
if [ -z "$build" ]; then
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
fi
mkdir -p "$build"
build=$(cd "$build" && pwd)
library=$(ls "$libdir"/libtcuda.so* 2>/dev/null | head -1) || true
[ -n "$library" ] || { echo "peers: $libdir has no libtcuda.so" >&2; exit 2; }
cp -fL "$library" "$build/libtcuda.so"
# The name that programs ask for: libtcuda.so.0.1.
ln -sf libtcuda.so "$build/$(python3 - "$library" <<'PY'
import re, sys
print(re.search(rb"libtcuda\.so\.\d+\.\d+", open(sys.argv[1], "rb").read()).group().decode())
PY
)"

absent() { echo "peers: without $1: $2" >&2; }
# compile NAME OPTION...: a family of peers. One after the other, where there are few cores.
compile() {
    if [ "$(nproc)" -ge 8 ]; then compile_now "$@" & else compile_now "$@"; fi
}
compile_now() {
    local name=$1
    shift
    g++ -std=c++20 -O2 -Wall -Wextra "$here/peers/main.cpp" -o "$build/peers_$name" "$@" \
        -ldl -lpthread -Wl,--disable-new-dtags,-rpath,"$build" ||
        { rm -f "$build/peers_$name"; absent "$name" "it could not be built"; }
}
rm -f "$build"/peers_*

# ---- Where PyTorch, the CUDA runtime and its headers are ----

torch='' runtime='' stub=()
if [ "$backend" = sim ]; then
    "$here/c10_without_gpu.sh" "$root/target/c10" >/dev/null ||
        absent torch "it could not be fetched"
    c10=$root/target/c10
    [ ! -e "$c10/torch/lib/libc10_cuda.so" ] || torch=$c10/torch
    [ ! -e "$c10/stub/libcudart.so.13" ] || runtime=$c10/stub/libcudart.so.13
    stub=(-DWITHOUT_GPU)
    # As much memory as the stub has.
    export TCUDA_BACKEND=sim TCUDA_SIM=memory=141GiB
else
    torch=$(python3 -c 'import importlib.util as util
print(util.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) ||
        absent torch "python3 has no PyTorch"
    [ -z "$torch" ] ||
        runtime=$(ldd "$torch/lib/libc10_cuda.so" |
            sed -n 's/.*libcudart[^ ]* => \([^ ]*\) .*/\1/p') || true
fi
toolkit=${CUDA_HOME:-/usr/local/cuda}
nvcc=$(command -v nvcc) && toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
[ -e "$runtime" ] ||
    runtime=$(find "$toolkit"/ -name 'libcudart.so*' 2>/dev/null | head -1) || true
# The toolkit's headers are whole; those of PyTorch's wheels may lack crt/.
include=
for folder in "$toolkit/include" "$toolkit"/targets/*/include /usr/local/cuda*/include \
    "$(dirname "${runtime:-/}")/../include" "$torch"/../nvidia/*/include \
    "$root"/target/c10/rt/nvidia/*/include; do
    if [ -e "$folder/cuda_runtime.h" ] && [ -e "$folder/crt/host_config.h" ]; then
        include=$folder
        break
    fi
done
[ -n "$include" ] || { echo "peers: CUDA's headers are not installed" >&2; exit 2; }

# ---- Programs ----

compile tcuda -DPEER_TCUDA -I"$root/include" -isystem "$include" "$build/libtcuda.so"
g++ -std=c++20 -O2 -isystem "$include" "$here/peers/start.cpp" -o "$build/peers_start" -ldl
g++ -std=c++20 -O2 -Wall -Wextra -isystem "$include" "$here/peers/floor.cpp" \
    -o "$build/peers_floor" -ldl -lpthread
# Only where there is a driver to take the time of.
driver=$(ldconfig -p | sed -n 's/.*libcuda\.so\.1 .*x86-64.* => //p' | head -1)
[ "$backend" = sim ] || [ -z "$driver" ] ||
    gcc -O2 -Wall -Wextra -shared -fPIC -isystem "$include" "$here/peers/driver_clock.c" \
        -Wl,--no-as-needed "$driver" -ldl -o "$build/libdriver_clock.so" ||
        absent "the time in the driver" "driver_clock.c could not be built"
if [ -n "$torch" ] && [ -e "$runtime" ]; then
    compile torch -DPEER_TORCH "${stub[@]}" -isystem "$torch/include" -isystem "$include" \
        "$runtime" -L"$torch/lib" -lc10 -lc10_cuda -Wl,--allow-shlib-undefined \
        -Wl,-rpath,"$torch/lib:$(dirname "$runtime")"
fi
if [ -n "$wheels" ]; then
    python3 - "$wheels" "$build/wheels" <<'PY'
import pathlib, sys, zipfile
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    zipfile.ZipFile(wheel).extractall(sys.argv[2])
PY
fi
rmm=$build/wheels/librmm logger=$build/wheels/rapids_logger
if [ ! -e "$runtime" ]; then
    absent "CUDA's own allocators, CUB and RMM" "there is no libcudart"
else
    cub=()
    for folder in "$include/cccl" "$include" "$rmm/include/rapids"; do
        [ ! -e "$folder/cub/util_allocator.cuh" ] ||
            { cub=(-DHAVE_CUB -isystem "$folder"); break; }
    done
    [ ${#cub[@]} -gt 0 ] || absent cub "its headers are not installed"
    compile cuda -DPEER_CUDA "${stub[@]}" "${cub[@]}" -isystem "$include" "$runtime" \
        -Wl,-rpath,"$(dirname "$runtime")"
    if [ "$backend" = sim ]; then
        absent rmm "it brings its own CUDA runtime, which needs a GPU"
    elif [ ! -e "$rmm" ] || [ ! -e "$logger" ]; then
        absent rmm "no --wheels with librmm-cu13 and rapids-logger"
    else
        compile rmm -DPEER_RMM -isystem "$rmm/include/rapids" -isystem "$rmm/include" \
            -isystem "$logger/include" -isystem "$include" -L"$rmm/lib64" -lrmm \
            -L"$logger/lib64" -lrapids_logger "$runtime" \
            -Wl,-rpath,"$rmm/lib64:$logger/lib64:$(dirname "$runtime")"
    fi
fi
wait

python3 "$root/scripts/tools/unpack_traces.py" "$root/data/traces" "$build/traces"
python3 "$here/peers/peers.py" --backend "$backend" --programs "$build" "${options[@]}" "$out" \
    "$build"/traces/*.trace
