#!/usr/bin/env bash
# usage: abi.sh [--write]: what C sees of tcuda.h beside the released description in abi/, by
# abidiff. What is removed or changed fails; additions do not. --write: describes the last release's
# header, anew. The library's debug information would list the Rust inside: a stub of the header is
# described.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"

command -v abidiff >/dev/null ||
    { echo "skipped: abidiff is not installed (abigail-tools)"; exit 0; }
out=$root/build/abi
mkdir -p "$out"

# describe HEADER [RELEASED]: to stdout, without paths of this machine.
describe() {
    python3 scripts/ci/abi_stub.py "$1" "$out" "${@:2}"
    (cd "$out" && "${CC:-cc}" -std=c11 -g -fno-eliminate-unused-debug-types \
        -fdebug-prefix-map="$out=." -shared -fPIC -Wl,-soname,libtcuda.so -o libtcuda.so stub.c &&
        abidw --no-corpus-path --no-comp-dir-path --no-show-locs libtcuda.so)
}

last=$(find abi -name 'tcuda-*.h' | sort -V | tail -1)
description=${last%.h}.abi
if [ "${1:-}" = --write ]; then
    describe "$last" >"$description"
    exit 0
fi
describe include/tcuda.h "$last" >"$out/now.abi"
echo "include/tcuda.h beside $description"
# Its bits: 1 and 2, it could not compare; 4, something changed; 8, in a way that breaks programs.
abidiff --no-added-syms --no-show-locs "$description" "$out/now.abi" ||
    { echo "the ABI of the last release is broken: see CONTRIBUTING, Rules"; exit 1; }
