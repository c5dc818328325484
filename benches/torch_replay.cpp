// PyTorch's C++ allocator, streams and events on the work of replay and replay_threads.
//
//   torch_replay micro | replay [--repeat N] TRACE...
//
// Prints "MICRO name ns" and "REPLAY name key=value ..." lines for compare.py. The loops, sizes and
// orders are those of replay_timing.c and replay_threads.c. Two builds: gpu.sh, and, with
// WITHOUT_GPU, c10_without_gpu.sh: PyTorch's own libc10_cuda.so over a stub runtime, which shows
// its host time and its layout of memory, but nothing of a driver.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#ifndef WITHOUT_GPU
#include <ATen/cuda/CUDAEvent.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;
#ifdef WITHOUT_GPU
namespace c10::cuda::_internal { void setHasPrimaryContext(bool (*function)(c10::DeviceIndex)); }
#endif

using Clock = std::chrono::steady_clock;

static double ns_since(Clock::time_point start) {
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

static c10::cuda::CUDAStream new_stream() { return c10::cuda::getStreamFromPool(false, 0); }

// ---- Small operations ----

constexpr int rounds = 5;

template <class Operation> void measure(const std::string &name, long count, Operation operation) {
    for (long i = 0; i < count / 10 + 1; i++) operation(i);
    double best = 1e30;
    for (int round = 0; round < rounds; round++) {
        const auto start = Clock::now();
        for (long i = 0; i < count; i++) operation(i);
        best = std::min(best, ns_since(start) / count);
    }
    std::printf("MICRO %-32s %10.2f ns\n", name.c_str(), best);
    std::fflush(stdout);
}

static uint64_t next_random(uint64_t &state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t random_size(uint64_t &state) {
    const size_t low = size_t(1) << (9 + next_random(state) % 15);
    return low + next_random(state) % low;
}

// As malloc_recorded of replay_threads.c.
static void measure_recorded(cudaStream_t stream) {
    constexpr long batch = 64;
    const c10::cuda::CUDAStream others[] = {new_stream(), new_stream()};
    void *blocks[batch];
    for (const bool together : {true, false}) {
        measure(together ? "recorded_together" : "recorded_one_by_one", 6400 * 16, [&](long i) {
            const long index = i % batch;
            void *const block = blocks[index] = allocator::raw_alloc_with_stream(4096, stream);
            c10::DataPtr data(block, block, allocator::get()->raw_deleter(),
                c10::Device(c10::DeviceType::CUDA, 0));
            for (const auto &other : others) allocator::recordStream(data, other);
            data.release_context();
            const bool is_last = index == batch - 1;
            if (!together) allocator::raw_delete(block);
            if (together && is_last)
                for (void *one : blocks) allocator::raw_delete(one);
            if (is_last)
                for (const auto &other : others) (void)cudaStreamSynchronize(other.stream());
        });
    }
}

// As measure_handoff of replay_threads.c.
static void measure_handoff(cudaStream_t stream) {
    constexpr long pairs = 200000, size = 1024;
    struct {
        alignas(64) std::atomic<long> filled{0};
        alignas(64) std::atomic<long> emptied{0};
        alignas(64) void *blocks[size];
    } ring;
    double best = 1e30;
    for (int round = 0; round < rounds; round++) {
        ring.filled = ring.emptied = 0;
        std::thread other([&] {
            const c10::cuda::CUDAGuard guard(0);
            for (long i = 0; i < pairs; i++) {
                while (ring.filled.load(std::memory_order_acquire) == i) std::this_thread::yield();
                allocator::raw_delete(ring.blocks[i % size]);
                ring.emptied.store(i + 1, std::memory_order_release);
            }
        });
        const auto start = Clock::now();
        for (long i = 0; i < pairs; i++) {
            while (i - ring.emptied.load(std::memory_order_acquire) == size)
                std::this_thread::yield();
            ring.blocks[i % size] = allocator::raw_alloc_with_stream(4096, stream);
            ring.filled.store(i + 1, std::memory_order_release);
        }
        other.join();
        best = std::min(best, ns_since(start) / pairs);
    }
    std::printf("MICRO %-32s %10.2f ns\n", "handoff", best);
    std::fflush(stdout);
}

static void measure_memory(cudaStream_t stream) {
    for (const size_t bytes : {size_t(512), size_t(4096), size_t(1) << 20, size_t(2) << 20,
             size_t(20) << 20, size_t(64) << 20}) {
        measure("pair_" + std::to_string(bytes), 200000,
            [&](long) { allocator::raw_delete(allocator::raw_alloc_with_stream(bytes, stream)); });
    }
    constexpr size_t choices = 1 << 16, live_count = 1000;
    std::vector<size_t> sizes(choices), pick(choices);
    uint64_t state = 88172645463325252ull;
    for (size_t i = 0; i < choices; i++) {
        sizes[i] = random_size(state);
        pick[i] = next_random(state) % live_count;
    }
    std::vector<void *> live(live_count);
    for (size_t i = 0; i < live_count; i++)
        live[i] = allocator::raw_alloc_with_stream(sizes[i], stream);
    measure("churn_1000_live", 100000, [&](long i) {
        void *&place = live[pick[i % choices]];
        allocator::raw_delete(place);
        place = allocator::raw_alloc_with_stream(sizes[i * 7 % choices], stream);
    });
    for (void *block : live) allocator::raw_delete(block);
    measure_recorded(stream);
}

static void measure_statistics(cudaStream_t stream) {
    measure("memory_stats", 100000, [](long) {
        volatile auto now = allocator::getDeviceStats(0).allocation[0].current;
        (void)now;
    });
    std::vector<void *> blocks(16000);
    for (size_t i = 0; i < blocks.size(); i++)
        blocks[i] = allocator::raw_alloc_with_stream(512 * (1 + i % 64), stream);
    measure("snapshot_16000", 50, [](long) { (void)allocator::snapshot(); });
    for (void *block : blocks) allocator::raw_delete(block);
}

// From the first thread's start to the last one's end, as replay_threads.c.
static double run_threads(const std::vector<cudaStream_t> &streams, long pairs) {
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    std::vector<Clock::time_point> began(streams.size()), ended(streams.size());
    for (size_t k = 0; k < streams.size(); k++) {
        threads.emplace_back([&, k] {
            const c10::cuda::CUDAGuard guard(0);
            const auto loop = [&](long count) {
                for (long i = 0; i < count; i++)
                    allocator::raw_delete(allocator::raw_alloc_with_stream(4096, streams[k]));
            };
            loop(1000);
            ready++;
            while (ready < int(streams.size())) std::this_thread::yield();
            began[k] = Clock::now();
            loop(pairs);
            ended[k] = Clock::now();
        });
    }
    for (auto &thread : threads) thread.join();
    return std::chrono::duration<double, std::nano>(*std::max_element(ended.begin(), ended.end())
        - *std::min_element(began.begin(), began.end())).count() / pairs;
}

static void measure_threads(cudaStream_t shared) {
    for (const int count : {1, 2, 4, 8, 16}) {
        for (const bool own : {false, true}) {
            std::vector<cudaStream_t> streams(count, shared);
            if (own) for (auto &stream : streams) stream = new_stream().stream();
            // Many threads cost PyTorch tens of microseconds a pair: fewer pairs will do.
            const long pairs = count < 4 ? 200000 : 20000;
            double best = 1e30;
            for (int round = 0; round < rounds; round++)
                best = std::min(best, run_threads(streams, pairs));
            const std::string name
                = "threads_" + std::to_string(count) + (own ? "_own_stream" : "_one_stream");
            std::printf("MICRO %-32s %10.2f ns per pair, %.2f M pairs/s\n", name.c_str(), best,
                count / best * 1e3);
            std::fflush(stdout);
        }
    }
}

#ifndef WITHOUT_GPU
// The raw_ rows are the CUDA runtime alone: the floor of both.
static void measure_events(const c10::cuda::CUDAStream &stream) {
    cudaEvent_t raw;
    at::cuda::CUDAEvent event;
    if (cudaEventCreateWithFlags(&raw, cudaEventDisableTiming) != cudaSuccess) std::exit(1);
    measure("event_record", 100000, [&](long) { event.record(stream); });
    measure("raw_event_record", 100000, [&](long) { cudaEventRecord(raw, stream.stream()); });
    stream.synchronize();
    measure("event_query", 100000, [&](long) { (void)event.query(); });
    measure("raw_event_query", 100000, [&](long) { (void)cudaEventQuery(raw); });
    measure("event_create_record_destroy", 20000, [&](long) {
        at::cuda::CUDAEvent fresh;
        fresh.record(stream);
    });
    measure("raw_event_create_record_destroy", 20000, [&](long) {
        cudaEvent_t fresh;
        cudaEventCreateWithFlags(&fresh, cudaEventDisableTiming);
        cudaEventRecord(fresh, stream.stream());
        cudaEventDestroy(fresh);
    });
    cudaEventDestroy(raw);
    stream.synchronize();
    measure("stream_query", 100000, [&](long) { (void)stream.query(); });
    measure("raw_stream_query", 100000, [&](long) { (void)cudaStreamQuery(stream.stream()); });
    cudaMemPool_t pool;
    uint64_t keep_all = UINT64_MAX;
    cudaDeviceGetDefaultMemPool(&pool, 0);
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all);
    measure("raw_malloc_async_pair_4096", 50000, [&](long) {
        void *block = nullptr;
        cudaMallocAsync(&block, 4096, stream.stream());
        cudaFreeAsync(block, stream.stream());
    });
}
#endif

static void micro() {
    const c10::cuda::CUDAStream stream = new_stream();
    measure_memory(stream.stream());
    measure_statistics(stream.stream());
    measure_threads(stream.stream());
    measure_handoff(stream.stream());
#ifndef WITHOUT_GPU
    measure_events(stream);
#endif
    measure("current_stream_get", 1000000, [](long) {
        volatile auto id = c10::cuda::getCurrentCUDAStream().id();
        (void)id;
    });
    measure("stream_exchange_restore", 200000,
        [&](long) { const c10::cuda::CUDAStreamGuard guard(stream); });
}

// ---- Traces ----

// As replay_event in examples/replay.h: both sides walk the same 16 bytes an event, and reuse the
// places of their pointers in the same order.
struct Event {
    uint64_t bytes;
    uint32_t slot;
    uint16_t stream, is_alloc;
};

struct Trace {
    std::vector<Event> events;
    uint32_t slots = 0;
    int streams = 1;
};

static Trace read_trace(const char *path) {
    std::ifstream in(path);
    if (!in) {
        std::fprintf(stderr, "torch_replay: %s: cannot be opened\n", path);
        std::exit(1);
    }
    Trace trace;
    std::unordered_map<uint64_t, uint32_t> live;
    std::vector<uint32_t> free_slots;
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream fields(line);
        char kind = 0;
        uint64_t id = 0;
        Event event{};
        fields >> kind >> id;
        if (kind == 'a') {
            fields >> event.bytes >> event.stream;
            event.is_alloc = 1;
            if (free_slots.empty()) {
                event.slot = trace.slots++;
            } else {
                event.slot = free_slots.back();
                free_slots.pop_back();
            }
            live[id] = event.slot;
            trace.streams = std::max(trace.streams, event.stream + 1);
        } else if (const auto place = live.find(id); kind == 'f' && place != live.end()) {
            event.slot = place->second;
            free_slots.push_back(event.slot);
            live.erase(place);
        } else {
            fields.setstate(std::ios::failbit);
        }
        if (!fields) {
            std::fprintf(stderr, "torch_replay: %s: wrong line '%s'\n", path, line.c_str());
            std::exit(1);
        }
        trace.events.push_back(event);
    }
    return trace;
}

