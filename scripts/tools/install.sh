#!/usr/bin/env bash
# usage: install.sh PREFIX: libraries, headers, CMake and pkg-config packages of a release build,
# without tests and examples: build/install.
set -euo pipefail
source "$(dirname "$0")/tools.sh"
"$cmake" -S . -B build/install -DCMAKE_BUILD_TYPE=Release -DTCUDA_BUILD_TESTS=OFF \
    -DTCUDA_BUILD_EXAMPLES=OFF -DTCUDA_CARGO_TARGET_DIR="$CARGO_TARGET_DIR"
"$cmake" --build build/install
"$cmake" --install build/install --prefix "$1"
