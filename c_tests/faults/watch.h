/* What the generated watch.c stands on: for tests, to be preloaded before libtcuda.so, it stands
 * between a program and each function of tcuda.h and holds the library to the front page of that
 * header. A failed call has a sentence and has written no output; handles are counted as the caller
 * counts them; nothing is TCUDA_STATUS_INTERNAL. The report is a file, as in c_tests/recovery.h. */
#ifndef WATCH_H
#define WATCH_H

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tcuda.h"

enum { WATCH_BYTES = 4096, WATCH_HANDLES = 4096, WATCH_OUTPUTS = 6 };

/* Sets `function` to the library's own definition of `name`. */
#define WATCH_FIND(function, name) \
    do { \
        void *const found_ = dlsym(RTLD_NEXT, name); \
        memcpy(&(function), &found_, sizeof found_); \
    } while (0)

/* ---- The report ---- */

static void watch_report(const char *kind, const char *function, const char *text)
{
    const char *const path = getenv("TCUDA_TEST_RECOVERY");
    char line[600];
    const int length = snprintf(line, sizeof line, "%s: %s%s%s\n", kind, function,
        *function == '\0' ? "" : " ", text);
    const int file = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (file < 0)
        return;
    if (write(file, line, length < (int)sizeof line ? (size_t)length : sizeof line - 1) < 0)
        abort();
    close(file);
}

/* ---- Faults: the library's own, and those of libc_faults.c where it is preloaded as well ---- */

static const char *(*watch_last_error)(void);
static const char *(*watch_status_name)(int32_t);
static tcuda_status (*watch_fault_count)(uint64_t *);
static unsigned long long (*watch_libc_fired)(void);
static void (*watch_libc_disarm)(void);
/* Calls in which a fault fired: those that said so, and those that worked nevertheless. */
static atomic_ullong watch_told, watch_absorbed;

/* All faults so far; where the library cannot be asked, those of libc. */
static uint64_t watch_fired(void)
{
    uint64_t fired = 0;
    if (watch_fault_count == NULL || watch_fault_count(&fired) != TCUDA_STATUS_OK)
        fired = 0;
    return fired + (watch_libc_fired == NULL ? 0 : watch_libc_fired());
}

/* ---- Handles that the program owns ---- */

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static void *watch_handles[WATCH_HANDLES];
static size_t watch_count;
static bool watch_lost_count; /* more than there is room for, or calls beside a shutdown */
static atomic_uint watch_inside;
static atomic_ullong watch_calls;

static void watch_created(void *handle)
{
    pthread_mutex_lock(&watch_lock);
    if (watch_count < WATCH_HANDLES)
        watch_handles[watch_count++] = handle;
    else
        watch_lost_count = true;
    pthread_mutex_unlock(&watch_lock);
}

static void watch_destroyed(void *handle)
{
    pthread_mutex_lock(&watch_lock);
    for (size_t i = 0; i < watch_count; i++) {
        if (watch_handles[i] == handle) {
            watch_handles[i] = watch_handles[--watch_count];
            break;
        }
    }
    pthread_mutex_unlock(&watch_lock);
}

/* ---- Outputs, as they are before a call ---- */

typedef struct watch_call {
    const char *function;
    uint64_t fired, calls;
    bool begins_alone;
    struct {
        const char *name;
        const void *at;
        size_t bytes;
    } outputs[WATCH_OUTPUTS];
    size_t num_outputs, used;
    unsigned char before[WATCH_BYTES];
} watch_call;

/* The bytes of a struct that says its size, which may be wrong. */
static size_t watch_sized(const void *at, size_t most)
{
    size_t said;
    memcpy(&said, at, sizeof said);
    return said < most ? said : most;
}

static void watch_output(watch_call *call, const char *name, const void *at, size_t bytes)
{
    if (at == NULL || bytes == 0 || call->num_outputs == WATCH_OUTPUTS)
        return;
    if (bytes > WATCH_BYTES - call->used)
        bytes = WATCH_BYTES - call->used;
    memcpy(call->before + call->used, at, bytes);
    call->outputs[call->num_outputs].name = name;
    call->outputs[call->num_outputs].at = at;
    call->outputs[call->num_outputs++].bytes = bytes;
    call->used += bytes;
}

static void watch_begin(watch_call *call, const char *function)
{
    call->function = function;
    call->num_outputs = call->used = 0;
    call->fired = watch_fired();
    call->begins_alone = atomic_fetch_add(&watch_inside, 1) == 0;
    call->calls = atomic_fetch_add(&watch_calls, 1) + 1;
}

static void watch_end(watch_call *call, tcuda_status status)
{
    size_t used = 0;
    if (status == TCUDA_STATUS_OK) {
        if (watch_fired() > call->fired)
            atomic_fetch_add(&watch_absorbed, 1);
        return;
    }
    if (status == TCUDA_STATUS_INTERNAL || *watch_last_error() == '\0') {
        char text[500];
        snprintf(text, sizeof text, "gave %s: %s", watch_status_name(status), watch_last_error());
        watch_report("problem", call->function, text);
    }
    if (watch_fired() > call->fired)
        atomic_fetch_add(&watch_told, 1);
    for (size_t i = 0; i < call->num_outputs; i++) {
        char text[100];
        if (memcmp(call->before + used, call->outputs[i].at, call->outputs[i].bytes) != 0) {
            snprintf(text, sizeof text, "wrote %s although it gave %s", call->outputs[i].name,
                watch_status_name(status));
            watch_report("problem", call->function, text);
        }
        used += call->outputs[i].bytes;
    }
}

/* ---- Calls that mean more here ---- */

/* What the call meant is noted. */
static void watch_leave(void)
{
    atomic_fetch_sub(&watch_inside, 1);
}

/* The library's count of live handles is the caller's. */
static void watch_shutdown(const watch_call *call, size_t live)
{
    char text[100];
    const bool was_alone = call->begins_alone && atomic_load(&watch_inside) == 1
        && atomic_load(&watch_calls) == call->calls;
    pthread_mutex_lock(&watch_lock);
    if (was_alone && !watch_lost_count && live != watch_count) {
        snprintf(text, sizeof text, "counts %zu live handles, the caller owns %zu", live,
            watch_count);
        watch_report("problem", call->function, text);
    }
    watch_lost_count = !was_alone;
    watch_count = 0;
    pthread_mutex_unlock(&watch_lock);
}

__attribute__((constructor)) static void watch_begins(void)
{
    WATCH_FIND(watch_last_error, "tcuda_last_error");
    WATCH_FIND(watch_status_name, "tcuda_status_name");
    WATCH_FIND(watch_fault_count, "tcuda_backend_fault_count");
    void *found = dlsym(RTLD_DEFAULT, "libc_faults_fired");
    memcpy(&watch_libc_fired, &found, sizeof found);
    found = dlsym(RTLD_DEFAULT, "libc_faults_disarm");
    memcpy(&watch_libc_disarm, &found, sizeof found);
}

/* Also where a process ends without its exit handlers. */
static void watch_says(void)
{
    static atomic_bool said;
    char text[200];
    if (atomic_exchange(&said, true))
        return;
    snprintf(text, sizeof text, "%llu, told %llu, absorbed %llu",
        (unsigned long long)watch_fired(), atomic_load(&watch_told), atomic_load(&watch_absorbed));
    watch_report("fired", "", text);
}

__attribute__((destructor)) static void watch_ends(void)
{
    watch_says();
}

void _exit(int status)
{
    void (*next)(int) = NULL;
    watch_says();
    WATCH_FIND(next, "_exit");
    next(status);
    abort();
}

#endif /* WATCH_H */
