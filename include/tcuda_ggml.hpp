// tcuda_ggml.hpp: the pool of temporary memory of ggml's CUDA backend (llama.cpp), on tcuda.
//
//   // In ggml-cuda.cu; before: new ggml_cuda_pool_vmm(device)
//   std::unique_ptr<ggml_cuda_pool> ggml_backend_cuda_context::new_pool_for_device(
//       int device, int stream_no) {
//       return std::make_unique<tcuda::ggml_pool<ggml_cuda_pool>>(device, stream);
//   }
//
// Base is ggml_cuda_pool, or any class with its two virtual functions and a default constructor;
// this header does not need ggml. `stream` is the cudaStream_t that the backend's kernels of this
// pool run on: its cuda_ctx->stream(device, stream_no).
//
// Order. Memory is allocated and freed in the order of that stream. Frees may come in any order,
// unlike those of ggml's own pool on virtual memory.
//
// Graphs. ggml replays CUDA graphs that contain addresses of its pool. So each ggml_pool has a
// private pool of tcuda's for graphs: its memory is not given to others while it exists.
//
// Ownership. The stream outlives the pool; what was allocated from the pool is freed before it
// ends. It must end before tcuda_shutdown.
//
// Threads. One at a time, as ggml uses its contexts; two pools may be used at the same time.
//
// Errors. ggml expects that a pool does not return without memory: alloc throws std::bad_alloc,
// or std::runtime_error for other failures, as the constructor does. free ignores failures.

#ifndef TCUDA_GGML_HPP
#define TCUDA_GGML_HPP

#include <tcuda.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>

namespace tcuda {

template <class Base> class ggml_pool : public Base {
public:
    explicit ggml_pool(std::int32_t device, CUstream_st *stream)
        : device_(device), stream_(stream) {
        check(tcuda_graph_pool_handle(&pool_));
    }
    ggml_pool(const ggml_pool &) = delete;
    ggml_pool &operator=(const ggml_pool &) = delete;
    ~ggml_pool() override { (void)tcuda_mem_pool_destroy(pool_); }

    // *actual_size is the size of the block: a multiple of 512, at least `size`.
    void *alloc(std::size_t size, std::size_t *actual_size) override {
        const std::size_t rounded = size > SIZE_MAX - 511 ? size : (size + 511) / 512 * 512;
        void *ptr = nullptr;
        check(tcuda_mem_pool_begin(pool_, device_));
        const tcuda_status status = tcuda_malloc_native(rounded, device_, stream_, &ptr);
        const tcuda_status ended = tcuda_mem_pool_end(pool_, device_);
        check(status);
        if (ended != TCUDA_STATUS_OK) (void)tcuda_free(ptr);
        check(ended);
        *actual_size = rounded;
        return ptr;
    }

    void free(void *ptr, std::size_t) override { (void)tcuda_free(ptr); }

private:
    static void check(tcuda_status status) {
        if (status == TCUDA_STATUS_OUT_OF_MEMORY) throw std::bad_alloc();
        if (status != TCUDA_STATUS_OK) throw std::runtime_error(tcuda_last_error());
    }

    std::int32_t device_;
    CUstream_st *stream_;
    tcuda_mem_pool *pool_ = nullptr;
};

} // namespace tcuda

#endif // TCUDA_GGML_HPP
