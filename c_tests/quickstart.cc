// The README's C++ example, with its results looked at.

#include <array>
#include <cstdio>
#include <tcuda.hpp>

static bool fill_and_copy_back() {
    std::array<float, 1000> host{};
    const tcuda::stream stream;
    const tcuda::allocation memory(sizeof host, stream);
    tcuda::fill(memory.get(), 1.5F, host.size(), stream);
    tcuda::copy(host.data(), memory.get(), sizeof host, stream);
    stream.synchronize();
    for (const float value : host) {
        if (value != 1.5F) {
            std::fprintf(stderr, "copied back %g, 1.5 was written\n", static_cast<double>(value));
            return false;
        }
    }
    std::size_t allocated = 0;
    tcuda::check(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &allocated));
    // 4000 bytes in units of 512.
    if (allocated != 4096) {
        std::fprintf(stderr, "%zu bytes allocated, expected 4096\n", allocated);
        return false;
    }
    return true;
}

int main() {
    try {
        if (!fill_and_copy_back()) return 1;
        std::size_t allocated = 0, live = 0;
        tcuda::check(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &allocated));
        tcuda::check(tcuda_shutdown(&live));
        if (allocated != 0 || live != 0) {
            std::fprintf(stderr, "left: %zu bytes, %zu handles\n", allocated, live);
            return 1;
        }
        return 0;
    } catch (const tcuda::error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        const bool skipped = error.status() == TCUDA_STATUS_NO_DRIVER
            || error.status() == TCUDA_STATUS_NO_DEVICE;
        return skipped ? 77 : 1;
    }
}
