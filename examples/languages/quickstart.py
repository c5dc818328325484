"""The quickstart in Python, with cffi. TCUDA_INCLUDE is the folder of tcuda_cdef.h."""

import os
import pathlib

import cffi

ffi = cffi.FFI()
ffi.cdef((pathlib.Path(os.environ["TCUDA_INCLUDE"]) / "tcuda_cdef.h").read_text())
tcuda = ffi.dlopen("libtcuda.so.0.1")


def check(status):
    if status != tcuda.TCUDA_STATUS_OK:
        raise RuntimeError(ffi.string(tcuda.tcuda_last_error()).decode())


COUNT = 1000
host, value = ffi.new("float[]", COUNT), ffi.new("float *", 1.5)
memory, allocated = ffi.new("void **"), ffi.new("size_t *")
check(tcuda.tcuda_malloc(ffi.sizeof(host), 0, ffi.NULL, memory))
check(tcuda.tcuda_fill(memory[0], value, 4, COUNT, ffi.NULL))
check(tcuda.tcuda_copy(host, memory[0], ffi.sizeof(host), ffi.NULL))
check(tcuda.tcuda_stream_synchronize(ffi.NULL))
check(tcuda.tcuda_memory_allocated(0, allocated))
print(f"{host[0]} ... {host[COUNT - 1]}, {allocated[0]} bytes allocated")
check(tcuda.tcuda_free(memory[0]))
check(tcuda.tcuda_shutdown(ffi.NULL))
