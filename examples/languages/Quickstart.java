// The quickstart in Java 22 or newer, by java.lang.foreign. The thread is a platform thread: a
// virtual one may move between a call and the text of its error.

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;

public final class Quickstart {
    private static final MemoryLayout INT = ValueLayout.JAVA_INT;
    private static final MemoryLayout SIZE = ValueLayout.JAVA_LONG;
    private static final MemoryLayout POINTER = ValueLayout.ADDRESS;
    private static final SymbolLookup TCUDA =
        SymbolLookup.libraryLookup("libtcuda.so.0.1", Arena.global());

    private static MethodHandle function(String name, MemoryLayout... parameters) {
        return Linker.nativeLinker().downcallHandle(
            TCUDA.find(name).orElseThrow(), FunctionDescriptor.of(INT, parameters));
    }

    private static final MethodHandle LAST_ERROR = Linker.nativeLinker().downcallHandle(
        TCUDA.find("tcuda_last_error").orElseThrow(), FunctionDescriptor.of(POINTER));

    private static void check(int status) throws Throwable {
        if (status != 0) {
            MemorySegment text = (MemorySegment) LAST_ERROR.invokeExact();
            throw new IllegalStateException(text.reinterpret(Long.MAX_VALUE).getString(0));
        }
    }

    public static void main(String[] arguments) throws Throwable {
        MethodHandle malloc = function("tcuda_malloc", SIZE, INT, POINTER, POINTER);
        MethodHandle fill = function("tcuda_fill", POINTER, POINTER, SIZE, SIZE, POINTER);
        MethodHandle copy = function("tcuda_copy", POINTER, POINTER, SIZE, POINTER);
        MethodHandle synchronize = function("tcuda_stream_synchronize", POINTER);
        MethodHandle allocated = function("tcuda_memory_allocated", INT, POINTER);
        MethodHandle free = function("tcuda_free", POINTER);
        MethodHandle shutdown = function("tcuda_shutdown", POINTER);
        MemorySegment none = MemorySegment.NULL;
        try (Arena arena = Arena.ofConfined()) {
            long count = 1000, bytes = count * 4;
            MemorySegment host = arena.allocate(bytes, 4), out = arena.allocate(8, 8);
            check((int) malloc.invokeExact(bytes, 0, none, out));
            MemorySegment memory = out.get(ValueLayout.ADDRESS, 0);
            MemorySegment value = arena.allocate(4, 4);
            value.set(ValueLayout.JAVA_FLOAT, 0, 1.5F);
            check((int) fill.invokeExact(memory, value, 4L, count, none));
            check((int) copy.invokeExact(host, memory, bytes, none));
            check((int) synchronize.invokeExact(none));
            check((int) allocated.invokeExact(0, out));
            System.out.println(host.get(ValueLayout.JAVA_FLOAT, 0) + " ... "
                + host.get(ValueLayout.JAVA_FLOAT, bytes - 4) + ", "
                + out.get(ValueLayout.JAVA_LONG, 0) + " bytes allocated");
            check((int) free.invokeExact(memory));
            check((int) shutdown.invokeExact(none));
        }
    }
}
