#!/usr/bin/env bash
# usage: wheel.sh TRIPLE: the Python wheel of the libraries that release.sh built for a target, into
# target/release-VERSION: for Python 3.10 and newer, manylinux_2_17 (manylinux2014). Its extension
# is compiled by zig against the headers of the python3 that is here, of which it uses the limited
# API of 3.10. The same commit gives the same bytes. scikit-build-core and wheel come from PyPI into
# target/tools.
set -euo pipefail
source "$(dirname "$0")/tools.sh"
glibc=2.17 core=1.1.2 wheel=0.48.0
triple=$1
machine=${triple%%-*}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
build=$root/target/release-build/$triple
out=$root/target/release-$version
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

python3 - <<'END' || { echo "skipped: python3 is older than 3.10, or has no headers"; exit 0; }
import pathlib, sys, sysconfig
sys.exit(sys.version_info < (3, 10) or
    not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())
END
packages=$tools/scikit-build-core-$core-wheel-$wheel
if [ ! -e "$packages/wheel" ]; then
    echo "Getting scikit-build-core and wheel from PyPI into target/tools"
    rm -rf "$packages"
    python3 scripts/tools/pip_install.py "scikit-build-core==$core" "wheel==$wheel" "$packages"
fi
zig=("$tools"/zigbuild-*/ziglang/zig)
export ZIG_GLOBAL_CACHE_DIR=$root/target/release-build/zig
export ZIG_LOCAL_CACHE_DIR=$ZIG_GLOBAL_CACHE_DIR
export CC="${zig[0]} cc -target $machine-linux-gnu.$glibc"
export CFLAGS="-ffile-prefix-map=$root=/tcuda" LDFLAGS=-Wl,-s
export PYTHONPATH=$packages

rm -rf "$build/wheel"
mkdir -p "$out" "$build/wheel"
python3 scripts/generate/third_party.py "$triple" "$(rustc --print sysroot)" "$build/wheel"
PATH=$(dirname "$(command -v "$cmake")"):$PATH python3 - "$build" "$machine" <<'END'
import sys
from scikit_build_core.build import build_wheel

build, machine = sys.argv[1:]
build_wheel(f"{build}/wheel", {
    "build-dir": f"{build}/wheel/cmake",
    "cmake.define.CMAKE_SYSTEM_NAME": "Linux",
    "cmake.define.CMAKE_SYSTEM_PROCESSOR": machine,
    "cmake.define.Python3_EXECUTABLE": sys.executable,
    "cmake.define.TCUDA_PREBUILT_DIR": f"{build}/lib",
    "cmake.define.TCUDA_THIRD_PARTY": f"{build}/wheel/THIRD_PARTY.txt",
    "install.strip": "false",  # -s strips, and strip knows this machine's programs alone
})
END
rm -f "$out/tcuda-$version"-*"_$machine.whl"
made=$(python3 -m wheel tags --remove --platform-tag \
    "manylinux_${glibc/./_}_$machine.manylinux2014_$machine" "$build"/wheel/*.whl)
mv "$build/wheel/$made" "$out"
echo "$out/$made"
