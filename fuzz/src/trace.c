/* The reader of examples/replay and its verifying pass, for a trace from memory. What they print
 * goes nowhere, but is formatted. */

#define _GNU_SOURCE /* memfd_create */

#include "../../examples/replay/replay.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_EVENTS = 400, MOST_STREAMS = 64 };

int tcuda_fuzz_trace(const unsigned char *data, size_t length);

static size_t complaints;

void replay_complain(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    complaints += vsnprintf(text, sizeof text, format, arguments) > 0;
    va_end(arguments);
}

bool replay_succeeded(tcuda_status status, const char *call)
{
    if (status != TCUDA_STATUS_OK)
        replay_complain("%s: %s", call, tcuda_last_error());
    return status == TCUDA_STATUS_OK;
}

bool replay_event_succeeded(tcuda_status status, const char *call, const replay_trace *trace,
    size_t event)
{
    if (status != TCUDA_STATUS_OK)
        replay_complain("%s: %s of %llu: %s", trace->name, call,
            (unsigned long long)trace->origins[event].id, tcuda_last_error());
    return status == TCUDA_STATUS_OK;
}

void replay_progress(const char *name, uint64_t done, uint64_t total)
{
    (void)name, (void)done, (void)total;
}

void replay_progress_clear(void)
{
}

static void replay(const replay_trace *trace)
{
    tcuda_stream *streams[MOST_STREAMS];
    uint32_t made = 0;
    replay_result result = {0};
    if (trace->num_events > MOST_EVENTS || trace->num_streams > MOST_STREAMS)
        return;
    while (made < trace->num_streams
        && tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &streams[made]) == TCUDA_STATUS_OK)
        made++;
    if (made == trace->num_streams) {
        const replay_run run = {.device = TCUDA_CURRENT_DEVICE, .repeat = 1, .verify = true,
            .streams = streams};
        (void)replay_check(trace, &run, &result);
    }
    while (made > 0)
        (void)!tcuda_stream_destroy(streams[--made]);
}

/* 0: all is well. */
int tcuda_fuzz_trace(const unsigned char *data, size_t length)
{
    char path[64];
    replay_trace trace;
    const int file = memfd_create("trace", MFD_CLOEXEC);
    if (file < 0 || write(file, data, length) != (ssize_t)length) {
        if (file >= 0)
            close(file);
        return 1;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    complaints = 0;
    const bool ok = replay_trace_read(path, &trace);
    close(file);
    if (!ok)
        return complaints > 0 ? 0 : 2; /* refused without a word */
    if (complaints > 0 || trace.num_events == 0 || trace.num_allocs > trace.num_events)
        return 3;
    for (size_t i = 0; i < trace.num_events; i++) {
        if (trace.events[i].slot >= trace.num_slots || trace.events[i].stream >= trace.num_streams)
            return 4;
    }
    replay(&trace);
    replay_trace_free(&trace);
    return 0;
}
