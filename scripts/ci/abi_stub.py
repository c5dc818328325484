"""usage: abi_stub.py HEADER FOLDER [RELEASED_HEADER]

Writes FOLDER/stub.c, which defines every function of tcuda.h and does nothing, and the tcuda.h that
it includes. Structs that begin with struct_size may grow at the end: with a released header they
are cut to the members that they had there.
"""

import pathlib
import re
import sys

# Releases are headers, and have no api.json.
FUNCTION = re.compile(r"TCUDA_API\n([\w *]*?)(tcuda_\w+)(\([^;]*\));")
STRUCT = re.compile(r"typedef struct (\w+) \{(\s*size_t struct_size;.*?)\} \1;", re.DOTALL)


def members(body):
    return re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL).split(";")[:-1]


def cut(text, released):
    had = {match[1]: len(members(match[2])) for match in STRUCT.finditer(released)}

    def shorter(match):
        kept = members(match[2])[:had.get(match[1])]
        return f"typedef struct {match[1]} {{{';'.join(kept)};\n}} {match[1]};"

    return STRUCT.sub(shorter, text)


def stub(text):
    yield '#include "tcuda.h"\n'
    for result, name, parameters in FUNCTION.findall(text):
        body = "" if result == "void " else "return 0;"
        # In parentheses: some are macros as well.
        yield f"{result}({name}){parameters}\n{{{body}}}\n"


def main():
    text = pathlib.Path(sys.argv[1]).read_text()
    folder = pathlib.Path(sys.argv[2])
    released = pathlib.Path(sys.argv[3]).read_text() if len(sys.argv) > 3 else ""
    (folder / "tcuda.h").write_text(cut(text, released) if released else text)
    (folder / "stub.c").write_text("\n".join(stub(text)))


main()
