#!/usr/bin/env bash
# The same commit gives the same release in two folders: builds it here and in a clone, and compares
# the sums.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
triple=x86_64-unknown-linux-gnu
clone=$root/target/reproducible
rm -rf "$clone" target/release-[0-9]*
git clone --quiet . "$clone"
mkdir "$clone/target"
ln -s "$tools" "$clone/target/tools"
scripts/tools/release.sh "$triple"
env -u CARGO_TARGET_DIR "$clone/scripts/tools/release.sh" "$triple"
diff <(grep -v -e -debug target/release-[0-9]*/SHA256SUMS) \
    <(grep -v -e -debug "$clone"/target/release-[0-9]*/SHA256SUMS)
rm -rf "$clone"
