#!/usr/bin/env bash
# usage: demo.sh [option of replay...]: builds the release library and replays the traces of real
# programs, on a GPU if there is one, else on the simulated machine.
set -euo pipefail
source "$(dirname "$0")/tools.sh"
"$cmake" --preset release --log-level=WARNING -DTCUDA_CARGO_TARGET_DIR="$CARGO_TARGET_DIR"
"$cmake" --build --preset release --parallel "$(jobs)" --target replay
python3 scripts/tools/unpack_traces.py data/traces target/traces
exec build/release/examples/replay "$@" target/traces/*.trace
