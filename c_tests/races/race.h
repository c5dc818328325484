/* A race is a small program whose result is right only because of its waits. Compiled with -DRACY
 * it lacks one of them, and some seed of the adversarial schedule must show it; its twin lacks none
 * and no seed may break it. Each program is a run() that works on a fresh simulated machine and
 * says whether the bytes are right; race.c tries the seeds. */
#ifndef RACE_H
#define RACE_H

#include "check.h"

typedef struct race {
    const char *kind;    /* of the wait that the racy build lacks */
    const char *options; /* of the simulated machine */
    bool (*run)(void);
    bool is_racy;
} race;

extern const race the_race;

/* The seed of this run. */
extern uint64_t race_seed;

#ifdef RACY
#define IS_RACY true
#else
#define IS_RACY false
#endif

#define MACHINE "memory=64MiB"
#define TWO_DEVICES "memory=64MiB,devices=2"

#define RACE(kind, options) \
    static bool run(void); \
    const race the_race = { (kind), (options), run, IS_RACY }

/* A call that should not fail. Where it does, because a race broke the device, the run counts as
 * wrong and goes on. */
#define DO(call) race_do((call), #call)

/* The wait that the racy build lacks. */
#define WAIT(call) \
    do { \
        if (!IS_RACY) \
            DO(call); \
    } while (0)

/* What the racy build says in place of what is right. */
#define INSTEAD(racy, right) (IS_RACY ? (racy) : (right))

void race_do(tcuda_status status, const char *call);

/* ---- Made for one run, and freed after it ---- */

tcuda_stream *make_stream(int32_t device);
tcuda_stream *make_per_thread_stream(int32_t device);
tcuda_event *make_event(void);
/* Memory of a stream's device, in its order. */
unsigned char *make_memory(size_t bytes, tcuda_stream *stream);
/* Pinned memory, all 0. */
unsigned char *make_pinned(size_t bytes);

/* ---- Work ---- */

void fill(void *ptr, int value, size_t bytes, tcuda_stream *stream);
void copy(void *dst, const void *src, size_t bytes, tcuda_stream *stream);

/* ---- Threads of the host ---- */

/* Runs two bodies, each on a thread of its own, until both are over. */
void run_both(void (*first)(void), void (*second)(void));

/* ---- Results ---- */

/* Is each byte of host memory `value`? */
bool host_is(const unsigned char *ptr, int value, size_t bytes);
/* Waits for everything on all devices; is each byte of device memory `value`? */
bool memory_is(const void *ptr, int value, size_t bytes);

#endif /* RACE_H */
