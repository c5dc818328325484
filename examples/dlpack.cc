// Tensors to another library and back, without a copy: a capsule of DLPack 1 carries the memory and
// the function that frees it. A library of its own would take the capsule from Python or C.

#include <cstdio>
#include <tcuda.hpp>

// Stands for the other library: it owns the capsule until it passes it on.
static DLManagedTensorVersioned *other_library(DLManagedTensorVersioned *capsule) {
    return capsule;
}

static bool run() {
    constexpr std::int64_t rows = 3, columns = 5;
    const std::size_t bytes = rows * columns * sizeof(float);
    tcuda::allocation memory(bytes, {}, 0);
    tcuda::fill(memory.get(), 2.5F, rows * columns);
    const void *const first = memory.get();

    // Out: the capsule owns the memory now.
    const auto view = tcuda::view(memory.as<float>(), {rows, columns}, 0);
    DLManagedTensorVersioned *const capsule = tcuda::to_dlpack(std::move(memory), view);

    // In: releasing the tensor calls the deleter of the capsule.
    const tcuda::tensor tensor = tcuda::tensor::from_dlpack(other_library(capsule));
    float host[rows * columns] = {};
    tcuda::copy(host, tensor.as<float>(), bytes);
    tcuda::check(tcuda_stream_synchronize(nullptr));
    std::printf("%lld x %lld, the last is %.1f\n", static_cast<long long>(tensor.shape()[0]),
        static_cast<long long>(tensor.shape()[1]), static_cast<double>(host[rows * columns - 1]));
    return tensor.as<void>() == first && host[rows * columns - 1] == 2.5F;
}

int main() {
    try {
        const bool is_right = run();
        std::size_t live = 0;
        tcuda::check(tcuda_shutdown(&live));
        return is_right && live == 0 ? 0 : 1;
    } catch (const tcuda::error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
