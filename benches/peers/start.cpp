// The time of a process that has done nothing yet up to its first device memory.
//
//   peers_start tcuda LIBRARY | driver_map | driver_malloc
//
// tcuda is loaded by dlopen; the other two are what a host can do at the least with the driver
// alone: the primary context, and 2 MiB that are mapped or that cuMemAlloc gives.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>

static void check(int result, const char *call)
{
    if (result == 0) return;
    std::fprintf(stderr, "peers_start: %s: %d\n", call, result);
    std::exit(1);
}

static void *load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (library != nullptr) return library;
    std::fprintf(stderr, "peers_start: %s\n", dlerror());
    std::exit(1);
}

template <class Function> static Function *find(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (address != nullptr) return reinterpret_cast<Function *>(address);
    std::fprintf(stderr, "peers_start: there is no %s\n", name);
    std::exit(1);
}

static void start_tcuda(const char *path)
{
    void *library = load(path);
    void *block = nullptr;
    constexpr int current_device = -1;
    check(find<int(size_t, int, void *, void **)>(library, "tcuda_malloc")(
              4096, current_device, nullptr, &block), "tcuda_malloc");
}

static void start_driver(bool maps)
{
    constexpr size_t bytes = size_t(2) << 20;
    void *library = load("libcuda.so.1");
    CUcontext context;
    CUdeviceptr block;
    check(find<decltype(cuInit)>(library, "cuInit")(0), "cuInit");
    check(find<decltype(cuDevicePrimaryCtxRetain)>(library, "cuDevicePrimaryCtxRetain")(
              &context, 0), "cuDevicePrimaryCtxRetain");
    check(find<decltype(cuCtxSetCurrent)>(library, "cuCtxSetCurrent")(context), "cuCtxSetCurrent");
    if (!maps) {
        check(find<decltype(cuMemAlloc)>(library, "cuMemAlloc_v2")(&block, bytes), "cuMemAlloc");
        return;
    }
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    check(find<decltype(cuMemAddressReserve)>(library, "cuMemAddressReserve")(
              &block, bytes, 0, 0, 0), "cuMemAddressReserve");
    check(find<decltype(cuMemCreate)>(library, "cuMemCreate")(&handle, bytes, &properties, 0),
        "cuMemCreate");
    check(find<decltype(cuMemMap)>(library, "cuMemMap")(block, bytes, 0, handle, 0), "cuMemMap");
    check(find<decltype(cuMemSetAccess)>(library, "cuMemSetAccess")(block, bytes, &access, 1),
        "cuMemSetAccess");
}

int main(int argc, char **argv)
{
    const bool is_tcuda = argc == 3 && !std::strcmp(argv[1], "tcuda");
    const bool maps = argc == 2 && !std::strcmp(argv[1], "driver_map");
    if (!is_tcuda && !maps && !(argc == 2 && !std::strcmp(argv[1], "driver_malloc"))) {
        std::fprintf(stderr, "usage: peers_start tcuda LIBRARY | driver_map | driver_malloc\n");
        return 2;
    }
    const auto start = std::chrono::steady_clock::now();
    if (is_tcuda) start_tcuda(argv[2]);
    else start_driver(maps);
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    std::printf("{\"group\": \"start\", \"name\": \"to_first_memory\", \"ms\": %.4f}\n",
        ms.count());
}
