// CUDA's own: the driver's pool by cudaMallocAsync, CUB's caching allocator over cudaMalloc, and
// cudaMalloc itself.
#pragma once

#include "measure.hpp"
#include "peer.hpp"

#include <cuda_runtime.h>
#include <string>
#ifdef HAVE_CUB
#include <cub/util_allocator.cuh>
#endif

namespace bench {

[[noreturn, gnu::cold, gnu::noinline]] inline void refused(cudaError_t result, const char *call)
{
    fail(std::string(call) + ": " + cudaGetErrorName(result));
}

inline void check(cudaError_t result, const char *call)
{
    if (result != cudaSuccess) [[unlikely]]
        refused(result, call);
}

/// What those have in common that are called with streams of the CUDA runtime.
struct CudaStreams {
    using Stream = cudaStream_t;

    static void enter_thread() { check(cudaSetDevice(0), "cudaSetDevice"); }
    static void stop() {}
    static Stream default_stream() { return nullptr; }

    static Stream new_stream()
    {
        Stream stream = nullptr;
        check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), "cudaStreamCreate");
        return stream;
    }

    static void *native(Stream stream) { return stream; }

    /// None of these has a record_stream. What hosts do instead: the stream of the block waits
    /// for the other one before the block is freed there.
    static void record(void *, Stream owner, Stream other)
    {
        static thread_local cudaEvent_t event = nullptr;
        if (event == nullptr)
            check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
        check(cudaEventRecord(event, other), "cudaEventRecord");
        check(cudaStreamWaitEvent(owner, event, 0), "cudaStreamWaitEvent");
    }

    static void synchronize() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

    static size_t free_bytes()
    {
        size_t unused = 0, all = 0;
        check(cudaMemGetInfo(&unused, &all), "cudaMemGetInfo");
        return unused;
    }

    static size_t memory_bytes()
    {
        size_t unused = 0, all = 0;
        check(cudaMemGetInfo(&unused, &all), "cudaMemGetInfo");
        return all;
    }

    static void open_device()
    {
        int devices = 0;
        if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) fail("no GPU");
        check(cudaSetDevice(0), "cudaSetDevice");
        check(cudaFree(nullptr), "cudaFree"); // creates the context
#ifdef WITHOUT_GPU
        simulated = true;
#endif
    }
};

inline Usage pool_usage(cudaMemPool_t pool)
{
    uint64_t now = 0, peak = 0;
    check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &now), "reserved");
    check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &peak), "reserved");
    return {.reserved = now, .peak_reserved = peak};
}

inline void reset_pool_peaks(cudaMemPool_t pool)
{
    uint64_t zero = 0;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &zero), "reserved");
}

/// The device's default pool, which keeps what it has: its own default is to give everything back
/// whenever the host waits.
struct MallocAsync : CudaStreams {
    static constexpr bool empties = true;
    inline static cudaMemPool_t pool;

    static void start()
    {
        open_device();
        uint64_t keep_all = UINT64_MAX;
        check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
        check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all),
            "cudaMemPoolAttrReleaseThreshold");
    }

    static void *allocate(size_t bytes, Stream stream)
    {
        void *block = nullptr;
        const cudaError_t result = cudaMallocAsync(&block, bytes, stream);
        if (result == cudaErrorMemoryAllocation) return nullptr;
        check(result, "cudaMallocAsync");
        return block;
    }

    static void release(void *block, size_t, Stream stream)
    {
        check(cudaFreeAsync(block, stream), "cudaFreeAsync");
    }

    static void empty_cache()
    {
        synchronize();
        check(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
    }

    static void reset_peaks() { reset_pool_peaks(pool); }
    static Usage usage() { return pool_usage(pool); }
};

struct Malloc : CudaStreams {
    static constexpr bool empties = false;

    static void start() { open_device(); }

    static void *allocate(size_t bytes, Stream)
    {
        void *block = nullptr;
        const cudaError_t result = cudaMalloc(&block, bytes);
        if (result == cudaErrorMemoryAllocation) return nullptr;
        check(result, "cudaMalloc");
        return block;
    }

    static void release(void *block, size_t, Stream) { check(cudaFree(block), "cudaFree"); }
    static void empty_cache() {}
    static void reset_peaks() {}
    static Usage usage() { return {}; }

    // ---- Streams and events: the floor for everybody ----

    struct Event {
        cudaEvent_t event = nullptr;

        Event()
        {
            check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
        }
        Event(const Event &) = delete;
        ~Event() { cudaEventDestroy(event); }
        void record(Stream stream) { check(cudaEventRecord(event, stream), "cudaEventRecord"); }
        void query() { (void)cudaEventQuery(event); }
    };

    static void stream_query(Stream stream) { (void)cudaStreamQuery(stream); }
};

#ifdef HAVE_CUB
/// Bins of powers of two up to 2 GiB, and no bound on what is cached: its defaults, bins of powers
/// of eight up to 2 MiB and 6 MB cached, would hand most of the work to cudaMalloc.
struct Cub : CudaStreams {
    static constexpr bool empties = true;
    inline static cub::CachingDeviceAllocator *allocator;

    static void start()
    {
        open_device();
        allocator = new cub::CachingDeviceAllocator(2, 9, 31, SIZE_MAX, true);
    }

    static void *allocate(size_t bytes, Stream stream)
    {
        void *block = nullptr;
        const cudaError_t result = allocator->DeviceAllocate(&block, bytes, stream);
        if (result == cudaErrorMemoryAllocation) return nullptr;
        check(result, "DeviceAllocate");
        return block;
    }

    static void release(void *block, size_t, Stream)
    {
        check(allocator->DeviceFree(block), "DeviceFree");
    }

    static void empty_cache() { check(allocator->FreeAllCached(), "FreeAllCached"); }
    static void reset_peaks() {}

    static Usage usage()
    {
        const auto &cached = allocator->cached_bytes[0];
        return {.reserved = uint64_t(cached.live + cached.free)};
    }
};
#endif

} // namespace bench
