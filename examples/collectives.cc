// Collectives over all GPUs of this process: weights are copied to each, each computes, and the
// sum of the results comes to the first. With one GPU the copies are the memory itself.

#include <cstdio>
#include <numeric>
#include <tcuda.hpp>
#include <vector>

static bool run() {
    const auto count = static_cast<std::size_t>(tcuda::query(tcuda_device_count));
    std::vector<std::int32_t> devices(count);
    std::iota(devices.begin(), devices.end(), 0);

    constexpr std::int64_t elements = 1000;
    const tcuda::allocation memory(elements * sizeof(float), {}, 0);
    tcuda::fill(memory.get(), 0.5F, elements);
    const auto weights = tcuda::view(memory.as<float>(), {elements}, 0);

    std::vector<tcuda::tensor> copies(count);
    tcuda::comm::broadcast(weights, devices, copies);
    std::vector<tcuda_tensor> terms;
    for (const auto &copy : copies) terms.push_back(copy);
    const tcuda::tensor sum = tcuda::comm::reduce_add(terms, 0);

    std::vector<float> host(elements);
    tcuda::copy(host.data(), sum.as<float>(), elements * sizeof(float));
    tcuda::check(tcuda_stream_synchronize(nullptr));
    std::printf("%zu GPUs: %.1f ... %.1f\n", count, static_cast<double>(host.front()),
        static_cast<double>(host.back()));
    const float expected = 0.5F * static_cast<float>(count);
    return host.front() == expected && host.back() == expected;
}

int main() {
    try {
        const bool is_right = run();
        tcuda::check(tcuda_shutdown(nullptr));
        return is_right ? 0 : 1;
    } catch (const tcuda::error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
