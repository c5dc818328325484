// PyTorch's CUDAAllocator on tcuda: all of the interface, where CUDAPluggableAllocator has a part;
// and its HostAllocator, for pinned memory. PyTorch 2.9 to 2.15.
//
// tcuda.torch.enable() compiles this file against the installed PyTorch and calls
// tcuda_torch_backend_install before the first use of CUDA. libtcuda.so is loaded before, with
// RTLD_GLOBAL, so that this library needs only libc10, libc10_cuda and libtorch_cpu.
//
// What differs from PyTorch's own allocators:
//   - Free-memory callbacks run before an allocation fails; PyTorch runs them at each cache miss.
//   - A handle of shareIpcHandle is for one receiver.
//   - Pinned memory that a captured graph uses is free again once the graph's pool has ended and
//     the cache was emptied; PyTorch never uses it again.

#include <torch/csrc/api/include/torch/version.h>

/// Is PyTorch at least 2.`minor`?
#define TORCH_AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tcuda.h"

namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::GatheredContext;
using c10::MempoolId_t;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
#if TORCH_AT_LEAST(11)
using c10::CachingDeviceAllocator::AnnotationEntry;
#endif

// ---- Statuses ----

/// Programs look for this beginning, which tcuda's sentences about allocations have.
[[noreturn]] void throw_out_of_memory(const std::string &text) {
    constexpr const char *BEGINNING = "CUDA out of memory. ";
    const bool has_it = text.rfind(BEGINNING, 0) == 0;
    TORCH_CHECK_WITH(OutOfMemoryError, false, has_it ? "" : BEGINNING, text);
}

/// Throws what a failed call of this thread means in PyTorch.
[[noreturn]] void fail(const char *function, tcuda_status status) {
    const std::string text = tcuda_last_error();
    if (status == TCUDA_STATUS_OUT_OF_MEMORY) throw_out_of_memory(text);
    TORCH_CHECK(false, text, " (", function, ": ", tcuda_status_name(status), ")");
}

void check(const char *function, tcuda_status status) {
    if (C10_UNLIKELY(status != TCUDA_STATUS_OK)) fail(function, status);
}

/// Calls a function of tcuda; a failure throws.
#define TCUDA_CHECK(function, ...) check(#function, (function)(__VA_ARGS__))

/// A text that a function writes in the manner of snprintf.
template <class Function> std::string text_of(const char *name, Function function) {
    std::string text(256, '\0');
    for (;;) {
        size_t needed = 0;
        check(name, function(text.data(), text.size(), &needed));
        const bool is_whole = needed < text.size();
        text.resize(is_whole ? needed : needed + 1);
        if (is_whole) return text;
    }
}

/// A list that a function writes.
template <class Item, class Function>
std::vector<Item> list_of(const char *name, Function function) {
    std::vector<Item> items(64);
    for (;;) {
        size_t count = 0;
        check(name, function(items.data(), items.size(), &count));
        const bool is_whole = count <= items.size();
        items.resize(count);
        if (is_whole) return items;
    }
}

/// Calls a function of the program in a callback of tcuda, which no exception may leave.
template <class Function> void contain(const char *failure, Function function) {
    try {
        function();
    } catch (const std::exception &error) {
        TORCH_WARN(failure, ": ", error.what());
    } catch (...) {
        TORCH_WARN(failure);
    }
}

// ---- Contexts: the stacks that PyTorch gathers ----

/// A stack of PyTorch as tcuda keeps it.
struct Context : tcuda_frame_context {
    explicit Context(std::shared_ptr<GatheredContext> stack)
        : tcuda_frame_context{retain_one, release_one}, gathered(std::move(stack)) {}

    static Context *of(void *context) {
        return static_cast<Context *>(static_cast<tcuda_frame_context *>(context));
    }
    static void retain_one(void *context) {
        of(context)->references.fetch_add(1, std::memory_order_relaxed);
    }
    static void release_one(void *context) {
        if (of(context)->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
            delete of(context);
    }

    std::atomic<size_t> references{1};
    std::shared_ptr<GatheredContext> gathered;
};

/// The stack of PyTorch in a context; none if another recorder made it.
std::shared_ptr<GatheredContext> stack_of(tcuda_frame_context *context) {
    if (context == nullptr || context->retain != &Context::retain_one) return nullptr;
    return Context::of(context)->gathered;
}

/// Gathers the stack of this thread; `user_data` points to the function of PyTorch that does.
tcuda_frame_context *gather(void *user_data) {
    try {
        auto gathered = (*static_cast<CreateContextFn *>(user_data))();
        return gathered == nullptr ? nullptr : new Context(std::move(gathered));
    } catch (...) {
        return nullptr; // no exception may leave a callback: the event has no stack
    }
}

// ---- Events ----

/// Is it an event that this version of PyTorch knows?
bool is_known(const tcuda_memory_event &event) {
    constexpr auto LAST = TORCH_AT_LEAST(14) ? TCUDA_ACTION_ANNOTATE : TCUDA_ACTION_OOM;
    return event.action >= TCUDA_ACTION_ALLOC && event.action <= LAST;
}

TraceEntry::Action action_of(tcuda_memory_action action) {
    switch (action) {
    case TCUDA_ACTION_ALLOC: return TraceEntry::ALLOC;
    case TCUDA_ACTION_FREE_REQUESTED: return TraceEntry::FREE_REQUESTED;
    case TCUDA_ACTION_FREE_COMPLETED: return TraceEntry::FREE_COMPLETED;
    case TCUDA_ACTION_SEGMENT_ALLOC: return TraceEntry::SEGMENT_ALLOC;
    case TCUDA_ACTION_SEGMENT_FREE: return TraceEntry::SEGMENT_FREE;
    case TCUDA_ACTION_SEGMENT_MAP: return TraceEntry::SEGMENT_MAP;
    case TCUDA_ACTION_SEGMENT_UNMAP: return TraceEntry::SEGMENT_UNMAP;
    case TCUDA_ACTION_SNAPSHOT: return TraceEntry::SNAPSHOT;
#if TORCH_AT_LEAST(14)
    case TCUDA_ACTION_ANNOTATE: return TraceEntry::ANNOTATE;
#endif
    default: return TraceEntry::OOM;
    }
}

/// An event in PyTorch's form, with the time now.
TraceEntry entry_of(const tcuda_memory_event &event) {
    const auto action = action_of(event.action);
    // PyTorch has the free memory in place of an address there.
    const size_t address = action == TraceEntry::OOM ? event.free_bytes
                                                     : reinterpret_cast<size_t>(event.ptr);
    const DeviceIndex device = event.device == TCUDA_CPU_DEVICE
        ? DeviceIndex{-1}
        : static_cast<DeviceIndex>(event.device);
    return TraceEntry(action, device, address, event.bytes, event.cu_stream,
        MempoolId_t{event.pool_id0, event.pool_id1}, c10::getApproximateTime(),
        stack_of(event.context), event.compile_context
#if TORCH_AT_LEAST(10)
        ,
        event.metadata
#endif
    );
}

/// A snapshot of tcuda, which is destroyed with this object.
class Snapshot {
public:
    explicit Snapshot(bool with_events) {
        TCUDA_CHECK(tcuda_memory_snapshot_create, with_events ? 1 : 0, &made_);
    }
    Snapshot(const Snapshot &) = delete;
    Snapshot &operator=(const Snapshot &) = delete;
    ~Snapshot() { (void)tcuda_memory_snapshot_destroy(made_); }

    tcuda_memory_snapshot *get() const { return made_; }

