// tcuda.hpp: functions of elements, kernels, memory of other processes, ranges, ranks and cuBLAS,
// with exceptions and without.

#include "hpp.h"

static_assert(moves_only<tcuda::jit> && moves_only<tcuda::kernel> && moves_only<tcuda::imported>);
static_assert(moves_only<tcuda::communicator>);
static_assert(!std::is_move_constructible_v<tcuda::nvtx_range>);

enum { COUNT = 100 };

static tcuda::tensor_view<1> floats(const tcuda::allocation &memory) {
    return tcuda::view(memory.as<float>(), {COUNT}, 0);
}

static float last_of(const tcuda::allocation &memory, tcuda::stream_view stream) {
    float value = 0;
    TOOK(tcuda::copy(&value, memory.as<float>() + COUNT - 1, sizeof value, stream));
    TOOK(stream.synchronize());
    return value;
}

static void test_functions() {
    const tcuda::stream stream(0);
    const std::size_t bytes = COUNT * sizeof(float);
    const tcuda::allocation x(bytes, stream, 0), y(bytes, stream, 0);
    TOOK(tcuda::fill(x.get(), 3.0f, COUNT, stream));
    tcuda::jit axpy("template <typename T> T axpy(T x, T y, T a) { return a * x + y; }",
        {tcuda::scalar("a", 1)});
    expect(axpy.status() == TCUDA_STATUS_OK && axpy, "a function is made");
    TOOK(axpy({floats(x), floats(x)}, {floats(y)}, stream));
    expect(last_of(y, stream) == 6, "by its default");
    TOOK(axpy({floats(x), floats(x)}, {floats(y)}, stream, {tcuda::scalar("a", 2.5)}));
    expect(last_of(y, stream) == 10.5f, "with a scalar");
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, axpy({floats(x)}, {}, stream));
    tcuda::jit both("template <typename T> void both(T x, T &y, T &z) { y = x + 1; z = x + 2; }",
        2);
    TOOK(both({floats(x)}, {floats(x), floats(y)}, stream));
    expect(last_of(x, stream) == 4 && last_of(y, stream) == 5, "two outputs, one in place");
    const tcuda::jit moved = std::move(both);
    expect(moved && !both.get(), "a function moves");
}

static void test_kernels() {
    const tcuda::stream stream(0);
    const tcuda::allocation memory(COUNT * sizeof(float), stream, 0);
    const tcuda::kernel fill("template <class T> __global__ void fill(T *to, T value, int count) {"
        " for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = value * TIMES; }",
        "fill<float>", {"-DTIMES=2"});
    tcuda_launch_options options = TCUDA_INIT(tcuda_launch_options);
    options.block[0] = 32;
    TOOK(fill.launch(options, stream, memory.as<float>(), 1.5f, int{COUNT}));
    expect(last_of(memory, stream) == 3, "a kernel runs");
    options.cooperative = 1;
    TOOK(fill.launch(options, stream, memory.as<float>(), 2.0f, int{COUNT}));
    expect(last_of(memory, stream) == 4, "a cooperative kernel runs");
    const auto info = fill.info(&options, stream);
#ifdef TCUDA_NO_EXCEPTIONS
    expect(info.status == TCUDA_STATUS_OK && info.value.max_cooperative_blocks > 0, "its limits");
#else
    expect(info.max_cooperative_blocks > 0 && fill.info().registers > 0, "its limits");
#endif
    options.cooperative = 2;
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT,
        fill.launch(options, stream, memory.as<float>(), 2.0f, int{COUNT}));
    options.cooperative = 0;
    const char text[] = ".version 7.8\n.target sm_52\n.address_size 64\n.visible .entry f()\n"
        "{\n    ret;\n}\n";
    tcuda_kernel_image image = {};
    image.data = text;
    image.bytes = sizeof text;
    image.kind = TCUDA_IMAGE_PTX;
    tcuda_kernel_options linked = TCUDA_INIT(tcuda_kernel_options);
    linked.images = &image;
    linked.num_images = 1;
    const tcuda::kernel of_image = tcuda::kernel::linked(nullptr, "f", linked);
    TOOK(of_image.launch(options, stream));
    const tcuda::kernel nothing("__global__ void nothing() {}", "nothing");
    TOOK(nothing.launch(options, stream));
}

static void test_others() {
    {
        const tcuda::nvtx_range outer("outer"), inner("inner");
        expect(inner.status() == TCUDA_STATUS_OK, "a range is open");
    }
    std::int32_t depth = -1;
    expect(tcuda_nvtx_range_pop(&depth) == TCUDA_STATUS_INVALID_STATE, "and ended with its scope");
    // Memory of this process is no other's.
    const tcuda::allocation memory(512, {}, 0);
    tcuda_ipc_handle handle = {};
    TOOK(tcuda::check(tcuda_ipc_export(memory.get(), nullptr, &handle)));
#ifdef TCUDA_NO_EXCEPTIONS
    tcuda::imported own(handle);
    expect(own.status() == TCUDA_STATUS_INVALID_STATE && !own, "its own handle");
    const tcuda::imported moved = std::move(own);
    expect(moved.size_bytes() == 0 && moved.get() == nullptr, "nothing moves");
    const tcuda_unique_id id = {};
    const tcuda::communicator none(id, 0, 0, 0);
    expect(none.status() != TCUDA_STATUS_OK && !none, "a group of nobody");
    const auto blas = tcuda::blas_handle(0);
    expect((blas.status == TCUDA_STATUS_OK) == (blas.value != nullptr), "a handle, or a status");
#else
    FAILS(TCUDA_STATUS_INVALID_STATE, tcuda::imported(handle));
    const tcuda_unique_id id = {};
    try {
        const tcuda::communicator none(id, 0, 0, 0);
        expect(false, "a group of nobody throws");
    } catch (const tcuda::error &) {
    }
    try {
        expect(tcuda::blas_handle(0) != nullptr, "a handle");
    } catch (const tcuda::error &) { // no cuBLAS
    }
#endif
    TOOK(tcuda::check(tcuda_ipc_withdraw(&handle)));
}

int main() {
    begin_test();
    tcuda_kernel *none = nullptr;
    if (tcuda_kernel_compile("none", "none", nullptr, &none) == TCUDA_STATUS_NO_LIBRARY) {
        std::fprintf(stderr, "skipped: %s\n", tcuda_last_error());
        return 77;
    }
    test_functions();
    test_kernels();
    test_others();
    return finish_test();
}
