// tcuda_mr.hpp: a memory resource for cuda::mr (CCCL) and RMM, on tcuda's caching allocator.
//
//   tcuda::memory_resource resource(0);                  // of device 0
//   void *ptr = resource.allocate(stream, 1 << 20, 256); // stream: cuda::stream_ref, cudaStream_t
//   resource.deallocate(stream, ptr, 1 << 20, 256);
//
//   cuda::mr::any_resource<cuda::mr::device_accessible> owner(resource);
//   cuda::mr::resource_ref<cuda::mr::device_accessible> ref(resource);
//
//   tcuda::basic_memory_resource<rmm::out_of_memory> upstream(0);
//   rmm::mr::statistics_resource_adaptor statistics(upstream);
//   rmm::mr::set_current_device_resource(statistics);
//
// Needs the headers of CCCL and of the CUDA runtime (cuda_runtime_api.h and crt/), and C++17.
//
// Versions. The class has the names of CCCL 3.1 and newer (allocate, allocate_sync) and those of
// CCCL 2.5 to 3.0 (allocate_async, allocate), of which the host defines
// LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE first, as for the resource_ref of CCCL 3.1. RMM
// takes it as a device_async_resource_ref, and RMM 26 as an any_resource too.
//
// Order. allocate gives memory that work queued to the stream from now on may use. deallocate has
// the order of cudaFreeAsync: work queued to its stream before may still use the memory. Where
// the memory was used on a third stream, that stream must be done or joined before.
// allocate_sync gives memory that any stream may use at once; it waits for the device's default
// stream. deallocate_sync requires that no work uses the memory any more.
//
// Ownership. A resource holds a number only; it may be copied, and may end before its memory. Two
// resources are equal if they have the same device. Streams must live as long as tcuda keeps
// memory that was used on them (tcuda_stream_from_external).
//
// Threads. Any thread, at any time.
//
// Errors. No memory: OutOfMemory, which is constructed from a const char *. An alignment that is no
// power of two, or above 512: std::invalid_argument. All else: std::runtime_error. Frees ignore
// failures. For larger alignments RMM has its aligned_resource_adaptor.

#ifndef TCUDA_MR_HPP
#define TCUDA_MR_HPP

#include <tcuda.h>

#if defined(__has_include) && !__has_include(<cuda_runtime_api.h>)
#error "tcuda_mr.hpp and CCCL need the headers of the CUDA runtime: nvidia-cuda-runtime, -crt"
#endif

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

namespace tcuda {
// Where the host's stream 0 is each thread's own, the functions differ.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
inline namespace per_thread_default_stream {
#endif

// A std::bad_alloc with tcuda's sentence about the failure.
class bad_alloc : public std::bad_alloc {
public:
    explicit bad_alloc(const char *text) : text_(text) {}
    const char *what() const noexcept override { return text_.what(); }

private:
    std::runtime_error text_; // a text whose copies do not throw
};

template <class OutOfMemory = bad_alloc> class basic_memory_resource {
public:
    // Of a device; TCUDA_CURRENT_DEVICE: the device that is current at each call.
    explicit basic_memory_resource(std::int32_t device = TCUDA_CURRENT_DEVICE) noexcept
        : device_(device) {}

    std::int32_t device() const noexcept { return device_; }

    void *allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment) {
        void *ptr = nullptr;
        check(tcuda_malloc_native_aligned(bytes, alignment, device_, native(stream), &ptr));
        return ptr;
    }

    void deallocate(cuda::stream_ref stream, void *ptr, std::size_t, std::size_t) noexcept {
        // Without memory of the host for the change of streams, the block is freed after a wait.
        if (tcuda_free_on(ptr, native(stream)) == TCUDA_STATUS_OUT_OF_HOST_MEMORY &&
            tcuda_device_synchronize(device_) == TCUDA_STATUS_OK)
            (void)tcuda_free(ptr);
    }

    void *allocate_sync(std::size_t bytes, std::size_t alignment) {
        tcuda_stream *stream = nullptr;
        void *ptr = nullptr;
        check(tcuda_stream_default(device_, &stream));
        check(tcuda_malloc_native_aligned(bytes, alignment, device_, nullptr, &ptr));
        const tcuda_status status = tcuda_stream_synchronize(stream);
        if (status != TCUDA_STATUS_OK) {
            const std::string text = tcuda_last_error();
            (void)tcuda_free(ptr);
            throw std::runtime_error(text);
        }
        return ptr;
    }

    void deallocate_sync(void *ptr, std::size_t, std::size_t) noexcept { (void)tcuda_free(ptr); }

    // The names of CCCL 2.
    void *allocate(std::size_t bytes, std::size_t alignment) {
        return allocate_sync(bytes, alignment);
    }
    void deallocate(void *ptr, std::size_t bytes, std::size_t alignment) noexcept {
        deallocate_sync(ptr, bytes, alignment);
    }
    void *allocate_async(std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) {
        return allocate(stream, bytes, alignment);
    }
    void deallocate_async(void *ptr, std::size_t bytes, std::size_t alignment,
        cuda::stream_ref stream) noexcept {
        deallocate(stream, ptr, bytes, alignment);
    }

    friend bool operator==(const basic_memory_resource &left,
        const basic_memory_resource &right) noexcept {
        return left.device_ == right.device_;
    }
    friend bool operator!=(const basic_memory_resource &left,
        const basic_memory_resource &right) noexcept {
        return !(left == right);
    }
    friend constexpr void get_property(const basic_memory_resource &,
        cuda::mr::device_accessible) noexcept {}
#if CCCL_VERSION >= 3002000
    using default_queries = cuda::mr::properties_list<cuda::mr::device_accessible>;
#endif

private:
    // The driver's NULL is the default stream that all threads share.
    static CUstream_st *native(cuda::stream_ref stream) noexcept {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
        if (stream.get() == nullptr) return cudaStreamPerThread;
#endif
        return stream.get();
    }

    static void check(tcuda_status status) {
        if (status == TCUDA_STATUS_OK) return;
        if (status == TCUDA_STATUS_OUT_OF_MEMORY) throw OutOfMemory(tcuda_last_error());
        if (status == TCUDA_STATUS_INVALID_ARGUMENT)
            throw std::invalid_argument(tcuda_last_error());
        throw std::runtime_error(tcuda_last_error());
    }

    std::int32_t device_;
};

using memory_resource = basic_memory_resource<>;

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
} // namespace per_thread_default_stream
#endif
} // namespace tcuda

#endif // TCUDA_MR_HPP
