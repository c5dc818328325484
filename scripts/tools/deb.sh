#!/usr/bin/env bash
# usage: deb.sh TRIPLE: Debian packages of the libraries that release.sh built for a target, into
# target/release-VERSION: libtcuda0.1 with the shared libraries, and libtcuda-dev with headers, the
# static library, and the packages for CMake and pkg-config. Needs dpkg-deb. The same commit gives
# the same bytes.
set -euo pipefail
source "$(dirname "$0")/tools.sh"
triple=$1
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
abi=${version%.*}
revision=$version-1
build=$root/target/release-build/$triple
out=$root/target/release-$version
case ${triple%%-*} in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
*) echo "there is no Debian architecture for $triple" && exit 1 ;;
esac
multiarch=${triple%%-*}-linux-gnu
maintainer=$(git log -1 --format='%an <%ae>')
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
umask 022

rm -rf "$build/deb"
"$cmake" -S . -B "$build/deb/cmake" --log-level=WARNING -DCMAKE_BUILD_TYPE=Release \
    -DTCUDA_PREBUILT_DIR="$build/lib" -DTCUDA_BUILD_TESTS=OFF -DTCUDA_BUILD_EXAMPLES=OFF \
    -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR="lib/$multiarch"
"$cmake" --build "$build/deb/cmake" >/dev/null
DESTDIR=$build/deb/all "$cmake" --install "$build/deb/cmake" >/dev/null
find "$build/deb/all" -name '*.so*' -type f -exec chmod 644 {} +

# package NAME: builds the package of the folder with this name; stdin: its control file, without
# the fields that all packages have.
package() {
    local folder=$build/deb/$1 documents common=/usr/share/common-licenses/Apache-2.0
    documents=$folder/usr/share/doc/$1
    mkdir -p "$folder/DEBIAN" "$documents"
    { echo "tcuda is under the Apache License 2.0: $common"
        echo
        # Debian has the text of this licence once.
        sed "/^ *Apache License *\$/,/END OF TERMS AND CONDITIONS/c\\    $common" \
            "$build/deb/THIRD_PARTY.txt"; } >"$documents/copyright"
    printf 'tcuda (%s) unstable; urgency=medium\n\n  * Release %s.\n\n -- %s  %s\n' "$revision" \
        "$version" "$maintainer" "$(date -uRd "@$SOURCE_DATE_EPOCH")" |
        gzip -9n >"$documents/changelog.Debian.gz"
    { printf 'Package: %s\nSource: tcuda\nVersion: %s\nArchitecture: %s\nMulti-Arch: same\n' "$1" \
        "$revision" "$architecture"
        printf 'Maintainer: %s\nPriority: optional\nInstalled-Size: %s\n' "$maintainer" \
            "$(du -sk --apparent-size "$folder/usr" | cut -f1)"
        cat; } >"$folder/DEBIAN/control"
    (cd "$folder" && find usr -type f | LC_ALL=C sort | xargs md5sum >DEBIAN/md5sums)
    find "$folder" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$folder" "$out" >/dev/null
    echo "$out/$1_${revision}_$architecture.deb"
}

libraries=usr/lib/$multiarch
python3 scripts/generate/third_party.py "$triple" "$(rustc --print sysroot)" "$build/deb"
mkdir -p "$out" "$build/deb/libtcuda$abi/$libraries" "$build/deb/libtcuda$abi/DEBIAN"
mv "$build/deb/all" "$build/deb/libtcuda-dev"
rm -rf "$build/deb/libtcuda-dev/usr/share/doc"
mv "$build/deb/libtcuda-dev/$libraries"/libtcuda.so."$abi"* \
    "$build/deb/libtcuda-dev/$libraries/libtcuda_sim.so" "$build/deb/libtcuda$abi/$libraries"
echo "libtcuda $abi libtcuda$abi (>= $version)" >"$build/deb/libtcuda$abi/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$build/deb/libtcuda$abi/DEBIAN/triggers"

package "libtcuda$abi" <<END
Section: libs
Depends: libc6 (>= 2.17), libgcc-s1 (>= 3.0)
Description: torch.cuda as a C library
 Devices, streams, events, the caching allocator, graphs, random numbers,
 collectives and telemetry of torch.cuda, without PyTorch and without a CUDA
 toolkit. A simulated GPU is included.
END
package libtcuda-dev <<END
Section: libdevel
Depends: libtcuda$abi (= $revision)
Description: torch.cuda as a C library: development files
 Headers for C and C++, the static library, packages for CMake and pkg-config,
 and the description of the C interface for generators of bindings.
END
