// What the workloads take at least: no allocator, but the parts of one that none can leave out.
//
//   peers_floor floor|floor_whole GROUP[,GROUP...] [--quick] [TRACE...]
//
// Two columns of the tables, and no peers: nothing of them is safe, or of use to a program. `floor`
// is the search alone; `floor_whole` also finds a block by its address, counts, and knows other
// streams. Where blocks wait for these, `floor` is the same but for the questions.
#include "floor_fit.hpp"
#include "floor_waits.hpp"
#include "floor_whole.hpp"
#include "measure.hpp"
#include "peer.hpp"
#include "small.hpp"
#include "threads.hpp"
#include "traces.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace {

using namespace bench;

/// Blocks of one size that one thread allocates and another one frees: a record of each that both
/// write, a log of those that come back, which the allocating thread reads when it has none, and no
/// lock.
struct Logged : Bare {
    struct Block {
        uint64_t requested, in_use, unused[3];
    };

    static void start()
    {
        for (uint32_t i = 0; i < BLOCKS; i++) spare[count++] = i;
    }

    static void *allocate(size_t bytes, Stream)
    {
        if (count == 0) collect();
        Block &block = blocks[spare[--count]];
        block.requested = bytes;
        block.in_use = true;
        return &block;
    }

    static void release(void *memory, size_t, Stream)
    {
        Block &block = *static_cast<Block *>(memory);
        block.in_use = false;
        freed += block.requested;
        const uint64_t at = came.load(std::memory_order_relaxed);
        log[at % BLOCKS] = uint32_t(&block - blocks);
        came.store(at + 1, std::memory_order_release);
    }

private:
    static constexpr uint32_t BLOCKS = 4096;

    static void collect()
    {
        uint64_t until = seen;
        while (until == seen) until = came.load(std::memory_order_acquire);
        for (; seen < until; seen++) spare[count++] = log[seen % BLOCKS];
    }

    static inline Block blocks[BLOCKS];
    /// The allocating thread.
    alignas(64) static inline uint32_t spare[BLOCKS];
    static inline uint32_t count;
    static inline uint64_t seen;
    /// The freeing thread.
    alignas(64) static inline uint32_t log[BLOCKS];
    alignas(64) static inline std::atomic<uint64_t> came;
    static inline uint64_t freed;
};

template <Peer P> void run(const std::string &group, const std::vector<Trace> &all)
{
    P::start();
    if (group == "pairs") pairs<P>();
    else if (group == "churn") churn<P>();
    else if (group == "latency") latency<P>();
    else if (group == "random") rmm_random<P>();
    else if (group == "step") step<P>();
    else if (group == "traces") traces<P>(all);
    else fail("there is no such group");
}

template <Peer P> void run_recorded()
{
    P::start();
    all_recorded<P>();
}

void run(bool is_whole, const std::string &group, const std::vector<Trace> &all)
{
    if (group == "handoff") handoff<Logged>();
    else if (group == "recorded" && simulated) run_recorded<Whole>();
    else if (group == "recorded" && is_whole) run_recorded<Waited<true>>();
    else if (group == "recorded") run_recorded<Waited<false>>();
    else if (is_whole) run<Whole>(group, all);
    else run<BestFit>(group, all);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: %s floor|floor_whole GROUP[,GROUP...] [--quick] [TRACE...]\n",
            argv[0]);
        return 2;
    }
    try {
        std::vector<Trace> all;
        for (int i = 3; i < argc; i++) {
            if (!std::strcmp(argv[i], "--quick")) quick = true;
            else all.push_back(read_trace(argv[i]));
        }
        const char *backend = std::getenv("TCUDA_BACKEND");
        simulated = backend != nullptr && !std::strcmp(backend, "sim");
        Logged::start();
        std::istringstream list(argv[2]);
        for (std::string group; std::getline(list, group, ',');)
            run(!std::strcmp(argv[1], "floor_whole"), group, all);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s: %s\n", argv[1], error.what());
        return 1;
    }
    return 0;
}
