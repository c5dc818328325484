# usage: pkg_config.sh CC SOURCE BUILD_DIR LIBDIR: a host built by hand, with both libraries.
set -eu
cc=$1 source=$2 build=$3 libdir=$4

command -v pkg-config >/dev/null || { echo "skipped: no pkg-config"; exit 77; }
export PKG_CONFIG_PATH="$libdir/pkgconfig"
mkdir -p "$build"

set -x
# shellcheck disable=SC2046 # the flags are words
"$cc" "$source" $(pkg-config --cflags --libs tcuda) -o "$build/host"
LD_LIBRARY_PATH="$libdir" "$build/host"

# shellcheck disable=SC2046
"$cc" "$source" $(pkg-config --cflags --libs tcuda) $(pkg-config --variable=rpath tcuda) \
    -o "$build/host_rpath"
env -u LD_LIBRARY_PATH "$build/host_rpath"

# shellcheck disable=SC2046
"$cc" "$source" $(pkg-config --cflags --libs tcuda-static) -o "$build/host_static"
TCUDA_SIM_PATH="$libdir/libtcuda_sim.so" "$build/host_static"
! ldd "$build/host_static" | grep libtcuda
