// Host time with several threads: wall time per pair of one thread.
#pragma once

#include "measure.hpp"
#include "peer.hpp"
#include "small.hpp"

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace bench {

inline constexpr size_t THREAD_BYTES = 4 * KIB;

/// Runs `work(k)` on `count` threads that start together, and sets `stop` after some nanoseconds.
/// A failure of a thread is the caller's.
class Crowd {
public:
    std::atomic<bool> stop{false}, failed{false};

    void run(int count, double ns, const std::function<void(int)> &prepare,
        const std::function<void(int)> &work)
    {
        std::atomic<int> ready{0};
        std::atomic<bool> go{false};
        std::exception_ptr failure;
        std::mutex lock;
        const auto guarded = [&](const std::function<void(int)> &function, int k) {
            try {
                function(k);
            } catch (...) {
                const std::lock_guard hold(lock);
                failure = std::current_exception();
                failed = true;
            }
        };
        std::vector<std::thread> threads;
        stop = false;
        for (int k = 0; k < count; k++) {
            threads.emplace_back([&, k] {
                guarded(prepare, k);
                ready++;
                while (!go) std::this_thread::yield();
                guarded(work, k);
            });
        }
        while (ready < count) std::this_thread::yield();
        const auto start = Clock::now();
        go = true;
        std::this_thread::sleep_for(std::chrono::nanoseconds(long(ns)));
        stop = true;
        for (std::thread &thread : threads) thread.join();
        elapsed_ns = ns_since(start);
        if (failure) std::rethrow_exception(failure);
    }

    double elapsed_ns = 0;
};

/// Pairs on so many threads, which have a stream each or share one; nanoseconds of a thread, the
/// best of three. Each thread goes on until the time is over, so that it is the sum of all that
/// counts.
template <Peer P> double pairs_of(int count, const std::vector<typename P::Stream> &streams)
{
    double best = 0;
    for (int round = 0; round < 3; round++) {
        Crowd crowd;
        std::vector<long> done(size_t(count) * 16);
        const auto pair = [&](int k) {
            const auto stream = streams[size_t(k)];
            P::release(must_allocate<P>(THREAD_BYTES, stream), THREAD_BYTES, stream);
        };
        crowd.run(count, quick ? 30e6 : 100e6,
            [&](int k) {
                P::enter_thread();
                for (int i = 0; i < 1000; i++) pair(k);
            },
            [&](int k) {
                long pairs = 0;
                for (; !crowd.stop.load(std::memory_order_relaxed); pairs += 8)
                    for (int i = 0; i < 8; i++) pair(k);
                done[size_t(k) * 16] = pairs;
            });
        long pairs = 0;
        for (const long count_of_thread : done) pairs += count_of_thread;
        const double ns = crowd.elapsed_ns * count / double(pairs);
        best = round == 0 ? ns : std::min(best, ns);
    }
    return best;
}

/// Pairs on 1 to 16 threads, which share a stream or have one each; and the latter where peaks need
/// not be exact.
template <Peer P> void threads()
{
    const auto shared = P::new_stream();
    std::vector<typename P::Stream> one(16, shared), own(16, shared);
    for (auto &stream : own) stream = P::new_stream();
    const auto rows = [](const char *group, const auto &streams) {
        for (const int count : {1, 2, 4, 8, 16})
            Row(group, "threads_" + std::to_string(count))
                .figure("ns", pairs_of<P>(count, streams));
    };
    rows("threads_one_stream", one);
    rows("threads_own_stream", own);
    if constexpr (requires { P::exact_peaks(true); }) {
        P::exact_peaks(false);
        rows("threads_short_peaks", own);
        P::exact_peaks(true);
    }
}

/// A queue of one writer and one reader, each of which looks at how far the other is only where, by
/// what it saw last, the queue is full or empty.
class Ring {
public:
    bool push(void *block)
    {
        const size_t at = written.load(std::memory_order_relaxed);
        if (at - seen_read == CAPACITY) {
            seen_read = read.load(std::memory_order_acquire);
            if (at - seen_read == CAPACITY) return false;
        }
        blocks[at % CAPACITY] = block;
        written.store(at + 1, std::memory_order_release);
        return true;
    }

    void *pop()
    {
        const size_t at = read.load(std::memory_order_relaxed);
        if (at == seen_written) {
            seen_written = written.load(std::memory_order_acquire);
            if (at == seen_written) return nullptr;
        }
        void *block = blocks[at % CAPACITY];
        read.store(at + 1, std::memory_order_release);
        return block;
    }

private:
    static constexpr size_t CAPACITY = 1024;
    void *blocks[CAPACITY];
    /// The writer's: what it wrote, and what it saw read.
    alignas(64) std::atomic<size_t> written{0};
    size_t seen_read = 0;
    /// The reader's.
    alignas(64) std::atomic<size_t> read{0};
    size_t seen_written = 0;
};

/// One thread allocates, another one frees; and the same without an allocator, for what the queue
/// between them costs. Each has a core: two halves of one core move nothing between them, and where
/// threads happen to be is not the allocator's.
template <Peer P> void handoff()
{
    const auto stream = P::new_stream();
    for (const bool empty : {false, true}) {
        double best = 0;
        for (int round = 0; round < 3; round++) {
            Crowd crowd;
            const auto cores = QuietCore().least_two();
            const auto ring = std::make_unique<Ring>();
            std::atomic<bool> over{false};
            long pairs = 0;
            const auto release = [&](void *block) {
                if (!empty) P::release(block, THREAD_BYTES, stream);
            };
            crowd.run(2, quick ? 50e6 : 200e6,
                [&](int k) {
                    if (!cores.empty()) QuietCore::bind(cores[size_t(k)]);
                    P::enter_thread();
                },
                [&](int k) {
                    if (k == 0) {
                        while (!crowd.stop.load(std::memory_order_relaxed)) {
                            void *block = empty ? &over : must_allocate<P>(THREAD_BYTES, stream);
                            while (!ring->push(block) && !crowd.failed) std::this_thread::yield();
                            pairs++;
                        }
                        over = true;
                    } else {
                        for (;;) {
                            const bool last = over || crowd.failed;
                            if (void *block = ring->pop()) release(block);
                            else if (last) break;
                            else std::this_thread::yield();
                        }
                    }
                });
            const double ns = crowd.elapsed_ns / double(pairs);
            best = round == 0 ? ns : std::min(best, ns);
        }
        Row("handoff", empty ? "queue_alone" : "allocate_here_free_there").figure("ns", best);
    }
}

} // namespace bench
