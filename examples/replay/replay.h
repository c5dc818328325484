/* What the parts of the replay example share.
 *
 *   replay.c         options, choice of the backend, the whole run
 *   replay_trace.c   reads and checks a trace
 *   replay_timing.c  the timed passes
 *   replay_check.c   the verifying pass
 *   replay_ranges.c  the address ranges that are live, in order
 *   replay_report.c  text, JSON and the progress bar */

#ifndef REPLAY_H
#define REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <tcuda.h>

enum { REPLAY_MAX_STREAMS = 1024, REPLAY_UNIT_BYTES = 512 };

/* ---- Trace ---- */

/* One event, 16 bytes: the timed loop reads these and nothing else of the trace. */
typedef struct replay_event {
    uint64_t bytes;  /* as requested; 0 in a free */
    uint32_t slot;   /* where the pointer lives; used again after the free */
    uint16_t stream; /* of an allocation */
    uint16_t is_alloc;
} replay_event;

/* Where an event came from, for messages. */
typedef struct replay_origin {
    uint64_t id;
    uint64_t line;
} replay_origin;

typedef struct replay_trace {
    char *name;             /* file name without directories */
    replay_event *events;   /* num_events of them */
    replay_origin *origins; /* of each event */
    size_t num_events, num_allocs;
    uint32_t num_slots, num_streams;
    /* Peaks that the recorded program reached, from the header lines; 0: unknown. */
    uint64_t recorded_allocated, recorded_reserved;
} replay_trace;

/* Reads a trace, "-" from the standard input. False: a message was printed, nothing to free. */
bool replay_trace_read(const char *path, replay_trace *trace);
void replay_trace_free(replay_trace *trace);

/* ---- Runs ---- */

/* Where and how a trace runs. */
typedef struct replay_run {
    int32_t device;
    uint32_t repeat;        /* warm passes */
    bool verify;
    tcuda_stream **streams; /* one per stream of the trace; 0 is the device's default one */
} replay_run;

typedef struct replay_result {
    double cold_ns, warm_ns; /* per event: the first pass, the best later one */
    uint64_t peak_allocated, peak_requested, peak_reserved; /* of all passes */
    uint64_t segments;                                      /* obtained in all passes */
    uint64_t cold_calls, warm_calls;                        /* driver calls, first and last pass */
    uint64_t verified_blocks, verified_units;
} replay_result;

/* The timed passes: malloc and free alone. False: a message was printed. */
bool replay_time(const replay_trace *trace, const replay_run *run, replay_result *result);
/* The verifying pass: contents and overlaps. False: a message was printed. */
bool replay_check(const replay_trace *trace, const replay_run *run, replay_result *result);

/* ---- Live ranges ---- */

typedef struct replay_range {
    uintptr_t begin, end;       /* end is past the last byte */
    uint32_t lower, upper;      /* subtrees */
} replay_range;

/* An ordered set of disjoint ranges, one per slot at most: a treap over an array. */
typedef struct replay_ranges {
    replay_range *nodes; /* by slot */
    uint32_t root;
} replay_ranges;

#define REPLAY_NO_SLOT UINT32_MAX

bool replay_ranges_init(replay_ranges *ranges, uint32_t num_slots);
void replay_ranges_free(replay_ranges *ranges);
/* Adds a range; when it overlaps one that is there, gives that one's slot and adds nothing. */
uint32_t replay_ranges_add(replay_ranges *ranges, uint32_t slot, uintptr_t begin, uintptr_t end);
void replay_ranges_remove(replay_ranges *ranges, uint32_t slot);

/* ---- Report ---- */

/* Prints "replay: " and a line to the standard error, past the progress bar. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void replay_complain(const char *format, ...);
/* True when OK; else says which call failed and what the library says about it. */
bool replay_succeeded(tcuda_status status, const char *call);
/* The same for an event of a trace. */
bool replay_event_succeeded(tcuda_status status, const char *call, const replay_trace *trace,
    size_t event);

/* Progress of one trace, on a terminal only; done of total steps. */
void replay_progress(const char *name, uint64_t done, uint64_t total);
void replay_progress_clear(void);

/* What ran. */
typedef struct replay_machine {
    const char *backend; /* "cuda" or "sim" */
    char sentence[640];  /* "GPU 0: NVIDIA H200" */
    char device_name[256];
    int32_t device;
} replay_machine;

void replay_print_result(const replay_trace *trace, const replay_run *run,
    const replay_result *result);
/* The library's own table for the device. */
bool replay_print_summary(int32_t device);

/* JSON: one object, written piece by piece; file NULL: nothing is written. */
void replay_json_begin(FILE *file, const replay_machine *machine, uint32_t repeat);
void replay_json_result(FILE *file, bool first, const replay_trace *trace, const replay_run *run,
    const replay_result *result, bool ok);
void replay_json_failure(FILE *file, bool first, const char *path);
void replay_json_end(FILE *file, bool ok);

#endif /* REPLAY_H */
