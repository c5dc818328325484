"""usage: generate.py API_JSON WRAPPERS_C STUB: writes the Python functions of tcuda._core.

Each function of api.json becomes one of `_core`, without the prefix `tcuda_`: inputs in order as
arguments; outputs as the result, a tuple if there are several; a status other than OK raises.
"""

import fnmatch
import json
import pathlib
import sys

# Functions that are written by hand in src/, with their arguments and their types.
HAND_WRITTEN = {
    "tcuda_set_log_callback": (
        {"level": "int", "callback": "Callable[[int, str], object] | None"}, "None"),
    "tcuda_stream_add_callback": (
        {"stream": "int | None", "callback": "Callable[[], object]"}, "None"),
    "tcuda_memory_on_out_of_memory": (
        {"callback": "Callable[[int, int, int, int], object]"}, "int"),
    "tcuda_memory_on_rejection": (
        {"callback": "Callable[[int, int, int, int], object]"}, "int"),
    "tcuda_memory_on_event": ({"callback": "Callable[[dict[str, Any]], object]"}, "int"),
    "tcuda_mem_pool_begin_streams": (
        {"pool": "int | None", "device": "int", "filter": "Callable[[int], object]"}, "None"),
    "tcuda_graph_pools": ({"graph": "int | None"}, "list[int]"),
    "tcuda_graph_retain": (
        {"graph": "int | None", "object": "object", "synchronize": "int"}, "None"),
    "tcuda_sm_partition_split": (
        {"partition": "int | None", "min_sm_count": "int", "flags": "int", "capacity": "int"},
        "tuple[list[int], int]"),
    "tcuda_sm_partition_split_groups": (
        {"partition": "int | None", "groups": "bytes"}, "tuple[list[int], int]"),
    "tcuda_sanitizer_enable": (
        {"max_reports": "int", "report": "Callable[[dict[str, Any]], object] | None",
         "with_frames": "int"}, "None"),
    "tcuda_graph_on_event": (
        {"graph": "int | None", "events": "int", "hook": "Callable[[int, int], object]"}, "int"),
    "tcuda_memory_record_history": (
        {"mode": "int", "max_entries": "int", "frames_for": "int", "flags": "int",
         "skip_actions": "str | None", "with_frames": "int"}, "None"),
    "tcuda_comm_broadcast": ({"src": "int", "devices": "bytes"}, "list[int]"),
    "tcuda_comm_broadcast_coalesced": (
        {"tensors": "bytes", "devices": "bytes", "buffer_bytes": "int"}, "list[int]"),
    "tcuda_comm_reduce_add": ({"tensors": "bytes", "destination": "int"}, "list[int]"),
    "tcuda_comm_reduce_add_coalesced": (
        {"tensors": "bytes", "num_devices": "int", "destination": "int", "buffer_bytes": "int"},
        "list[int]"),
    "tcuda_comm_scatter": (
        {"tensor": "int", "devices": "bytes", "chunk_sizes": "bytes | None", "dim": "int",
         "streams": "bytes | None"}, "list[int]"),
    "tcuda_comm_scatter_into": (
        {"tensor": "int", "outs": "bytes", "dim": "int", "streams": "bytes | None"}, "None"),
    "tcuda_comm_gather": ({"tensors": "bytes", "dim": "int", "destination": "int"}, "list[int]"),
    "tcuda_communicator_init_all": ({"devices": "bytes"}, "list[int]"),
    "tcuda_jit_create": ({"code": "str", "scalars": "dict[str, Any]"}, "int"),
    "tcuda_jit_create_multi": (
        {"code": "str", "num_outputs": "int", "scalars": "dict[str, Any]"}, "int"),
    "tcuda_jit_call": (
        {"jit": "int", "inputs": "bytes", "scalars": "dict[str, Any]", "outputs": "bytes"},
        "None"),
}

