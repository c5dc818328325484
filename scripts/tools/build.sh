#!/usr/bin/env bash
# The release build, tests and examples included: build/release.
set -euo pipefail
source "$(dirname "$0")/tools.sh"
configure_and_build release
