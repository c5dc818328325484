"""Writes watch.c: one function for each of tcuda.h that gives a status, which calls the library's
own and then looks at what it left behind; see watch.h.

usage: generate.py API_JSON OUTPUT
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "every_function"))
import header as reader


class Generator:
    def __init__(self, header):
        self.header = header

    def is_handle(self, p):
        return p.is_pointer and not p.is_const and p.pointee in self.header.opaque

    def is_output(self, p):
        """Host memory that the call writes only if it succeeds, and of which the size is known."""
        foreign = p.pointee.startswith("struct ") and not p.pointee.endswith("*")
        return p.is_pointer and not p.is_const and p.pointee not in ("void", "tcuda_error") \
            and not self.is_handle(p) and not foreign

    def size(self, function, p):
        """A C expression for the bytes of an output; the pointer is not NULL."""
        names = {other.name for other in function.parameters}
        if p.name == "buf":
            return "len"
        if p.pointee in self.header.sized:
            return f"watch_sized({p.name}, sizeof *{p.name})"
        if "capacity" in names and p.name not in ("count", "remainder"):
            return f"capacity * sizeof *{p.name}"
        return f"sizeof *{p.name}"

    def created(self, function):
        """The parameters that give handles that are the caller's, each with their number."""
        types = {p.name: p.type for p in function.parameters}
        for p in function.parameters:
            type = p.pointee.removesuffix("*").strip() if p.is_pointer else ""
            if p.ownership != "owned" or not self.header.ends.get(type):
                continue
            number = "1"
            if p.name.endswith("s") and "count" in types:
                number = "*count" if types["count"].endswith("*") else "count"
                if "capacity" in types:
                    number = f"({number} < capacity ? {number} : capacity)"
            yield p, number

    def body(self, function):
        yield f'    watch_begin(&call, "{function.name}");'
        for p in function.parameters:
            if self.is_output(p):
                yield f"    if ({p.name} != NULL)"
                size = self.size(function, p)
                yield f'        watch_output(&call, "{p.name}", {p.name}, {size});'
        arguments = ", ".join(p.name for p in function.parameters)
        if function.name == "tcuda_shutdown":
            yield "    size_t live = 0;"
            yield "    const tcuda_status status = next(&live);"
            yield "    if (status == TCUDA_STATUS_OK && live_handles != NULL)"
            yield "        *live_handles = live;"
        elif function.name == "tcuda_backend_fault_count":
            yield "    tcuda_status status = next(fired);"
            yield "    if (fired != NULL && (status == TCUDA_STATUS_OK || watch_fired() > 0)) {"
            yield "        *fired = watch_fired();"
            yield "        status = TCUDA_STATUS_OK;"
            yield "    }"
        else:
            yield f"    const tcuda_status status = next({arguments});"
        yield "    watch_end(&call, status);"
        if function.name == "tcuda_shutdown":
            yield "    if (status == TCUDA_STATUS_OK)"
            yield "        watch_shutdown(&call, live);"
        for p, number in self.created(function):
            yield f"    const bool has_{p.name} = status == TCUDA_STATUS_OK && {p.name} != NULL;"
            yield f"    for (size_t i = 0; has_{p.name} && i < {number}; i++)"
            yield f"        if ({p.name}[i] != NULL)"
            yield f"            watch_created({p.name}[i]);"
        first = function.parameters[0] if function.parameters else None
        if first and self.is_handle(first) and function.name == self.header.ends[first.pointee]:
            yield "    if (status != TCUDA_STATUS_INVALID_HANDLE && status != TCUDA_STATUS_FORKED"
            yield "        && status != TCUDA_STATUS_INVALID_STATE)"
            yield f"        watch_destroyed({first.name});"
        yield "    watch_leave();"
        yield "    return status;"

    def function(self, function):
        parameters = ", ".join(p.declaration for p in function.parameters) or "void"
        types = ", ".join(p.type for p in function.parameters) or "void"
        yield f"tcuda_status ({function.name})({parameters})"
        yield "{"
        yield f"    static tcuda_status (*next)({types});"
        yield "    watch_call call;"
        yield "    if (next == NULL)"
        yield f'        WATCH_FIND(next, "{function.name}");'
        if function.name == "tcuda_backend_faults":
            yield "    if (rules == NULL && watch_libc_disarm != NULL)"
            yield "        watch_libc_disarm();"
        yield from self.body(function)
        yield "}"
        yield ""

    def program(self):
        yield "/* Written by c_tests/faults/generate.py. */"
        yield "#define _GNU_SOURCE"
        yield ""
        yield '#include "watch.h"'
        yield ""
        for function in self.header.functions:
            if function.result == "tcuda_status":
                yield from self.function(function)


def main():
    api, output = sys.argv[1:]
    program = Generator(reader.read(api)).program()
    pathlib.Path(output).write_text("\n".join(program) + "\n")


main()