# Functions without a counterpart in tcuda.h, of src/arrays.c and src/adapters.c: arguments, result,
# comment. A handle of an array is the address of its tcuda_tensor, so that other functions take it.
ADDED = {
    "tensor_empty": (
        {"shape": "tuple[int, ...]", "strides": "tuple[int, ...] | None", "code": "int",
         "bits": "int", "device": "int"}, "int", "An array in new memory."),
    "tensor_view": (
        {"address": "int", "shape": "tuple[int, ...]", "strides": "tuple[int, ...] | None",
         "code": "int", "bits": "int", "device_type": "int", "device_id": "int",
         "read_only": "int", "owner": "object"}, "int",
        "An array in memory of another object, which it keeps."),
    "tensor_from_capsule": ({"capsule": "object"}, "int", "An array from a capsule of DLPack."),
    "tensor_to_capsule": (
        {"tensor": "int", "versioned": "int", "copied": "int", "ordered": "int",
         "cu_stream": "int | None", "lasting": "int"}, "object",
        "A capsule of an array; ordered: for a consumer that uses the stream, which lasts or not."),
    "tensor_info": (
        {"tensor": "int"},
        "tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, int, int], tuple[int, int], bool]",
        "Address, shape, strides, dtype (code, bits, lanes), device (type, id), is it read-only?"),
    "tensor_set_origin": (
        {"tensor": "int", "origin": "int"}, "bool",
        "Keeps the memory of another array if this one is in it; is it?"),
    "tensor_list": ({"tensors": "list[int]"}, "bytes", "A list of arrays; it does not keep them."),
    "tensor_destroy": ({"tensor": "int"}, "None", "Ends an array."),
    "cupy_functions": (
        {"current_stream": "object", "handle_of": "Callable[[int], int]",
         "fail": "Callable[[int, int, str, int], object]"}, "tuple[int, int]",
        "The addresses of the functions that CuPy's allocator calls."),
    "cupy_malloc": (
        {"malloc": "Callable[[int], Any]", "size": "int"}, "Any",
        "Calls CuPy's allocator, and raises what its function failed with."),
    "cupy_cache": (
        {"native": "int | None", "stream": "int | None"}, "None",
        "Keeps the handle of CuPy's current stream."),
}

# Functions that are left out, and why: by pattern of the name, and by type of a parameter.
LEFT_OUT = {
    "tcuda_last_error*": "exceptions carry text and code",
    "tcuda_call": "every function has a name of its own here",
    "tcuda_torch_*": "called by PyTorch, which finds them in the library",
    "tcuda_ort_*": "called by ONNX Runtime, which finds them in the library",
    "tcuda_memory_context_of": "contexts come from a function of the host in C",
    "tcuda_memory_snapshot_event": "the pickle of a snapshot has its events",
    "tcuda_memory_snapshot_block": "the pickle of a snapshot has its blocks",
    "tcuda_tensor_*": "the functions of arrays are tensor_empty and others",
}
LEFT_OUT_TYPES = {
    "tcuda_callable": "its members are functions in C",
    "tcuda_graphed_callable": "they come from functions in C",
    "tcuda_kernel_options": "its members are pointers of the host",
    "tcuda_launch_options": "its members are pointers of the host",
}

# Structs that the callbacks in src/ get.
OF_CALLBACKS = ["tcuda_memory_event", "tcuda_sanitizer_report"]

# For a number of C: what reads it from Python, what makes a Python object of it, its type there.
NUMBERS = {
    "bool": (None, "PyBool_FromLong", "bool"),
    "int32_t": ("to_int32", "PyLong_FromLong", "int"),
    "uint32_t": ("to_uint32", "PyLong_FromUnsignedLong", "int"),
    "int64_t": ("to_int64", "PyLong_FromLongLong", "int"),
    "uint64_t": ("to_uint64", "PyLong_FromUnsignedLongLong", "int"),
    "size_t": ("to_size", "PyLong_FromSize_t", "int"),
    "float": (None, "PyFloat_FromDouble", "float"),
    "double": ("to_double", "PyFloat_FromDouble", "float"),
}
STATE = "uint8_t[TCUDA_RANDOM_STATE_BYTES]"  # What uint8_t * points to, everywhere.


def base(type_name):
    """A type without const, pointers and the length of an array."""
    return type_name.replace("const", "").split("[")[0].replace("*", "").strip()


def pointee(type_name):
    """What a pointer points to."""
    target = type_name.removesuffix("*").strip()
    if not target.endswith("*"):
        target = target.removeprefix("const ")
    return STATE if target == "uint8_t" else target


def python_name(function):
    """The name of a function in _core."""
    return function["name"].removeprefix("tcuda_")


