"""cffi and LuaJIT read tcuda_cdef.h as it is and call the library; what cffi reads is what api.json
says; api.json is as its schema says.

usage: ffi.py ROOT LIBRARY TOOLS_DIR    (packages are installed into TOOLS_DIR if they are missing)
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys

root, library, tools = sys.argv[1:]
root = pathlib.Path(root)
# Compiled for one version of Python. First in the path: Debian may have half of another cffi.
tools = os.path.join(tools, f"python{sys.version_info.major}.{sys.version_info.minor}")


def package(name, module=None):
    try:
        return importlib.import_module(module or name)
    except ImportError:
        if not os.path.isdir(os.path.join(tools, name)):
            installer = root / "scripts/tools/pip_install.py"
            if subprocess.run([sys.executable, installer, name, tools]).returncode != 0:
                print(f"skipped: no {name}, and it cannot be fetched")
                sys.exit(77)
        sys.path.insert(0, tools)
        importlib.invalidate_caches()
        return importlib.import_module(module or name)


api = json.loads((root / "include/api.json").read_text())
schema = json.loads((root / "data/api.schema.json").read_text())
package("fastjsonschema").validate(schema, api)
# The schema refuses what it does not describe.
for spoiled in ({"direction": "up"}, {"since": 1}, {"unknown": True}):
    functions = [{**function, "parameters": [{**p, **spoiled} for p in function["parameters"]]}
                 for function in api["functions"]]
    try:
        package("fastjsonschema").validate(schema, {**api, "functions": functions})
    except package("fastjsonschema").JsonSchemaValueException:
        continue
    sys.exit(f"the schema accepts {spoiled}")

declarations = (root / "include/tcuda_cdef.h").read_text()
ffi = package("cffi").FFI()
ffi.cdef(declarations)
tcuda = ffi.dlopen(library)


def signature(function):
    types = ", ".join(p["type"] for p in function["parameters"]) or "void"
    return ffi.typeof(f"{function['result']} (*)({types})")


for function in api["functions"]:
    assert ffi.typeof(getattr(tcuda, function["name"])) == signature(function), function["name"]
for callback in api["callbacks"]:
    assert ffi.typeof(callback["name"]) == signature(callback), callback["name"]
for struct in api["structs"]:
    members = [(name, member.type) for name, member in ffi.typeof(struct["name"]).fields]
    said = [(member["name"], ffi.typeof(member["type"])) for member in struct["members"]]
    assert members == said, struct["name"]
constants = api["constants"] + [value for enum in api["enums"] for value in enum["values"]]
for constant in constants:
    assert getattr(tcuda, constant["name"]) == constant["value"], constant["name"]

count = ffi.new("int32_t *")
assert tcuda.tcuda_version() == tcuda.TCUDA_VERSION
assert tcuda.tcuda_device_count(count) == tcuda.TCUDA_STATUS_OK
assert tcuda.tcuda_device_count(ffi.NULL) == tcuda.TCUDA_STATUS_INVALID_ARGUMENT
text = ffi.string(tcuda.tcuda_last_error()).decode()

lua = package("lupa", "lupa.luajit21").LuaRuntime()
devices = lua.execute("""
    local declarations, library = ...
    local ffi = require("ffi")
    ffi.cdef(declarations)
    local tcuda = ffi.load(library)
    local count = ffi.new("int32_t[1]")
    assert(tcuda.tcuda_version() == tcuda.TCUDA_VERSION)
    assert(tcuda.tcuda_device_count(count) == tcuda.TCUDA_STATUS_OK)
    local info = ffi.new("tcuda_device_info", { struct_size = ffi.sizeof("tcuda_device_info") })
    assert(count[0] == 0 or tcuda.tcuda_device_properties(0, info) == tcuda.TCUDA_STATUS_OK)
    return count[0]
""", declarations, library)
assert devices == count[0]
print(f"tcuda {tcuda.TCUDA_VERSION}: {devices} device(s); {text!r}")
