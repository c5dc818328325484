// An inference loop with a private pool for each request: what a request allocated is known by
// itself, and goes back as a whole, whatever the request leaked into its objects.

#include <cstdio>
#include <tcuda.hpp>
#include <vector>

// Stands for a network: each layer reads the one before.
static float infer(float input, const tcuda::stream &stream) {
    constexpr std::size_t elements = 1 << 16, bytes = elements * sizeof(float);
    std::vector<tcuda::allocation> layers;
    layers.emplace_back(bytes, stream);
    tcuda::fill(layers.back().get(), input, elements, stream);
    for (int i = 0; i < 8; i++) {
        tcuda::allocation next(bytes, stream);
        tcuda::copy(next.get(), layers.back().get(), bytes, stream);
        layers.push_back(std::move(next));
    }
    tcuda::host_allocation result(sizeof(float));
    tcuda::copy(result.get(), layers.back().get(), sizeof(float), stream);
    stream.synchronize();
    return *result.as<float>();
}

static std::size_t bytes_of(const tcuda::mem_pool &pool) {
    const auto snapshot = pool.snapshot();
    const auto segments = std::get<0>(snapshot.counts());
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < segments; i++) bytes += snapshot.segment(i).total_bytes;
    return bytes;
}

static bool serve() {
    const tcuda::stream stream(0);
    for (int request = 0; request < 3; request++) {
        const tcuda::mem_pool pool;
        float answer = 0;
        {
            const tcuda::mem_pool_scope from(pool, 0);
            answer = infer(static_cast<float>(request) + 0.5F, stream);
        }
        std::printf("request %d: %.1f, %zu bytes of memory\n", request,
            static_cast<double>(answer), bytes_of(pool));
        if (answer != static_cast<float>(request) + 0.5F) return false;
    }
    return true;
}

int main() {
    try {
        const bool is_right = serve();
        tcuda::check(tcuda_shutdown(nullptr));
        return is_right ? 0 : 1;
    } catch (const tcuda::error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