def left_out_because(function):
    """Why there is no wrapper of a function; None if there is one."""
    if function["name"] in HAND_WRITTEN:
        return None
    for pattern, reason in LEFT_OUT.items():
        if fnmatch.fnmatch(function["name"], pattern):
            return reason
    for parameter in function["parameters"]:
        if reason := LEFT_OUT_TYPES.get(base(parameter["type"])):
            return reason
    return None


class Types:
    """The types of api.json, in C and in Python."""

    def __init__(self, api):
        self.structs = {struct["name"]: struct for struct in api["structs"]}
        self.enums = {enum["name"]: enum["type"] for enum in api["enums"]}
        self.callbacks = {callback["name"] for callback in api["callbacks"]}
        self.used = []  # Structs that come out, the parts of one before it.

    def number(self, type_name):
        """The entry of NUMBERS for a number or enum; None for other types."""
        return NUMBERS.get(self.enums.get(type_name, type_name))

    def value(self, type_name, c_value):
        """An expression of C that makes a Python object of a value, and the object's type."""
        if number := self.number(type_name):
            return f"{number[1]}({c_value})", number[2]
        if type_name in self.structs:
            return f"{self.converter(type_name)}(&{c_value})", self.struct_in_python(type_name)
        if type_name == "const char *":
            return f"from_text({c_value})", "str | None"
        if type_name.endswith("*"):
            return f"PyLong_FromVoidPtr((void *)(uintptr_t){c_value})", "int"
        element = base(type_name)
        if element == "char":
            return f"PyUnicode_FromString({c_value})", "str"
        if element == "uint8_t":
            size = f"sizeof {c_value}"
            return f"PyBytes_FromStringAndSize((const char *){c_value}, {size})", "bytes"
        if "[" not in type_name:
            raise TypeError(f"no rule for {type_name} {c_value}")
        length = int(type_name.split("[")[1].rstrip("]"))
        numbers = ", ".join(
            self.value(element, f"{c_value}[{index}]")[0] for index in range(length))
        return f'Py_BuildValue("({"N" * length})", {numbers})', "tuple[int, ...]"

    def struct_in_python(self, name):
        """A struct of bytes alone is bytes, others are dictionaries."""
        return "bytes" if self.is_bytes(name) else "dict[str, Any]"

    def is_bytes(self, name):
        """Has a struct one member, which is called bytes?"""
        return [member["name"] for member in self.structs[name]["members"]] == ["bytes"]

    def converter(self, type_name):
        """The function that makes a Python object of what a pointer points to."""
        if type_name == STATE:
            return "from_state"
        if type_name == "int32_t":
            return "from_int32"
        for member in self.structs[type_name]["members"]:
            if member["type"] in self.structs:
                self.converter(member["type"])
        if type_name not in self.used:
            self.used.append(type_name)
        return f"from_{type_name}"

    def converters(self):
        """The functions for the structs that come out."""
        for name in self.used:
            members = [m for m in self.structs[name]["members"] if m["name"] != "struct_size"]
            values = [self.value(m["type"], f"value->{m['name']}")[0] for m in members]
            if self.is_bytes(name):
                result = values[0]
            else:
                pairs = ",\n        ".join(
                    f'"{m["name"]}", {value}' for m, value in zip(members, values))
                result = f'Py_BuildValue("{{{"sN" * len(members)}}}",\n        {pairs})'
            static = "" if name in OF_CALLBACKS else "static "
            yield (f"{static}PyObject *from_{name}(const void *item)\n{{\n"
                   f"    const {name} *value = item;\n    return {result};\n}}\n")


