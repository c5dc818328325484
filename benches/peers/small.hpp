// Host time of single allocations: pairs, churn, percentiles, RMM's own benchmark, steps, and
// blocks that other streams use. Nothing runs on the GPU.
#pragma once

#include "measure.hpp"
#include "peer.hpp"

#include <memory>
#include <random>

namespace bench {

inline constexpr size_t PAIR_SIZES[] = {512, 4 * KIB, MIB, 2 * MIB, 20 * MIB, 64 * MIB};

/// One block is allocated and freed.
template <Peer P> void pairs()
{
    const auto stream = P::new_stream();
    for (const size_t bytes : PAIR_SIZES) {
        const double ns = best_ns([&](long) {
            P::release(must_allocate<P>(bytes, stream), bytes, stream);
        });
        Row("pairs", "pair_" + std::to_string(bytes)).figure("ns", ns);
    }
}

/// Many random blocks live at once; one that is picked at random goes, and a new one comes.
template <Peer P> class Churn {
public:
    static constexpr size_t CHOICES = size_t(1) << 16;

    explicit Churn(size_t count) : live{P::new_stream()}
    {
        // Twice the mean in all: CUB rounds up to powers of two, others lose some to holes.
        while ((count * MEAN_BYTES * 2 >> shift) > P::memory_bytes() / 2) shift++;
        Random random;
        for (size_t i = 0; i < CHOICES; i++) {
            sizes[i] = std::max(random.size() >> shift, size_t(512));
            picks[i] = uint32_t(random.next() % count);
        }
        live.list.reserve(count);
        fill(count);
    }

    ~Churn()
    {
        live.release_all();
        P::empty_cache();
    }

    void release(long i)
    {
        auto &[block, bytes] = live.list[picks[size_t(i) % CHOICES]];
        P::release(block, bytes, live.stream);
        block = nullptr;
    }

    void allocate(long i)
    {
        const size_t bytes = sizes[size_t(i) * 7 % CHOICES];
        live.list[picks[size_t(i) % CHOICES]] = {must_allocate<P>(bytes, live.stream), bytes};
    }

    /// All blocks go, and those of the beginning come again.
    void begin_again()
    {
        const size_t count = live.list.size();
        live.release_all();
        fill(count);
    }

    /// Sizes are divided by two to this, so that the blocks fit into the device.
    int shift = 0;

private:
    void fill(size_t count)
    {
        for (size_t i = 0; i < count; i++) live.allocate(sizes[i % CHOICES]);
        for (size_t i = 0; i < 2 * count; i++) {
            release(long(i));
            allocate(long(i));
        }
    }

    static constexpr size_t MEAN_BYTES = size_t(1.7e6);
    size_t sizes[CHOICES];
    uint32_t picks[CHOICES];
    Blocks<P> live;
};

template <Peer P> void churn()
{
    for (const size_t count : {size_t(1000), size_t(16000)}) {
        const auto work = std::make_unique<Churn<P>>(count);
        const double ns = best_ns([&](long i) {
            work->release(i);
            work->allocate(i);
        });
        Row("churn", "churn_" + std::to_string(count) + "_live")
            .figure("ns", ns).figure("halved", work->shift);
    }
}

/// Rows of single calls in a churn of 1,000 blocks, less what looking at the counter costs.
inline void percentiles(const char *name, std::vector<uint64_t> &samples)
{
    std::sort(samples.begin(), samples.end());
    const auto ns = [&](double share) {
        const uint64_t ticks = samples[size_t(share * double(samples.size() - 1))];
        return double(ticks - std::min(ticks, ticks_overhead())) * ns_per_tick();
    };
    for (const auto &[which, share] : {std::pair("p50", 0.5), {"p99", 0.99}, {"p99.99", 0.9999},
             {"max", 1.0}})
        Row("latency", std::string(name) + "_" + which).figure("ns", ns(share));
}

/// Some 100 ns in which nothing can go wrong but what the machine does to every program.
inline void compute()
{
    static uint64_t value = 1;
    for (int i = 0; i < 100; i++) value = value * 0x9e3779b97f4a7c15u + 1;
    asm volatile("" ::"r"(value));
}

/// The times of calls one by one.
struct Samples {
    std::vector<uint64_t> allocations, releases, computations;

    explicit Samples(size_t count)
    {
        // Written now: no page is new while the clock runs.
        for (auto *list : {&allocations, &releases, &computations}) {
            list->resize(count, 1);
            list->clear();
        }
    }

    /// Operations `i` from 0 on.
    template <Peer P> void take(Churn<P> &work, size_t count)
    {
        for (size_t i = 0; i < count; i++) {
            const uint64_t start = ticks();
            work.release(long(i));
            const uint64_t middle = ticks();
            work.allocate(long(i));
            const uint64_t end = ticks();
            compute();
            computations.push_back(ticks() - end);
            allocations.push_back(end - middle);
            releases.push_back(middle - start);
        }
    }