    /// The events of a device, or with TCUDA_CPU_DEVICE those of pinned memory, oldest first.
    std::vector<TraceEntry> trace_of(int32_t device) const {
        size_t count = 0;
        TCUDA_CHECK(tcuda_memory_snapshot_event_count, made_, device, &count);
        std::vector<TraceEntry> trace;
        trace.reserve(count);
        for (size_t index = 0; index < count; ++index) {
            tcuda_memory_event event = TCUDA_INIT(tcuda_memory_event);
            TCUDA_CHECK(tcuda_memory_snapshot_event, made_, device, index, &event);
            if (!is_known(event)) continue;
            trace.push_back(entry_of(event));
            trace.back().time_.t_ = static_cast<time_t>(event.time_us);
        }
        return trace;
    }

private:
    tcuda_memory_snapshot *made_ = nullptr;
};

/// The time now as snapshots have it, in microseconds since 1970.
time_t now_us() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<time_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

void track(void *user_data, const tcuda_memory_event *event) {
    if (!is_known(*event) || event->device < 0) return; // also pinned memory
    contain("a tracker of CUDA memory failed",
        [&] { (*static_cast<AllocatorTraceTracker *>(user_data))(entry_of(*event)); });
}

template <class Value> void destroy(void *user_data) { delete static_cast<Value *>(user_data); }

// ---- Statistics ----

Stat stat_of(const tcuda_stat &stat) {
    Stat result;
    result.current = static_cast<int64_t>(stat.current);
    result.peak = static_cast<int64_t>(stat.peak);
    result.allocated = static_cast<int64_t>(stat.allocated);
    result.freed = static_cast<int64_t>(stat.freed);
    return result;
}

StatArray stats_of(const tcuda_stat_by_pool &stats) {
    StatArray result;
    result[static_cast<size_t>(StatType::AGGREGATE)] = stat_of(stats.all);
    result[static_cast<size_t>(StatType::SMALL_POOL)] = stat_of(stats.small_pool);
    result[static_cast<size_t>(StatType::LARGE_POOL)] = stat_of(stats.large_pool);
    return result;
}

tcuda_memory_statistics statistics(DeviceIndex device) {
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    TCUDA_CHECK(tcuda_memory_stats, device, &stats);
    return stats;
}

// ---- Allocators of pools ----

/// An allocator that MemPools got from the program. tcuda calls functions without user data, so
/// that each allocator has a pair of functions of its own. Another allocator gets them once all
/// pools of this one have ended, and all of its memory was given back.
struct Source {
    std::shared_ptr<CUDAAllocator> allocator;
    std::atomic<size_t> pools{0};    ///< pools that use it
    std::atomic<size_t> segments{0}; ///< ranges of memory that tcuda has from it
    tcuda_torch_malloc_fn take = nullptr;
    tcuda_torch_free_fn give = nullptr;

    bool is_over() const {
        return pools.load(std::memory_order_acquire) == 0
            && segments.load(std::memory_order_acquire) == 0;
    }
};
constexpr size_t SOURCES = 256;
Source sources[SOURCES];

void *take_of(Source &source, ptrdiff_t bytes, int32_t device) {
    void *ptr = nullptr;
    contain("the allocator of a pool failed", [&] {
        const c10::cuda::CUDAGuard guard(static_cast<DeviceIndex>(device));
        ptr = source.allocator->raw_alloc(static_cast<size_t>(bytes));
        if (ptr != nullptr) source.segments.fetch_add(1, std::memory_order_relaxed);
    });
    return ptr;
}

void give_of(Source &source, void *ptr, int32_t device) {
    contain("the allocator of a pool failed to free", [&] {
        const c10::cuda::CUDAGuard guard(static_cast<DeviceIndex>(device));
        source.allocator->raw_delete(ptr);
        source.segments.fetch_sub(1, std::memory_order_release);
    });
}

template <size_t Index> void *take_from(ptrdiff_t bytes, int32_t device, cudaStream_t) {
    return take_of(sources[Index], bytes, device);
}

template <size_t Index> void give_to(void *ptr, ptrdiff_t, int32_t device, cudaStream_t) {
    give_of(sources[Index], ptr, device);
}

template <size_t... Index> void set_functions(std::index_sequence<Index...>) {
    ((sources[Index].take = take_from<Index>, sources[Index].give = give_to<Index>), ...);
}

/// The functions of an allocator. The caller holds the lock of the pools.
Source &source_of(const std::shared_ptr<CUDAAllocator> &allocator) {
    if (sources[0].take == nullptr) set_functions(std::make_index_sequence<SOURCES>());
    const auto is_it = [&](const Source &source) { return source.allocator == allocator; };
    const auto is_new = [](const Source &source) { return source.allocator == nullptr; };
    const auto is_over = [](const Source &source) { return source.is_over(); };
    auto *const end = std::end(sources);
    auto *found = std::find_if(std::begin(sources), end, is_it);
    if (found == end) found = std::find_if(std::begin(sources), end, is_new);
    if (found == end) found = std::find_if(std::begin(sources), end, is_over);
    TORCH_CHECK(found != end, "tcuda: at most ", SOURCES,
        " different allocators can have pools or memory at the same time");
    found->allocator = allocator;
    return *found;
}

// ---- Routes to pools ----

using Filter = std::function<bool(cudaStream_t)>;
using SharedFilter = std::shared_ptr<Filter>;

/// What a filter threw during this thread's allocation, which throws it then.
thread_local std::exception_ptr filter_failure;

int32_t accepts(void *user_data, cudaStream_t stream) {
    try {
        return (**static_cast<SharedFilter *>(user_data))(stream) ? 1 : 0;
    } catch (...) {
        filter_failure = std::current_exception();
        return 0;
    }
}

// ---- When memory runs out ----

/// What tcuda said about this thread's failing allocation before it gave up.
struct Shortage {
    size_t bytes;
    size_t limit_bytes;
    size_t free_bytes;
};
thread_local Shortage shortage;

/// Runs PyTorch's registered callbacks, which may free memory: the allocation is tried again.
int32_t free_memory(void *, int32_t, size_t bytes, size_t limit_bytes, size_t free_bytes) {
    shortage = {bytes, limit_bytes, free_bytes};
    bool has_freed = false;
    contain("a callback that frees CUDA memory failed", [&] {
        for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
            has_freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    });
    return has_freed ? 1 : 0;
}

#if TORCH_AT_LEAST(12)
/// Passes a refused allocation to an observer of PyTorch.
void reject(
    void *user_data, int32_t device, size_t bytes, size_t allocated_bytes, size_t total_bytes) {
    contain("an observer of refused CUDA memory failed", [&] {
        (*static_cast<OomRejectionObserver *>(user_data))(
            device, bytes, allocated_bytes, total_bytes);
    });
}
#endif

// ---- Checkpoints ----

struct PoolState : AllocatorState {
    MempoolId_t pool;
    std::vector<tcuda_pool_block> blocks;
};

// ---- The allocator ----

void delete_block(void *ptr);

class TcudaAllocator final : public CUDAAllocator {
public:
    // c10::Allocator

