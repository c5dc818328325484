// The floor for blocks that other streams use, with the driver for which they wait.
#pragma once

#include "floor_whole.hpp"
#include "gpu.hpp"

namespace bench {

/// The streams are CUDA's, and between two batches the driver is called, which leaves little of an
/// allocator in a processor's caches. With ASKS each stream is asked once before what waits for it
/// is free: an allocator that does not see each wait must ask, since the host may have waited for
/// something else.
template <bool ASKS> struct Waited : Whole {
    static void start()
    {
        Whole::start();
        static Gpu driver;
        gpu = &driver;
        if (ASKS) ask = ask_each;
    }

    static Stream new_stream()
    {
        const Stream stream = Whole::new_stream();
        streams[stream] = gpu->new_stream();
        return stream;
    }

    static void synchronize()
    {
        gpu->synchronize();
        Whole::synchronize();
    }

private:
    static void ask_each(uint32_t awaited)
    {
        for (; awaited != 0; awaited &= awaited - 1)
            gpu->must_be_done(streams[std::countr_zero(awaited)]);
    }

    static inline Gpu *gpu;
    static inline CUstream streams[16];
};

} // namespace bench
