// tcuda.hpp: memory of devices, pinned, managed and of pools, its statistics, snapshots and
// observers, with exceptions and without.

#include "hpp.h"
#include <cstdint>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

static_assert(moves_only<tcuda::host_allocation> && moves_only<tcuda::managed_allocation>);
static_assert(moves_only<tcuda::mem_pool> && moves_only<tcuda::memory_snapshot>);
static_assert(moves_only<tcuda::pluggable_allocator> && moves_only<tcuda::observer>);
static_assert(!std::is_move_constructible_v<tcuda::mem_pool_scope>);

static constexpr std::size_t mib = 1 << 20;

static tcuda_memory_statistics statistics() {
    return value_of(tcuda::query(tcuda_memory_stats, 0));
}

static std::size_t allocated() { return value_of(tcuda::query(tcuda_memory_allocated, 0)); }

// Reads all kinds of outputs: a value, several, a struct with its size, a text, a list.
static void test_queries() {
    const auto [unused, total] = value_of(tcuda::query(tcuda_memory_info, 0));
    expect(unused > 0 && unused <= total, "two values");
    const auto info = value_of(tcuda::query(tcuda_device_properties, 0));
    expect(info.struct_size == sizeof info && info.total_memory_bytes == total, "a struct");
    std::string name;
    TOOK(tcuda::read_into(name, tcuda_device_name, 0));
    expect(name == info.name, "a text, without its NUL");
    name = "longer than any name of a device, so that it shrinks; longer than any name of a device";
    TOOK(tcuda::read_into(name, tcuda_device_name, 0));
    expect(name.size() == std::strlen(info.name), "a text that is read again");
    std::vector<std::int32_t> contexts;
    const tcuda::allocation block(512, {}, 0);
    TOOK(tcuda::read_into(contexts, tcuda_device_primary_contexts));
    expect(contexts.size() == 1 && contexts[0] == 0, "a list");
    FAILS(TCUDA_STATUS_INVALID_DEVICE, tcuda::query(tcuda_memory_info, 99));
    FAILS(TCUDA_STATUS_INVALID_DEVICE, tcuda::read_into(name, tcuda_device_name, 99));
    expect(name.empty(), "a text that could not be read");
}

// A block of one stream that another one frees, which gets it next.
static void test_free_on() {
    tcuda::stream first(0), second(0);
    const auto from = value_of(first.native()), to = value_of(second.native());
    const std::size_t before = allocated();
    auto block = tcuda::allocation::on_native(24 * mib, from);
    expect(block && allocated() == before + 24 * mib, "a block for a native stream");
    const void *const where = block.get();
    TOOK(block.free_on(to));
    expect(!block && allocated() == before, "a block that is freed");
    auto next = tcuda::allocation::on_native(24 * mib, to);
    expect(next.get() == where, "the block again");
    int here = 0;
    tcuda::allocation wrong(tcuda::adopt<void>(&here), 1);
    FAILS(TCUDA_STATUS_INVALID_POINTER, wrong.free_on(to));
    expect(wrong.release() == &here, "what is not freed is still there");
}

// Blocks count in units of 512 bytes.
static void test_statistics() {
    const std::size_t before = allocated();
    tcuda::memory_stats_scope scope;
    {
        const tcuda::allocation one(1000, {}, 0), two(512, {}, 0);
        expect(allocated() == before + 1536, "1000 and 512 bytes count as 1536");
        const auto now = statistics();
        expect(now.allocated_bytes.all.current == before + 1536, "so do all statistics");
        expect(now.requested_bytes.all.current == before + 1512, "and what was requested is 1512");
    }
    const auto inside = value_of(scope.end());
    expect(inside.allocated_bytes.all.peak == before + 1536, "the peak of a scope");
    expect(inside.allocation.all.allocated == 2 && inside.allocation.all.freed == 2, "its blocks");
    FAILS(TCUDA_STATUS_INVALID_STATE, tcuda::query(tcuda_memory_stats_pop, 0));
    FAILS(TCUDA_STATUS_INVALID_STATE, scope.end());
    {
        const tcuda::memory_stats_scope left;
        expect(left.status() == TCUDA_STATUS_OK, "a scope that is left");
    }
    FAILS(TCUDA_STATUS_INVALID_STATE, tcuda::query(tcuda_memory_stats_pop, 0));
}

