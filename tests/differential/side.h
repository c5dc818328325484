// What the two allocators have in common: PyTorch's own and tcuda's, behind one interface.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

// On a GPU both work beside each other on the same device; without one, each has a machine of its
// own that the test rules: it holds events back, and knows when memory is short.
#ifdef DIFFERENTIAL_ON_GPU
inline constexpr bool ON_GPU = true;
#else
inline constexpr bool ON_GPU = false;
#endif

struct Stat {
    int64_t current = 0, peak = 0, allocated = 0, freed = 0;

    bool operator==(const Stat &) const = default;
};

// The first five do not depend on the layout of memory, the others do.
inline constexpr const char *stat_names[] = {"allocation", "allocated_bytes", "active",
    "active_bytes", "requested_bytes", "segment", "reserved_bytes", "inactive_split",
    "inactive_split_bytes"};
enum { EVERYWHERE = 5, STATS = 9 };
inline constexpr const char *pool_names[] = {"all", "small_pool", "large_pool"};

// The statistics of a device.
struct Statistics {
    std::array<std::array<Stat, 3>, STATS> stats;
    Stat oversize_allocations, oversize_segments;
    int64_t num_ooms = 0, num_alloc_retries = 0, num_sync_all_streams = 0, num_device_alloc = 0,
            num_device_free = 0, max_split_size = 0;

    bool operator==(const Statistics &) const = default;

    // Those that have one right value for the same calls, however memory is laid out.
    Statistics everywhere() const
    {
        Statistics result;
        std::copy_n(stats.begin(), EVERYWHERE, result.stats.begin());
        result.num_ooms = num_ooms;
        result.num_alloc_retries = num_alloc_retries;
        return result;
    }
};

struct Machine {
    int devices;
    size_t megabytes;
    double fraction = 1; // of its memory, which both may reserve
};

enum { STREAMS = 6, CURRENT_STREAM = -1 };

class Side {
public:
    virtual ~Side() = default;
    // `stream` is CURRENT_STREAM, 0 for the default stream, or one of the device's others. NULL:
    // out of memory; every other failure ends the program.
    virtual void *allocate(size_t bytes, int device, int stream) = 0;
    virtual void free(void *block) = 0;
    virtual void record_stream(void *block, int block_device, int device, int stream) = 0;
    virtual void empty_cache() = 0;
    virtual void reset_peak(int device) = 0;
    virtual void reset_accumulated(int device) = 0;
    // Makes a stream and its device current.
    virtual void set_stream(int device, int stream) = 0;
    // While it holds, no event is found complete; a wait for one still ends.
    virtual void hold_events(bool held) = 0;
    // Waits for a GPU, whose events are not complete at once.
    virtual void settle() = 0;
    virtual Statistics statistics(int device) const = 0;
    virtual const char *name() const = 0;
};

std::unique_ptr<Side> make_torch(const Machine &machine);
std::unique_ptr<Side> make_tcuda(const Machine &machine);
