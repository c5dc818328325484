"""usage: auditwheel.py GLIBC TARBALL...: checks the libraries of release tarballs with auditwheel.

Packs both shared libraries of a tarball into a wheel. Fails where `auditwheel show` names another
platform than manylinux with this glibc, such as 2.17. auditwheel is on PYTHONPATH.
"""

import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

LIBRARY = re.compile(r"/lib/(libtcuda\.so\.\d+\.\d+\.\d+|libtcuda_sim\.so)$")
METADATA = "Metadata-Version: 2.1\nName: tcuda\nVersion: 0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: auditwheel.py\nRoot-Is-Purelib: false\nTag: {}\n"


def libraries(tarball):
    """The contents of the shared libraries, by name."""
    with tarfile.open(tarball) as archive:
        found = [(LIBRARY.search(member.name), member) for member in archive]
        contents = {name[1]: archive.extractfile(member).read() for name, member in found if name}
    assert len(contents) == 2, f"{tarball} has {sorted(contents)}"
    return contents


def pack(folder, architecture, contents):
    """A wheel with the libraries. Its RECORD has no sums, because auditwheel reads none."""
    tag = f"py3-none-linux_{architecture}"
    files = {f"tcuda/{name}": content for name, content in contents.items()}
    files["tcuda/__init__.py"] = b""
    files["tcuda-0.dist-info/METADATA"] = METADATA.encode()
    files["tcuda-0.dist-info/WHEEL"] = WHEEL.format(tag).encode()
    files["tcuda-0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files).encode()
    wheel = folder / f"tcuda-0-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def named(wheel):
    """The platform that auditwheel names for a wheel."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(shown)
    return re.search(r'is consistent with the following platform tag: "(\w+)"',
        " ".join(shown.split()))[1]


def main():
    glibc, tarballs, failures = sys.argv[1].replace(".", "_"), sys.argv[2:], 0
    assert tarballs, "no tarball is named"
    for tarball in tarballs:
        architecture = re.search(r"-linux-(\w+)\.tar\.gz$", tarball)[1]
        with tempfile.TemporaryDirectory() as folder:
            wheel = pack(pathlib.Path(folder), architecture, libraries(tarball))
            platform = named(wheel)
        if platform != f"manylinux_{glibc}_{architecture}":
            print(f"{tarball}: {platform}, not manylinux_{glibc}")
            failures += 1
    print(f"figure: wheels for manylinux_{glibc} = {len(tarballs) - failures}")
    sys.exit(failures > 0)


main()
