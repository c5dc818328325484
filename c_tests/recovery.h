/* What a test does when something fails because of a fault that scripts/ci/fault_loop.py injected:
 * it does not complain, but takes the faults back and looks whether the library has lost anything
 * and works again. The environment's TCUDA_TEST_RECOVERY, set by that script, names the file to
 * which whatever no fault excuses is appended. */
#ifndef RECOVERY_H
#define RECOVERY_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
#include <atomic>
using std::atomic_bool;
#else
#include <stdatomic.h>
#endif

#include "tcuda.h"

/* The exit status of a test that ended early, and well, because of a fault. */
#define CHECK_RECOVERED 78

/* What the machine is while the library shows that it works again. */
#define RECOVERY_OPTIONS "memory=256MiB,leaks=report"

#ifdef RECOVERY_NOT_LINKED /* a host that opens the library by hand has no calls of it */
static inline void recovery_point(void)
{
}

static inline void recover(const char *what)
{
    (void)what;
}
#else

/* Something failed: gates open, and the other threads stop at their next check. */
static atomic_bool recovery_began;
static pthread_t recovery_thread;

static inline const char *recovery_file(void)
{
    return getenv("TCUDA_TEST_RECOVERY");
}

/* May threads touch memory of the library? Not where another one's recovery could take it from
 * them. */
static inline bool threads_keep_memory(void)
{
    return recovery_file() == NULL;
}

static inline void recovery_report(const char *kind, const char *what, const char *detail)
{
    FILE *const file = fopen(recovery_file(), "a");
    if (file == NULL)
        return;
    fprintf(file, "%s: %s%s%s\n", kind, what, *detail == '\0' ? "" : ": ", detail);
    fclose(file);
}

/* A failure must have a sentence. */
static inline void recovery_problem(const char *what, tcuda_status status)
{
    char text[512];
    snprintf(text, sizeof text, "%s gave %s", what, tcuda_status_name(status));
    recovery_report("problem", text, tcuda_last_error());
}

/* Stays where it is until another thread ends the process. */
static inline void recovery_stop(void)
{
    for (;;)
        pause();
}

/* A check of this thread comes next: not any more, once one has failed. */
static inline void recovery_point(void)
{
    if (!atomic_load(&recovery_began))
        return;
    if (pthread_equal(pthread_self(), recovery_thread))
        _exit(CHECK_RECOVERED); /* in an exit handler */
    recovery_stop();
}

static inline bool recovery_is_called_for(void)
{
    uint64_t fired = 0;
    return recovery_file() != NULL && tcuda_backend_fault_count(&fired) == TCUDA_STATUS_OK
        && fired > 0;
}

#define RECOVERY_TRY(call) \
    do { \
        if (status == TCUDA_STATUS_OK) \
            status = (call); \
    } while (0)

/* A stream, an event and a block of device 0, with bytes that arrive. */
static inline tcuda_status recovery_use(void)
{
    enum { BYTES = 5000 };
    const unsigned char value = 0x5a;
    unsigned char host[BYTES] = { 0 };
    tcuda_stream *stream = NULL;
    tcuda_event *event = NULL;
    void *block = NULL;
    tcuda_status status = tcuda_stream_create(0, 0, &stream);
    RECOVERY_TRY(tcuda_event_create(0, &event));
    RECOVERY_TRY(tcuda_malloc(BYTES, 0, stream, &block));
    RECOVERY_TRY(tcuda_fill(block, &value, 1, BYTES, stream));
    RECOVERY_TRY(tcuda_event_record(event, stream));
    RECOVERY_TRY(tcuda_event_synchronize(event));
    RECOVERY_TRY(tcuda_copy(host, block, BYTES, stream));
    RECOVERY_TRY(tcuda_stream_synchronize(stream));
    for (int i = 0; i < BYTES && status == TCUDA_STATUS_OK; i++) {
        if (host[i] != value) {
            recovery_report("problem", "bytes are wrong although every call gave OK", "");
            break;
        }
    }
    const tcuda_status first = status;
    status = TCUDA_STATUS_OK;
    if (block != NULL)
        RECOVERY_TRY(tcuda_free(block));
    RECOVERY_TRY(tcuda_event_destroy(event));
    RECOVERY_TRY(tcuda_stream_destroy(stream));
    return first != TCUDA_STATUS_OK ? first : status;
}

