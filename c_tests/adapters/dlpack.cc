// tcuda_dlpack.hpp by itself, as a consumer of DLPack's exchange API calls it, and with tvm-ffi.
#include "adapter.h"

#include <string>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "tcuda_dlpack.hpp"

namespace ffi = tvm::ffi;

constexpr DLDataType FLOAT32 = {kDLFloat, 32, 1};
constexpr DLDevice DEVICE_0 = {kDLCUDA, 0};

struct failure {
    int count = 0;
    std::string kind, message;
};

static void note(void *context, const char *kind, const char *message) {
    auto *const into = static_cast<failure *>(context);
    into->count++;
    into->kind = kind;
    into->message = message;
}

static const DLPackExchangeAPI &api() {
    static DLPackExchangeAPI table{};
    tcuda::dlpack::fill(table);
    return table;
}

static DLTensor prototype_of(DLDevice device, DLDataType dtype, std::vector<std::int64_t> &shape) {
    DLTensor prototype{};
    prototype.device = device;
    prototype.dtype = dtype;
    prototype.ndim = static_cast<std::int32_t>(shape.size());
    prototype.shape = shape.data();
    return prototype;
}

static std::uint64_t requested_bytes() {
    std::uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, "requested_bytes.all.current", &value));
    return value;
}

static void a_consumer_allocates(tcuda_stream *stream) {
    CHECK_EQ(api().header.version.major, DLPACK_MAJOR_VERSION);
    CHECK(api().managed_tensor_from_py_object_no_sync == nullptr);
    const std::uint64_t before = live_bytes();
    std::vector<std::int64_t> shape = {3, 5, 7};
    DLTensor prototype = prototype_of(DEVICE_0, FLOAT32, shape);
    DLManagedTensorVersioned *managed = nullptr;
    failure failed;
    CHECK_EQ(api().managed_tensor_allocator(&prototype, &managed, &failed, note), 0);
    CHECK_EQ(failed.count, 0);
    shape = {0, 0, 0}; // the tensor has its own
    CHECK(live_bytes() >= before + 420);
    CHECK_EQ(managed->version.major, 1);
    CHECK_EQ(managed->flags, 0);
    const DLTensor &tensor = managed->dl_tensor;
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % 256, 0);
    CHECK_EQ(tensor.byte_offset, 0);
    CHECK_EQ(tensor.device.device_type, kDLCUDA);
    CHECK_EQ(tensor.device.device_id, 0);
    CHECK_EQ(tensor.ndim, 3);
    CHECK_EQ(tensor.dtype.code, kDLFloat);
    CHECK_EQ(tensor.dtype.bits, 32);
    CHECK(tensor.shape[0] == 3 && tensor.shape[1] == 5 && tensor.shape[2] == 7);
    CHECK(tensor.strides[0] == 35 && tensor.strides[1] == 7 && tensor.strides[2] == 1);
    check_usable(tensor.data, 420, 6, stream);
    managed->deleter(managed);
    CHECK_EQ(live_bytes(), before);

    // One element of no dimension, no element at all, and three elements of 4 bits in two bytes.
    struct {
        std::vector<std::int64_t> sizes;
        DLDataType dtype;
        std::uint64_t bytes;
    } cases[] = {{{}, FLOAT32, 4}, {{4, 0}, FLOAT32, 0}, {{1, 3}, {kDLFloat4_e2m1fn, 4, 1}, 2}};
    for (auto &[sizes, dtype, bytes] : cases) {
        const std::uint64_t requested = requested_bytes();
        prototype = prototype_of(DEVICE_0, dtype, sizes);
        CHECK_EQ(api().managed_tensor_allocator(&prototype, &managed, &failed, note), 0);
        CHECK_EQ(requested_bytes(), requested + bytes);
        CHECK((managed->dl_tensor.data == nullptr) == (bytes == 0));
        managed->deleter(managed);
    }
    CHECK_EQ(failed.count, 0);
    CHECK_EQ(live_bytes(), before);
}

static void check_failure(DLDevice device, std::vector<std::int64_t> shape, const char *kind) {
    DLTensor prototype = prototype_of(device, FLOAT32, shape);
    DLManagedTensorVersioned *managed = nullptr;
    failure failed;
    CHECK_EQ(api().managed_tensor_allocator(&prototype, &managed, &failed, note), -1);
    CHECK(managed == nullptr);
    CHECK_EQ(failed.count, 1);
    CHECK_STR(failed.kind.c_str(), kind);
    CHECK(!failed.message.empty());
}

