/* A libcufile without a GPU, for the simulated machine: it reads and writes files by the system,
 * at most 1 MiB at a time, and copies by the driver's own functions. As the real one it does not
 * wait for streams, and refuses memory that is not in one mapping of the driver. */
#include "cufile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <pthread.h>

#define API __attribute__((visibility("default")))

enum {
    OK = 0, NOT_OPEN = 5001, BAD_RANGE = 5014, INVALID_VALUE = 5022, ALREADY_REGISTERED = 5023,
    NOT_REGISTERED = 5024, NO_HANDLE = 5027, MOST = 64, MOST_AT_ONCE = 1 << 20,
    RANGE_START = 11, RANGE_SIZE = 12, MAPPING_SIZE = 18, MAPPING_START = 19 /* of a pointer */
};

typedef struct { int code, cuda; } status;
typedef struct { int type; union { int number; void *pointer; } file; const void *ops; } descr;
typedef struct { int is_used, number; } handle;
typedef struct { const char *base; size_t bytes; } buffer;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static stand_in_driver driver;
static stand_in_state state;
static handle handles[MOST];
static buffer buffers[MOST];
static char failing[32];
static int failures, failure_code;

#ifndef WITHOUT_MARK
API const int tcuda_cufile_stand_in = 1;
#endif

/* For the test. */
API void stand_in_use(const stand_in_driver *given) { driver = *given; }
API void stand_in_look(stand_in_state *out)
{
    pthread_mutex_lock(&lock);
    *out = state;
    pthread_mutex_unlock(&lock);
}
API void stand_in_fail(const char *call, int times, int code)
{
    pthread_mutex_lock(&lock);
    strncpy(failing, call, sizeof failing - 1);
    failures = times;
    failure_code = code;
    pthread_mutex_unlock(&lock);
}

/* The code with which a call fails now, or 0. */
static int failure_of(const char *call)
{
    int code = 0;
    pthread_mutex_lock(&lock);
    if (failures > 0 && strcmp(call, failing) == 0) {
        --failures;
        code = failure_code;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static status of(int code) { return (status){ code, 0 }; }

static void count(int *counter, int by)
{
    pthread_mutex_lock(&lock);
    *counter += by;
    pthread_mutex_unlock(&lock);
}

API status cuFileDriverOpen(void)
{
    const int code = failure_of("cuFileDriverOpen");
    if (code != OK)
        return of(code);
    count(&state.drivers, 1);
    count(&state.opened, 1);
    return of(OK);
}
API status cuFileDriverClose(void) { return count(&state.drivers, -1), of(OK); }
API long cuFileUseCount(void) { return state.drivers; }

API status cuFileHandleRegister(void **out, descr *description)
{
    const int code = failure_of("cuFileHandleRegister");
    if (code != OK || description->type != 1 || state.drivers == 0)
        return of(code != OK ? code : state.drivers == 0 ? NOT_OPEN : INVALID_VALUE);
    /* Opened once more, without direct access, which takes aligned memory only. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", description->file.number);
    const int how = fcntl(description->file.number, F_GETFL) & O_ACCMODE;
    const int number = open(path, how | O_CLOEXEC);
    if (number < 0)
        return of(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (!handles[i].is_used) {
            handles[i] = (handle){ 1, number };
            ++state.handles;
            *out = &handles[i];
            pthread_mutex_unlock(&lock);
            return of(OK);
        }
    pthread_mutex_unlock(&lock);
    close(number);
    return of(INVALID_VALUE);
}

API void cuFileHandleDeregister(void *given)
{
    pthread_mutex_lock(&lock);
    close(((handle *)given)->number);
    ((handle *)given)->is_used = 0;
    --state.handles;
    pthread_mutex_unlock(&lock);
}

static int is_in(int start_of, int size_of, unsigned long long address, size_t bytes)
{
    unsigned long long start = 0;
    size_t length = 0;
    return driver.attribute(&start, start_of, address) == 0
        && driver.attribute(&length, size_of, address) == 0 && address + bytes <= start + length;
}

/* Is it in one mapping of the driver? */
static int is_whole(const void *ptr, size_t bytes)
{
    const unsigned long long address = (unsigned long long)(size_t)ptr;
    return is_in(RANGE_START, RANGE_SIZE, address, bytes)
        && is_in(MAPPING_START, MAPPING_SIZE, address, bytes);
}

API status cuFileBufRegister(const void *base, size_t bytes, int flags)
{
    const int code = failure_of("cuFileBufRegister");
    (void)flags;
    if (code != OK || !is_whole(base, bytes))
        return of(code != OK ? code : BAD_RANGE);
    int result = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST && result != ALREADY_REGISTERED; i++)
        if (buffers[i].base == base)
            result = ALREADY_REGISTERED;
    for (int i = 0; i < MOST && result == INVALID_VALUE; i++)
        if (buffers[i].base == NULL) {
            buffers[i] = (buffer){ base, bytes };
            ++state.buffers;
            result = OK;
        }
    pthread_mutex_unlock(&lock);
    return of(result);
}

API status cuFileBufDeregister(const void *base)
{
    int code = failure_of("cuFileBufDeregister");
    if (code != OK)
        return of(code);
    code = NOT_REGISTERED;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (buffers[i].base == base) {
            buffers[i] = (buffer){ NULL, 0 };
            --state.buffers;
            code = OK;
        }
    pthread_mutex_unlock(&lock);
    return of(code);
}

static ssize_t transfer(int writes, void *given, void *base, size_t bytes, off_t at, off_t offset)
{
    const char *const call = writes ? "cuFileWrite" : "cuFileRead";
    const int code = failure_of(call), number = ((handle *)given)->number;
    char *const ptr = (char *)base + offset;
    pthread_mutex_lock(&lock);
    ++*(writes ? &state.writes : &state.reads);
    state.base = base;
    state.base_offset = (size_t)offset;
    state.bytes = bytes;
    pthread_mutex_unlock(&lock);
    if (code > 5000)
        return -code;
    if (code != OK) {
        errno = code;
        return -1;
    }
    if (!((handle *)given)->is_used)
        return -NO_HANDLE;
    if (!is_whole(ptr, bytes))
        return -BAD_RANGE;
    if (bytes > MOST_AT_ONCE)
        bytes = MOST_AT_ONCE;
    char *const host = malloc(bytes);
    ssize_t done = -1;
    const unsigned long long far = (unsigned long long)(size_t)ptr;
    const unsigned long long near = (unsigned long long)(size_t)host;
    /* The stream NULL of a simulated machine is not ordered after streams of the library. */
    if (writes) {
        if (driver.copy(near, far, bytes, NULL) == 0 && driver.wait(NULL) == 0)
            done = pwrite(number, host, bytes, at);
    } else {
        done = pread(number, host, bytes, at);
        if (done > 0 && (driver.copy(far, near, (size_t)done, NULL) != 0 || driver.wait(NULL) != 0))
            done = -1;
    }
    free(host);
    return done;
}

API ssize_t cuFileRead(void *given, void *base, size_t bytes, off_t at, off_t offset)
{
    return transfer(0, given, base, bytes, at, offset);
}

API ssize_t cuFileWrite(void *given, const void *base, size_t bytes, off_t at, off_t offset)
{
    return transfer(1, given, (void *)(size_t)base, bytes, at, offset);
}
