#!/usr/bin/env bash
# usage: release.sh [TRIPLE...]: a release, into target/release-VERSION: for each target a tarball
# of an installation and one of its debug files, a CycloneDX list of components, Debian packages
# (deb.sh, where there is dpkg-deb), a Python wheel (wheel.sh), and SHA256SUMS. The same commit
# gives the same bytes in any folder, debug files aside.
# The libraries load with glibc 2.17 and newer. Targets: x86_64-unknown-linux-gnu and
# aarch64-unknown-linux-gnu. cargo-zigbuild and zig come from PyPI into target/tools.
set -euo pipefail
source "$(dirname "$0")/tools.sh"
glibc=2.17 zigbuild=0.24.1 zig=0.17.1
triples=("$@")
[ $# -gt 0 ] || triples=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
build=target/release-build
out=target/release-$version
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

zig_tools=$tools/zigbuild-$zigbuild-$zig
if [ ! -x "$zig_tools/bin/cargo-zigbuild" ]; then
    echo "Getting cargo-zigbuild and zig from PyPI into target/tools"
    rm -rf "$zig_tools"
    python3 scripts/tools/pip_install.py "cargo-zigbuild==$zigbuild" "ziglang==$zig" "$zig_tools"
fi
export CARGO_ZIGBUILD_ZIG_PATH=$zig_tools/ziglang/zig
export ZIG_GLOBAL_CACHE_DIR=$root/$build/zig ZIG_LOCAL_CACHE_DIR=$root/$build/zig
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
sysroot=$(rustc --print sysroot)
# Some toolchains have its libLLVM only beside rustc.
objcopy() {
    local bin=$sysroot/lib/rustlib/$(rustc --print host-tuple)/bin
    LD_LIBRARY_PATH=$sysroot/lib "$bin/rust-objcopy" "$@"
}
registry=$(echo "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/)

# A libgcc_s to link with: its name and the functions that Rust calls. cargo-zigbuild would put an
# unwinder of its own into the library, and then frames of the library and of a C++ host had two.
stub_libgcc() {
    local folder=$build/libgcc/$1 symbols names name
    mkdir -p "$folder"
    while read -r symbols names; do
        printf '%s {\n' "$symbols" >&3
        for name in $names; do
            printf 'void _Unwind_%s(void) {}\n' "$name"
            printf '    _Unwind_%s;\n' "$name" >&3
        done
        printf '};\n' >&3
    done >"$folder/libgcc.c" 3>"$folder/libgcc.map" <<END
GCC_3.0 DeleteException GetDataRelBase GetGR GetIP GetLanguageSpecificData GetRegionStart \
GetTextRelBase RaiseException Resume SetGR SetIP
GCC_3.3 Backtrace FindEnclosingFunction GetCFA Resume_or_Rethrow
GCC_4.2.0 GetIPInfo
END
    "$CARGO_ZIGBUILD_ZIG_PATH" cc -target "${1/-unknown/}.$glibc" -shared -nostdlib \
        -Wl,-soname,libgcc_s.so.1 -Wl,--version-script,"$folder/libgcc.map" \
        "$folder/libgcc.c" -o "$folder/libgcc_s_stub.so"
}

# libraries TRIPLE: the libraries, stripped, and their debug files in target/release-build/TRIPLE.
libraries() {
    local triple=$1 folder=$build/$1 built=$build/cargo/$1/release name flags
    stub_libgcc "$triple"
    # No path of this machine is in what is built. The folder of the stub is relative, because cargo
    # hashes the options.
    flags="--remap-path-prefix=$root=/tcuda --remap-path-prefix=$root/="
    flags+=" --remap-path-prefix=$registry=crates/"
    flags+=" --remap-path-prefix=$sysroot=/rust"
    CARGO_TARGET_DIR=$root/$build/cargo CFLAGS="-ffile-prefix-map=$root=/tcuda" \
        RUSTFLAGS="$flags -L native=$build/libgcc/$triple -l dylib=gcc_s_stub" \
        "$zig_tools/bin/cargo-zigbuild" zigbuild --release --locked --lib \
        -p tcuda -p tcuda_sim_library --target "$triple.$glibc"
    rm -rf "$folder"
    mkdir -p "$folder/lib"
    for name in libtcuda.so libtcuda_sim.so; do
        objcopy --only-keep-debug "$built/$name" "$folder/$name.debug"
        # No .gnu_debuglink: it has a sum of the debug file, where zig puts paths of this machine.
        objcopy --strip-all "$built/$name" "$folder/lib/$name"
    done
    # Bitcode for link-time optimisation is two thirds of the archive; only rustc reads it.
    objcopy --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd \
        "$built/libtcuda.a" "$folder/lib/libtcuda.a"
}

# checked TRIPLE: the tests of tests/exports.rs, which need no crate.
checked() {
    local program=$build/$1/exports
    CARGO_MANIFEST_DIR=$root CARGO_PKG_VERSION_MAJOR=${version%%.*} \
        CARGO_PKG_VERSION_MINOR=$(echo "$version" | cut -d. -f2) \
        rustc --edition 2024 --test tests/exports.rs -o "$program"
    TCUDA_TEST_GLIBC=$glibc TCUDA_TEST_LIBRARY=$build/$1/lib/libtcuda.so "$program" --quiet
}

# pack NAME FOLDER: FOLDER.tar.gz, without what two machines do not have in common.
pack() {
    tar --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
        --mtime="@$SOURCE_DATE_EPOCH" -C "$2" -cf - "$name" | gzip -9n >"$out/$1.tar.gz"
}

mkdir -p "$out"
for triple in "${triples[@]}"; do
    echo "==== $triple, glibc $glibc"
    rustup target add "$triple" 2>/dev/null || true
    libraries "$triple"
    checked "$triple"
    folder=$build/$triple
    name=tcuda-$version-linux-${triple%%-*}
    "$cmake" -S . -B "$folder/cmake" --log-level=WARNING -DCMAKE_BUILD_TYPE=Release \
        -DTCUDA_PREBUILT_DIR="$root/$folder/lib" -DTCUDA_BUILD_TESTS=OFF \
        -DTCUDA_BUILD_EXAMPLES=OFF -DCMAKE_INSTALL_LIBDIR=lib
    "$cmake" --build "$folder/cmake" >/dev/null
    "$cmake" --install "$folder/cmake" --prefix "$root/$folder/tree/$name" >/dev/null
    documents=$folder/tree/$name/share/doc/tcuda
    python3 scripts/generate/third_party.py "$triple" "$sysroot" "$documents"
    cp "$documents/tcuda.cdx.json" "$out/$name.cdx.json"
    mkdir -p "$folder/debug/$name/lib"
    mv "$folder"/*.debug "$folder/debug/$name/lib"
    pack "$name" "$folder/tree"
    pack "$name-debug" "$folder/debug"
    ! command -v dpkg-deb >/dev/null || scripts/tools/deb.sh "$triple"
    scripts/tools/wheel.sh "$triple"
done
cd "$out"
find . -type f ! -name SHA256SUMS -printf "%f\n" | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
cat SHA256SUMS