    DataPtr allocate(size_t size) override {
        const DeviceIndex device = current_device();
        void *ptr = size == 0
            ? nullptr
            : take(size, device, c10::cuda::getCurrentCUDAStream(device).stream());
        return {ptr, ptr, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }

    void copy_data(void *dest, const void *src, std::size_t count) const override {
        C10_CUDA_CHECK(cudaMemcpy(dest, src, count, cudaMemcpyDeviceToDevice));
    }

    // c10::DeviceAllocator

    bool initialized() override { return device_count_.load(std::memory_order_acquire) > 0; }

    void emptyCache(MempoolId_t mempool_id) override {
        if (mempool_id != MempoolId_t{0, 0} && !has_rest(mempool_id)) return;
        TCUDA_CHECK(tcuda_memory_empty_cache);
    }

    using CUDAAllocator::recordStream;
    void recordStream(const DataPtr &ptr, c10::cuda::CUDAStream stream) override {
        // As in PyTorch: memory of other libraries or processes is not tracked.
        if (ptr.get() == nullptr || ptr.get_deleter() != &delete_block) return;
        // By the native handle, because a stream may be new to tcuda while it is captured. NULL is
        // the default stream of the block's device, and this one may be of another device.
        if (stream.stream() == nullptr)
            TCUDA_CHECK(tcuda_record_stream, ptr.get(), handle_of(stream));
        else
            tcuda_torch_record_stream(ptr.get(), stream.stream());
    }

    DeviceStats getDeviceStats(DeviceIndex device) override {
        const auto stats = statistics(device);
        DeviceStats result;
        result.allocation = stats_of(stats.allocation);
        result.segment = stats_of(stats.segment);
        result.active = stats_of(stats.active);
        result.inactive_split = stats_of(stats.inactive_split);
        result.allocated_bytes = stats_of(stats.allocated_bytes);
        result.reserved_bytes = stats_of(stats.reserved_bytes);
        result.active_bytes = stats_of(stats.active_bytes);
        result.inactive_split_bytes = stats_of(stats.inactive_split_bytes);
        result.requested_bytes = stats_of(stats.requested_bytes);
        result.num_alloc_retries = static_cast<int64_t>(stats.num_alloc_retries);
        result.num_ooms = static_cast<int64_t>(stats.num_ooms);
        result.oversize_allocations = stat_of(stats.oversize_allocations);
        result.oversize_segments = stat_of(stats.oversize_segments);
        result.num_sync_all_streams = static_cast<int64_t>(stats.num_sync_all_streams);
        result.num_device_alloc = static_cast<int64_t>(stats.num_device_alloc);
        result.num_device_free = static_cast<int64_t>(stats.num_device_free);
        result.max_split_size = static_cast<int64_t>(stats.max_split_size);
#if TORCH_AT_LEAST(12)
        result.num_oom_rejections = static_cast<int64_t>(stats.num_oom_rejections);
#endif
#if TORCH_AT_LEAST(13)
        add_private_pools(device, result);
#endif
        return result;
    }

    void resetAccumulatedStats(DeviceIndex device) override {
        TCUDA_CHECK(tcuda_memory_reset_accumulated, device);
    }

    void resetPeakStats(DeviceIndex device) override {
        TCUDA_CHECK(tcuda_memory_reset_peak, device);
    }

    // CUDAAllocator: blocks

    void *raw_alloc(size_t nbytes) override {
        if (nbytes == 0) return nullptr;
        const DeviceIndex device = current_device();
        return take(nbytes, device, c10::cuda::getCurrentCUDAStream(device).stream());
    }

    void *raw_alloc_with_stream(size_t nbytes, cudaStream_t stream) override {
        return nbytes == 0 ? nullptr : take(nbytes, current_device(), stream);
    }

    void raw_delete(void *ptr) override { check("tcuda_free", give(ptr)); }

    void *getBaseAllocation(void *ptr, size_t *size) override {
        void *base = nullptr;
        size_t bytes = 0;
        TCUDA_CHECK(tcuda_memory_base, ptr, &base, &bytes);
        if (size != nullptr) *size = bytes;
        return base;
    }

    // CUDAAllocator: settings

    void init(int device_count) override {
        const std::lock_guard<std::mutex> guard(init_lock_);
        if (device_count <= device_count_.load(std::memory_order_relaxed)) return;
        TCUDA_CHECK(tcuda_init);
        int32_t own = 0;
        TCUDA_CHECK(tcuda_device_count, &own);
        TORCH_CHECK(own >= device_count, "PyTorch has ", device_count, " devices, tcuda ", own);
        if (device_count_.load(std::memory_order_relaxed) == 0) {
            TCUDA_CHECK(tcuda_memory_on_out_of_memory, free_memory, nullptr, nullptr, nullptr);
        }
        device_count_.store(device_count, std::memory_order_release);
    }

    double getMemoryFraction(DeviceIndex device) override {
        double fraction = 1.0;
        TCUDA_CHECK(tcuda_memory_fraction_get, device, &fraction);
        return fraction;
    }

    void setMemoryFraction(double fraction, DeviceIndex device) override {
        TCUDA_CHECK(tcuda_memory_fraction_set, device, fraction);
    }

    void enable(bool value) override { TCUDA_CHECK(tcuda_memory_caching_enable, value ? 1 : 0); }

    bool isEnabled() const override {
        bool is_enabled = true;
        TCUDA_CHECK(tcuda_memory_caching_is_enabled, &is_enabled);
        return is_enabled;
    }

    std::string name() override { return "tcuda"; }

    void cacheInfo(DeviceIndex device, size_t *largestBlock) override {
        size_t bytes = 0;
        TCUDA_CHECK(tcuda_memory_largest_free, device, &bytes);
        *largestBlock = std::max(*largestBlock, bytes);
    }

#if TORCH_AT_LEAST(10)
    std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
        const auto sizes = list_of<tcuda_segment_size>("tcuda_memory_segment_sizes",
            [&](tcuda_segment_size *items, size_t capacity, size_t *count) {
                return tcuda_memory_segment_sizes(device, items, capacity, count);
            });
        std::vector<StreamSegmentSize> result;
        result.reserve(sizes.size());
        for (const auto &size : sizes)
            result.emplace_back(size.cu_stream, size.is_small != 0, size.bytes);
        return result;
    }
#endif

    // CUDAAllocator: private pools

#if TORCH_AT_LEAST(11)
    void createOrIncrefPool(DeviceIndex device, MempoolId_t mempool_id,
        std::shared_ptr<CUDAAllocator> allocator) override {
#else
    void createOrIncrefPool(
        DeviceIndex device, MempoolId_t mempool_id, CUDAAllocator *given) override {
        // It lives as long as the pool, as in PyTorch.
        const std::shared_ptr<CUDAAllocator> allocator(std::shared_ptr<void>(), given);
#endif
        const std::lock_guard<std::mutex> guard(pools_lock_);
        (void)incref(device, mempool_id, allocator);
    }

    void beginAllocateToPool(DeviceIndex device, MempoolId_t mempool_id,
        std::function<bool(cudaStream_t)> filter) override {
        const std::lock_guard<std::mutex> guard(pools_lock_);
        Pool &pool = incref(device, mempool_id, nullptr);
        auto held = std::make_unique<SharedFilter>(std::make_shared<Filter>(std::move(filter)));
        const tcuda_status status = tcuda_mem_pool_begin_streams(
            pool.handle, device, accepts, held.get(), destroy<SharedFilter>);
        if (status != TCUDA_STATUS_OK) {
            const std::string text = tcuda_last_error();
            if (--pool.uses == 0) {
                tcuda_mem_pool_destroy(pool.handle);
                pools_.erase(key(device, mempool_id));
            }
            TORCH_CHECK(false, "beginAllocateToPool: ", text);
        }
        SharedFilter shared = *held;
        (void)held.release(); // tcuda destroys it when the route has ended
        routes_.push_back({device, mempool_id, std::move(shared)});
    }

    void endAllocateToPool(DeviceIndex device, MempoolId_t mempool_id) override {
        const std::lock_guard<std::mutex> guard(pools_lock_);
        TCUDA_CHECK(tcuda_mem_pool_end_streams, pool_of(device, mempool_id).handle, device);
        remove_route(device, mempool_id);
    }

    void releasePool(DeviceIndex device, MempoolId_t mempool_id) override {
        tcuda_mem_pool *ended = nullptr;
        Source *source = nullptr;
        {
            const std::lock_guard<std::mutex> guard(pools_lock_);
            Pool &pool = pool_of(device, mempool_id);
            if (--pool.uses > 0) return;
            ended = pool.handle;
            source = pool.source;
            remove_route(device, mempool_id);
            pools_.erase(key(device, mempool_id));
        }
        // It may wait for work of the pool's streams, and call the allocator of the pool.
        const tcuda_status status = tcuda_mem_pool_destroy(ended);
        if (source != nullptr) source->pools.fetch_sub(1, std::memory_order_release);
        check("tcuda_mem_pool_destroy", status);
    }

    int getPoolUseCount(DeviceIndex device, MempoolId_t mempool_id) override {
        const std::lock_guard<std::mutex> guard(pools_lock_);
        const auto found = pools_.find(key(device, mempool_id));
        return found == pools_.end() ? 0 : found->second.uses;
    }

#if TORCH_AT_LEAST(11)
    void setUseOnOOM(DeviceIndex device, MempoolId_t mempool_id, bool use_on_oom) override {
#else
    void setUseOnOOM(DeviceIndex device, MempoolId_t mempool_id) override {
        constexpr bool use_on_oom = true;
#endif
        set_flag(device, mempool_id, TCUDA_MEM_POOL_USE_ON_OOM, use_on_oom);
    }

#if TORCH_AT_LEAST(10)
    void setNoSplit(DeviceIndex device, MempoolId_t mempool_id) override {
        set_flag(device, mempool_id, TCUDA_MEM_POOL_NO_SPLIT, true);
    }
#endif

#if TORCH_AT_LEAST(13)
    void markCaptureBegin(DeviceIndex device) override { tcuda_torch_mark_capture_begin(device); }

    void markCaptureEnd(DeviceIndex device) override { tcuda_torch_mark_capture_end(device); }

    DataPtr allocateWithAddress(size_t size, void *addr) override {
        const DeviceIndex device = current_device();
        const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
        tcuda_mem_pool *pool = nullptr;
        {
            const std::lock_guard<std::mutex> guard(pools_lock_);
            const auto route = std::find_if(routes_.rbegin(), routes_.rend(), [&](const Route &it) {
                return it.device == device && (*it.filter)(stream);
            });
            TORCH_CHECK(route != routes_.rend(),
                "tcuda allocates at an address in private pools, and none serves this stream");
            pool = pool_of(device, route->pool).handle;
        }
        TCUDA_CHECK(tcuda_mem_pool_malloc_at, pool, addr, size);
        report_allocation(addr, size, device);
        return {addr, addr, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
    }
#endif

    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t mempool_id,
        const std::unordered_set<void *> &expected_live_allocations) override {
        const std::vector<const void *> expected(
            expected_live_allocations.begin(), expected_live_allocations.end());
        bool is_equal = false;
        TCUDA_CHECK(tcuda_mem_pool_check_live, pool_handle(device, mempool_id), device,
            expected.data(), expected.size(), &is_equal);
        return is_equal;
    }

    std::shared_ptr<AllocatorState> getCheckpointState(
        DeviceIndex device, MempoolId_t id) override {
        auto state = std::make_shared<PoolState>();
        state->pool = id;
        state->blocks = live_blocks(pool_handle(device, id), device);
        return state;
    }

    CheckpointDelta setCheckpointPoolState(
        DeviceIndex device, std::shared_ptr<AllocatorState> pps) override {
        const auto state = std::dynamic_pointer_cast<PoolState>(pps);
        TORCH_CHECK(state, "the checkpoint is of another allocator");
        tcuda_mem_pool *const pool = pool_handle(device, state->pool);
        const auto before = live_blocks(pool, device);
        TCUDA_CHECK(
            tcuda_mem_pool_restore, pool, device, state->blocks.data(), state->blocks.size());
        // PyTorch frees all blocks and allocates those of the checkpoint, so that each of them is
        // in a list, and storages get their deleters anew. In tcuda a block that is live before
        // and after stays as it is, which the caller cannot tell.
        CheckpointDelta delta;
        for (const auto &block : before) delta.ptrs_freed.push_back(block.ptr);
        for (const auto &block : state->blocks)
            delta.dataptrs_allocd.emplace_back(
                block.ptr, block.ptr, &delete_block, c10::Device(c10::DeviceType::CUDA, device));
        return delta;
    }

    // CUDAAllocator: other processes and devices

    ShareableHandle shareIpcHandle(void *ptr) override {
        tcuda_ipc_handle handle;
        const auto stream = c10::cuda::getCurrentCUDAStream(current_device());
        TCUDA_CHECK(tcuda_ipc_export, ptr, handle_of(stream), &handle);
        const auto *bytes = reinterpret_cast<const char *>(handle.bytes);
        return {0, std::string(bytes, sizeof handle.bytes)};
    }

    std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
        tcuda_ipc_handle native;
        TORCH_CHECK(handle.size() == sizeof native.bytes,
            "a CUDA tensor came from a process that does not allocate from tcuda: "
            "call tcuda.torch.enable() in both processes");
        std::memcpy(native.bytes, handle.data(), sizeof native.bytes);
        const auto stream = c10::cuda::getCurrentCUDAStream(current_device());
        tcuda_stream *const own = handle_of(stream);
        void *ptr = nullptr;
        TCUDA_CHECK(tcuda_ipc_import, &native, own, &ptr, nullptr);
        return std::shared_ptr<void>(ptr, [own](void *imported) {
            const tcuda_status status = tcuda_ipc_close(imported, own);
            if (status != TCUDA_STATUS_OK && is_running())
                TORCH_WARN("closing a CUDA tensor of another process: ", tcuda_last_error());
        });
    }

    void enablePeerAccess(DeviceIndex dev, DeviceIndex dev_to_access) override {
        {
            // For memory that other parts of the process have from cudaMalloc.
            const c10::cuda::CUDAGuard guard(dev);
            const cudaError_t error = cudaDeviceEnablePeerAccess(dev_to_access, 0);
            if (error == cudaErrorPeerAccessAlreadyEnabled)
                (void)cudaGetLastError();
            else
                C10_CUDA_CHECK(error);
        }
        TCUDA_CHECK(tcuda_device_enable_peer_access, dev, dev_to_access);
    }

    cudaError_t memcpyAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t count,
        cudaStream_t stream, bool p2p_enabled) override {
        if (p2p_enabled || srcDevice == dstDevice)
            return cudaMemcpyAsync(dst, src, count, cudaMemcpyDeviceToDevice, stream);
        // tcuda's memory comes from cuMemMap.
        return cudaMemcpyPeerAsync(dst, dstDevice, src, srcDevice, count, stream);
    }

