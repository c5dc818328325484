// The GPU itself, by the driver's functions: kernels that spin and events, whoever allocates.
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

    void wait(CUevent event) { check(event_synchronize(event), "cuEventSynchronize"); }

private:
    void *library;
    CUfunction kernel;
    decltype(&cuLaunchKernel) launch;
    decltype(&cuEventRecord) event_record;
    decltype(&cuEventSynchronize) event_synchronize;
    decltype(&cuEventCreate) event_create;

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
