"""Virtual environments with packages of PyPI and tcuda's wheel, for other projects' suites."""

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


def wheel():
    """The wheel that scripts/tools/release.sh made for this machine, or None."""
    return max(ROOT.glob("target/release-[0-9]*/tcuda-*_x86_64.whl"), default=None)


def install_wheel(python, path):
    """Installs tcuda's wheel in its present form."""
    if not path:
        sys.exit("there is no wheel of tcuda: run scripts/tools/release.sh, or give --wheel")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
                    "--force-reinstall", path.resolve()], check=True)
