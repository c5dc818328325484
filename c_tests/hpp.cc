// tcuda.hpp: moves, guards and errors, with exceptions and without.

#include "hpp.h"
#include <atomic>
#include <iterator>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>
#include <tcuda.hpp> // twice is once

// ---- What the types promise ----

static_assert(moves_only<tcuda::stream> && moves_only<tcuda::event>
    && moves_only<tcuda::allocation>);
static_assert(!std::is_move_constructible_v<tcuda::device_guard>);
static_assert(!std::is_move_constructible_v<tcuda::stream_guard>);
static_assert(sizeof(tcuda::stream_view) == sizeof(void *));
static_assert(!std::is_convertible_v<tcuda::stream, bool>);
static_assert(moves_only<tcuda::sm_partition> && moves_only<tcuda::green_context>);
static_assert(!std::is_move_constructible_v<tcuda::green_context_guard>);

// ---- Helpers that ask the C interface ----

static std::int64_t id_of(tcuda::stream_view stream) {
    return value_of(stream.id());
}

static std::int64_t current_id() { return id_of(value_of(tcuda::stream_view::current())); }

static std::size_t allocated_bytes() {
    return value_of(tcuda::query(tcuda_memory_allocated, TCUDA_CURRENT_DEVICE));
}

static std::int32_t current_device() { return value_of(tcuda::query(tcuda_device_current)); }

// Assigns through a reference, so that no compiler sees that both are the same object.
template <class T> static void assign(T &to, T &from) { to = std::move(from); }

// ---- Tests ----

static void test_stream_moves() {
    tcuda::stream first;
    expect(static_cast<bool>(first), "a new stream has a handle");
    tcuda_stream *const handle = first.get();
    tcuda::stream second(std::move(first));
    expect(first.get() == nullptr && second.get() == handle, "construction moves the handle");
    assign(second, second);
    expect(second.get() == handle, "self-move changes nothing");
    tcuda::stream third;
    third = std::move(second);
    expect(second.get() == nullptr && third.get() == handle, "assignment moves the handle");
    tcuda_stream *const released = third.release();
    expect(released == handle && third.get() == nullptr, "release lets go");
    expect(tcuda_stream_destroy(released) == TCUDA_STATUS_OK, "what was released is ours");
    third.reset();
    expect(!third, "reset of nothing is nothing");
}

static void test_allocation() {
    const std::size_t before = allocated_bytes();
    {
        const tcuda::stream stream;
        tcuda::allocation block(1000, stream);
        expect(block.size_bytes() == 1000 && block.as<char>() == block.get(), "size and pointer");
        expect(allocated_bytes() == before + 1024, "1000 bytes count as 1024");
        tcuda::allocation taken(std::move(block));
        expect(block.get() == nullptr && block.size_bytes() == 0, "moved from: nothing");
        assign(taken, taken);
        expect(taken.size_bytes() == 1000, "self-move changes nothing");
        tcuda::allocation other(5000, stream);
        other = std::move(taken);
        expect(allocated_bytes() == before + 1024, "assignment frees what was there");
        const tcuda::stream side;
        TOOK(other.record(side));
        const tcuda::allocation empty(0), nothing;
        expect(!empty && !nothing && empty.status() == TCUDA_STATUS_OK, "0 bytes: no memory");
    }
    TOOK(tcuda::check(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE)));
    expect(allocated_bytes() == before, "the end of the scope frees");
}

static void test_fill_and_copy() {
    struct pair { std::uint32_t a, b; };
    const tcuda::stream stream;
    const tcuda::allocation block(64 * sizeof(pair), stream);
    TOOK(tcuda::fill(block.get(), pair{7, 9}, 64, stream));
    pair host[64] = {};
    TOOK(tcuda::copy(host, block.get(), sizeof host, stream));
    TOOK(stream.synchronize());
    expect(host[0].a == 7 && host[63].b == 9, "values arrive");
    expect(value_of(stream.query()), "a synchronised stream is done");
}

static void test_files() {
    const std::string name = "hpp_cc." + std::to_string(getpid()) + ".bin"; // of this process
    const char *const path = name.c_str();
    const tcuda::stream stream;
    const tcuda::allocation block(1000, stream);
    TOOK(tcuda::fill(block.get(), 'f', 1000, stream));
    {
        tcuda::file written(path, TCUDA_FILE_READ | TCUDA_FILE_WRITE | TCUDA_FILE_CREATE
            | TCUDA_FILE_TRUNCATE | TCUDA_FILE_STAGING);
        expect(value_of(written.write(block.get(), 1000, 24, stream)) == 1000, "all is written");
        TOOK(tcuda::fill(block.get(), 'g', 1000, stream));
        expect(value_of(written.read(block.get(), 1000, 524, stream)) == 500, "half is left");
        tcuda::file taken(std::move(written));
        expect(!written && taken, "a file moves");
        expect(value_of(taken.read(block.get(), 1000, 5000)) == 0, "beyond the end is nothing");
    }
    char host[1000] = {};
    TOOK(tcuda::copy(host, block.get(), sizeof host, stream));
    TOOK(stream.synchronize());
    expect(host[0] == 'f' && host[499] == 'f' && host[500] == 'g', "half is read");
    expect(std::remove(path) == 0, "the file is there, and closed");
}

