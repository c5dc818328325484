"""Virtual environments with packages of PyPI, for the suites of other projects."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def environment(suite, packages):
    """The folder of a virtual environment with these packages; made anew if they changed."""
    folder = ROOT / "target/suites" / suite
    pins = folder / "packages.txt"
    if not pins.exists() or pins.read_text() != "\n".join(packages):
        print(f"Getting {packages[0]} from PyPI into {folder.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *packages], check=True)
        pins.write_text("\n".join(packages))
    return folder