static void test_pinned() {
    const auto before = value_of(tcuda::query(tcuda_host_memory_stats));
    {
        tcuda::host_allocation host(1000);
        expect(reinterpret_cast<std::uintptr_t>(host.get()) % 64 == 0, "aligned to 64 bytes");
        const auto now = value_of(tcuda::query(tcuda_host_memory_stats));
        // Up to 64 KiB in units of 64 bytes.
        expect(now.active_bytes.current == before.active_bytes.current + 1024, "1000 are 1024");
        expect(now.active_requests.current == before.active_requests.current + 1, "one block");
        const tcuda::stream stream;
        const tcuda::allocation memory(1000, stream, 0);
        std::memset(host.get(), 7, 1000);
        TOOK(tcuda::copy(memory.get(), host.get(), 1000, stream));
        tcuda::host_allocation back(1000);
        TOOK(back.record(stream));
        TOOK(tcuda::copy(back.get(), memory.get(), 1000, stream));
        TOOK(stream.synchronize());
        expect(std::memcmp(host.get(), back.get(), 1000) == 0, "bytes go there and back");
        const tcuda::host_allocation moved = std::move(host);
        expect(!host && host.size_bytes() == 0 && moved.size_bytes() == 1000, "it moves");
    }
    TOOK(tcuda::check(tcuda_host_memory_empty_cache())); // looks at blocks that wait for streams
    const auto after = value_of(tcuda::query(tcuda_host_memory_stats));
    expect(after.active_requests.current == before.active_requests.current, "and ends");

    alignas(4096) static char page[4096];
    {
        const tcuda::host_registration locked(page, sizeof page);
        expect(locked.get() == page, "memory that is page-locked where it is");
        FAILS(TCUDA_STATUS_INVALID_POINTER, tcuda::host_registration(page, sizeof page));
    }
    const tcuda::host_registration again(page, sizeof page);
    expect(static_cast<bool>(again), "the end of the scope unlocks it");
}

static void test_managed() {
    const tcuda::stream stream(0);
    const std::size_t before = allocated();
    {
        const tcuda::managed_allocation memory(4 * mib, stream, 0, TCUDA_MANAGED_NO_ADVICE);
        expect(allocated() == before + 4 * mib, "it is counted");
        expect(value_of(memory.info()).preferred_device == -1, "no advice yet");
        TOOK(memory.advise(TCUDA_ADVISE_SET_PREFERRED_LOCATION, 0));
        TOOK(memory.advise(TCUDA_ADVISE_SET_READ_MOSTLY));
        const auto info = value_of(memory.info());
        expect(info.preferred_device == 0 && info.is_read_mostly == 1, "the driver has the advice");
        TOOK(tcuda::fill<char>(memory.get(), 5, 4 * mib, stream));
        TOOK(memory.prefetch(TCUDA_CPU_DEVICE, stream));
        TOOK(memory.attach(TCUDA_ATTACH_GLOBAL, stream));
        TOOK(stream.synchronize());
        expect(memory.as<char>()[4 * mib - 1] == 5, "the host reads it");
        expect(value_of(memory.info()).prefetched_device == TCUDA_CPU_DEVICE, "where it went");
    }
    expect(allocated() == before, "the end of the scope frees it");
    const tcuda::pluggable_allocator source = tcuda::pluggable_allocator::managed();
    const tcuda::mem_pool pool(source);
    const tcuda::mem_pool_scope scope(pool);
    const tcuda::allocation block(1000, stream);
    std::memset(block.get(), 1, 1000);
    expect(block.as<char>()[999] == 1, "a pool of managed memory");
}

