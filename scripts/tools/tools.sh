# Sourced by the other scripts: cargo, CMake 3.22 or newer as $cmake and $ctest, and get_nvrtc. What
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
        [ "$(printf '%s\n' 3.22 "$version" | sort -V | head -1)" = 3.22 ]
}

# The wheel's own starter wants PYTHONPATH; the program beside it does not.
wheel_bin=$tools/cmake/cmake/data/bin
if is_new_enough cmake; then
    cmake=cmake ctest=ctest
else
    if ! is_new_enough "$wheel_bin/cmake"; then
        echo "Getting CMake from PyPI into target/tools (none of 3.22 or newer is installed)"
        rm -rf "$tools/cmake"
        python3 scripts/tools/pip_install.py cmake "$tools/cmake"
    fi
    cmake=$wheel_bin/cmake ctest=$wheel_bin/ctest
fi

# get_library VARIABLE TITLE WHEEL FILE: sets a variable, unless it is set, to a library of a wheel
# from PyPI, which is put into target/tools. Without it, tests that need it are skipped. The
# versions are that of the simulated driver (CUDA 12.9), which refuses PTX of a newer one.
get_library() {
    local variable=$1 title=$2 wheel=$3 folder
    folder=$tools/${title,,}-${wheel#*==}
    [ -z "${!variable:-}" ] || return 0
    if [ ! -e "$folder/$4" ]; then
        echo "Getting $title from PyPI into target/tools ($variable is not set)"
        rm -rf "$folder"
        python3 scripts/tools/pip_install.py "$wheel" "$folder" ||
            { echo "Tests that need it are skipped: no $title"; return 0; }
    fi
    export "$variable=$folder/$4"
}

# The compiler of kernels.
get_nvrtc() {
    get_library TCUDA_NVRTC_PATH NVRTC nvidia-cuda-nvrtc-cu12==12.9.86 \
        nvidia/cuda_nvrtc/lib/libnvrtc.so.12
}

# The linker of kernels with link-time optimisation, 38 MB.
get_nvjitlink() {
    get_library TCUDA_NVJITLINK_PATH nvJitLink nvidia-nvjitlink-cu12==12.9.86 \
        nvidia/nvjitlink/lib/libnvJitLink.so.12
}

# get_aarch64 FOLDER PACKAGE...: unpacks aarch64 packages of Debian into FOLDER/root, unless it is
# there. In place of python3-minimal it takes the packages of that Python.
get_aarch64() {
    local folder=$1 apt package python
    shift
    [ ! -e "$folder/root" ] || return 0
    echo "Getting $* for aarch64 from Debian into target/tools"
    rm -rf "$folder.partial"
    mkdir -p "$folder.partial"/{state/lists/partial,cache/archives/partial,packages,root}
    touch "$folder.partial/state/status"
    apt=(-qq -o Dir::State="$folder.partial/state" -o Dir::Cache="$folder.partial/cache"
        -o Dir::State::status="$folder.partial/state/status"
        -o APT::Architecture=arm64 -o APT::Architectures=arm64)
    apt-get "${apt[@]}" update
    if [ "$1" = python3-minimal ]; then
        python=$(apt-cache "${apt[@]}" depends python3-minimal |
            sed -n 's/.*Depends: \(python3\.[0-9]*\)-minimal$/\1/p' | head -1)
        set -- "$@" "$python-minimal" "lib$python-minimal" "lib$python-stdlib"
    fi
    (cd "$folder.partial/packages" && apt-get "${apt[@]}" download "$@")
    for package in "$folder.partial"/packages/*.deb; do
        dpkg-deb -x "$package" "$folder.partial/root"
    done
    mv "$folder.partial" "$folder"
}

# configure_and_build PRESET [option...], with cargo's output shared by all presets.
configure_and_build() {
    local preset=$1
    shift
    "$cmake" --preset "$preset" -DTCUDA_CARGO_TARGET_DIR="$CARGO_TARGET_DIR" "$@" &&
        "$cmake" --build --preset "$preset" --parallel "$(jobs)"
}
