// The GPU itself, by the driver's functions: kernels that spin and events, for every peer.
#pragma once

#include "measure.hpp"

#include <cuda.h>
#include <dlfcn.h>

namespace bench {

/// Spins for so many nanoseconds of the GPU's clock.
inline constexpr char SPIN_PTX[] = R"(
.version 7.8
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 spin_ns)
{
    .reg .pred %p1;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [spin_ns];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.s64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    ret;
}
)";

class Gpu {
public:
    /// The driver is there already where a peer runs on it: this context is the peer's.
    Gpu()
    {
        library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) fail("libcuda.so.1 cannot be loaded");
        CUcontext context;
        CUmodule module;
        check(find<decltype(cuInit)>("cuInit")(0), "cuInit");
        check(find<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, 0),
            "cuDevicePrimaryCtxRetain");
        check(find<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
        check(find<decltype(cuModuleLoadData)>("cuModuleLoadData")(&module, SPIN_PTX),
            "cuModuleLoadData");
        check(find<decltype(cuModuleGetFunction)>("cuModuleGetFunction")(&kernel, module, "spin"),
            "cuModuleGetFunction");
        launch = find<decltype(cuLaunchKernel)>("cuLaunchKernel");
        event_record = find<decltype(cuEventRecord)>("cuEventRecord");
        event_synchronize = find<decltype(cuEventSynchronize)>("cuEventSynchronize");
        event_create = find<decltype(cuEventCreate)>("cuEventCreate");
        // Not cuCtxSynchronize_v2, which newer headers call so.
        context_synchronize = find<CUresult()>("cuCtxSynchronize");
        stream_query = find<decltype(cuStreamQuery)>("cuStreamQuery");
    }

    void spin(void *stream, unsigned long long ns)
    {
        void *arguments[] = {&ns};
        check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, CUstream(stream), arguments, nullptr), "spin");
    }

    CUevent new_event()
    {
        CUevent event;
        check(event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        return event;
    }

    void record(CUevent event, void *stream)
    {
        check(event_record(event, CUstream(stream)), "cuEventRecord");
    }

    CUdeviceptr reserve(size_t bytes)
    {
        CUdeviceptr base;
        check(find<decltype(cuMemAddressReserve)>("cuMemAddressReserve")(&base, bytes, 0, 0, 0),
            "cuMemAddressReserve");
        return base;
    }

    /// A handle that can be exported and read by other hardware, mapped and made accessible.
    CUmemGenericAllocationHandle map_new(CUdeviceptr address, size_t bytes)
    {
        static const auto create = find<decltype(cuMemCreate)>("cuMemCreate");
        static const auto map = find<decltype(cuMemMap)>("cuMemMap");
        static const auto allow = find<decltype(cuMemSetAccess)>("cuMemSetAccess");
        CUmemAllocationProp properties = {};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties.allocFlags.gpuDirectRDMACapable = 1;
        const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CUmemGenericAllocationHandle handle;
        check(create(&handle, bytes, &properties, 0), "cuMemCreate");
        check(map(address, bytes, 0, handle, 0), "cuMemMap");
        check(allow(address, bytes, &access, 1), "cuMemSetAccess");
        return handle;
    }

    void unmap(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
    {
        static const auto unmap = find<decltype(cuMemUnmap)>("cuMemUnmap");
        static const auto release = find<decltype(cuMemRelease)>("cuMemRelease");
        check(unmap(address, bytes), "cuMemUnmap");
        check(release(handle), "cuMemRelease");
    }

    CUdeviceptr allocate(size_t bytes)
    {
        static const auto allocate = find<CUresult(CUdeviceptr *, size_t)>("cuMemAlloc_v2");
        CUdeviceptr block;
        check(allocate(&block, bytes), "cuMemAlloc");
        return block;
    }

    void release(CUdeviceptr block)
    {
        static const auto release = find<CUresult(CUdeviceptr)>("cuMemFree_v2");
        check(release(block), "cuMemFree");
    }

    void wait(CUevent event) { check(event_synchronize(event), "cuEventSynchronize"); }

    /// One that the default stream does not wait for.
    CUstream new_stream()
    {
        static const auto create = find<decltype(cuStreamCreate)>("cuStreamCreate");
        CUstream stream;
        check(create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        return stream;
    }

    void synchronize() { check(context_synchronize(), "cuCtxSynchronize"); }

    void must_be_done(CUstream stream) { check(stream_query(stream), "cuStreamQuery"); }

private:
    void *library;
    CUfunction kernel;
    decltype(&cuLaunchKernel) launch;
    decltype(&cuEventRecord) event_record;
    decltype(&cuEventSynchronize) event_synchronize;
    decltype(&cuEventCreate) event_create;
    CUresult (*context_synchronize)();
    decltype(&cuStreamQuery) stream_query;

    static void check(CUresult result, const char *call)
    {
        if (result != CUDA_SUCCESS) fail(std::string(call) + ": " + std::to_string(result));
    }

    /// Nothing links with libcuda: a machine without a GPU has none.
    template <class Function> Function *find(const char *name)
    {
        void *address = dlsym(library, name);
        if (address == nullptr) fail(std::string(name) + " is not in libcuda.so.1");
        return reinterpret_cast<Function *>(address);
    }
};

} // namespace bench