class Wrapper:
    """The wrapper of a function: what each of its parameters adds."""

    def __init__(self, function, types):
        self.function, self.types = function, types
        self.arguments, self.reads, self.locals, self.call = {}, [], [], []
        self.results, self.result_types = [], []
        self.buffer = None  # How `buffer` starts, and how its text or list becomes an object.
        parameters = list(function["parameters"])
        while parameters:
            parameter = parameters.pop(0)
            if parameter["direction"] == "in" and "length" in parameter:
                self.add_list(parameter, parameters.pop(0))
            elif parameter["direction"] == "in":
                self.add_input(parameter)
            elif "length" in parameter:
                self.add_buffer(parameter, parameters.pop(0), parameters.pop(0))
            else:
                self.add_output(parameter)

    def argument(self, name, annotation, read):
        """Adds a Python argument, which `read` reads."""
        self.reads.append(read.format(f"args[{len(self.arguments)}]"))
        self.arguments[name] = annotation

    def add_input(self, parameter):
        name, type_name = parameter["name"], parameter["type"]
        self.call.append(
            f"({type_name})(uintptr_t){name}" if type_name in self.types.callbacks else name)
        if number := self.types.number(type_name):
            self.locals.append(f"{type_name} {name};")
            self.argument(name, number[2], f"{number[0]}({{}}, &{name})")
        elif type_name == "const char *":
            self.locals.append(f"const char *{name};")
            self.argument(name, "str | None", f"to_text({{}}, &{name})")
        elif type_name != "const tcuda_tensor *" and (
                pointee(type_name) in self.types.structs or pointee(type_name) == STATE):
            size = f"sizeof({pointee(type_name)})"
            self.locals.append(f"const void *{name};")
            self.argument(name, "bytes | None", f"to_struct({{}}, {size}, &{name})")
        elif type_name in self.types.callbacks or type_name.endswith("*"):
            self.locals.append(f"void *{name};")
            self.argument(name, "int | None", f"to_pointer({{}}, &{name})")
        else:
            raise TypeError(f"{self.function['name']}: no rule for {type_name} {name}")

    def add_list(self, parameter, count):
        name, size = parameter["name"], f"sizeof({pointee(parameter['type'])})"
        self.locals += [f"const void *{name};", f"size_t {count['name']};"]
        self.call += [name, count["name"]]
        self.argument(name, "bytes", f"to_items({{}}, {size}, &{name}, &{count['name']})")

    def add_output(self, parameter):
        name, target = parameter["name"], pointee(parameter["type"])
        struct = self.types.structs.get(target)
        value, annotation = self.types.value(target, name)
        start = " = TCUDA_INIT(" + target + ")" if struct and struct["sized"] else ""
        element, bracket, length = target.partition("[")
        self.locals.append(f"{element} {name}{bracket}{length}{start};")
        self.call.append(name if bracket else f"&{name}")
        self.results.append(value)
        self.result_types.append(annotation)

    def add_buffer(self, items, capacity, count):
        if (capacity["name"], count["name"]) not in [("len", "needed"), ("capacity", "count")]:
            raise TypeError(f"{self.function['name']}: no rule for the list {items['name']}")
        target = pointee(items["type"])
        if target == "char":
            self.buffer, annotation = ("1, 1", "text_of(&buffer)"), "str"
        elif target == "void":
            self.buffer, annotation = ("1, 0", "bytes_of(&buffer)"), "bytes"
        else:
            convert = f"list_of(&buffer, {self.types.converter(target)})"
            self.buffer = (f"sizeof({target}), 0", convert)
            annotation = f"list[{self.element_annotation(target)}]"
        self.locals += ["struct buffer buffer;"]
        self.call += ["buffer.items", "buffer.room", "&buffer.count"]
        self.result_types.append(annotation)

    def element_annotation(self, target):
        if target in self.types.structs:
            return self.types.struct_in_python(target)
        return "bytes" if target == STATE else "int"

    def annotation(self):
        """The type of the result in Python."""
        if self.function["result"] != "tcuda_status":
            return self.types.value(self.function["result"], "")[1].removesuffix(" | None")
        if len(self.result_types) > 1:
            return f"tuple[{', '.join(self.result_types)}]"
        return self.result_types[0] if self.result_types else "None"

    def queues_work(self):
        """Does it queue work on a stream, or wait for it? What ends something does not."""
        return (any(p["type"] == "tcuda_stream *" for p in self.function["parameters"]) and
                not self.function["name"].endswith(
                    ("_close", "_destroy", "_end", "_pop", "_set_current")))

    def result(self):
        """The expression of the result after success, where there is no buffer."""
        if not self.results:
            return "end_call()" if self.queues_work() else "Py_NewRef(Py_None)"
        if len(self.results) == 1:
            return self.results[0]
        return f'Py_BuildValue("({"N" * len(self.results)})", {", ".join(self.results)})'

    def text(self):
        """The wrapper in C."""
        name, has_status = python_name(self.function), self.function["result"] == "tcuda_status"
        answer = "tcuda_status status;" if has_status else f"{self.function['result']} result;"
        reads = [f'has_arguments("{name}", nargs, {len(self.reads)})', *self.reads]
        call = f"{answer.split()[-1][:-1]} = tcuda_{name}({', '.join(self.call)});"
        lines = [f"static PyObject *py_{name}(PyObject *self, PyObject *const *args, "
                 "Py_ssize_t nargs)", "{"]
        lines += [f"    {line}" for line in [*self.locals, answer]]
        lines += [f"    if (!({' && '.join(reads)}))", "        return NULL;"]
        called = ["Py_BEGIN_ALLOW_THREADS", call, "Py_END_ALLOW_THREADS"]
        if self.buffer:
            start, convert = self.buffer
            lines += [f"    start_buffer(&buffer, {start});", "    do {",
                      *(f"        {line}" for line in called),
                      "    } while (status == TCUDA_STATUS_OK && grow_buffer(&buffer));",
                      "    PyObject *result = status == TCUDA_STATUS_OK",
                      f"        ? {convert}",
                      "        : raise_status(self, status);",
                      "    end_buffer(&buffer);", "    return result;"]
        elif has_status:
            lines += [f"    {line}" for line in called]
            lines += ["    if (status != TCUDA_STATUS_OK)",
                      "        return raise_status(self, status);",
                      f"    return {self.result()};"]
        else:
            lines += [f"    {line}" for line in called]
            value = self.types.value(self.function["result"], "result")[0]
            lines += ["    (void)self; /* only errors need the module */", f"    return {value};"]
        if "args[" not in "".join(self.reads):
            lines.insert(2, "    (void)args;")
        return "\n".join([*lines, "}", ""])