static void test_pools() {
    TOOK(tcuda::check(tcuda_memory_empty_cache()));
    const std::size_t before = value_of(tcuda::query(tcuda_memory_reserved, 0));
    {
        const tcuda::mem_pool pool;
        tcuda::allocation inside, outside;
        {
            const tcuda::mem_pool_scope scope(pool);
            expect(value_of(pool.use_count()) == 2, "of the handle and the scope");
            inside = tcuda::allocation(3000);
        }
        expect(value_of(pool.use_count()) == 1, "the scope ended");
        outside = tcuda::allocation(3000);
        const auto [id0, id1] = value_of(pool.id());
        expect(id0 == 0 && id1 != 0, "a pool of no graph");

        const tcuda::memory_snapshot snapshot = pool.snapshot();
        const auto [segments, blocks] = value_of(snapshot.counts());
        expect(segments == 1 && blocks >= 1, "what was allocated in the scope");
        const auto segment = value_of(snapshot.segment(0));
        expect(segment.allocated_bytes == 3072 && segment.requested_bytes == 3000, "its bytes");
        expect(segment.pool_id0 == id0 && segment.pool_id1 == id1 && segment.device == 0, "ids");
        const auto block = value_of(snapshot.block(0));
        expect(block.ptr == inside.get() && block.bytes == 3072, "its block");
        expect(block.state == TCUDA_BLOCK_ACTIVE_ALLOCATED, "which is allocated");

        // A checkpoint, to which the pool returns after the block was freed.
        std::vector<tcuda_pool_block> checkpoint;
        TOOK(tcuda::read_into(checkpoint, tcuda_mem_pool_blocks, pool, 0));
        expect(checkpoint.size() == 1 && checkpoint[0].ptr == inside.get(), "a checkpoint");
        expect(checkpoint[0].requested_bytes == 3000, "as it was requested");
        void *const where = inside.get();
        expect(value_of(pool.check_live({where})), "just this block is live");
        inside.reset();
        expect(!value_of(pool.check_live({where})) && value_of(pool.check_live({})), "none is");
        TOOK(pool.restore(checkpoint));
        inside = tcuda::allocation(tcuda::adopt(where), 3000);
        expect(value_of(pool.check_live({where})), "it is again");
        inside.reset();
        inside = pool.malloc_at(where, 3000);
        expect(inside.get() == where && inside.size_bytes() == 3000, "a block where it was");
        FAILS(TCUDA_STATUS_INVALID_POINTER, pool.malloc_at(where, 3000));

        // Asleep, it has its addresses and contents, and no memory.
        TOOK(tcuda::fill<char>(where, 9, 3000));
        TOOK(pool.sleep(true));
        FAILS(TCUDA_STATUS_INVALID_POINTER, tcuda::fill<char>(where, 8, 3000));
        TOOK(pool.wake());
        char last = 0;
        TOOK(tcuda::copy(&last, inside.as<char>() + 2999, 1));
        TOOK(value_of(tcuda::stream_view::current()).synchronize());
        expect(last == 9, "contents that were kept");
        TOOK(pool.set_flags(TCUDA_MEM_POOL_NO_SPLIT));
        FAILS(TCUDA_STATUS_INVALID_STATE, pool.set_flags(0));
    }
    TOOK(tcuda::check(tcuda_memory_empty_cache()));
    expect(value_of(tcuda::query(tcuda_memory_reserved, 0)) == before, "nothing is left");

    const tcuda::mem_pool one = tcuda::mem_pool::from_id(0, 77);
    const tcuda::mem_pool same = tcuda::mem_pool::from_id(0, 77);
    expect(value_of(one.id()) == std::make_tuple(std::uint64_t{0}, std::uint64_t{77}), "by number");
    expect(value_of(one.use_count()) == 2, "two handles of one pool");
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda::mem_pool::from_id(7, 7));
    FAILS(TCUDA_STATUS_INVALID_STATE,
        tcuda::mem_pool::from_id(0, 77, tcuda::pluggable_allocator::managed()));
    const tcuda::mem_pool of_graphs = tcuda::mem_pool::for_graphs();
    expect(of_graphs && value_of(of_graphs.id()) != value_of(one.id()), "a pool for graphs");
}

