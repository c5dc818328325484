// tcuda through its C interface.
#pragma once

#include "measure.hpp"
#include "peer.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <string>
#include <tcuda.h>

namespace bench {

[[noreturn, gnu::cold, gnu::noinline]] inline void refused(tcuda_status status, const char *call)
{
    fail(std::string(call) + ": " + tcuda_status_name(int32_t(status)) + ": "
        + tcuda_last_error());
}

inline void check(tcuda_status status, const char *call)
{
    if (status != TCUDA_STATUS_OK) [[unlikely]]
        refused(status, call);
}

struct Tcuda {
    using Stream = tcuda_stream *;
    static constexpr bool empties = true;

    static void start() { check(tcuda_init(), "tcuda_init"); }
    static void enter_thread() {}
    static void stop() { check(tcuda_shutdown(nullptr), "tcuda_shutdown"); }

    static Stream default_stream()
    {
        Stream stream = nullptr;
        check(tcuda_stream_default(TCUDA_CURRENT_DEVICE, &stream), "tcuda_stream_default");
        return stream;
    }

    static Stream new_stream()
    {
        Stream stream = nullptr;
        check(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &stream), "tcuda_stream_create");
        return stream;
    }

    static void *native(Stream stream)
    {
        struct CUstream_st *handle = nullptr;
        check(tcuda_stream_native(stream, &handle), "tcuda_stream_native");
        return handle;
    }

    static void *allocate(size_t bytes, Stream stream)
    {
        void *block = nullptr;
        const tcuda_status status = tcuda_malloc(bytes, TCUDA_CURRENT_DEVICE, stream, &block);
        if (status == TCUDA_STATUS_OUT_OF_MEMORY) [[unlikely]]
            return nullptr;
        check(status, "tcuda_malloc");
        return block;
    }

    static void release(void *block, size_t, Stream) { check(tcuda_free(block), "tcuda_free"); }

    static void record(void *block, Stream, Stream stream)
    {
        check(tcuda_record_stream(block, stream), "tcuda_record_stream");
    }

    static void synchronize()
    {
        check(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE), "tcuda_device_synchronize");
    }

    static void empty_cache() { check(tcuda_memory_empty_cache(), "tcuda_memory_empty_cache"); }

    static void reset_peaks()
    {
        check(tcuda_memory_reset_peak(TCUDA_CURRENT_DEVICE), "tcuda_memory_reset_peak");
    }

    static Usage usage()
    {
        tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
        check(tcuda_memory_stats(TCUDA_CURRENT_DEVICE, &stats), "tcuda_memory_stats");
        return {stats.reserved_bytes.all.current, stats.reserved_bytes.all.peak,
            stats.allocated_bytes.all.peak, stats.requested_bytes.all.peak};
    }

    static size_t memory_bytes()
    {
        size_t unused = 0, all = 0;
        check(tcuda_memory_info(TCUDA_CURRENT_DEVICE, &unused, &all), "tcuda_memory_info");
        return all;
    }

    static void limit(double fraction)
    {
        check(tcuda_memory_fraction_set(TCUDA_CURRENT_DEVICE, fraction),
            "tcuda_memory_fraction_set");
    }

    /// Streams share memory beyond what was ever needed at a time, or where the device's is half
    /// used.
    static void share_always(bool always)
    {
        check(tcuda_allocator_config_set(always ? "sharing_threshold:0" : "sharing_threshold:0.5"),
            "tcuda_allocator_config_set");
    }

    /// Peaks may be short by a stated little.
    static void exact_peaks(bool exact)
    {
        check(tcuda_allocator_config_set(exact ? "exact_peaks:True" : "exact_peaks:False"),
            "tcuda_allocator_config_set");
    }

    static uint64_t driver_calls()
    {
        uint64_t count = 0;
        check(tcuda_backend_call_count(nullptr, &count), "tcuda_backend_call_count");
        return count;
    }

    /// What the driver took for memory so far, if driver_clock.c is between it and us; else 0.
    static uint64_t driver_ns()
    {
        static const auto read = [] {
            const char *clock = std::getenv("TCUDA_CUDA_DRIVER_PATH");
            void *library = clock == nullptr ? nullptr : dlopen(clock, RTLD_NOW | RTLD_NOLOAD);
            return library == nullptr
                ? nullptr
                : reinterpret_cast<uint64_t (*)()>(dlsym(library, "driver_clock_ns"));
        }();
        return read == nullptr ? 0 : read();
    }

    // ---- Streams and events ----

    struct Event {
        tcuda_event *event = nullptr;

        Event() { check(tcuda_event_create(0, &event), "tcuda_event_create"); }
        Event(const Event &) = delete;
        ~Event() { (void)!tcuda_event_destroy(event); }
        void record(Stream stream) { check(tcuda_event_record(event, stream), "event_record"); }
        void query()
        {
            bool done;
            check(tcuda_event_query(event, &done), "tcuda_event_query");
        }
    };

    static void stream_query(Stream stream)
    {
        bool done;
        check(tcuda_stream_query(stream, &done), "tcuda_stream_query");
    }

    static void current_stream()
    {
        Stream current;
        check(tcuda_stream_current(TCUDA_CURRENT_DEVICE, &current), "tcuda_stream_current");
    }

    /// Makes the stream current, and what was current again.
    static void exchange_stream(Stream stream)
    {
        Stream previous;
        int32_t device;
        check(tcuda_stream_exchange(stream, &previous, &device), "tcuda_stream_exchange");
        check(tcuda_stream_set_current(previous), "tcuda_stream_set_current");
        check(tcuda_device_set(device), "tcuda_device_set");
    }
};

} // namespace bench