    // CUDAAllocator: snapshots and history

#if TORCH_AT_LEAST(11)
    SnapshotInfo snapshot(MempoolId_t mempool_id, bool include_traces) override {
#else
    SnapshotInfo snapshot(MempoolId_t mempool_id) override {
        constexpr bool include_traces = true;
#endif
        const bool with_events = include_traces && isHistoryEnabled();
        const Snapshot snapshot(with_events);
        tcuda_memory_snapshot *const made = snapshot.get();
        const std::string config =
            text_of("tcuda_allocator_config_get", tcuda_allocator_config_get);
        const bool is_expandable = config.find("expandable_segments:False") == std::string::npos;
        SnapshotInfo result;
        size_t segments = 0, blocks = 0;
        TCUDA_CHECK(tcuda_memory_snapshot_counts, made, &segments, &blocks);
        for (size_t index = 0; index < segments; ++index) {
            tcuda_segment_info info = TCUDA_INIT(tcuda_segment_info);
            TCUDA_CHECK(tcuda_memory_snapshot_segment, made, index, &info);
            const MempoolId_t pool{info.pool_id0, info.pool_id1};
            if (mempool_id == MempoolId_t{0, 0} || pool == mempool_id)
                result.segments.push_back(segment_of(made, info, is_expandable));
        }
        for (int device = 0; device < device_count_.load(std::memory_order_acquire); ++device) {
            result.device_traces.emplace_back();
            if (with_events) result.device_traces.back() = snapshot.trace_of(device);
        }
        set_stacks(result);
        if (with_events) {
            const std::lock_guard<std::mutex> guard(history_lock_);
            result.external_annotations.assign(annotations_.begin(), annotations_.end());
        }
#if TORCH_AT_LEAST(10)
        using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
#else
        using Config = CUDAAllocatorConfig;
#endif
        auto &metadata = result.config_metadata;
        metadata.garbage_collection_threshold = Config::garbage_collection_threshold();
        metadata.max_split_size = Config::max_split_size();
        metadata.pinned_num_register_threads = CUDAAllocatorConfig::pinned_num_register_threads();
        metadata.expandable_segments = is_expandable;
        metadata.release_lock_on_malloc = CUDAAllocatorConfig::release_lock_on_cudamalloc();
        metadata.pinned_use_host_register = CUDAAllocatorConfig::pinned_use_cuda_host_register();
        metadata.graph_capture_record_stream_reuse =
            CUDAAllocatorConfig::graph_capture_record_stream_reuse();
        metadata.last_allocator_settings = config;
        metadata.roundup_power2_divisions = Config::roundup_power2_divisions();
#if TORCH_AT_LEAST(13)
        metadata.max_round_threshold = Config::pinned_max_round_threshold();
        metadata.max_cached_size = Config::pinned_max_cached_size();
#endif
        return result;
    }

    bool isHistoryEnabled() override { return is_recording_.load(std::memory_order_acquire); }

#if TORCH_AT_LEAST(11)
    void recordHistory(bool enabled, CreateContextFn context_recorder,
        size_t alloc_trace_max_entries, RecordContext when, bool clearHistory,
        const std::vector<std::string> &skip_actions) override {
        std::string skipped;
        for (const auto &action : skip_actions) {
            (void)c10::CachingDeviceAllocator::parseTraceEntryAction(action);
            skipped += (skipped.empty() ? "" : ",") + action;
        }
#else
    void recordHistory(bool enabled, CreateContextFn context_recorder,
        size_t alloc_trace_max_entries, RecordContext when, bool clearHistory) override {
        const std::string skipped;
#endif
        record(false, {enabled, context_recorder, alloc_trace_max_entries, when, skipped},
            !enabled || clearHistory);
        const std::lock_guard<std::mutex> guard(history_lock_);
        most_annotations_ = std::max<size_t>(alloc_trace_max_entries, 1);
        if (!enabled || clearHistory) annotations_.clear();
        is_recording_.store(enabled, std::memory_order_release);
    }

#if TORCH_AT_LEAST(12)
    std::shared_ptr<GatheredContext> getContextForPointer(const void *ptr) override {
        tcuda_frame_context *context = nullptr;
        const tcuda_status status = tcuda_memory_context_of(ptr, &context);
        if (status == TCUDA_STATUS_INVALID_POINTER || context == nullptr) return nullptr;
        check("tcuda_memory_context_of", status);
        auto stack = stack_of(context);
        context->release(context);
        return stack;
    }
#endif

    void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &md) override {
        if (!isHistoryEnabled()) return;
        AnnotationEntry entry(current_device(), c10::getApproximateTime());
        entry.time_.t_ = now_us();
        for (const auto &pair : md) entry.recordUserMetadata(pair.first, pair.second);
        const std::lock_guard<std::mutex> guard(history_lock_);
        if (annotations_.size() >= most_annotations_) annotations_.pop_front();
        annotations_.push_back(std::move(entry));
    }

    void pushCompileContext(std::string &md) override {
        TCUDA_CHECK(tcuda_memory_compile_context_push, md.c_str());
    }

    void popCompileContext() override {
        const tcuda_status status = tcuda_memory_compile_context_pop();
        // PyTorch ignores an end without a begin.
        if (status != TCUDA_STATUS_INVALID_STATE)
            check("tcuda_memory_compile_context_pop", status);
    }

#if TORCH_AT_LEAST(10)
    void setUserMetadata(const std::string &metadata) override {
        TCUDA_CHECK(tcuda_memory_metadata_set, metadata.c_str());
    }

    std::string getUserMetadata() override {
        return text_of("tcuda_memory_metadata_get", tcuda_memory_metadata_get);
    }
#endif

#if TORCH_AT_LEAST(14)
    bool supportsUserMetadata() override { return true; }

    void annotateMemory(const void *ptr, const std::string &metadata) override {
        TCUDA_CHECK(tcuda_memory_annotate, ptr, metadata.c_str());
    }
#endif

    // CUDAAllocator: observers

    void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
        const std::lock_guard<std::mutex> guard(observers_lock_);
        observers_.push_back(std::move(observer));
    }

