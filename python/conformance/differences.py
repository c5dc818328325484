"""The cases that one of the modules does not pass, with reasons."""

import pathlib


def known_differences(module: str) -> dict[str, str]:
    """The cases that a module does not pass, from the lines of differences.txt."""
    lines = pathlib.Path(__file__).with_suffix(".txt").read_text().splitlines()
    entries = (line.split(": ", 2) for line in lines if line and not line.startswith("#"))
    return {name: reason for of, name, reason in entries if of == module}
