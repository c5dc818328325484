// What the driver itself takes for memory: the floor of every cold pass.
#pragma once

#include "gpu.hpp"
#include "peer.hpp"

#include <vector>

namespace bench {

/// Handles of one size, as tcuda makes them, beside cuMemAlloc of that size.
inline void driver_memory()
{
    Gpu gpu;
    constexpr size_t COUNT = 32;
    const auto microseconds = [](Clock::time_point start) { return ns_since(start) / 1e3 / COUNT; };
    for (const size_t mib : {2, 8, 32, 64, 256}) {
        const std::string size = std::to_string(mib) + "_MiB";
        const size_t bytes = mib * MIB;
        const CUdeviceptr base = gpu.reserve(COUNT * bytes);
        double get = 1e9, give = 1e9, allocate = 1e9, release = 1e9;
        for (int round = 0; round < 5; round++) {
            std::vector<CUmemGenericAllocationHandle> handles(COUNT);
            auto start = Clock::now();
            for (size_t i = 0; i < COUNT; i++) handles[i] = gpu.map_new(base + i * bytes, bytes);
            get = std::min(get, microseconds(start));
            start = Clock::now();
            for (size_t i = 0; i < COUNT; i++) gpu.unmap(base + i * bytes, bytes, handles[i]);
            give = std::min(give, microseconds(start));
            std::vector<CUdeviceptr> blocks(COUNT);
            start = Clock::now();
            for (auto &block : blocks) block = gpu.allocate(bytes);
            allocate = std::min(allocate, microseconds(start));
            start = Clock::now();
            for (const auto block : blocks) gpu.release(block);
            release = std::min(release, microseconds(start));
        }
        Row("driver", "create_map_access_" + size).figure("us", get);
        Row("driver", "unmap_release_" + size).figure("us", give);
        Row("driver", "cuMemAlloc_" + size).figure("us", allocate);
        Row("driver", "cuMemFree_" + size).figure("us", release);
    }
}

} // namespace bench
