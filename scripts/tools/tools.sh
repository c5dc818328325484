# Sourced by the other scripts: cargo, CMake 3.25 or newer as $cmake and $ctest, and get_nvrtc. What
# is missing comes from PyPI into target/tools; nothing needs root.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
# So that a make under cmake does not take itself for a part of ours.
unset MAKEFLAGS MFLAGS MAKELEVEL
# It would override the CUDA version that Cargo.toml names for cudarc.
unset CUDARC_CUDA_VERSION
command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
tools=$root/target/tools

jobs() { nproc 2>/dev/null || echo 2; }

is_new_enough() {
    local version
    version=$("$1" --version 2>/dev/null | sed -n '1s/cmake version //p') && [ -n "$version" ] &&
        [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -1)" = 3.25 ]
}

# The wheel's own starter wants PYTHONPATH; the program beside it does not.
wheel_bin=$tools/cmake/cmake/data/bin
if is_new_enough cmake; then
    cmake=cmake ctest=ctest
else
    if ! is_new_enough "$wheel_bin/cmake"; then
        echo "Getting CMake from PyPI into target/tools (none of 3.25 or newer is installed)"
        rm -rf "$tools/cmake"
        python3 scripts/tools/pip_install.py cmake "$tools/cmake"
    fi
    cmake=$wheel_bin/cmake ctest=$wheel_bin/ctest
fi

# Sets TCUDA_NVRTC_PATH, unless it is set, to the NVRTC with which tests compile kernels on the
# simulated machine. Its version is that of the simulated driver (CUDA 12.9): PTX of a newer one is
# refused.
get_nvrtc() {
    local version=12.9.86
    local library=$tools/nvrtc-$version/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
    [ -z "${TCUDA_NVRTC_PATH:-}" ] || return 0
    if [ ! -e "$library" ]; then
        echo "Getting NVRTC from PyPI into target/tools (TCUDA_NVRTC_PATH is not set)"
        rm -rf "$tools/nvrtc-$version"
        python3 scripts/tools/pip_install.py "nvidia-cuda-nvrtc-cu12==$version" \
            "$tools/nvrtc-$version" ||
            { echo "Tests that compile kernels are skipped: no NVRTC"; return 0; }
    fi
    export TCUDA_NVRTC_PATH=$library
}

# Sets TCUDA_NVJITLINK_PATH, unless it is set, to the nvJitLink with which tests link with
# link-time optimisation, of the same version as NVRTC. 38 MB.
get_nvjitlink() {
    local version=12.9.86
    local library=$tools/nvjitlink-$version/nvidia/nvjitlink/lib/libnvJitLink.so.12
    [ -z "${TCUDA_NVJITLINK_PATH:-}" ] || return 0
    if [ ! -e "$library" ]; then
        echo "Getting nvJitLink from PyPI into target/tools (TCUDA_NVJITLINK_PATH is not set)"
        rm -rf "$tools/nvjitlink-$version"
        python3 scripts/tools/pip_install.py "nvidia-nvjitlink-cu12==$version" \
            "$tools/nvjitlink-$version" ||
            { echo "Tests of link-time optimisation are left out: no nvJitLink"; return 0; }
    fi
    export TCUDA_NVJITLINK_PATH=$library
}

# configure_and_build PRESET [option...], with cargo's output shared by all presets.
configure_and_build() {
    local preset=$1
    shift
    "$cmake" --preset "$preset" -DTCUDA_CARGO_TARGET_DIR="$CARGO_TARGET_DIR" "$@" &&
        "$cmake" --build --preset "$preset" --parallel "$(jobs)"
}