// A scope ends on the device that it began on, whatever is current then.
static void test_scopes_and_devices() {
    const std::int32_t count = value_of(tcuda::query(tcuda_device_count));
    const tcuda::mem_pool pool;
    {
        const tcuda::device_guard guard(count - 1);
        const tcuda::mem_pool_scope scope(pool);
        TOOK(tcuda::check(tcuda_device_set(0)));
    }
    expect(value_of(pool.use_count()) == 1, "the scope ended there");
    FAILS(TCUDA_STATUS_INVALID_STATE, tcuda::check(tcuda_mem_pool_end(pool.get(), count - 1)));
}

// The allocations of one stream, of all threads, come from a pool.
static void test_routes() {
    const tcuda::stream routed(0), other(0);
    CUstream_st *const native = value_of(routed.native());
    const tcuda::mem_pool pool;
    const auto held = std::make_shared<int>(0);
    tcuda::allocation inside, outside, after;
    {
        const tcuda::mem_pool_route route(
            pool, [native, held](CUstream_st *stream) { return stream == native; }, 0);
        expect(route.status() == TCUDA_STATUS_OK && held.use_count() == 2, "a route begins");
        inside = tcuda::allocation(600, routed, 0);
        outside = tcuda::allocation(600, other, 0);
    }
    expect(held.use_count() == 1, "its filter is destroyed with it");
    after = tcuda::allocation(600, routed, 0);
    expect(value_of(pool.check_live({inside.get()}, 0)), "just the block of that stream");
}

static void test_snapshots() {
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    options.max_entries = 100;
    const auto held = std::make_shared<int>(0);
    TOOK(tcuda::record_history(
        TCUDA_HISTORY_ALL, options, [held](tcuda_frame *frames, std::size_t capacity) {
            if (capacity > 0) frames[0] = {"step", "model.cc", 7};
            return std::size_t{1};
        }));
    tcuda::allocation block;
    {
        const tcuda::memory_compile_context context("a \"graph\"");
        block = tcuda::allocation(2000, {}, 0);
    }
    const void *const where = block.get();
    std::string frames;
    TOOK(tcuda::read_into(frames, tcuda_memory_frames_of, block));
    expect(frames.find("model.cc") != std::string::npos, "the frame of a live block");
    block.reset();
    const tcuda::memory_snapshot snapshot(true);
    TOOK(tcuda::check(tcuda_memory_record_history, TCUDA_HISTORY_OFF, nullptr));
    expect(held.use_count() == 1, "the end of the history ends its function object");
    const std::size_t count = value_of(snapshot.event_count(0));
    std::size_t found = 0;
    for (std::size_t i = 0; i < count; i++) {
        const auto event = value_of(snapshot.event(0, i));
        if (event.ptr != where || event.action != TCUDA_ACTION_ALLOC) continue;
        expect(event.bytes == 2000, "the requested size");
        expect(std::strcmp(event.compile_context, "a \"graph\"") == 0, "in its context");
        found++;
    }
    expect(found == 1, "the allocation is one event");
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, snapshot.event(0, count));
    FAILS(TCUDA_STATUS_INVALID_STATE, tcuda::check(tcuda_memory_compile_context_pop()));
    std::string json, pickle;
    TOOK(tcuda::read_into(json, tcuda_memory_snapshot_json, snapshot));
    TOOK(tcuda::read_into(pickle, tcuda_memory_snapshot_pickle, snapshot));
    expect(!json.empty() && json.front() == '{' && json.back() == '}', "JSON to its last byte");
    // A pickle begins with its protocol, and ends in STOP.
    expect(pickle.size() > 2 && pickle[0] == '\x80' && pickle.back() == '.', "a whole pickle");
    const std::string path = "memory_hpp." + std::to_string(getpid()); // of this process
    TOOK(snapshot.save((path + ".json").c_str()));
    expect(std::remove((path + ".json").c_str()) == 0, "a file");
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, snapshot.save((path + ".txt").c_str()));
}