static void replay(const char *path, int repeat) {
    const Trace trace = read_trace(path);
    std::vector<cudaStream_t> streams{c10::cuda::getDefaultCUDAStream().stream()};
    while (int(streams.size()) < trace.streams) streams.push_back(new_stream().stream());
    std::vector<void *> live(trace.slots, nullptr);
    allocator::emptyCache();
    allocator::resetPeakStats(0);
    allocator::resetAccumulatedStats(0);
    double cold = 0, warm = 1e30;
    allocator::DeviceStats stats{};
    for (int pass = 0; pass <= repeat; pass++) {
        const auto start = Clock::now();
        for (const Event &event : trace.events) {
            if (event.is_alloc) {
                live[event.slot]
                    = allocator::raw_alloc_with_stream(event.bytes, streams[event.stream]);
            } else {
                allocator::raw_delete(live[event.slot]);
                live[event.slot] = nullptr;
            }
        }
        const double ns = ns_since(start) / trace.events.size();
        if (pass == 0) {
            cold = ns;
            stats = allocator::getDeviceStats(0);
        } else {
            warm = std::min(warm, ns);
        }
        for (void *&block : live) {
            if (block != nullptr) allocator::raw_delete(block);
            block = nullptr;
        }
    }
    const char *slash = std::strrchr(path, '/');
    const long allocated = stats.allocated_bytes[0].peak, reserved = stats.reserved_bytes[0].peak;
    std::printf("REPLAY %s events=%zu cold_ns=%.1f warm_ns=%.1f peak_requested=%ld "
                "peak_allocated=%ld peak_reserved=%ld ratio=%.4f segments=%ld\n",
        slash ? slash + 1 : path, trace.events.size(), cold, warm,
        long(stats.requested_bytes[0].peak), allocated, reserved,
        allocated ? double(reserved) / allocated : 0.0, long(stats.segment[0].allocated));
    std::fflush(stdout);
}

int main(int argc, char **argv) {
    const bool wants_micro = argc == 2 && !std::strcmp(argv[1], "micro");
    const bool has_repeat = argc > 3 && !std::strcmp(argv[2], "--repeat");
    const int repeat = has_repeat ? std::atoi(argv[3]) : 5;
    if (!wants_micro && (argc < 3 || std::strcmp(argv[1], "replay") != 0 || repeat < 1)) {
        std::fprintf(stderr, "usage: torch_replay micro | replay [--repeat N] TRACE...\n");
        return 2;
    }
#ifdef WITHOUT_GPU
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#else
    if (cudaFree(nullptr) != cudaSuccess) { // creates the context
        std::fprintf(stderr, "torch_replay: no GPU\n");
        return 1;
    }
#endif
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) return 1;
    allocator::init(devices);
    if (wants_micro) micro();
    for (int i = has_repeat ? 4 : 2; !wants_micro && i < argc; i++) replay(argv[i], repeat);
}
