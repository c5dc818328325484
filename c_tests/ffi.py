"""Python's cffi reads tcuda.h and calls the library through it.

usage: ffi.py HEADER LIBRARY CC TOOLS_DIR    (cffi is installed into TOOLS_DIR if it is missing)
"""

import importlib
import os
import pathlib
import re
import subprocess
import sys

header, library, cc, tools = sys.argv[1:]
# Compiled for one version of Python. First in the path: Debian may have half of another cffi.
tools = os.path.join(tools, f"python{sys.version_info.major}.{sys.version_info.minor}")
try:
    import cffi
except ImportError:
    if not os.path.isdir(os.path.join(tools, "cffi")):
        installer = pathlib.Path(__file__).parent.parent / "scripts/tools/pip_install.py"
        if subprocess.run([sys.executable, installer, "cffi", tools]).returncode != 0:
            print("skipped: no cffi, and it cannot be fetched")
            sys.exit(77)
    sys.path.insert(0, tools)
    importlib.invalidate_caches()
    import cffi

# cffi knows the standard types but no preprocessor. -undef hides the compiler from the header, so
# that TCUDA_API and TCUDA_NODISCARD are empty.
text = re.sub(r"^#include.*$", "", open(header).read(), flags=re.MULTILINE)
preprocess = [cc, "-E", "-P", "-undef", "-x", "c", "-"]
declarations = subprocess.run(preprocess, input=text, capture_output=True, text=True, check=True)

ffi = cffi.FFI()
ffi.cdef(declarations.stdout)
tcuda = ffi.dlopen(library)

version = int(re.search(r"#define TCUDA_VERSION (\d+)", text).group(1))
assert tcuda.tcuda_version() == version, (tcuda.tcuda_version(), version)

count = ffi.new("int32_t *")
assert tcuda.tcuda_device_count(count) == tcuda.TCUDA_STATUS_OK
assert tcuda.tcuda_device_count(ffi.NULL) == tcuda.TCUDA_STATUS_INVALID_ARGUMENT
print(f"tcuda {version}: {count[0]} device(s); {ffi.string(tcuda.tcuda_last_error()).decode()!r}")
