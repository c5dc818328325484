"""Compares tcuda_tensor with DLTensor of a dlpack.h of this machine: offsets, sizes and numbers.

usage: dlpack_header.py COMPILER INCLUDE_DIRECTORY

The header is the one that TCUDA_DLPACK_H names, PyTorch's, or a system's; without any the test is
skipped.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77

PAIRS = [("DLTensor", "tcuda_tensor",
          ["data", "device", "ndim", "dtype", "shape", "strides", "byte_offset"]),
         ("DLDevice", "tcuda_tensor_device", ["device_type", "device_id"]),
         ("DLDataType", "tcuda_dtype", ["code", "bits", "lanes"])]

# By name; older headers lack the later ones.
NUMBERS = {
    "kDLCPU": "TCUDA_DEVICE_CPU", "kDLCUDA": "TCUDA_DEVICE_CUDA",
    "kDLCUDAHost": "TCUDA_DEVICE_CUDA_HOST", "kDLCUDAManaged": "TCUDA_DEVICE_CUDA_MANAGED",
    "kDLInt": "TCUDA_DTYPE_INT", "kDLUInt": "TCUDA_DTYPE_UINT", "kDLFloat": "TCUDA_DTYPE_FLOAT",
    "kDLBfloat": "TCUDA_DTYPE_BFLOAT", "kDLComplex": "TCUDA_DTYPE_COMPLEX",
    "kDLBool": "TCUDA_DTYPE_BOOL", "kDLFloat8_e4m3fn": "TCUDA_DTYPE_FLOAT8_E4M3FN",
    "kDLFloat8_e5m2": "TCUDA_DTYPE_FLOAT8_E5M2", "kDLFloat4_e2m1fn": "TCUDA_DTYPE_FLOAT4_E2M1FN",
}


def candidates():
    named = os.environ.get("TCUDA_DLPACK_H")
    if named:
        return [pathlib.Path(named)]
    found = [pathlib.Path("/usr/include/dlpack/dlpack.h"),
             pathlib.Path("/usr/local/include/dlpack/dlpack.h")]
    torch = importlib.util.find_spec("torch")
    for folder in torch.submodule_search_locations if torch else []:
        found.append(pathlib.Path(folder) / "include" / "ATen" / "dlpack.h")
    return found


def source(header):
    text = header.read_text(errors="replace")
    lines = ["#include <stddef.h>", '#include "tcuda.h"', f'#include "{header}"']
    for theirs, ours, members in PAIRS:
        for member in members:
            lines.append(
                f"_Static_assert(offsetof({ours}, {member}) == offsetof({theirs}, {member}) && "
                f"sizeof (({ours} *)0)->{member} == sizeof (({theirs} *)0)->{member},"
                f" \"{member}\");")
        lines.append(f"_Static_assert(sizeof({ours}) == sizeof({theirs}), \"{ours}\");")
    known = [name for name in NUMBERS if name in text]
    lines += [f"_Static_assert((int){name} == {NUMBERS[name]}, \"{name}\");" for name in known]
    return "\n".join(lines) + "\n", len(known)


def main():
    compiler, include = sys.argv[1:]
    header = next((path for path in candidates() if path.is_file()), None)
    if header is None:
        print("skipped: there is no dlpack.h on this machine")
        return SKIPPED
    text, numbers = source(header)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "dlpack.c"
        path.write_text(text)
        done = subprocess.run(
            [compiler, "-std=c11", f"-I{include}", "-fsyntax-only", str(path)], check=False)
    print(f"{header}: {numbers} numbers")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
