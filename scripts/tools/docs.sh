#!/usr/bin/env bash
# usage: docs.sh: builds the documentation site into target/site: the pages, and the API reference
# from the header. mkdocs-material comes from PyPI into target/tools. A link that leads nowhere
# fails.
set -euo pipefail
source "$(dirname "$0")/tools.sh"
material=$tools/mkdocs
[ -e "$material/mkdocs" ] || python3 scripts/tools/pip_install.py mkdocs-material "$material"
rm -rf target/docs
mkdir -p target/docs
cp -r docs/. target/docs/
cp ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md SECURITY.md target/docs/
cp README.md target/docs/index.md
# Pages at the top of the tree link to docs/NAME; on the site all pages are in one folder.
sed -i -e 's#](docs/#](#g' -e 's#](README\.md)#](index.md)#g' \
    -e 's#](\.\./\([A-Z]*\.md\))#](\1)#g' \
    -e 's#](\(include\|examples\|models\|c_tests\|LICENSE\)[^)]*)##g' target/docs/*.md
sed -i 's#src="docs/#src="#g' target/docs/index.md
python3 scripts/generate/api_reference.py include/api.json data/torch_cuda.txt target/docs/api
NO_MKDOCS_2_WARNING=1 PYTHONPATH=$material python3 -m mkdocs build --strict --quiet
echo "target/site/index.html"
