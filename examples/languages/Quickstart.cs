// The quickstart in C#. There is no await between a call and the text of its error.

using System;
using System.Runtime.InteropServices;

static class Quickstart
{
    const string Tcuda = "libtcuda.so.0.1";

    [DllImport(Tcuda)]
    static extern int tcuda_malloc(UIntPtr bytes, int device, IntPtr stream, out IntPtr ptr);
    [DllImport(Tcuda)]
    static extern int tcuda_free(IntPtr ptr);
    [DllImport(Tcuda)]
    static extern int tcuda_fill(
        IntPtr ptr, ref float value, UIntPtr valueBytes, UIntPtr count, IntPtr stream);
    [DllImport(Tcuda)]
    static extern int tcuda_copy([Out] float[] dst, IntPtr src, UIntPtr bytes, IntPtr stream);
    [DllImport(Tcuda)]
    static extern int tcuda_stream_synchronize(IntPtr stream);
    [DllImport(Tcuda)]
    static extern int tcuda_memory_allocated(int device, out UIntPtr bytes);
    [DllImport(Tcuda)]
    static extern int tcuda_shutdown(IntPtr live);
    [DllImport(Tcuda)]
    static extern IntPtr tcuda_last_error();

    static void Check(int status)
    {
        if (status != 0)
            throw new Exception(Marshal.PtrToStringAnsi(tcuda_last_error()));
    }

    static void Main()
    {
        var host = new float[1000];
        var bytes = (UIntPtr)(uint)(host.Length * sizeof(float));
        float value = 1.5F;
        Check(tcuda_malloc(bytes, 0, IntPtr.Zero, out IntPtr memory));
        Check(tcuda_fill(memory, ref value, (UIntPtr)sizeof(float), (UIntPtr)(uint)host.Length,
            IntPtr.Zero));
        // Pageable memory: the copy is complete when the call returns, and the array may move then.
        Check(tcuda_copy(host, memory, bytes, IntPtr.Zero));
        Check(tcuda_stream_synchronize(IntPtr.Zero));
        Check(tcuda_memory_allocated(0, out UIntPtr allocated));
        Console.WriteLine(FormattableString.Invariant(
            $"{host[0]} ... {host[host.Length - 1]}, {allocated} bytes allocated"));
        Check(tcuda_free(memory));
        Check(tcuda_shutdown(IntPtr.Zero));
    }
}
