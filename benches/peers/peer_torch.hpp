// PyTorch's C++ allocator, streams and events: libc10_cuda.so and no more of PyTorch, on a GPU or
// (WITHOUT_GPU) over the stub runtime of c10_without_gpu. PYTORCH_CUDA_ALLOC_CONF says which mode.
#pragma once

#include "measure.hpp"
#include "peer.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

namespace c10::cuda::_internal { void setHasPrimaryContext(bool (*function)(c10::DeviceIndex)); }

namespace bench {

namespace allocator = c10::cuda::CUDACachingAllocator;

struct Torch {
    /// PyTorch's stream, and its handle, because looking it up is no part of an allocation.
    struct Stream {
        cudaStream_t handle;
        c10::cuda::CUDAStream stream;
    };
    static constexpr bool empties = true;

    static void start()
    {
#ifdef WITHOUT_GPU
        simulated = true;
#else
        if (cudaFree(nullptr) != cudaSuccess) fail("no GPU"); // creates the context
#endif
        int devices = 0;
        if (cudaGetDeviceCount(&devices) != cudaSuccess) fail("no GPU");
        c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
        allocator::init(devices);
    }

    static void enter_thread() { c10::cuda::set_device(0); }
    static void stop() {}

    static Stream default_stream() { return wrap(c10::cuda::getDefaultCUDAStream(0)); }
    static Stream new_stream() { return wrap(c10::cuda::getStreamFromPool(false, 0)); }
    static void *native(const Stream &stream) { return stream.handle; }

    static void *allocate(size_t bytes, const Stream &stream)
    {
        try {
            return allocator::raw_alloc_with_stream(bytes, stream.handle);
        } catch (const c10::OutOfMemoryError &) {
            return nullptr;
        }
    }

    static void release(void *block, size_t, const Stream &) { allocator::raw_delete(block); }

    static void record(void *block, const Stream &, const Stream &stream)
    {
        c10::DataPtr data(block, block, allocator::get()->raw_deleter(),
            c10::Device(c10::DeviceType::CUDA, 0));
        allocator::recordStream(data, stream.stream);
        data.release_context();
    }

    static void synchronize() { c10::cuda::device_synchronize(); }
    static void empty_cache() { allocator::emptyCache(); }
    static void reset_peaks() { allocator::resetPeakStats(0); }

    static Usage usage()
    {
        const auto stats = allocator::getDeviceStats(0);
        return {uint64_t(stats.reserved_bytes[0].current), uint64_t(stats.reserved_bytes[0].peak),
            uint64_t(stats.allocated_bytes[0].peak), uint64_t(stats.requested_bytes[0].peak)};
    }

    static size_t memory_bytes()
    {
        size_t unused = 0, all = 0;
        if (cudaMemGetInfo(&unused, &all) != cudaSuccess) fail("cudaMemGetInfo");
        return all;
    }

    static void limit(double fraction) { allocator::setMemoryFraction(fraction, 0); }

    /// Only those that get or give back device memory; a segment or a handle each.
    static uint64_t driver_calls()
    {
        const auto stats = allocator::getDeviceStats(0);
        return uint64_t(stats.num_device_alloc + stats.num_device_free);
    }

    // ---- Streams and events ----

    struct Event {
        c10::cuda::CUDAEvent event;

        void record(const Stream &stream) { event.record(stream.stream); }
        void query() { (void)event.query(); }
    };

    static void stream_query(const Stream &stream) { (void)stream.stream.query(); }

    static void current_stream()
    {
        volatile auto id = c10::cuda::getCurrentCUDAStream().id();
        (void)id;
    }

    static void exchange_stream(const Stream &stream)
    {
        const c10::cuda::CUDAStreamGuard guard(stream.stream);
    }

private:
    static Stream wrap(const c10::cuda::CUDAStream &stream) { return {stream.stream(), stream}; }
};

} // namespace bench