def document(name, arguments, doc, parameters):
    """The docstring in C: a signature that `inspect` reads, the comment, the parameters."""
    lines = [f"{name}({', '.join(['$module', *arguments, '/'])})", "--", "", doc]
    given = [p for p in parameters if p["name"] in arguments and "doc" in p]
    lines += [""] * bool(given) + [f"{p['name']}: {p['doc']}" for p in given]
    return "\n        ".join(json.dumps(line + "\n") for line in lines)


def main():
    source, wrappers_path, stub_path = map(pathlib.Path, sys.argv[1:])
    api = json.loads(source.read_text())
    types = Types(api)
    for name in OF_CALLBACKS:
        types.converter(name)
    wrappers, table, stub = [], [], []

    def add(name, arguments, annotation, doc, parameters=()):
        table.append(f'    {{"{name}", (PyCFunction)(void (*)(void))py_{name}, METH_FASTCALL,\n'
                     f"        {document(name, arguments, doc, parameters)}}},\n")
        named = ", ".join(f"{key}: {value}" for key, value in arguments.items())
        slash = ", /" * bool(arguments)
        stub.append(f"def {name}({named}{slash}) -> {annotation}: ...\n")

    for function in api["functions"]:
        if left_out_because(function):
            continue
        if function["name"] in HAND_WRITTEN:
            arguments, annotation = HAND_WRITTEN[function["name"]]
        else:
            wrapper = Wrapper(function, types)
            wrappers.append(wrapper.text())
            arguments, annotation = wrapper.arguments, wrapper.annotation()
        add(python_name(function), arguments, annotation, function["doc"], function["parameters"])
    for name, (arguments, annotation, doc) in ADDED.items():
        add(name, arguments, annotation, doc)
    names = [value["name"] for enum in api["enums"] for value in enum["values"]]
    names += [constant["name"] for constant in api["constants"]]
    constants = "".join(f'    {{"{name.removeprefix("TCUDA_")}", {name}}},\n' for name in names)
    written = "/* Written by generate.py from api.json. */"
    wrappers_path.write_text(
        f'{written}\n#include "core.h"\n\n' + "\n".join([*types.converters(), *wrappers])
        + f"\nPyMethodDef methods[] = {{\n{''.join(table)}"
        f'    {{"close_callbacks", close_callbacks, METH_NOARGS, NULL}},\n    {{0}},\n}};\n'
        + f"\nconst struct constant constants[] = {{\n{constants}    {{0}},\n}};\n")
    stub_path.write_text(
        "# Written by generate.py from api.json.\nfrom collections.abc import Callable\n"
        "from typing import Any\n\n"
        + "".join(f"{name.removeprefix('TCUDA_')}: int\n" for name in names) + "\n"
        + "".join(stub) + "def close_callbacks() -> None: ...\n")


if __name__ == "__main__":
    main()
