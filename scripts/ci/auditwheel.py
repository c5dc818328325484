"""usage: auditwheel.py GLIBC WHEEL...: checks the wheels of a release with auditwheel.

Fails where a wheel lacks a library, where its name is not that of manylinux with this glibc, such
as 2.17, or where `auditwheel show` names another platform. auditwheel is on PYTHONPATH.
"""

import pathlib
import re
import subprocess
import sys
import zipfile

FILES = {"_core.abi3.so", "_core.pyi", "py.typed", "lib/libtcuda_sim.so", "include/tcuda.h"}
LIBRARY = re.compile(r"tcuda/lib/libtcuda\.so\.\d+\.\d+$")
TAGS = re.compile(r"^tcuda-[0-9.]+-cp310-abi3-manylinux2014_(\w+)\.manylinux_(\d+_\d+)_\1\.whl$")


def complaints(wheel, glibc):
    """What is wrong with a wheel."""
    found = TAGS.match(wheel.name)
    if not found or found[2] != glibc:
        yield f"the name is not one of manylinux_{glibc}"
        return
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/WHEEL")))
    yield from sorted(f"{name} is absent" for name in FILES if f"tcuda/{name}" not in names)
    if len(list(filter(LIBRARY.search, names))) != 1:
        yield "there is not one libtcuda.so"
    if not any(name.endswith("/licenses/THIRD_PARTY.txt") for name in names):
        yield "the licences of the crates are absent"
    tags = set(re.findall(r"^Tag: (.*)$", metadata.decode(), re.MULTILINE))
    platforms = {f"cp310-abi3-manylinux2014_{found[1]}", f"cp310-abi3-manylinux_{glibc}_{found[1]}"}
    if tags != platforms:
        yield f"its tags are {sorted(tags)}"
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(shown)
    platform = re.search(r'is consistent with the following platform tag: "(\w+)"',
        " ".join(shown.split()))[1]
    if platform != f"manylinux_{glibc}_{found[1]}":
        yield f"auditwheel finds it fit for {platform}"


def main():
    glibc, wheels, failures = sys.argv[1].replace(".", "_"), sys.argv[2:], 0
    assert wheels, "no wheel is named"
    for wheel in map(pathlib.Path, wheels):
        wrong = list(complaints(wheel, glibc))
        print("\n".join(f"{wheel.name}: {what}" for what in wrong))
        failures += bool(wrong)
    print(f"figure: wheels for manylinux_{glibc} = {len(wheels) - failures}")
    sys.exit(failures > 0)


main()
