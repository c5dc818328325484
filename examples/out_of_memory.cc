// Recovery from lack of memory: a cache of results gives its oldest entries up when an allocation
// would fail, and the allocation then succeeds. What cannot be served is an ordinary status.

#include <cstdio>
#include <deque>
#include <tcuda.hpp>

constexpr std::size_t mib = 1 << 20;

static bool run() {
    const tcuda::stream stream(0);
    std::deque<tcuda::allocation> cache;
    const auto free_oldest = [&cache](std::int32_t, std::size_t, std::size_t, std::size_t) {
        if (cache.empty()) return false;
        cache.pop_front();
        return true;
    };
    const auto observer = tcuda::observer::on_out_of_memory(free_oldest);

    // A tenth of the device for this process.
    tcuda::check(tcuda_memory_fraction_set(0, 0.1));
    std::size_t unused = 0, total = 0;
    tcuda::check(tcuda_memory_info(0, &unused, &total));
    const std::size_t limit = total / 10, each = limit / 8 / mib * mib;
    for (int i = 0; i < 20; i++) cache.emplace_back(each, stream);
    std::printf("20 results were made, the cache holds %zu\n", cache.size());
    const bool has_dropped = !cache.empty() && cache.size() <= 8;

    bool is_refused = false;
    try {
        const tcuda::allocation too_large(2 * limit, stream);
    } catch (const tcuda::error &error) {
        is_refused = error.status() == TCUDA_STATUS_OUT_OF_MEMORY;
        std::printf("twice the limit: %s\n", tcuda_status_name(error.status()));
    }
    return has_dropped && is_refused;
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