    void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
        auto held = std::make_unique<AllocatorTraceTracker>(std::move(tracker));
        TCUDA_CHECK(tcuda_memory_on_event, track, held.get(), destroy<AllocatorTraceTracker>,
            nullptr);
        (void)held.release(); // tcuda has it until it is shut down
    }

#if TORCH_AT_LEAST(12)
    void attachOomRejectionObserver(OomRejectionObserver observer) override {
        auto held = std::make_unique<OomRejectionObserver>(std::move(observer));
        TCUDA_CHECK(tcuda_memory_on_rejection, reject, held.get(), destroy<OomRejectionObserver>,
            nullptr);
        (void)held.release(); // tcuda has it until it is shut down
    }
#endif

    // For the functions below

    /// How events of devices, or of pinned memory, are recorded.
    struct Recording {
        bool is_on = false;
        CreateContextFn recorder = nullptr;
        size_t entries = 1;
        RecordContext when = RecordContext::NEVER;
        std::string skipped;
    };

    /// Changes what is recorded. tcuda has one recording for all memory, whose options are those
    /// of the devices, or of pinned memory where it alone is recorded.
    void record(bool is_host, Recording wanted, bool clears) {
        TORCH_CHECK(wanted.when == RecordContext::NEVER || wanted.recorder,
            "stacks are to be recorded, without a function that gathers them");
        constexpr size_t MOST = 268435456;
        wanted.entries = std::min(std::max<size_t>(wanted.entries, 1), MOST);
        const std::lock_guard<std::mutex> guard(recording_lock_);
        (is_host ? host_recording_ : recording_) = std::move(wanted);
        const Recording &of = recording_.is_on ? recording_ : host_recording_;
        tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
        options.max_entries = of.entries;
        if (clears && !(is_host && recording_.is_on)) options.flags |= TCUDA_RECORD_CLEAR;
        if (host_recording_.is_on) options.flags |= TCUDA_RECORD_HOST;
        if (!recording_.is_on) options.flags |= TCUDA_RECORD_NO_DEVICE;
        options.skip_actions = of.skipped.empty() ? nullptr : of.skipped.c_str();
        switch (of.when) {
        case RecordContext::NEVER: options.frames_for = TCUDA_FRAMES_NONE; break;
        case RecordContext::STATE: options.frames_for = TCUDA_FRAMES_STATE; break;
        case RecordContext::ALLOC: options.frames_for = TCUDA_FRAMES_ALLOC; break;
        case RecordContext::ALL: options.frames_for = TCUDA_FRAMES_ALL; break;
        }
        std::unique_ptr<CreateContextFn> recorder;
        if (of.is_on && of.when != RecordContext::NEVER) {
            recorder = std::make_unique<CreateContextFn>(of.recorder);
            options.context = gather;
            options.user_data = recorder.get();
            options.destroy = destroy<CreateContextFn>;
        }
        const auto mode = of.is_on ? TCUDA_HISTORY_ALL : TCUDA_HISTORY_OFF;
        TCUDA_CHECK(tcuda_memory_record_history, mode, &options);
        (void)recorder.release(); // tcuda destroys it when recording changes
    }

    /// tcuda's handle of a stream of PyTorch, which never ends.
    tcuda_stream *handle_of(c10::cuda::CUDAStream stream) {
        const auto key = std::make_pair(stream.device_index(), stream.stream());
        const std::lock_guard<std::mutex> guard(streams_lock_);
        tcuda_stream *&handle = streams_[key];
        if (handle == nullptr)
            TCUDA_CHECK(tcuda_stream_from_external, key.first, key.second, &handle);
        return handle;
    }

    /// Frees a block, and tells PyTorch's tools about it.
    tcuda_status give(void *ptr) {
        if (ptr == nullptr) return TCUDA_STATUS_OK;
        if (const auto *interpreter = c10::impl::GPUTrace::get_trace();
            C10_UNLIKELY(interpreter != nullptr))
            (*interpreter)
                ->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
        if (C10_LIKELY(!c10::memoryProfilingEnabled())) return tcuda_free(ptr);
        return give_profiled(ptr);
    }

    /// Is tcuda initialised? Tensors may outlive it, and their memory went back with it.
    static bool is_running() {
        bool is_initialized = false;
        return tcuda_is_initialized(&is_initialized) == TCUDA_STATUS_OK && is_initialized;
    }

private:
    /// A private pool of a device, which exists while PyTorch counts uses of it.
    struct Pool {
        tcuda_mem_pool *handle = nullptr;
        Source *source = nullptr;
        uint32_t flags = 0;
        int uses = 0;
    };

    /// Streams of a device whose allocations come from a pool.
    struct Route {
        DeviceIndex device;
        MempoolId_t pool;
        SharedFilter filter;
    };
    using Key = std::tuple<DeviceIndex, c10::CaptureId_t, c10::CaptureId_t>;

    static Key key(DeviceIndex device, MempoolId_t id) { return {device, id.first, id.second}; }

    static DeviceIndex current_device() {
        DeviceIndex device = -1;
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
        return device;
    }

    /// Allocates a block of 1 or more bytes.
    void *take(size_t bytes, DeviceIndex device, cudaStream_t stream) {
        constexpr size_t EXABYTE = 1152921504606846976ULL;
        TORCH_CHECK_WITH(OutOfMemoryError, bytes < EXABYTE,
            "CUDA out of memory. Tried to allocate more than 1EB memory.");
        void *ptr = nullptr;
        shortage = {bytes, 0, 0};
        filter_failure = nullptr; // another library's allocation may have left one
        const tcuda_status status = tcuda_malloc_native(bytes, device, stream, &ptr);
        if (C10_UNLIKELY(filter_failure != nullptr)) {
            if (status == TCUDA_STATUS_OK) (void)tcuda_free(ptr);
            std::rethrow_exception(std::exchange(filter_failure, nullptr));
        }
        if (C10_UNLIKELY(status == TCUDA_STATUS_OUT_OF_MEMORY)) report_shortage(bytes, device);
        check("tcuda_malloc_native", status);
        report_allocation(ptr, bytes, device);
        return ptr;
    }

