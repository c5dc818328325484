// Tests the backend of tcuda.torch on the simulated machine: torch_headers.py --run compiles this
// file, which includes backend.cpp, and links it with PyTorch's libraries and a CUDA runtime that
// does nothing. There is one device, and its default stream is the only stream.

#include "../../python/tcuda/torch/backend.cpp"

#include <cstdlib>
#include <iostream>

#include <sys/wait.h>
#include <unistd.h>

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*function)(DeviceIndex)); // in no header
}

namespace {

constexpr size_t MIB = 1 << 20;

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::cerr << __FILE__ << ":" << __LINE__ << ": " #condition "\n";                      \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (false)

struct Stack : GatheredContext {
    int number = 0;
};
int stacks = 0;

std::shared_ptr<GatheredContext> make_stack() {
    auto stack = std::make_shared<Stack>();
    stack->number = ++stacks;
    return stack;
}

int number_of(const std::shared_ptr<GatheredContext> &stack) {
    const auto *found = dynamic_cast<Stack *>(stack.get());
    return found == nullptr ? 0 : found->number;
}

CUDAAllocator *device() { return c10::cuda::CUDACachingAllocator::get(); }

at::HostAllocator *host() { return at::getHostAllocator(at::kCUDA); }

c10::Stream default_stream() { return c10::cuda::getDefaultCUDAStream(0).unwrap(); }

void record_history(bool enabled) {
    device()->recordHistory(enabled, enabled ? make_stack : nullptr, 1000,
        enabled ? RecordContext::ALL : RecordContext::NEVER, true
#if TORCH_AT_LEAST(11)
        ,
        {}
#endif
    );
}

/// Installs both allocators; the second time it does nothing.
void install() {
    char error[1000] = "";
    for (int turn = 0; turn < 2; ++turn) {
        NEED(tcuda_torch_backend_install(error, sizeof error) == 0);
        NEED(tcuda_torch_backend_install_host(error, sizeof error) == 0);
    }
    NEED(device()->name() == "tcuda");
    // Memory that others have from tcuda before PyTorch uses a device.
    void *other = nullptr;
    NEED(tcuda_malloc(MIB, 0, nullptr, &other) == TCUDA_STATUS_OK);
    const auto snapshot = device()->snapshot({0, 0});
    NEED(!snapshot.segments.empty() && snapshot.device_traces.empty());
    NEED(tcuda_free(other) == TCUDA_STATUS_OK);
    c10::cuda::_internal::setHasPrimaryContext([](DeviceIndex) { return true; });
    device()->init(1);
    NEED(device()->initialized());
}

void test_blocks() {
    const auto before = device()->getDeviceStats(0).allocated_bytes[0].current;
    {
        const DataPtr block = device()->allocate(5 * MIB);
        NEED(device()->getDeviceStats(0).allocated_bytes[0].current - before == 5 * MIB);
        size_t bytes = 0;
        NEED(device()->getBaseAllocation(block.get(), &bytes) != nullptr && bytes >= 5 * MIB);
        device()->recordStream(block, c10::cuda::getDefaultCUDAStream(0));
    }
    NEED(device()->getDeviceStats(0).allocated_bytes[0].current == before);
    bool has_thrown = false;
    try {
        (void)device()->allocate(size_t{1} << 50);
    } catch (const c10::OutOfMemoryError &error) {
        const std::string text = error.what_without_backtrace();
        has_thrown = text.rfind("CUDA out of memory.", 0) == 0;
    }
    NEED(has_thrown);
}

void test_settings() {
#if TORCH_AT_LEAST(10)
    c10::CachingAllocator::setAllocatorSettings(
        "max_split_size_mb:256,pinned_num_register_threads:4");
    NEED(device()->getDeviceStats(0).max_split_size == 256 * MIB);
    NEED(CUDAAllocatorConfig::pinned_num_register_threads() == 4);
    bool has_thrown = false;
    try {
        c10::CachingAllocator::setAllocatorSettings("no_such_key:1");
    } catch (const c10::Error &) {
        has_thrown = true;
    }
    NEED(has_thrown);
#endif
}

void test_history() {
    device()->emptyCache({0, 0});
    record_history(true);
#if TORCH_AT_LEAST(10)
    device()->setUserMetadata("step 1");
    NEED(device()->getUserMetadata() == "step 1");
#endif
    const DataPtr block = device()->allocate(64 * MIB);
    const int stack = stacks;
#if TORCH_AT_LEAST(12)
    NEED(number_of(device()->getContextForPointer(block.get())) == stack);
    NEED(device()->getContextForPointer(&stacks) == nullptr);
#endif
#if TORCH_AT_LEAST(14)
    NEED(device()->supportsUserMetadata());
    device()->annotateMemory(block.get(), "weights");
#endif
    const auto snapshot = device()->snapshot({0, 0});
    const auto &trace = snapshot.device_traces.at(0);
    size_t allocations = 0, annotations = 0;
    for (const auto &event : trace) {
        const bool is_ours = event.addr_ == reinterpret_cast<size_t>(block.get());
        if (event.action_ == TraceEntry::ALLOC && is_ours) {
            allocations += 1;
            NEED(event.size_ == 64 * MIB && number_of(event.context_) == stack);
#if TORCH_AT_LEAST(10)
            NEED(event.user_metadata_ == "step 1");
#endif
        }
#if TORCH_AT_LEAST(14)
        if (event.action_ == TraceEntry::ANNOTATE && is_ours) {
            annotations += 1;
            NEED(event.user_metadata_ == "weights");
        }
#endif
    }
    NEED(allocations == 1 && annotations == (TORCH_AT_LEAST(14) ? 1 : 0));
    size_t blocks = 0;
    for (const auto &segment : snapshot.segments) {
        for (const auto &it : segment.blocks)
            if (it.allocated && number_of(it.context_when_allocated) == stack) {
                blocks += 1;
                NEED(it.requested_size == 64 * MIB);
                NEED(number_of(segment.context_when_allocated) == stack);
            }
    }
    NEED(blocks == 1);
#if TORCH_AT_LEAST(10)
    device()->setUserMetadata("");
#endif
    record_history(false);
    NEED(device()->snapshot({0, 0}).device_traces.at(0).empty());
}

void test_pool() {
    const MempoolId_t pool{0, 7};
    device()->createOrIncrefPool(0, pool);
    NEED(device()->getPoolUseCount(0, pool) == 1);
    bool is_routed = true;
    device()->beginAllocateToPool(0, pool, [&](cudaStream_t) { return is_routed; });
    NEED(device()->getPoolUseCount(0, pool) == 2);
    void *const inside = device()->raw_alloc(4 * MIB);
    is_routed = false;
    void *const outside = device()->raw_alloc(4 * MIB);
    const auto segments = device()->snapshot(pool).segments;
    NEED(segments.size() == 1 && segments[0].owner_private_pool_id == pool);
    const size_t at = reinterpret_cast<size_t>(inside), other = reinterpret_cast<size_t>(outside);
    const size_t end = segments[0].address + segments[0].total_size;
    NEED(segments[0].address <= at && at < end && (other < segments[0].address || other >= end));
#if TORCH_AT_LEAST(13)
    const auto stats = device()->getDeviceStats(0).reserved_bytes_by_private_pools;
    const auto found = stats.find(pool);
    NEED(found != stats.end());
    NEED(found->second[0].current == static_cast<int64_t>(segments[0].total_size));
    NEED(found->second[0].peak >= found->second[0].current && found->second[0].current > 0);
    device()->raw_delete(inside);
    is_routed = true;
    {
        const DataPtr again = device()->allocateWithAddress(4 * MIB, inside);
        NEED(again.get() == inside);
    }
    device()->markCaptureBegin(0);
    device()->markCaptureEnd(0);
    void *const last = nullptr;
#else
    void *const last = inside;
#endif
    const MempoolId_t inner{0, 8};
    is_routed = true;
    device()->beginAllocateToPool(0, inner, [](cudaStream_t) { return true; });
    void *const nested = device()->raw_alloc(3 * MIB);
    const auto nested_segments = device()->snapshot(inner).segments;
    NEED(nested_segments.size() == 1);
    NEED(nested_segments[0].address <= reinterpret_cast<size_t>(nested));
    device()->endAllocateToPool(0, inner);
    device()->raw_delete(nested);
    device()->releasePool(0, inner);
    device()->endAllocateToPool(0, pool);
    device()->raw_delete(last);
    device()->raw_delete(outside);
    device()->releasePool(0, pool);
    device()->releasePool(0, pool);
    NEED(device()->getPoolUseCount(0, pool) == 0);
}

void test_rejection() {
#if TORCH_AT_LEAST(12)
    static size_t rejected = 0;
    device()->attachOomRejectionObserver(
        [](int64_t, size_t bytes, size_t, size_t total) { rejected = total > 0 ? bytes : 0; });
    c10::CachingAllocator::setAllocatorSettings("throw_on_cudamalloc_oom:True");
    device()->setMemoryFraction(0.1, 0);
    bool has_thrown = false;
    try {
        (void)device()->allocate(size_t{8} << 30);
    } catch (const c10::OutOfMemoryError &) {
        has_thrown = true;
    }
    NEED(has_thrown && rejected >= size_t{8} << 30);
    NEED(device()->getDeviceStats(0).num_oom_rejections == 1);
    device()->setMemoryFraction(1.0, 0);
#endif
}

/// Requests or blocks that are in use, and bytes of the driver.
int64_t active() {
#if TORCH_AT_LEAST(10)
    return host()->get_stats().active_requests.current;
#else
    return host()->get_stats().allocation.current;
#endif
}

void test_pinned() {
    NEED(host()->allocate(0).get() == nullptr);
    {
        const DataPtr block = host()->allocate(MIB);
        NEED(active() == 1 && host()->get_stats().num_host_alloc == 1);
        NEED(block.device().is_cpu());
        auto *const middle = static_cast<char *>(block.get()) + 1000;
        NEED(host()->record_event(block.get(), block.get_context(), default_stream()));
        NEED(host()->record_event(middle, nullptr, default_stream()));
        NEED(!host()->record_event(&stacks, &stacks, default_stream()));
        auto *const end = static_cast<char *>(block.get()) + MIB;
        NEED(!host()->record_event(end, nullptr, default_stream()));
    }
    host()->empty_cache();
    NEED(active() == 0 && host()->get_stats().num_host_free == 1);
    host()->reset_peak_stats();
    host()->reset_accumulated_stats();
    NEED(host()->get_stats().num_host_alloc == 0);
}

void test_pinned_graph() {
#if TORCH_AT_LEAST(11)
    const MempoolId_t pool{3, 0};
    bool is_captured = false;
    const void *inside = nullptr, *used = nullptr;
    {
        DataPtr earlier = host()->allocate(MIB);
        host()->begin_allocate_to_pool(pool, [&](c10::Stream) { return is_captured; });
        is_captured = true;
        const DataPtr block = host()->allocate(MIB);
        NEED(host()->record_event(earlier.get(), earlier.get_context(), default_stream()));
        is_captured = false;
        const DataPtr unused = host()->allocate(MIB);
        host()->end_allocate_to_pool(pool);
        inside = block.get();
        used = earlier.get();
        NEED(active() == 3);
    }
    NEED(active() == 2); // the graph may use two of them
    {
        const DataPtr first = host()->allocate(MIB), second = host()->allocate(MIB);
        for (const auto *it : {first.get(), second.get()}) NEED(it != inside && it != used);
    }
    host()->empty_cache();
    NEED(active() == 2);
    host()->release_pool(pool);
    host()->empty_cache();
    NEED(active() == 0);
#endif
}

void test_pinned_history() {
#if TORCH_AT_LEAST(14)
    record_history(true);
    host()->record_history(true, make_stack, 1000, RecordContext::ALL, true);
    NEED(host()->is_history_enabled());
    int number = 0;
    const void *address = nullptr;
    {
        const DataPtr block = host()->allocate(MIB);
        address = block.get();
        const auto segments = host()->get_segments();
        NEED(segments.size() == 1 && segments[0].address == reinterpret_cast<size_t>(address));
        NEED(segments[0].allocated && segments[0].size == MIB);
        number = number_of(segments[0].context_when_allocated);
        NEED(number > 0);
    }
    host()->record_external_register(&stacks, sizeof stacks);
    NEED(host()->get_segments().size() == 1);
    host()->record_external_unregister(&stacks);
    NEED(host()->get_segments().empty());
    int external = 0, allocated = 0, freed = 0;
    for (const auto &event : host()->get_traces()) {
        NEED(event.device_ == -1);
        external += event.addr_ == reinterpret_cast<size_t>(&stacks);
        if (event.addr_ != reinterpret_cast<size_t>(address)) continue;
        allocated += event.action_ == TraceEntry::ALLOC && event.context_ != nullptr;
        freed += event.action_ == TraceEntry::FREE_COMPLETED;
    }
    NEED(external == 5 && allocated == 1 && freed == 1);
    host()->record_history(false, nullptr, 1, RecordContext::NEVER, true);
    record_history(false);
    NEED(host()->get_traces().empty());
#endif
}

/// What functions of the program may do in callbacks: throw anything, and ask for uses of a pool.
void test_functions_of_the_program() {
    static int seen = 0;
    static bool throws = true;
    const MempoolId_t pool{0, 9};
    device()->createOrIncrefPool(0, pool);
    device()->attachAllocatorTraceTracker([=](const TraceEntry &) {
        seen += device()->getPoolUseCount(0, pool);
        if (throws) throw 1;
    });
    device()->beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    void *const kept = device()->raw_alloc(MIB);
    NEED(seen > 0);
    throws = false;
    const auto state = device()->getCheckpointState(0, pool);
    void *const later = device()->raw_alloc(MIB);
    seen = 0;
    const auto delta = device()->setCheckpointPoolState(0, state);
    NEED(seen > 0 && delta.ptrs_freed.size() == 2 && delta.dataptrs_allocd.size() == 1);
    NEED(device()->checkPoolLiveAllocations(0, pool, {kept}));
    NEED(later != kept);
    device()->endAllocateToPool(0, pool);
    device()->releasePool(0, pool);
    device()->releasePool(0, pool);
#if TORCH_AT_LEAST(11)
    const int64_t before = active();
    host()->begin_allocate_to_pool(
        pool, [](c10::Stream) -> bool { throw std::runtime_error("no stream"); });
    bool has_thrown = false;
    try {
        (void)host()->allocate(MIB);
    } catch (const std::runtime_error &) {
        has_thrown = true;
    }
    host()->end_allocate_to_pool(pool);
    host()->release_pool(pool);
    NEED(has_thrown && active() == before);
#endif
}

struct Profiler : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void *, int64_t bytes, size_t, size_t, c10::Device) override {
        total += bytes;
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t total = 0;
};

/// While PyTorch's profiler follows memory, also in a forked child, where tcuda does nothing.
void test_profiler() {
    const auto profiler = std::make_shared<Profiler>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, profiler);
    DataPtr block = device()->allocate(5 * MIB);
    NEED(profiler->total == 5 * MIB);
    const pid_t child = fork();
    if (child == 0) {
        block.clear();
        _exit(0);
    }
    int status = -1;
    NEED(waitpid(child, &status, 0) == child && status == 0);
    block.clear();
    NEED(profiler->total == 0);
}

} // namespace

int main() {
    install();
    test_blocks();
    test_settings();
    test_history();
    test_pool();
    test_rejection();
    test_pinned();
    test_pinned_graph();
    test_pinned_history();
    test_functions_of_the_program();
    test_profiler();
    std::cout << "passed\n";
}