static void test_observers() {
    const auto held = std::make_shared<int>(0);
    void *seen = nullptr;
    std::uint64_t bytes = 0;
    {
        const tcuda::observer events =
            tcuda::observer::on_memory_event([&, held](const tcuda_memory_event *event) {
                if (event->action != TCUDA_ACTION_ALLOC) return;
                seen = event->ptr;
                bytes = event->bytes;
            });
        expect(events && held.use_count() == 2, "an observer is registered");
        const tcuda::allocation block(700, {}, 0);
        expect(seen == block.get() && bytes == 700, "it sees the allocation");
    }
    expect(held.use_count() == 1, "its function object ends with it");
    const tcuda::allocation unseen(700, {}, 0);
    expect(seen != unseen.get() || bytes == 700, "no call after the end");

    // A limit of 64 MiB: an observer frees what is in the way.
    const std::size_t total = std::get<1>(value_of(tcuda::query(tcuda_memory_info, 0)));
    const double share = (64.0 * mib + 0.25) / static_cast<double>(total);
    TOOK(tcuda::check(tcuda_memory_empty_cache()));
    TOOK(tcuda::check(tcuda_memory_fraction_set(0, share)));
    expect(value_of(tcuda::query(tcuda_memory_fraction_get, 0)) == share, "the limit is set");
    {
        tcuda::allocation large(40 * mib, {}, 0);
        FAILS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda::allocation(40 * mib, {}, 0));
        std::size_t limit = 0;
        std::int32_t calls = 0;
        const tcuda::observer rescue = tcuda::observer::on_out_of_memory(
            [&](std::int32_t device, std::size_t, std::size_t limit_bytes, std::size_t) {
                calls += device == 0 ? 1 : 0;
                limit = limit_bytes;
                const bool frees = static_cast<bool>(large);
                large.reset();
                return frees;
            });
        const tcuda::allocation rescued(40 * mib, {}, 0);
        expect(rescued && !large && calls == 1 && limit == 64 * mib, "an observer freed memory");
        FAILS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda::allocation(40 * mib, {}, 0));
        expect(calls == 2, "which it cannot do twice");
    }
    TOOK(tcuda::check(tcuda_allocator_config_set("throw_on_cudamalloc_oom:True")));
    {
        std::size_t rejected = 0, all = 0;
        const tcuda::observer rejections = tcuda::observer::on_rejection(
            [&](std::int32_t, std::size_t request, std::size_t, std::size_t total_bytes) {
                rejected += request;
                all = total_bytes;
            });
        FAILS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda::allocation(128 * mib, {}, 0));
        expect(rejected == 128 * mib && all == total, "a rejection, with its size");
    }
    TOOK(tcuda::check(tcuda_allocator_config_set("throw_on_cudamalloc_oom:False")));
    TOOK(tcuda::check(tcuda_memory_fraction_set(0, 1)));
}

// Two streams that write the same bytes without an order.
static void test_sanitizer() {
    const auto held = std::make_shared<int>(0);
    const tcuda::stream one(0), two(0);
    const tcuda::allocation block(1024, one, 0);
    TOOK(block.record(two));
    TOOK(one.synchronize());
    int reports = 0;
    std::size_t bytes = 0;
    TOOK(tcuda::enable_sanitizer([&, held](const tcuda_sanitizer_report *report) {
        reports++;
        bytes = report->bytes;
    }));
    TOOK(tcuda::fill<char>(block.get(), 1, 1024, one));
    TOOK(two.wait(one));
    TOOK(tcuda::fill<char>(block.get(), 2, 1024, two));
    expect(reports == 0, "an order is none");
    TOOK(tcuda::fill<char>(block.as<char>() + 100, 3, 24, one));
    expect(reports == 1 && bytes == 24, "without one it is reported, with its bytes");
    TOOK(tcuda::check(tcuda_sanitizer_disable));
    expect(held.use_count() == 1, "its function object ends with it");
    TOOK(one.synchronize());
    TOOK(two.synchronize());
}

static int lines = 0;

