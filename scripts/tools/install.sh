#!/usr/bin/env bash
# usage: install.sh PREFIX: libraries, headers, CMake and pkg-config packages of the release build.
set -euo pipefail
source "$(dirname "$0")/tools.sh"
configure_and_build release
"$cmake" --install build/release --prefix "$1"
