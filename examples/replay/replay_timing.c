/* The timed passes: tcuda_malloc and tcuda_free, and nothing else between two readings of the
 * clock. */

#define _POSIX_C_SOURCE 200809L

#include "replay.h"

#include <stdlib.h>
#include <time.h>

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Plays every event. On failure *failed is the event, and its slot holds no pointer. */
static tcuda_status play(const replay_trace *trace, const replay_run *run, void **live,
    size_t *failed)
{
    const replay_event *const events = trace->events;
    for (size_t i = 0; i < trace->num_events; i++) {
        const replay_event event = events[i];
        tcuda_status status;
        if (event.is_alloc) {
            status = tcuda_malloc(event.bytes, run->device, run->streams[event.stream],
                &live[event.slot]);
        } else {
            status = tcuda_free(live[event.slot]);
            live[event.slot] = NULL;
        }
        if (status != TCUDA_STATUS_OK) {
            *failed = i;
            return status;
        }
    }
    return TCUDA_STATUS_OK;
}

static bool free_live(void **live, uint32_t num_slots)
{
    bool ok = true;
    for (uint32_t i = 0; i < num_slots; i++) {
        ok = replay_succeeded(tcuda_free(live[i]), "tcuda_free") && ok;
        live[i] = NULL;
    }
    return ok;
}

/* Nothing cached, and all statistics start here. */
static bool start_cold(int32_t device)
{
    /* The first use of a device makes its context, which belongs to no trace. */
    return replay_succeeded(tcuda_device_synchronize(device), "tcuda_device_synchronize")
        && replay_succeeded(tcuda_memory_empty_cache(), "tcuda_memory_empty_cache")
        && replay_succeeded(tcuda_memory_reset_peak(device), "tcuda_memory_reset_peak")
        && replay_succeeded(tcuda_memory_reset_accumulated(device),
               "tcuda_memory_reset_accumulated");
}

static bool take_statistics(int32_t device, replay_result *result)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    if (!replay_succeeded(tcuda_memory_stats(device, &stats), "tcuda_memory_stats"))
        return false;
    result->peak_allocated = stats.allocated_bytes.all.peak;
    result->peak_requested = stats.requested_bytes.all.peak;
    result->peak_reserved = stats.reserved_bytes.all.peak;
    result->segments = stats.segment.all.allocated;
    return true;
}

static bool driver_calls(uint64_t *count)
{
    return replay_succeeded(tcuda_backend_call_count(NULL, count), "tcuda_backend_call_count");
}

/* One pass; frees what the trace leaves, after the clock has stopped. */
static bool time_pass(const replay_trace *trace, const replay_run *run, void **live, bool cold,
    replay_result *result)
{
    uint64_t before, after;
    size_t failed = 0;
    if (!driver_calls(&before))
        return false;
    const double start = now_ns();
    const tcuda_status status = play(trace, run, live, &failed);
    const double ns = (now_ns() - start) / (double)trace->num_events;
    /* The message is of this thread's last failure: report before the next call. */
    bool ok = replay_event_succeeded(status,
        trace->events[failed].is_alloc ? "tcuda_malloc" : "tcuda_free", trace, failed);
    ok = ok && driver_calls(&after);
    if (ok && cold) {
        result->cold_ns = ns;
        result->cold_calls = after - before;
    } else if (ok) {
        if (result->warm_ns == 0 || ns < result->warm_ns)
            result->warm_ns = ns;
        result->warm_calls = after - before;
    }
    /* After each pass: a program that repeats itself should not come to need more. */
    ok = ok && take_statistics(run->device, result);
    return free_live(live, trace->num_slots) && ok;
}

bool replay_time(const replay_trace *trace, const replay_run *run, replay_result *result)
{
    void **live = calloc(trace->num_slots, sizeof *live);
    if (live == NULL) {
        replay_complain("%s: no host memory for the timed passes", trace->name);
        return false;
    }
    const uint64_t passes = (uint64_t)run->repeat + 1;
    const uint64_t steps = (passes + (run->verify ? 1 : 0)) * trace->num_events;
    bool ok = start_cold(run->device);
    for (uint64_t pass = 0; ok && pass < passes; pass++) {
        replay_progress(trace->name, pass * trace->num_events, steps);
        ok = time_pass(trace, run, live, pass == 0, result);
    }
    free(live);
    return ok;
}