    /// Reports a new block to PyTorch's tools.
    void report_allocation(void *ptr, size_t bytes, DeviceIndex device) {
        if (const auto *interpreter = c10::impl::GPUTrace::get_trace();
            C10_UNLIKELY(interpreter != nullptr))
            (*interpreter)
                ->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
        if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
            const auto stats = statistics(device);
            const size_t rounded = (bytes + 511) / 512 * 512;
            c10::reportMemoryUsageToProfiler(ptr, static_cast<int64_t>(rounded),
                stats.allocated_bytes.all.current, stats.reserved_bytes.all.current,
                c10::Device(c10::DeviceType::CUDA, device));
        }
    }

    /// Calls the observers, and throws what PyTorch throws.
    [[noreturn]] void report_shortage(size_t bytes, DeviceIndex device) {
        const std::string text = tcuda_last_error();
        const auto stats = statistics(device);
        c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes),
            stats.allocated_bytes.all.current, stats.reserved_bytes.all.current,
            c10::Device(c10::DeviceType::CUDA, device));
        std::vector<OutOfMemoryObserver> observers;
        {
            const std::lock_guard<std::mutex> guard(observers_lock_);
            observers = observers_;
        }
        Shortage seen = shortage;
        if (seen.limit_bytes == 0)
            (void)tcuda_memory_info(device, &seen.free_bytes, &seen.limit_bytes);
        for (const auto &observer : observers)
            observer(device, seen.bytes, seen.limit_bytes, seen.free_bytes);
        throw_out_of_memory(text);
    }

    /// Frees a block while PyTorch's profiler follows memory. What other threads allocate or free
    /// at the same moment may count as this block's bytes.
    tcuda_status give_profiled(void *ptr) {
        cudaPointerAttributes attributes{};
        if (cudaPointerGetAttributes(&attributes, ptr) != cudaSuccess) {
            (void)cudaGetLastError();
            return tcuda_free(ptr);
        }
        const auto device = static_cast<DeviceIndex>(attributes.device);
        tcuda_memory_statistics before = TCUDA_INIT(tcuda_memory_statistics), after = before;
        // Deleters must not throw: what cannot be measured is not reported.
        const bool is_measured = tcuda_memory_stats(device, &before) == TCUDA_STATUS_OK;
        const tcuda_status status = tcuda_free(ptr);
        if (status != TCUDA_STATUS_OK || !is_measured
            || tcuda_memory_stats(device, &after) != TCUDA_STATUS_OK)
            return status;
        const auto freed = static_cast<int64_t>(before.allocated_bytes.all.current)
            - static_cast<int64_t>(after.allocated_bytes.all.current);
        c10::reportMemoryUsageToProfiler(ptr, -freed, after.allocated_bytes.all.current,
            after.reserved_bytes.all.current, c10::Device(c10::DeviceType::CUDA, device));
        return status;
    }

    /// Adds a use of a pool, which is made if it is new.
    Pool &incref(DeviceIndex device, MempoolId_t id,
        const std::shared_ptr<CUDAAllocator> &allocator) {
        const auto found = pools_.find(key(device, id));
        if (found != pools_.end()) {
            TORCH_CHECK(allocator == nullptr,
                "the pool exists: its allocator cannot change any more");
            found->second.uses += 1;
            return found->second;
        }
        Source *source = nullptr;
        tcuda_pluggable_allocator *functions = nullptr;
        if (allocator != nullptr && allocator.get() != this) {
            source = &source_of(allocator);
            TCUDA_CHECK(
                tcuda_pluggable_allocator_create, source->take, source->give, &functions);
        }
        tcuda_mem_pool *handle = nullptr;
        const tcuda_status status =
            tcuda_mem_pool_from_id(id.first, id.second, functions, &handle);
        const std::string text = status == TCUDA_STATUS_OK ? "" : tcuda_last_error();
        (void)tcuda_pluggable_allocator_destroy(functions); // the pool keeps it
        TORCH_CHECK(status == TCUDA_STATUS_OK, text);
        if (source != nullptr) source->pools.fetch_add(1, std::memory_order_relaxed);
        Pool &pool = pools_[key(device, id)];
        pool.handle = handle;
        pool.uses = 1;
        pool.source = source;
        return pool;
    }

    /// Removes the route of a device to a pool, if there is one.
    void remove_route(DeviceIndex device, MempoolId_t id) {
        const auto found = std::find_if(routes_.begin(), routes_.end(),
            [&](const Route &it) { return it.device == device && it.pool == id; });
        if (found != routes_.end()) routes_.erase(found);
    }

    Pool &pool_of(DeviceIndex device, MempoolId_t id) {
        const auto found = pools_.find(key(device, id));
        TORCH_CHECK(found != pools_.end(), "device ", static_cast<int>(device), " has no pool (",
            id.first, ", ", id.second, ")");
        return found->second;
    }

    /// tcuda's handle of a pool, for calls that run functions of the program: not with the lock.
    tcuda_mem_pool *pool_handle(DeviceIndex device, MempoolId_t id) {
        const std::lock_guard<std::mutex> guard(pools_lock_);
        return pool_of(device, id).handle;
    }

    void set_flag(DeviceIndex device, MempoolId_t id, uint32_t flag, bool is_set) {
        const std::lock_guard<std::mutex> guard(pools_lock_);
        Pool &pool = pool_of(device, id);
        const uint32_t flags = is_set ? pool.flags | flag : pool.flags & ~flag;
        TCUDA_CHECK(tcuda_mem_pool_set_flags, pool.handle, flags);
        pool.flags = flags;
    }

    /// Gives each segment the stack of the event in which its first byte came from the driver.
    static void set_stacks(SnapshotInfo &snapshot) {
        for (auto &segment : snapshot.segments) {
            const auto device = static_cast<size_t>(segment.device);
            if (device >= snapshot.device_traces.size()) continue; // PyTorch does not use it
            const auto &trace = snapshot.device_traces[device];
            const auto event = std::find_if(trace.rbegin(), trace.rend(), [&](const auto &it) {
                const bool is_new = it.action_ == TraceEntry::SEGMENT_ALLOC
                    || it.action_ == TraceEntry::SEGMENT_MAP;
                return is_new && it.addr_ <= segment.address
                    && segment.address < it.addr_ + it.size_;
            });
            if (event != trace.rend()) segment.context_when_allocated = event->context_;
        }
    }

#if TORCH_AT_LEAST(13)
    /// Adds the statistics of each private pool of a device.
    static void add_private_pools(DeviceIndex device, DeviceStats &stats) {
        constexpr const char *BEGINNING = "reserved_bytes_by_private_pools.";
        const std::string keys = text_of("tcuda_memory_stat_keys",
            [&](char *buf, size_t len, size_t *needed) {
                return tcuda_memory_stat_keys(device, buf, len, needed);
            });
        for (size_t at = keys.find(BEGINNING); at != std::string::npos;
             at = keys.find(BEGINNING, at + 1)) {
            const std::string name = keys.substr(at, keys.find('\n', at) - at);
            // BEGINNING, then "0_1.all.current".
            unsigned long long id0 = 0, id1 = 0;
            char type[16] = {}, value[16] = {};
            if (std::sscanf(name.c_str() + std::strlen(BEGINNING), "%llu_%llu.%15[a-z_].%15s",
                    &id0, &id1, type, value) != 4)
                continue;
            uint64_t bytes = 0;
            // The pool may have ended meanwhile.
            if (tcuda_memory_stat(device, name.c_str(), &bytes) != TCUDA_STATUS_OK) continue;
            const std::string of = type, what = value;
            const auto which = of == "all" ? StatType::AGGREGATE
                : of == "small_pool"       ? StatType::SMALL_POOL
                                           : StatType::LARGE_POOL;
            Stat &stat = stats.reserved_bytes_by_private_pools[MempoolId_t{id0, id1}]
                                                              [static_cast<size_t>(which)];
            auto &number = what == "current" ? stat.current
                : what == "peak"             ? stat.peak
                : what == "allocated"        ? stat.allocated
                                             : stat.freed;
            number = static_cast<int64_t>(bytes);
        }
    }
#endif

    /// Has a pool that PyTorch has released memory that could not go back to the driver then?
    bool has_rest(MempoolId_t id) {
        const int devices = device_count_.load(std::memory_order_acquire);
        {
            const std::lock_guard<std::mutex> guard(pools_lock_);
            for (int device = 0; device < devices; ++device)
                if (pools_.count(key(static_cast<DeviceIndex>(device), id)) != 0) return false;
        }
        const std::string name = "reserved_bytes_by_private_pools." + std::to_string(id.first)
            + "_" + std::to_string(id.second) + ".all.current";
        for (int device = 0; device < devices; ++device) {
            uint64_t bytes = 0;
            // A device on which the pool was never used does not have the key.
            if (tcuda_memory_stat(device, name.c_str(), &bytes) == TCUDA_STATUS_OK && bytes > 0)
                return true;
        }
        return false;
    }

    static std::vector<tcuda_pool_block> live_blocks(tcuda_mem_pool *pool, DeviceIndex device) {
        return list_of<tcuda_pool_block>("tcuda_mem_pool_blocks",
            [&](tcuda_pool_block *items, size_t capacity, size_t *count) {
                return tcuda_mem_pool_blocks(pool, device, items, capacity, count);
            });
    }

    SegmentInfo segment_of(
        tcuda_memory_snapshot *made, const tcuda_segment_info &info, bool is_expandable) {
        SegmentInfo segment;
        segment.device = static_cast<DeviceIndex>(info.device);
        segment.address = reinterpret_cast<size_t>(info.ptr);
        segment.total_size = info.total_bytes;
        segment.requested_size = info.requested_bytes;
        segment.allocated_size = info.allocated_bytes;
        segment.active_size = info.active_bytes;
        segment.stream = info.cu_stream;
        segment.is_large = info.is_small == 0;
        segment.owner_private_pool_id = MempoolId_t{info.pool_id0, info.pool_id1};
        {
            const std::lock_guard<std::mutex> guard(pools_lock_);
            const auto found =
                pools_.find(key(segment.device, segment.owner_private_pool_id));
            const bool is_whole = found != pools_.end()
                && (found->second.source != nullptr
                    || (found->second.flags & TCUDA_MEM_POOL_NO_SPLIT) != 0);
            segment.is_expandable = is_expandable && !is_whole;
        }
        segment.blocks.reserve(info.block_count);
        for (size_t index = 0; index < info.block_count; ++index) {
            tcuda_block_info block = TCUDA_INIT(tcuda_block_info);
            TCUDA_CHECK(tcuda_memory_snapshot_block, made, info.first_block + index, &block);
            BlockInfo &into = segment.blocks.emplace_back();
            into.size = block.bytes;
            into.requested_size = block.requested_bytes;
            into.allocated = block.state == TCUDA_BLOCK_ACTIVE_ALLOCATED;
            into.active = block.state != TCUDA_BLOCK_INACTIVE;
            into.context_when_allocated = stack_of(block.context);
        }
        return segment;
    }

    std::mutex init_lock_;
    std::atomic<int> device_count_{0};

    std::mutex pools_lock_;
    std::map<Key, Pool> pools_;
    std::vector<Route> routes_; ///< the last one began last

    std::mutex streams_lock_;
    std::map<std::pair<DeviceIndex, cudaStream_t>, tcuda_stream *> streams_;

    std::mutex history_lock_;
    std::deque<AnnotationEntry> annotations_;
    size_t most_annotations_ = 1;
    std::atomic<bool> is_recording_{false};

    std::mutex recording_lock_;
    Recording recording_, host_recording_;

    std::mutex observers_lock_;
    std::vector<OutOfMemoryObserver> observers_;
};

