// A core for the workloads of one thread, away from the machine's other processes.
//
// The other half of a core, used by another process for some seconds, takes a third of its speed
// from code that does several things at once, and none from a chain of arithmetic. Peers that run
// one after the other do not meet that equally.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>
#if defined(__linux__)
#include <sched.h>
#endif

namespace bench {

/// While it lives, its thread is bound to the core that was the least busy at the last look;
/// threads that it starts meanwhile are too. Where the system binds no threads, nothing happens.
class QuietCore {
public:
#if defined(__linux__)
    QuietCore()
    {
        if (sched_getaffinity(0, sizeof before, &before) != 0) return;
        for (int core = 0; core < CPU_SETSIZE && cores.size() < MOST; core++)
            if (CPU_ISSET(core, &before)) cores.push_back(core);
        look();
    }

    /// The two that were the least busy, if there are two that are no halves of one.
    std::vector<int> least_two() const
    {
        std::vector<std::pair<double, int>> times;
        for (const int core : cores)
            if (bind(core)) times.emplace_back(work(), core);
        bind(current);
        std::sort(times.begin(), times.end());
        for (size_t i = 1; i < times.size(); i++)
            if (whole_of(times[i].second) != whole_of(times[0].second))
                return {times[0].second, times[i].second};
        return {};
    }

    /// Binds a thread to one core, if that is possible.
    static bool bind(int core)
    {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        return sched_setaffinity(0, sizeof one, &one) == 0;
    }
    QuietCore(const QuietCore &) = delete;
    ~QuietCore()
    {
        if (!cores.empty()) sched_setaffinity(0, sizeof before, &before);
    }

    /// Moves to another core if that is faster by a tenth.
    void look()
    {
        if (cores.size() < 2) return;
        int best = cores[0];
        double least = 0, here = 0;
        for (const int core : cores) {
            if (!bind(core)) continue;
            const double ns = work();
            if (core == current) here = ns;
            if (least == 0 || ns < least) least = ns, best = core;
        }
        if (here == 0 || least < 0.9 * here) current = best;
        bind(current);
    }

private:
    /// A look at a core takes a third of a millisecond.
    static constexpr size_t MOST = 32;

    /// The halves of the core of which this is one, as the system names them.
    static std::string whole_of(int core)
    {
        std::ifstream file(
            "/sys/devices/system/cpu/cpu" + std::to_string(core)
            + "/topology/thread_siblings_list");
        std::string halves = std::to_string(core);
        file >> halves;
        return halves;
    }

    /// What several things at once take: chains, loads and stores that do not wait for each other.
    /// The middle one of three times, so that one interruption does not count.
    static double work()
    {
        using Clock = std::chrono::steady_clock;
        std::array<double, 3> ns{};
        for (double &time : ns) {
            static std::array<uint64_t, 512> memory;
            uint64_t a = 1, b = 2, c = 3, d = 4;
            const auto start = Clock::now();
            for (size_t i = 0; i < 30000; i++) {
                a = a * 5 + memory[i % 512];
                b = (b ^ i) * 9;
                c += c >> 3 ^ memory[(i + 64) % 512];
                d = (d << 1) + i;
                memory[(i + 256) % 512] = d;
            }
            asm volatile("" ::"r"(a), "r"(b), "r"(c), "r"(d));
            time = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
        }
        return std::max(std::min(ns[0], ns[1]), std::min(std::max(ns[0], ns[1]), ns[2]));
    }

    cpu_set_t before{};
    std::vector<int> cores;
    int current = -1;
#else
    void look() {}
    std::vector<int> least_two() const { return {}; }
    static bool bind(int) { return false; }
#endif
};

} // namespace bench
