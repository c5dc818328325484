// tcuda_dlpack.hpp: the functions of DLPack's C exchange API that need no Python: tcuda allocates
// the tensors of another library, and that library launches on tcuda's current stream.
//
//   // A tensor library fills in its table; the functions for Python objects are its own.
//   DLPackExchangeAPI api{};
//   tcuda::dlpack::fill(api);
//   api.managed_tensor_from_py_object_no_sync = ...;
//
//   // Kernels of tvm-ffi (include its extra/c_env_api.h first) on this thread:
//   tcuda::dlpack::tvm_ffi_scope scope(0);               // device 0, its current stream
//   auto out = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, shape, dtype, {kDLCUDA, 0});
//
// Needs dlpack.h of DLPack 1.2 or newer.
//
// Order. A tensor is allocated for the current stream of its device, and its deleter frees it in
// the order of that stream. Where other streams use it, call tcuda_record_stream for them.
//
// Ownership. The deleter is called once, on any thread, also after tcuda_shutdown.
//
// Threads. Any thread; the current stream is that of the calling thread.
//
// Errors. As DLPack demands: -1, and set_error with a kind of Python's exceptions ("MemoryError",
// "ValueError", "BufferError", "RuntimeError") and tcuda's sentence. current_work_stream cannot
// pass a sentence: tcuda_last_error has it. Nothing is thrown, except by tvm_ffi_scope.

#ifndef TCUDA_DLPACK_HPP
#define TCUDA_DLPACK_HPP

#include <tcuda.h>

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#if DLPACK_MAJOR_VERSION != 1 || DLPACK_MINOR_VERSION < 2
#error "tcuda_dlpack.hpp needs a dlpack.h of version 1.2 or newer"
#endif

static_assert(sizeof(tcuda_tensor) == sizeof(DLTensor), "DLTensor has another layout");
static_assert(offsetof(tcuda_tensor, byte_offset) == offsetof(DLTensor, byte_offset),
    "DLTensor has another layout");

namespace tcuda {
namespace dlpack {

namespace detail {

// Bytes of a contiguous tensor, modulo 2^61: tcuda_tensor_to_dlpack refuses a tensor that is larger
// than its block. False: a size is negative.
inline bool bytes_of(const DLTensor &tensor, std::size_t &bytes) noexcept {
    std::uint64_t bits = static_cast<std::uint64_t>(tensor.dtype.bits) * tensor.dtype.lanes;
    for (std::int32_t i = 0; i < tensor.ndim; i++) {
        if (tensor.shape[i] < 0) return false;
        bits *= static_cast<std::uint64_t>(tensor.shape[i]);
    }
    bytes = static_cast<std::size_t>(bits / 8 + (bits % 8 != 0));
    return true;
}

inline const char *kind_of(tcuda_status status) noexcept {
    switch (status) {
    case TCUDA_STATUS_OUT_OF_MEMORY:
    case TCUDA_STATUS_OUT_OF_HOST_MEMORY: return "MemoryError";
    case TCUDA_STATUS_INVALID_ARGUMENT:
    case TCUDA_STATUS_INVALID_DEVICE: return "ValueError";
    default: return "RuntimeError";
    }
}

} // namespace detail

// DLPackManagedTensorAllocator: a contiguous tensor in memory of a device (kDLCUDA).
extern "C" inline int tcuda_dlpack_allocate(DLTensor *prototype, DLManagedTensorVersioned **out,
    void *error_ctx, void (*set_error)(void *error_ctx, const char *kind, const char *message)) {
    std::size_t bytes = 0;
    if (prototype->device.device_type != kDLCUDA) {
        set_error(error_ctx, "BufferError", "tcuda allocates tensors of CUDA devices only");
        return -1;
    }
    if (!detail::bytes_of(*prototype, bytes)) {
        set_error(error_ctx, "ValueError", "a size of the tensor is negative");
        return -1;
    }
    tcuda_tensor tensor{};
    tensor.device = {TCUDA_DEVICE_CUDA, prototype->device.device_id};
    tensor.ndim = prototype->ndim;
    tensor.dtype = {prototype->dtype.code, prototype->dtype.bits, prototype->dtype.lanes};
    tensor.shape = prototype->shape;
    tcuda_status status = tcuda_malloc(bytes, tensor.device.device_id, nullptr, &tensor.data);
    if (status == TCUDA_STATUS_OK) {
        void *const ptr = tensor.data;
        status = tcuda_tensor_to_dlpack(&tensor, out);
        if (status != TCUDA_STATUS_OK) (void)tcuda_free(ptr); // keeps the text of the failure
    }
    if (status == TCUDA_STATUS_OK) return 0;
    set_error(error_ctx, detail::kind_of(status), tcuda_last_error());
    return -1;
}

// DLPackCurrentWorkStream: the calling thread's current stream of a CUDA device; NULL for kDLCPU.
extern "C" inline int tcuda_dlpack_current_work_stream(DLDeviceType type, std::int32_t device,
    void **stream) {
    tcuda_stream *current = nullptr;
    CUstream_st *native = nullptr;
    const bool is_cuda = type == kDLCUDA || type == kDLCUDAHost || type == kDLCUDAManaged;
    if (type != kDLCPU
        && (!is_cuda || tcuda_stream_current(device, &current) != TCUDA_STATUS_OK
            || tcuda_stream_native(current, &native) != TCUDA_STATUS_OK))
        return -1;
    *stream = native;
    return 0;
}

// Sets the version and the two functions above; the other members are left as they are.
inline void fill(DLPackExchangeAPI &api) noexcept {
    api.header.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    api.managed_tensor_allocator = tcuda_dlpack_allocate;
    api.current_work_stream = tcuda_dlpack_current_work_stream;
}

#ifdef TVM_FFI_EXTRA_C_ENV_API_H_
// While it exists, tensors that tvm-ffi's kernels allocate on this thread are tcuda's, and they run
// on a device's current stream. Ends on its thread, in reverse order of creation.
class tvm_ffi_scope {
public:
    explicit tvm_ffi_scope(std::int32_t device) : device_(device) {
        void *stream = nullptr;
        if (device_ == TCUDA_CURRENT_DEVICE && tcuda_device_current(&device_) != TCUDA_STATUS_OK)
            throw std::runtime_error(tcuda_last_error());
        if (tcuda_dlpack_current_work_stream(kDLCUDA, device_, &stream) != 0)
            throw std::runtime_error(tcuda_last_error());
        if (TVMFFIEnvSetStream(kDLCUDA, device_, stream, &stream_) != 0)
            throw std::runtime_error("TVMFFIEnvSetStream failed");
        if (TVMFFIEnvSetDLPackManagedTensorAllocator(tcuda_dlpack_allocate, 0, &allocator_) != 0) {
            (void)TVMFFIEnvSetStream(kDLCUDA, device_, stream_, nullptr);
            throw std::runtime_error("TVMFFIEnvSetDLPackManagedTensorAllocator failed");
        }
    }
    tvm_ffi_scope(const tvm_ffi_scope &) = delete;
    tvm_ffi_scope &operator=(const tvm_ffi_scope &) = delete;
    ~tvm_ffi_scope() {
        (void)TVMFFIEnvSetDLPackManagedTensorAllocator(allocator_, 0, nullptr);
        (void)TVMFFIEnvSetStream(kDLCUDA, device_, stream_, nullptr);
    }

private:
    std::int32_t device_;
    void *stream_ = nullptr;
    DLPackManagedTensorAllocator allocator_ = nullptr;
};
#endif

} // namespace dlpack
} // namespace tcuda

#endif // TCUDA_DLPACK_HPP
