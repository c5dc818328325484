// Clocks, random sizes and rows of output for the workloads.
//
// A row is one line of JSON on the standard output; peers.py reads them.
#pragma once

#include "quiet_core.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace bench {

constexpr size_t KIB = size_t(1) << 10, MIB = size_t(1) << 20, GIB = size_t(1) << 30;

/// Smaller amounts of everything, so that all peers are through in four minutes.
inline bool quick = false;
/// No GPU: workloads whose time is the GPU's are skipped.
inline bool simulated = false;

/// Ends the group that runs; the next one goes on. Out of line, as what makes its text should be: a
/// check that passes, which stands beside every call that is timed, is a comparison and no more.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail(const std::string &why)
{
    throw std::runtime_error(why);
}

// ---- Time ----

using Clock = std::chrono::steady_clock;

inline double ns_since(Clock::time_point start)
{
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

/// Time per operation(i), the best of many batches; i runs on from batch to batch. The batches are
/// long beside the clock, whatever the operation costs, and short enough that some run
/// undisturbed: where a machine is shared, a process on the other half of a core takes a third of
/// its speed.
template <class Operation> double best_ns(Operation operation)
{
    const double long_enough = quick ? 1e6 : 4e6;
    QuietCore core;
    long next = 0, count = 16;
    const auto batch = [&] {
        const auto start = Clock::now();
        for (long i = 0; i < count; i++) operation(next + i);
        next += count;
        return ns_since(start);
    };
    for (double ns = batch(); ns < long_enough; ns = batch())
        count = std::max(count * 2, std::min(long(count * long_enough / ns), count * 100));
    double best = batch();
    for (int i = 1; i < 24; i++) {
        if (i % 8 == 0) core.look();
        best = std::min(best, batch());
    }
    return best / count;
}

/// A counter that is cheap to read, for the time of single calls.
inline uint64_t ticks()
{
#if defined(__x86_64__)
    _mm_lfence();
    const uint64_t now = __rdtsc();
    _mm_lfence();
    return now;
#else
    return uint64_t(Clock::now().time_since_epoch().count());
#endif
}

inline double ns_per_tick()
{
    static const double ratio = [] {
        const auto start = Clock::now();
        const uint64_t first = ticks();
        while (ns_since(start) < 20e6) {}
        return ns_since(start) / double(ticks() - first);
    }();
    return ratio;
}

/// What two looks at the counter cost with nothing between them: the median.
inline uint64_t ticks_overhead()
{
    static const uint64_t overhead = [] {
        std::vector<uint64_t> samples(10001);
        for (uint64_t &sample : samples) {
            const uint64_t start = ticks();
            sample = ticks() - start;
        }
        std::nth_element(samples.begin(), samples.begin() + 5000, samples.end());
        return samples[5000];
    }();
    return overhead;
}

// ---- Random sizes ----

struct Random {
    uint64_t state = 88172645463325252ull;

    uint64_t next()
    {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }

    /// 512 B to 16 MiB: every power of two as often as any other; 1.6 MiB in the mean.
    size_t size()
    {
        const size_t low = size_t(1) << (9 + next() % 15);
        return low + next() % low;
    }
};

// ---- Rows ----

/// Written when it goes out of scope: Row("pairs", "pair_512").figure("ns", 30.7);
class Row {
public:
    Row(const char *group, const std::string &name)
        : line("{\"group\": \"" + std::string(group) + "\", \"name\": \"" + name + '"')
    {
    }
    Row(const Row &) = delete;
    ~Row()
    {
        std::printf("%s}\n", line.c_str());
        std::fflush(stdout);
    }

    Row &figure(const char *key, double value)
    {
        char text[64];
        std::snprintf(text, sizeof text, ", \"%s\": %.15g", key, value);
        line += text;
        return *this;
    }

    Row &list(const char *key, const std::vector<uint64_t> &values)
    {
        line += std::string(", \"") + key + "\": [";
        for (size_t i = 0; i < values.size(); i++)
            line += (i == 0 ? "" : ", ") + std::to_string(values[i]);
        line += "]";
        return *this;
    }

private:
    std::string line;
};

inline void skipped(const char *group, const char *state, std::string why)
{
    for (char &c : why)
        if (c == '"' || c == '\\' || c < ' ') c = ' ';
    std::printf("{\"%s\": \"%s\", \"why\": \"%s\"}\n", state, group, why.c_str());
    std::fflush(stdout);
}

} // namespace bench