static void failures_have_a_kind() {
    check_failure(DEVICE_0, {std::int64_t(1) << 50}, "MemoryError");
    check_failure(DEVICE_0, {-1, 2}, "ValueError");
    check_failure(DEVICE_0, {0, -1}, "ValueError");
    check_failure(DEVICE_0, {std::int64_t(1) << 40, std::int64_t(1) << 40}, "ValueError");
    check_failure(DEVICE_0, {(std::int64_t(1) << 61) + 1}, "ValueError"); // 4 bytes modulo 2^64
    check_failure({kDLCUDA, 1000}, {2}, "ValueError");
    check_failure({kDLCPU, 0}, {2}, "BufferError");
    check_failure({kDLCUDAHost, 0}, {2}, "BufferError");
}

static void the_current_stream_is_the_threads(tcuda_stream *stream) {
    void *found = &found;
    CHECK_EQ(api().current_work_stream(kDLCUDA, 0, &found), 0);
    CHECK(found == nullptr); // the default stream
    CHECK_OK(tcuda_stream_set_current(stream));
    CHECK_EQ(api().current_work_stream(kDLCUDA, 0, &found), 0);
    CHECK(found == native_of(stream));
    CHECK_EQ(api().current_work_stream(kDLCUDAManaged, 0, &found), 0);
    CHECK(found == native_of(stream));
    CHECK_EQ(api().current_work_stream(kDLCPU, 0, &found), 0);
    CHECK(found == nullptr);
    CHECK_EQ(api().current_work_stream(kDLCUDA, 1000, &found), -1);
    CHECK_EQ(api().current_work_stream(kDLROCM, 0, &found), -1);
    std::thread([] {
        void *of_thread = &of_thread;
        CHECK_EQ(api().current_work_stream(kDLCUDA, 0, &of_thread), 0);
        CHECK(of_thread == nullptr);
    }).join();
}

// A kernel of tvm-ffi: its output is allocated by the environment.
static ffi::Tensor empty_like(ffi::TensorView input) {
    ffi::Tensor output = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, input.shape(),
        input.dtype(), input.device());
    return output;
}

static void kernels_of_tvm_ffi(tcuda_stream *stream) {
    const std::uint64_t before = live_bytes();
    CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr);
    CHECK(TVMFFIEnvGetStream(kDLCUDA, 0) == nullptr);
    {
        const ffi::Function kernel = ffi::Function::FromTyped(empty_like);
        ffi::Optional<ffi::Tensor> kept;
        {
            const tcuda::dlpack::tvm_ffi_scope scope(TCUDA_CURRENT_DEVICE);
            CHECK(TVMFFIEnvGetStream(kDLCUDA, 0) == native_of(stream));
            const ffi::Tensor input = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc,
                ffi::ShapeView({4, 25}), FLOAT32, DEVICE_0);
            kept = kernel(input).cast<ffi::Tensor>();
            CHECK(live_bytes() >= before + 800);
            CHECK(input.IsContiguous());
            {
                const tcuda::dlpack::tvm_ffi_scope inner(0);
            }
            CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator()
                == tcuda::dlpack::tcuda_dlpack_allocate);
            CHECK(TVMFFIEnvGetStream(kDLCUDA, 0) == native_of(stream));
            try {
                (void)ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc,
                    ffi::ShapeView({std::int64_t(1) << 50}), FLOAT32, DEVICE_0);
                CHECK(!"there is so much memory");
            } catch (const ffi::Error &error) {
                CHECK(error.kind() == "MemoryError");
            }
        }
        CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr);
        CHECK(TVMFFIEnvGetStream(kDLCUDA, 0) == nullptr);
        // The output outlives the scope, and is memory of tcuda's.
        const ffi::Tensor output = kept.value();
        void *base = nullptr;
        std::size_t bytes = 0;
        CHECK_OK(tcuda_memory_base(output.data_ptr(), &base, &bytes));
        check_usable(output.data_ptr(), 400, 8, stream);
        CHECK_EQ(output.size(1), 25);
        CHECK_EQ(output.stride(0), 25);
    }
    CHECK_EQ(live_bytes(), before);
}

int main() {
    SKIP_WITHOUT_GPU();
    tcuda_stream *const stream = new_stream();
    a_consumer_allocates(stream);
    failures_have_a_kind();
    the_current_stream_is_the_threads(stream);
    kernels_of_tvm_ffi(stream);
    tcuda_stream *first = nullptr;
    CHECK_OK(tcuda_stream_default(0, &first));
    CHECK_OK(tcuda_stream_set_current(first));
    CHECK_OK(tcuda_stream_destroy(stream));
    return finish();
}
