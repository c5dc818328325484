"""usage: pip_install.py PACKAGE... DIRECTORY: installs packages from PyPI into a directory.

Debian has Python without pip; pip's own single-file form does then.
"""

import pathlib
import subprocess
import sys
import urllib.request

PIP = "https://bootstrap.pypa.io/pip/pip.pyz"


def pip(tools):
    """The command that runs pip."""
    installed = [sys.executable, "-m", "pip"]
    if subprocess.run([*installed, "--version"], capture_output=True).returncode == 0:
        return installed
    file = tools / "pip.pyz"
    if not file.exists():
        partial = file.with_suffix(".partial")
        urllib.request.urlretrieve(PIP, partial)
        partial.rename(file)
    return [sys.executable, str(file)]


def main():
    packages, directory = sys.argv[1:-1], pathlib.Path(sys.argv[-1])
    directory.mkdir(parents=True, exist_ok=True)
    options = ["--quiet", "--disable-pip-version-check", "--target", str(directory)]
    sys.exit(subprocess.run([*pip(directory.parent), "install", *options, *packages]).returncode)


if __name__ == "__main__":
    main()