    void rows(const std::string &prefix)
    {
        percentiles((prefix + "allocate").c_str(), allocations);
        percentiles((prefix + "free").c_str(), releases);
        percentiles((prefix + "compute").c_str(), computations);
    }
};

template <Peer P> void latency()
{
    constexpr size_t CHOICES = Churn<P>::CHOICES;
    const size_t count = quick ? 100000 : 1000000;
    Samples samples(count), warm(2 * CHOICES);
    const auto work = std::make_unique<Churn<P>>(1000);
    (void)ns_per_tick();
    QuietCore core;
    const auto untimed = [&] {
        for (size_t i = 0; i < CHOICES; i++) {
            work->release(long(i));
            work->allocate(long(i));
        }
    };
    // Once through all random numbers: what is timed is no allocator that still grows.
    untimed();
    samples.take(*work, count);
    samples.rows("");
    // The same program from its beginning, three times: the last two ask for nothing that the first
    // did not. What is timed is an allocator that has all it needs.
    work->begin_again();
    untimed();
    for (int pass = 0; pass < 2; pass++) {
        core.look();
        work->begin_again();
        warm.take(*work, CHOICES);
    }
    warm.rows("warm_");
    Row("latency", "clock_subtracted").figure("ns", double(ticks_overhead()) * ns_per_tick());
}

/// The operations of RMM's RANDOM_ALLOCATIONS_BENCH, drawn before the clock starts: an index of the
/// block to free, or a size to allocate where that is not 0.
inline std::vector<std::pair<size_t, size_t>> random_operations(size_t count, size_t max_mib)
{
    std::default_random_engine generator;
    std::uniform_int_distribution<size_t> size_distribution(1, max_mib * MIB);
    std::uniform_int_distribution<int> chance(0, 99), index(0, int(count) - 1);
    std::vector<std::pair<size_t, size_t>> operations;
    std::vector<size_t> live;
    size_t allocated = 0, bytes = 0;
    for (size_t i = 0; i < count * 2; i++) {
        const size_t size = size_distribution(generator);
        const bool allocates = live.empty()
            || (chance(generator) < 73 && allocated < count && bytes + size < 16000 * MIB);
        if (allocates) {
            operations.emplace_back(0, size);
            live.push_back(size);
            allocated++;
            bytes += size;
        } else {
            const size_t victim = size_t(index(generator)) % live.size();
            operations.emplace_back(victim, 0);
            bytes -= live[victim];
            live[victim] = live.back();
            live.pop_back();
        }
    }
    return operations;
}

template <Peer P> void rmm_random()
{
    QuietCore core;
    for (const size_t count : {size_t(1000), size_t(10000), size_t(100000)}) {
        const auto operations = random_operations(count, 1);
        Blocks<P> live{P::default_stream()};
        live.list.reserve(count);
        double best = 0;
        // The first run warms up, unless one takes so long that it does not matter.
        for (int run = 0; run < 4; run++) {
            core.look();
            const auto start = Clock::now();
            for (const auto &[victim, bytes] : operations) {
                if (bytes != 0) {
                    live.allocate(bytes);
                } else {
                    std::swap(live.list[victim], live.list.back());
                    live.release_last();
                }
            }
            const double ns = ns_since(start);
            live.release_all();
            best = run < 2 ? ns : std::min(best, ns);
            if (ns > 1e9) break;
        }
        Row("random", "random_" + std::to_string(count) + "_1MiB")
            .figure("ns", best / double(operations.size()));
    }
    P::empty_cache();
}

/// 512 random sizes come in turn and go in the opposite order, again and again.
template <Peer P> void step()
{
    constexpr size_t COUNT = 512;
    Random random;
    std::vector<size_t> sizes(COUNT);
    for (size_t &size : sizes) size = random.size();
    Blocks<P> live{P::new_stream()};
    const double ns = best_ns([&](long) {
        for (const size_t size : sizes) live.allocate(size);
        live.release_all();
    });
    Row("step", "step_512_pair").figure("ns", ns / COUNT);
    P::empty_cache();
}

/// Allocate, two other streams use the block, free; 64 times between two waits for the device,
/// which are not counted.
/* An arena of a few MiB has room for many blocks of 64 KiB, and for two of a MiB: an allocator that
   does not grow then queries the streams for each second block. */
template <Peer P> void recorded(const char *name, std::size_t bytes)
{
    constexpr int BLOCKS = 64;
    const int batches = quick ? 500 : 3000;
    const auto stream = P::new_stream(), first = P::new_stream(), second = P::new_stream();
    double best = 0;
    QuietCore core;
    for (int round = 0; round < 4; round++) {
        core.look();
        double ns = 0;
        for (int batch = 0; batch < batches; batch++) {
            const auto start = Clock::now();
            for (int i = 0; i < BLOCKS; i++) {
                void *block = must_allocate<P>(bytes, stream);
                P::record(block, stream, first);
                P::record(block, stream, second);
                P::release(block, bytes, stream);
            }
            ns += ns_since(start);
            P::synchronize();
        }
        ns /= batches * BLOCKS;
        best = round < 2 ? ns : std::min(best, ns);
    }
    Row("recorded", name).figure("ns", best);
    P::empty_cache();
}

template <Peer P> void all_recorded()
{
    recorded<P>("two_other_streams", MIB);
    recorded<P>("two_others_64_KiB", 64 * KIB);
    recorded<P>("two_others_2_MiB", 2 * MIB);
    recorded<P>("two_others_20_MiB", 20 * MIB);
}

} // namespace bench
