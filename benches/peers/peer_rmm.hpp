// RMM's resources as its own benchmarks set them up: a pool of half of the free memory, an arena
// of nearly all of it, and the driver's pool.
#pragma once

#include "peer_cuda.hpp"

#include <optional>
#include <rmm/error.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <type_traits>

namespace bench {

inline size_t whole_pages(size_t bytes) { return bytes / (2 * MIB) * (2 * MIB); }

struct RmmPool {
    using Resource = rmm::mr::pool_memory_resource;
    static Resource *make(size_t free_bytes)
    {
        return new Resource(rmm::mr::cuda_memory_resource{}, whole_pages(free_bytes / 2));
    }
};

struct RmmArena {
    using Resource = rmm::mr::arena_memory_resource;
    static Resource *make(size_t free_bytes)
    {
        // The driver wants some for streams and kernels.
        return new Resource(rmm::mr::cuda_memory_resource{}, whole_pages(free_bytes - GIB));
    }
};

struct RmmAsync {
    using Resource = rmm::mr::cuda_async_memory_resource;
    static Resource *make(size_t) { return new Resource(); }
};

template <class Kind> struct Rmm : CudaStreams {
    static constexpr bool is_async = std::is_same_v<Kind, RmmAsync>;
    /// The pool and the arena have their memory from the start and never give it back.
    static constexpr bool empties = is_async;
    inline static typename Kind::Resource *resource;

    static void start()
    {
        open_device();
        resource = Kind::make(free_bytes());
    }

    static void *allocate(size_t bytes, Stream stream)
    {
        try {
            return resource->allocate(cuda::stream_ref{stream}, bytes, 256);
        } catch (const rmm::bad_alloc &) {
            return nullptr;
        }
    }

    static void release(void *block, size_t bytes, Stream stream)
    {
        resource->deallocate(cuda::stream_ref{stream}, block, bytes, 256);
    }

    static void empty_cache()
    {
        synchronize();
        if constexpr (is_async)
            check(cudaMemPoolTrimTo(resource->pool_handle(), 0), "cudaMemPoolTrimTo");
    }

    static void reset_peaks()
    {
        if constexpr (is_async) reset_pool_peaks(resource->pool_handle());
    }

    static Usage usage()
    {
        if constexpr (is_async) return pool_usage(resource->pool_handle());
        return {};
    }
};

} // namespace bench