/// It is never destroyed: tensors may be freed when the process ends.
TcudaAllocator &instance() {
    static TcudaAllocator *const allocator = new TcudaAllocator();
    return *allocator;
}

/// The deleter of all blocks. PyTorch calls it from destructors, so that it must not throw.
void delete_block(void *ptr) {
    const tcuda_status status = instance().give(ptr);
    if (C10_UNLIKELY(status != TCUDA_STATUS_OK) && TcudaAllocator::is_running())
        TORCH_WARN("freeing CUDA memory failed: ", tcuda_last_error());
}

// ---- Pinned memory ----

void delete_host_block(void *ptr);

#if TORCH_AT_LEAST(10)
using c10::CachingAllocator::DurationStat;
#else
using at::DurationStat;
#endif

DurationStat duration_of(const tcuda_duration &duration) {
    DurationStat result;
    result.total = static_cast<int64_t>(duration.total_us);
    result.max = static_cast<int64_t>(duration.max_us);
    result.min = static_cast<int64_t>(duration.min_us);
    result.count = static_cast<int64_t>(duration.count);
    return result;
}

/// PyTorch's allocator of pinned memory.
class TcudaHostAllocator final : public at::HostAllocator {
public:
    DataPtr allocate(size_t size) override {
        const c10::Device cpu(c10::DeviceType::CPU);
        if (size == 0) return {nullptr, nullptr, &delete_host_block, cpu};
        void *ptr = nullptr;
        TCUDA_CHECK(tcuda_host_malloc, size, &ptr);
        DataPtr result(ptr, ptr, &delete_host_block, cpu); // frees it if a filter throws
        Block block;
        block.bytes = size;
#if TORCH_AT_LEAST(14)
        block.stack = stack_for(RecordContext::STATE);
#endif
        const std::lock_guard<std::mutex> guard(lock_);
        // Also work that is not recorded may use it in a graph.
        const Route *const route = routes_.empty() ? nullptr : route_of(current_stream());
        if (route != nullptr) block.pools.insert(route->pool);
        blocks_[ptr] = std::move(block);
        return result;
    }

    c10::DeleterFnPtr raw_deleter() const override { return &delete_host_block; }

    void copy_data(void *dest, const void *src, std::size_t count) const override {
        default_copy_data(dest, src, count);
    }

    /// false: it is no memory of this allocator.
    bool record_event(void *ptr, void *ctx, c10::Stream stream) override {
        const std::lock_guard<std::mutex> guard(lock_);
        auto found = around(ctx);
        if (found == blocks_.end()) found = around(ptr);
        if (found == blocks_.end()) return false;
        if (const Route *const route = route_of(stream); route != nullptr) {
            found->second.pools.insert(route->pool);
            return true;
        }
        const c10::cuda::CUDAStream used(stream);
        auto status = cudaStreamCaptureStatusNone;
        if (used.stream() != nullptr)
            C10_CUDA_CHECK(cudaStreamIsCapturing(used.stream(), &status));
        if (status != cudaStreamCaptureStatusNone) {
            // Nothing says when a graph without a pool of pinned memory ends.
            found->second.pools.insert(MempoolId_t{0, 0});
            return true;
        }
        TCUDA_CHECK(tcuda_host_record, found->first, instance().handle_of(used));
        return true;
    }

    void empty_cache() override {
        std::vector<void *> over;
        std::set<DeviceIndex> devices;
        {
            const std::lock_guard<std::mutex> guard(lock_);
            over.swap(over_);
            devices.swap(over_devices_);
        }
        // The last launch of a graph may still use them.
        for (const DeviceIndex device : devices) {
            const c10::cuda::CUDAGuard guard(device);
            C10_CUDA_CHECK(cudaDeviceSynchronize());
        }
        for (void *const ptr : over) TCUDA_CHECK(tcuda_host_free, ptr);
        TCUDA_CHECK(tcuda_host_memory_empty_cache);
    }

    at::HostStats get_stats() override {
        tcuda_host_memory_statistics stats = TCUDA_INIT(tcuda_host_memory_statistics);
        TCUDA_CHECK(tcuda_host_memory_stats, &stats);
        at::HostStats result;
#if TORCH_AT_LEAST(10)
        // bucket_allocation stays 0: one call of the driver serves blocks of many sizes.
        result.active_requests = stat_of(stats.active_requests);
        result.active_bytes = stat_of(stats.active_bytes);
        result.allocations = stat_of(stats.allocations);
        result.allocated_bytes = stat_of(stats.allocated_bytes);
#else
        result.allocation = stat_of(stats.active_requests);
        result.allocated_bytes = stat_of(stats.active_bytes);
        result.segment = stat_of(stats.allocations);
        result.reserved_bytes = stat_of(stats.allocated_bytes);
#endif
        result.host_alloc_time = duration_of(stats.host_alloc_time);
        result.host_free_time = duration_of(stats.host_free_time);
        result.num_host_alloc = static_cast<int64_t>(stats.num_host_alloc);
        result.num_host_free = static_cast<int64_t>(stats.num_host_free);
        return result;
    }

    void reset_accumulated_stats() override { TCUDA_CHECK(tcuda_host_memory_reset_accumulated); }

    void reset_peak_stats() override { TCUDA_CHECK(tcuda_host_memory_reset_peak); }

#if TORCH_AT_LEAST(11)
    void begin_allocate_to_pool(
        MempoolId_t pool_id, std::function<bool(c10::Stream)> filter) override {
        const std::lock_guard<std::mutex> guard(lock_);
        for (const auto &route : routes_)
            TORCH_CHECK(route.pool != pool_id, "pinned memory is allocated to the pool already");
        pools_[pool_id] += 1;
        routes_.push_back({pool_id, std::move(filter)});
        pool_devices_[pool_id].insert(c10::cuda::current_device());
    }

    void end_allocate_to_pool(MempoolId_t pool_id) override {
        const std::lock_guard<std::mutex> guard(lock_);
        const auto found = std::find_if(routes_.begin(), routes_.end(),
            [&](const Route &route) { return route.pool == pool_id; });
        TORCH_CHECK(found != routes_.end(), "pinned memory is not allocated to the pool");
        routes_.erase(found);
    }

    void release_pool(MempoolId_t pool_id) override {
        const std::lock_guard<std::mutex> guard(lock_);
        const auto pool = pools_.find(pool_id);
        TORCH_CHECK(pool != pools_.end(), "no pinned memory was allocated to the pool");
        if (--pool->second > 0) return;
        pools_.erase(pool);
        const auto devices = pool_devices_.extract(pool_id);
        for (auto at = blocks_.begin(); at != blocks_.end();) {
            Block &block = at->second;
            const bool was_used = block.pools.erase(pool_id) > 0;
            if (was_used) over_devices_.insert(devices.mapped().begin(), devices.mapped().end());
            if (was_used && block.pools.empty() && block.is_freed) {
                over_.push_back(at->first);
                at = blocks_.erase(at);
            } else {
                ++at;
            }
        }
    }
#endif

#if TORCH_AT_LEAST(14)
    void record_history(bool enabled, CreateContextFn context_recorder, size_t max_entries,
        RecordContext when, bool clearHistory) override {
        instance().record(true, {enabled, context_recorder, max_entries, when, ""}, clearHistory);
        const std::lock_guard<std::mutex> guard(lock_);
        recorder_ = enabled ? context_recorder : nullptr;
        when_ = enabled ? when : RecordContext::NEVER;
        most_external_ = std::max<size_t>(max_entries, 1);
        if (clearHistory) external_events_.clear();
        is_recording_.store(enabled, std::memory_order_release);
    }

