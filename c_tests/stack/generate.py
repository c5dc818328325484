"""Writes stack.c: one function for each of tcuda.h, which calls the library's own and measures how
deep it goes into the stack; see stack.h.

usage: generate.py API_JSON OUTPUT
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "every_function"))
import header as reader


def function(index, function):
    parameters = ", ".join(p.declaration for p in function.parameters) or "void"
    types = ", ".join(p.type for p in function.parameters) or "void"
    arguments = ", ".join(p.name for p in function.parameters)
    result = function.result if function.result.endswith("*") else function.result + " "
    # In parentheses: some are macros as well.
    yield f"{result}({function.name})({parameters})"
    yield "{"
    yield f"    static {result}(*next)({types});"
    yield "    if (next == NULL)"
    yield f'        STACK_FIND(next, "{function.name}");'
    yield "    const bool begins = stack_begin(__builtin_frame_address(0));"
    if function.result == "void":
        yield f"    next({arguments});"
    else:
        yield f"    {result}const outcome_ = next({arguments});"
    yield f"    stack_end(begins, {index}, __builtin_frame_address(0));"
    if function.result != "void":
        yield "    return outcome_;"
    yield "}"
    yield ""


def main():
    api, output = sys.argv[1:]
    functions = reader.read(api).functions
    lines = ["/* Written by c_tests/stack/generate.py. */", "#define _GNU_SOURCE", ""]
    lines += [f"enum {{ STACK_FUNCTIONS = {len(functions)} }};"]
    lines += ["static const char *const stack_names[STACK_FUNCTIONS] = {"]
    lines += [f'    "{function.name}",' for function in functions] + ["};", ""]
    lines += ['#include "stack.h"', ""]
    for index, each in enumerate(functions):
        lines += function(index, each)
    pathlib.Path(output).write_text("\n".join(lines) + "\n")


main()