// Lines of the log; the handle that is left at the end is one.
static void test_log() {
    const auto held = std::make_shared<int>(0);
    TOOK(tcuda::set_log_callback(TCUDA_LOG_DEBUG, [held](tcuda_log_level level, const char *line) {
        lines += level <= TCUDA_LOG_DEBUG && line[0] != '\0' ? 1 : 0;
    }));
    expect(held.use_count() == 2, "the log has its function object");
    TOOK(tcuda::check(tcuda_memory_caching_enable(1)));
    tcuda::stream left(0);
    std::size_t live = 0;
    TOOK(tcuda::check(tcuda_shutdown(&live)));
    expect(live == 1 && lines > 0, "a handle that is left is logged");
    FAILS(TCUDA_STATUS_INVALID_HANDLE, left.synchronize());
    (void)left.release();
    TOOK(tcuda::check(tcuda_set_log_callback(TCUDA_LOG_OFF, nullptr, nullptr, nullptr)));
    expect(held.use_count() == 1, "and destroys it");
}

// Memory on a stream of the driver's, for a host that has its own streams.
static void test_native_streams() {
    const tcuda::stream owner(0);
    CUstream_st *const native = value_of(owner.native());
    const tcuda::stream wrapped = tcuda::stream::from_external(native, 0);
    expect(value_of(wrapped.id()) == value_of(owner.id()), "the same stream");
    expect(value_of(wrapped.native()) == native, "and handle");
    const tcuda::allocation block(512, wrapped, 0);
    const void *const where = block.get();
    TOOK(tcuda::fill<char>(block.get(), 1, 512, owner));
    TOOK(owner.synchronize());
    expect(where != nullptr, "memory in the order of that stream");
}

static std::size_t given = 0;

static void *give(std::ptrdiff_t bytes, std::int32_t, CUstream_st *) {
    void *memory = nullptr;
    if (tcuda_host_malloc(static_cast<std::size_t>(bytes), &memory) != TCUDA_STATUS_OK)
        return nullptr;
    given++;
    return memory;
}

static void take(void *ptr, std::ptrdiff_t, std::int32_t, CUstream_st *) {
    given -= tcuda_host_free(ptr) == TCUDA_STATUS_OK ? 1 : 0;
}

// Pinned memory stands for that of another library's allocator.
static void test_pluggable() {
    {
        tcuda::pluggable_allocator allocator(give, take);
        TOOK(allocator.set_hooks(TCUDA_INIT(tcuda_pluggable_hooks)));
        const tcuda::mem_pool pool(allocator);
        FAILS(TCUDA_STATUS_INVALID_STATE, allocator.set_hooks(TCUDA_INIT(tcuda_pluggable_hooks)));
        allocator.reset();
        const tcuda::mem_pool_scope scope(pool, 0);
        const tcuda::allocation block(100, {}, 0);
        expect(block && given == 1, "a segment of the allocator");
    }
    TOOK(tcuda::check(tcuda_memory_empty_cache()));
    expect(given == 0, "it gets it back");
    FAILS(TCUDA_STATUS_NO_LIBRARY, tcuda::pluggable_allocator("absent.so", "a", "f"));
}

static void test_spans() {
#ifdef __cpp_lib_span
    const tcuda::stream stream(0);
    const tcuda::allocation memory(100 * sizeof(int), stream, 0);
    const tcuda::host_allocation host(101 * sizeof(int) + 1);
    const std::span<int> device = memory.span<int>(), values = host.span<int>();
    expect(device.size() == 100 && values.size() == 101, "whole elements");
    TOOK(tcuda::fill(device, 7, stream));
    TOOK(tcuda::copy(values, device, stream));
    TOOK(stream.synchronize());
    expect(values[0] == 7 && values[99] == 7, "spans are filled and copied");
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda::copy(device, values, stream));
    const std::vector<int> list(50, 3);
    TOOK(tcuda::copy(device.subspan(50), std::span(list), stream));
    TOOK(tcuda::copy(values, std::span<const int>(device), stream));
    TOOK(stream.synchronize());
    expect(values[49] == 7 && values[50] == 3 && values[99] == 3, "of a vector, to the end");
#endif
}

int main() {
    begin_test();
    test_queries();
    test_free_on();
    test_statistics();
    test_pinned();
    test_managed();
    test_pools();
    test_scopes_and_devices();
    test_routes();
    test_snapshots();
    test_observers();
    test_native_streams();
    test_pluggable();
    test_spans();
    test_sanitizer();
    test_log();
    return finish_test();
}
