-- The quickstart in LuaJIT. TCUDA_INCLUDE is the folder of tcuda_cdef.h.
--
-- Functions of Lua must not be callbacks of a stream: those run on other threads. Query an event.

local ffi = require("ffi")
local header = assert(io.open(os.getenv("TCUDA_INCLUDE") .. "/tcuda_cdef.h"))
ffi.cdef(header:read("*a"))
local tcuda = ffi.load("libtcuda.so.0.1")

local function check(status)
    if status ~= tcuda.TCUDA_STATUS_OK then
        error(ffi.string(tcuda.tcuda_last_error()))
    end
end

local count = 1000
local host, value = ffi.new("float[?]", count), ffi.new("float[1]", 1.5)
local memory, allocated = ffi.new("void *[1]"), ffi.new("size_t[1]")
check(tcuda.tcuda_malloc(ffi.sizeof(host), 0, nil, memory))
check(tcuda.tcuda_fill(memory[0], value, 4, count, nil))
check(tcuda.tcuda_copy(host, memory[0], ffi.sizeof(host), nil))
check(tcuda.tcuda_stream_synchronize(nil))
check(tcuda.tcuda_memory_allocated(0, allocated))
print(string.format("%g ... %g, %d bytes allocated", host[0], host[count - 1],
    tonumber(allocated[0])))
check(tcuda.tcuda_free(memory[0]))
check(tcuda.tcuda_shutdown(nil))
