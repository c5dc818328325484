"""Does what docs/install.md says, as a reader would: writes its files and runs its commands.

usage: install_page.py SOURCE_DIR BUILD_DIR PREFIX CMAKE CARGO_TARGET_DIR

A section is done in a folder of its own, with the program before the first section. A file is a
fenced block after a line with its name; a block marked sh is run by the shell and stops at the
first error. PREFIX is an installation, of which the release tarball is made that the page unpacks.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

PARTS = re.compile(
    r"(?:`(?P<name>[\w.-]+)`:\s*\n\s*)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def blocks(text, source):
    """Names, kinds and texts of the fenced blocks."""
    for part in PARTS.finditer(text):
        yield part["name"], part["kind"], part["text"].replace("path/to/tcuda", str(source))


def environment(build, cmake, cargo):
    home = pathlib.Path.home()
    changes = {
        "HOME": str(build / "home"),
        "PATH": f"{pathlib.Path(cmake).parent}:{home}/.cargo/bin:{os.environ['PATH']}",
        "CARGO_TARGET_DIR": cargo,
        "CARGO_HOME": os.environ.get("CARGO_HOME", str(home / ".cargo")),
        "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(home / ".rustup")),
    }
    return {**os.environ, **changes}


def main():
    source, build, prefix = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
    settings = environment(build, *sys.argv[4:6])
    shutil.rmtree(build, ignore_errors=True)
    (build / "home").mkdir(parents=True)
    start, *sections = re.split(r"^## ", (source / "docs/install.md").read_text(), flags=re.M)
    shared = {name: text for name, _, text in blocks(start, source) if name}
    assert "main.c" in shared, "the page begins with a program"
    ran = 0
    for section in sections:
        title = section.split("\n", 1)[0]
        folder = build / re.sub(r"\W+", "-", title)
        folder.mkdir()
        for name, text in shared.items():
            (folder / name).write_text(text)
        for name in re.findall(r"tcuda-[\d.]+-linux-x86_64\.tar\.gz", section):
            with tarfile.open(folder / name, "w:gz") as tarball:
                tarball.add(prefix, arcname=name.removesuffix(".tar.gz"))
        for name, kind, text in blocks(section, source):
            if name:
                (folder / name).write_text(text)
            elif kind == "sh":
                print(f"==== {title}", flush=True)
                subprocess.run(["sh", "-eux", "-c", text], cwd=folder, env=settings, check=True)
                ran += 1
    assert ran >= 8, f"{ran} blocks of commands were run"


main()