static void test_events() {
    const tcuda::stream one, two;
    tcuda::event start(TCUDA_EVENT_TIMING), end(TCUDA_EVENT_TIMING);
    TOOK(start.record(one));
    TOOK(two.wait(start));
    TOOK(two.wait(one));
    TOOK(end.record(two));
    TOOK(end.synchronize());
    expect(value_of(end.query()), "a synchronised event is reached");
    expect(value_of(start.elapsed_ms(end)) >= 0.0F, "time does not run backwards");
    const tcuda::event mark = tcuda::event::recorded(one);
    TOOK(mark.synchronize());
    expect(mark && value_of(mark.query()), "an event that was made and recorded at once");
    tcuda::event moved(std::move(end));
    assign(moved, moved);
    expect(!end && moved, "events move");
}

static void test_streams() {
    const std::int32_t device = current_device();
    const auto [least, greatest] = value_of(tcuda::query(tcuda_stream_priority_range, device));
    const tcuda::stream stream(device, greatest);
    expect(least == 0 && value_of(stream.priority()) == greatest, "the most urgent priority");
    expect(value_of(stream.device()) == device, "a stream has its device");
    expect(value_of(stream.native()) != nullptr && value_of(stream.id()) != 0, "and handles");
    const tcuda::stream_view fallback = value_of(tcuda::stream_view::default_of());
    expect(value_of(fallback.native()) == nullptr && value_of(fallback.id()) == 0, "the default");
    expect(!value_of(stream.is_capturing()), "no capture");
    const tcuda::stream_view captures = value_of(tcuda::stream_view::for_captures(device));
    expect(value_of(captures.id()) != value_of(stream.id()), "a stream for captures");

    const auto held = std::make_shared<std::atomic<int>>(0);
    TOOK(stream.add_callback([held] { ++*held; }));
    TOOK(stream.synchronize());
    expect(*held == 1, "a function object runs in the order of the stream");
    const tcuda::event event = tcuda::event::recorded(stream, TCUDA_EVENT_INTERPROCESS);
    expect(value_of(event.device()) == device && value_of(event.native()) != nullptr, "an event");
    const tcuda_ipc_event_handle handle = value_of(event.ipc_handle());
    const tcuda_ipc_event_handle zero = {};
    expect(std::memcmp(&handle, &zero, sizeof zero) != 0, "a handle for other processes");
    FAILS(TCUDA_STATUS_INVALID_DEVICE, tcuda::event::from_ipc_handle(handle, 99));
    const tcuda::event never;
    expect(value_of(never.device()) == -1 && value_of(never.native()) == nullptr, "not recorded");
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, never.ipc_handle());
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda::event(TCUDA_EVENT_TIMING | TCUDA_EVENT_INTERPROCESS));
}

static void test_green_contexts() {
    tcuda_sm_partition *found = nullptr;
    const tcuda_status status = tcuda_sm_partition_from_device(TCUDA_CURRENT_DEVICE, &found);
    if (status == TCUDA_STATUS_NOT_SUPPORTED) return; // the driver is older
    const tcuda::sm_partition given(tcuda::adopt(found)), whole;
    const std::uint32_t total = value_of(whole.info()).sm_count;
    expect(value_of(given.info()).sm_count == total, "a partition has all multiprocessors");
    const tcuda::green_context all(whole), some(8u);
    expect(value_of(all.info()).sm_count == total, "a context has those of its partition");
    const std::uint32_t count = value_of(some.info()).sm_count;
    expect(count >= 8 && value_of(some.partition().info()).sm_count == count, "or a number");
    const tcuda::stream stream = some.create_stream();
    const tcuda::allocation block(4096, stream);
    TOOK(tcuda::fill<unsigned char>(block.get(), 1, 4096, stream));
    TOOK(stream.synchronize());

    // Disjoint parts of 16 multiprocessors, and what is left.
    std::vector<tcuda::sm_partition> parts;
    const tcuda::sm_partition rest = value_of(whole.split(16, std::back_inserter(parts), 2));
    expect(parts.size() == 2 && value_of(parts[0].info()).sm_count == 16, "two parts");
    expect(rest && value_of(rest.info()).sm_count == total - 32, "and the rest");
    FAILS(TCUDA_STATUS_INVALID_STATE, parts[0].split(8, std::back_inserter(parts)));
    expect(parts.size() == 2, "nothing more");
    const std::int64_t outside = current_id();
    const tcuda::green_context part(parts[1]);
    {
        const tcuda::green_context_guard guard(part);
        expect(current_id() != outside, "one of its streams is current");
        FAILS(TCUDA_STATUS_INVALID_STATE, tcuda::green_context_guard(part));
    }
    expect(current_id() == outside, "until the end of the scope");
    auto options = tcuda_green_context_options(TCUDA_INIT(tcuda_green_context_options));
    options.sm_count = 8;
    expect(value_of(tcuda::green_context(options).info()).sm_count == count, "by options");
    tcuda_sm_group group = {};
    group.sm_count = 16;
    std::vector<tcuda::sm_partition> groups;
    if (STATUS_OF(whole.split({group}, std::back_inserter(groups))) == TCUDA_STATUS_OK)
        expect(groups.size() == 1 && value_of(groups[0].info()).sm_count == 16, "a group");
    else expect(groups.empty(), "the driver is older");
}