    bool is_history_enabled() const override {
        return is_recording_.load(std::memory_order_acquire);
    }

    std::vector<at::HostSegmentInfo> get_segments() override {
        std::vector<at::HostSegmentInfo> segments;
        const std::lock_guard<std::mutex> guard(lock_);
        const auto add = [&](const void *ptr, const Block &block, bool is_allocated) {
            auto &segment = segments.emplace_back();
            segment.address = reinterpret_cast<size_t>(ptr);
            segment.size = block.bytes;
            segment.allocated = is_allocated;
            segment.active = true;
            if (!block.pools.empty()) segment.owner_private_pool_id = *block.pools.begin();
            segment.context_when_allocated = block.stack;
        };
        for (const auto &[ptr, block] : blocks_) add(ptr, block, !block.is_freed);
        for (const auto &[ptr, block] : external_) add(ptr, block, true);
        return segments;
    }

    std::vector<TraceEntry> get_traces() override {
        auto trace = Snapshot(true).trace_of(TCUDA_CPU_DEVICE);
        const std::lock_guard<std::mutex> guard(lock_);
        trace.insert(trace.end(), external_events_.begin(), external_events_.end());
        std::stable_sort(trace.begin(), trace.end(),
            [](const TraceEntry &a, const TraceEntry &b) { return a.time_.t_ < b.time_.t_; });
        return trace;
    }

    void record_external_register(void *ptr, size_t size) override {
        if (!is_history_enabled()) return;
        Block block;
        block.bytes = size;
        block.stack = stack_for(RecordContext::STATE);
        const std::lock_guard<std::mutex> guard(lock_);
        add_external(TraceEntry::SEGMENT_ALLOC, ptr, size, nullptr);
        add_external(TraceEntry::ALLOC, ptr, size, block.stack);
        external_[ptr] = std::move(block);
    }

    void record_external_unregister(void *ptr) override {
        auto stack = stack_for(RecordContext::ALL);
        const std::lock_guard<std::mutex> guard(lock_);
        const auto found = external_.find(ptr);
        if (found == external_.end()) return;
        const Block block = std::move(found->second);
        external_.erase(found);
        if (!is_history_enabled()) return;
        add_external(TraceEntry::FREE_REQUESTED, ptr, block.bytes, std::move(stack));
        add_external(TraceEntry::FREE_COMPLETED, ptr, block.bytes, block.stack);
        add_external(TraceEntry::SEGMENT_FREE, ptr, block.bytes, nullptr);
    }
#endif

    /// Frees a block; one that a graph may use stays until the graph's pool has ended.
    tcuda_status give(void *ptr) {
        {
            const std::lock_guard<std::mutex> guard(lock_);
            const auto found = blocks_.find(ptr);
            if (found != blocks_.end()) {
                if (!found->second.pools.empty()) {
                    found->second.is_freed = true;
                    return TCUDA_STATUS_OK;
                }
                blocks_.erase(found);
            }
        }
        return tcuda_host_free(ptr);
    }

private:
    struct Block {
        size_t bytes = 0;
        std::set<MempoolId_t> pools; ///< those of graphs that may use it
        bool is_freed = false;       ///< kept only for them
        std::shared_ptr<GatheredContext> stack;
    };

    /// Streams whose allocations and uses are those of a graph.
    struct Route {
        MempoolId_t pool;
        std::function<bool(c10::Stream)> filter;
    };

    static c10::Stream current_stream() { return c10::cuda::getCurrentCUDAStream().unwrap(); }

    const Route *route_of(c10::Stream stream) const {
        for (const auto &route : routes_)
            if (route.filter(stream)) return &route;
        return nullptr;
    }

    /// The block around an address.
    std::map<void *, Block>::iterator around(void *ptr) {
        auto found = blocks_.upper_bound(ptr);
        if (found == blocks_.begin()) return blocks_.end();
        --found;
        const auto *const end = static_cast<char *>(found->first) + found->second.bytes;
        return std::less<const void *>()(ptr, end) ? found : blocks_.end();
    }

#if TORCH_AT_LEAST(14)
    /// The stack of this thread, if `least` is recorded.
    std::shared_ptr<GatheredContext> stack_for(RecordContext least) {
        CreateContextFn recorder = nullptr;
        {
            const std::lock_guard<std::mutex> guard(lock_);
            if (when_ >= least) recorder = recorder_;
        }
        return recorder == nullptr ? nullptr : recorder();
    }

    /// Adds an event of memory that another library has page-locked.
    void add_external(TraceEntry::Action action, void *ptr, size_t bytes,
        std::shared_ptr<GatheredContext> stack) {
        if (when_ < RecordContext::ALLOC) stack = nullptr;
        if (external_events_.size() >= most_external_) external_events_.pop_front();
        auto &entry = external_events_.emplace_back(action, DeviceIndex{-1},
            reinterpret_cast<size_t>(ptr), bytes, nullptr, MempoolId_t{0, 0},
            c10::getApproximateTime(), std::move(stack));
        entry.time_.t_ = now_us();
    }

    CreateContextFn recorder_ = nullptr;
    RecordContext when_ = RecordContext::NEVER;
    std::atomic<bool> is_recording_{false};
    std::map<void *, Block> external_;
    std::deque<TraceEntry> external_events_;
    size_t most_external_ = 1;
#endif

    std::mutex lock_;
    std::map<void *, Block> blocks_; ///< allocated ones, and freed ones that graphs may use
    std::vector<Route> routes_;
    std::map<MempoolId_t, int> pools_; ///< uses
    std::map<MempoolId_t, std::set<DeviceIndex>> pool_devices_;
    std::vector<void *> over_; ///< freed blocks whose graphs were destroyed
    std::set<DeviceIndex> over_devices_;
};

/// It is never destroyed: tensors may be freed when the process ends.
TcudaHostAllocator &host_instance() {
    static TcudaHostAllocator *const allocator = new TcudaHostAllocator();
    return *allocator;
}

/// The deleter of all pinned blocks, which must not throw.
void delete_host_block(void *ptr) {
    const tcuda_status status = host_instance().give(ptr);
    if (C10_UNLIKELY(status != TCUDA_STATUS_OK) && TcudaAllocator::is_running())
        TORCH_WARN("freeing pinned memory failed: ", tcuda_last_error());
}

/// Calls a function; 0: done, 1: `error` has the text of what it threw.
template <class Function> int guarded(char *error, size_t capacity, Function function) {
    try {
        function();
        return 0;
    } catch (const c10::Error &failure) {
        std::snprintf(error, capacity, "%s", failure.what_without_backtrace());
    } catch (const std::exception &failure) {
        std::snprintf(error, capacity, "%s", failure.what());
    } catch (...) {
        std::snprintf(error, capacity, "an unknown exception");
    }
    return 1;
}

} // namespace

/// Makes tcuda the allocator of CUDA memory. 0: done; 1: `error` says why not.
extern "C" __attribute__((visibility("default"))) int tcuda_torch_backend_install(
    char *error, size_t capacity) {
    return guarded(error, capacity, [] {
        CUDAAllocator *const old = c10::cuda::CUDACachingAllocator::allocator.load();
        if (old == &instance()) return;
        TORCH_CHECK(old == nullptr || !old->initialized(),
            "PyTorch has used CUDA already: call tcuda.torch.enable() before that");
        c10::cuda::CUDACachingAllocator::allocator.store(&instance());
        c10::SetAllocator(c10::DeviceType::CUDA, &instance());
#if TORCH_AT_LEAST(10)
        // Settings that a program gives to PyTorch are tcuda's as well.
        using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
#if TORCH_AT_LEAST(11)
        const auto own = Config::getConfigParserHook();
#else
        const auto own = [](const std::string &settings) {
            CUDAAllocatorConfig::instance().parseArgs(settings);
        };
#endif
        Config::registerDeviceConfigParserHook(
            [own](const std::string &settings) {
                own(settings);
                TCUDA_CHECK(tcuda_allocator_config_set, settings.c_str());
            },
            {});
#endif
    });
}

/// Makes tcuda the allocator of pinned memory. 0: done; 1: `error` says why not.
extern "C" __attribute__((visibility("default"))) int tcuda_torch_backend_install_host(
    char *error, size_t capacity) {
    return guarded(error, capacity, [] {
        at::HostAllocator *const old = at::getHostAllocator(at::kCUDA);
        if (old == &host_instance()) return;
        TORCH_CHECK(old == nullptr || old->get_stats().num_host_alloc == 0,
            "PyTorch has pinned memory already: call tcuda.torch.enable(host=True) before that");
        at::setHostAllocator(at::kCUDA, &host_instance(), UINT8_MAX);
    });
}
