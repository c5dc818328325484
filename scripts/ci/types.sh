#!/usr/bin/env bash
# The types of the Python package: mypy --strict, from PyPI into target/tools, and pyright where it
# is installed. The options of mypy are in pyproject.toml.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
mypy=2.4.1
folder=$tools/mypy-$mypy

if [ ! -e "$folder/mypy" ]; then
    rm -rf "$folder"
    python3 scripts/tools/pip_install.py "mypy==$mypy" "$folder" >/dev/null 2>&1 ||
        { rm -rf "$folder"; echo "skipped: PyPI, which has mypy, cannot be reached"; exit 0; }
fi
# The package with the stub of its extension.
rm -rf target/types
mkdir -p target/types
cp -r python/tcuda target/types/tcuda
python3 python/generate.py include/api.json target/types/wrappers.c target/types/tcuda/_core.pyi
PYTHONPATH=$folder python3 -m mypy --cache-dir target/types/cache target/types/tcuda
if command -v pyright >/dev/null; then
    (cd target/types && pyright --pythonversion 3.10 tcuda/*.py)
fi
