"""usage: code_lines.py [FOLDER...]: lines of Rust code by file, without blanks, comments and tests.

Without a folder: of src/memory. An item under #[cfg(test)] and a folder or file of tests count
nothing; a line counts if it has code besides a comment.
"""

import pathlib
import re
import sys


def code(text):
    """The text without comments and the contents of literals."""
    pattern = re.compile(
        r"//[^\n]*|/\*.*?\*/|b?r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\.[^']*|[^'\\])'",
        re.DOTALL,
    )

    def replaced(found):
        token = found.group(0)
        if token.startswith("/"):
            return ""
        # A text of several lines is code on each of them.
        return '"' + "x\n" * token.count("\n") + '"'

    return pattern.sub(replaced, text)


def without_tests(text):
    """The text without the items that are compiled for tests alone."""
    mark = "#[cfg(test)]"
    while (begin := text.find(mark)) >= 0:
        at, depth = begin + len(mark), 0
        while at < len(text):
            letter = text[at]
            at += 1
            depth += letter in "([{"
            depth -= letter in ")]}"
            if depth == 0 and letter in ";,}":
                break
        text = text[:begin] + text[at:]
    return text


def lines(path):
    text = without_tests(code(path.read_text()))
    return sum(1 for line in text.split("\n") if line.strip())


def main():
    total = 0
    for folder in sys.argv[1:] or ["src/memory"]:
        for path in sorted(pathlib.Path(folder).rglob("*.rs")):
            parts = path.with_suffix("").relative_to(folder).parts
            if any(part == "tests" or part.endswith("_tests") for part in parts):
                continue
            count = lines(path)
            total += count
            print(f"{count:6} {path}")
    print(f"figure: lines of code = {total}")


main()
