#!/usr/bin/env bash
# The wheels of a release (target/release-VERSION), without a GPU: that of this machine in an empty
# virtual environment of each Python from 3.10 on that is found (python3.N, pyenv), that for aarch64
# under qemu-aarch64 with Debian's Python. With each: README's example, python -m tcuda, the tests.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
work=$root/target/wheels
rm -rf "$work"
mkdir -p "$work"
unset PYTHONPATH PYTHONHOME TCUDA_BACKEND TCUDA_SIM
export PYTHONDONTWRITEBYTECODE=1
passed=0

# check NAME TESTS COMMAND...: the command is a Python with the package.
check() {
    local name=$1 tests=$2 output
    shift 2
    echo "==== $name"
    output=$(TCUDA_BACKEND=sim "$@" -c \
        "$(sed -n '/^## In Python$/,/^## /{/^```python$/,/^```$/{/^```/!p}}' README.md)")
    [ "$output" = 1048576 ] || { echo "README's example prints: $output"; return 1; }
    TCUDA_BACKEND=sim "$@" -m tcuda >"$work/report.txt"
    grep -q '^backend: sim: found$' "$work/report.txt" || { cat "$work/report.txt"; return 1; }
    head -1 "$work/report.txt"
    "$@" -c 'import tcuda; tcuda.is_available()'
    TCUDA_BACKEND=sim TCUDA_SIM=devices=2 "$@" -W error -m unittest discover -s python/tests \
        -p "$tests"
    passed=$((passed + 1))
}

wheel=$(ls target/release-"$version"/tcuda-*_"$(uname -m)".whl)
for python in $(compgen -c python3. | grep -xE 'python3\.[0-9]+' | sort -u) \
    "$HOME"/.pyenv/versions/3.*/bin/python3; do
    number=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
        continue
    [ "${number#3.}" -ge 10 ] && [ ! -e "$work/$number" ] || continue
    "$python" -m venv "$work/$number" ||
        { echo "$python makes no virtual environment" && rm -rf "${work:?}/$number" && continue; }
    "$work/$number/bin/pip" install --quiet --no-index "$wheel"
    check "Python $number" "test_*.py" "$work/$number/bin/python"
done
echo "figure: Pythons with the wheel = $passed"
[ "$passed" -gt 0 ]

qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
wheel=$(ls target/release-"$version"/tcuda-*_aarch64.whl 2>/dev/null || true)
if [ -z "$qemu" ] || [ -z "$wheel" ] || ! command -v apt-get >/dev/null; then
    echo "aarch64: left out, because there is no wheel, qemu-aarch64 or apt-get"
    exit 0
fi
get_aarch64 "$tools/aarch64-python" python3-minimal libc6 libgcc-s1 libexpat1 libffi8 zlib1g
# A name by which the tests start it again; it begins at an interpreter of another architecture.
cat >"$work/python3-aarch64" <<END
#!/bin/sh
export PYTHONHOME=$tools/aarch64-python/root/usr PYTHONPATH=$work/aarch64
exec $qemu -0 "\$0" -L $tools/aarch64-python/root \
    $tools/aarch64-python/root/usr/bin/python3 "\$@"
END
chmod +x "$work/python3-aarch64"
python3 -m zipfile -e "$wheel" "$work/aarch64"
# Before 8.0 qemu takes 12 GB for processes that share memory, or end with it.
[ "$("$qemu" --version | sed -n 's/.* version \([0-9]*\).*/\1/p')" -ge 8 ] &&
    tests='test_*.py' || tests='test_[!ci]*.py'
check "aarch64" "$tests" "$work/python3-aarch64"