static void test_guards() {
    const std::int64_t outside = current_id();
    const std::int32_t device = current_device();
    const tcuda::stream stream;
    {
        const tcuda::stream_guard guard(stream);
        expect(current_id() == id_of(stream), "the guard's stream is current");
        expect(id_of(guard.previous()) == outside, "the guard knows the one before");
        {
            const tcuda::stream inner;
            const tcuda::stream_guard nested(inner);
            expect(current_id() == id_of(inner), "guards nest");
        }
        expect(current_id() == id_of(stream), "the inner guard restores");
    }
    expect(current_id() == outside, "the end of the scope restores the stream");
    std::int32_t count = 0;
    TOOK(tcuda::check(tcuda_device_count(&count)));
    {
        const tcuda::device_guard guard(count - 1);
        expect(guard.previous() == device && current_device() == count - 1, "device guard");
    }
    expect(current_device() == device, "the end of the scope restores the device");
    const tcuda::allocation far(100, {}, count - 1);
    tcuda_tensor tensor = {};
    tensor.device = {TCUDA_DEVICE_CUDA, count - 1};
    tensor.dtype = {TCUDA_DTYPE_FLOAT, 32, 1};
    tensor.data = far.get();
    const auto is_at = [](std::int32_t expected) { return current_device() == expected; };
    {
        const tcuda::device_of_guard guard(far.get());
        expect(is_at(count - 1) && guard.previous() == device, "the device of some memory");
    }
    {
        const tcuda::device_of_guard guard(tensor);
        expect(is_at(count - 1) && guard.previous() == device, "the device of a tensor");
        tensor.device = {TCUDA_DEVICE_CPU, 0};
        const tcuda::device_of_guard host(&count), none(tensor);
        expect(is_at(count - 1), "memory of the host changes nothing");
    }
    expect(is_at(device), "and back");
}

static void test_errors() {
#ifdef TCUDA_NO_EXCEPTIONS
    const tcuda::stream stream(99);
    expect(!stream && stream.status() == TCUDA_STATUS_INVALID_DEVICE, "an object carries a status");
    expect(std::strstr(tcuda_last_error(), "99") != nullptr, "the text names the value");
    const std::int32_t device = current_device();
    {
        const tcuda::device_guard guard(99);
        expect(guard.status() == TCUDA_STATUS_INVALID_DEVICE, "a guard carries a status");
    }
    expect(current_device() == device, "a guard that failed restores nothing");
#else
    try {
        const tcuda::stream stream(99);
        expect(false, "a failed construction throws");
    } catch (const std::runtime_error &failure) {
        const auto *error = dynamic_cast<const tcuda::error *>(&failure);
        expect(error != nullptr && error->status() == TCUDA_STATUS_INVALID_DEVICE, "its status");
        const char *name = tcuda_status_name(TCUDA_STATUS_INVALID_DEVICE);
        expect(std::strncmp(failure.what(), name, std::strlen(name)) == 0, "its name comes first");
        expect(std::strstr(failure.what(), "99") != nullptr, "the text names the value");
    }
    const tcuda::stream stream;
    const std::int64_t outside = current_id();
    try {
        const tcuda::stream_guard guard(stream);
        tcuda::check(TCUDA_STATUS_INVALID_STATE);
        expect(false, "check throws");
    } catch (const tcuda::error &) {
        expect(current_id() == outside, "a guard restores when an exception passes");
    }
#endif
}

int main() {
    begin_test();
    test_stream_moves();
    test_allocation();
    test_fill_and_copy();
    test_files();
    test_events();
    test_streams();
    test_green_contexts();
    test_guards();
    test_errors();
    return finish_test();
}