/* Threads of the test may be in their last call before a check stops them. */
static inline tcuda_status recovery_use_again(void)
{
    const struct timespec pause_between = { 0, 50000000 };
    tcuda_status status = recovery_use();
    for (int i = 0; i < 3 && (status == TCUDA_STATUS_INVALID_STATE
        || status == TCUDA_STATUS_INVALID_POINTER || status == TCUDA_STATUS_INVALID_HANDLE); i++) {
        nanosleep(&pause_between, NULL);
        status = recovery_use();
    }
    return status;
}

/* Not while another thread is at it, whose turn ends. */
static inline tcuda_status recovery_shutdown(size_t *live_handles)
{
    const struct timespec pause_between = { 0, 1000000 };
    tcuda_status status = TCUDA_STATUS_OK;
    for (int i = 0; i < 1000; i++) {
        status = tcuda_shutdown(live_handles);
        if (status != TCUDA_STATUS_INVALID_STATE
            || strstr(tcuda_last_error(), "another thread") == NULL)
            break;
        nanosleep(&pause_between, NULL);
    }
    return status;
}

/* Ends the test, unless no fault excuses what failed. */
static inline void recover(const char *what)
{
    static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER;
    size_t live = 77;
    if (!recovery_is_called_for())
        return;
    if (pthread_mutex_trylock(&first) != 0)
        recovery_stop();
    recovery_thread = pthread_self();
    atomic_store(&recovery_began, true);
    recovery_report("ended", what, "");
    fprintf(stderr, "faults end\n"); /* what the simulated machine says from here on counts */
    unsetenv("TCUDA_FAULTS"); /* the next life of the library would take them again */
    tcuda_status status = tcuda_backend_faults(NULL);
    if (status == TCUDA_STATUS_FORKED) {
        recovery_report("ended", "in a child, where the library is of no use", "");
        exit(CHECK_RECOVERED);
    }
    if (status != TCUDA_STATUS_OK)
        recovery_problem("taking the faults back", status);
    /* It refuses what is used below. */
    status = tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_DEFAULT);
    if (status != TCUDA_STATUS_OK)
        recovery_problem("allowing waits", status);

    /* The test may hold all memory, or have set options that are refused; a device that is lost
     * stays lost until the shutdown. */
    const tcuda_status used = recovery_use_again();
    char said[400];
    snprintf(said, sizeof said, "%s", tcuda_last_error());
    status = recovery_shutdown(&live);
    if (status == TCUDA_STATUS_INVALID_STATE && strstr(tcuda_last_error(), "callback") != NULL) {
        recovery_report("ended", "in a callback, where nothing can be looked at", "");
        exit(CHECK_RECOVERED);
    }
    if (used != TCUDA_STATUS_OK && used != TCUDA_STATUS_OUT_OF_MEMORY
        && used != TCUDA_STATUS_DEVICE_LOST && used != TCUDA_STATUS_INVALID_ARGUMENT)
        recovery_report("problem", "the library does not work again", said);
    if (status != TCUDA_STATUS_OK)
        recovery_problem("the shutdown", status);

    /* A thread of the test that was held up before its last call makes that call after the
     * shutdown: it initialises the library before the choice below, or leaves a handle. Each does
     * so once. */
    live = 1;
    for (int i = 0; i < 8 && live != 0; i++) {
        status = tcuda_backend_select("sim", RECOVERY_OPTIONS);
        if (status == TCUDA_STATUS_INVALID_STATE && i < 7) {
            recovery_shutdown(NULL);
            continue;
        }
        RECOVERY_TRY(recovery_use_again());
        if (status != TCUDA_STATUS_OK)
            recovery_problem("a new beginning", status);
        status = recovery_shutdown(&live);
        if (status != TCUDA_STATUS_OK)
            break;
    }
    if (status != TCUDA_STATUS_OK || live != 0)
        recovery_problem("the shutdown of a new beginning, without live handles,", status);
    exit(CHECK_RECOVERED);
}

#endif /* RECOVERY_NOT_LINKED */
#endif /* RECOVERY_H */
