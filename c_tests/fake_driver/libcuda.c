/* A libcuda.so.1 that says yes to everything: there is no memory behind its addresses, and no work
 * in its streams. It ends before its users, as the real one does at exit: from then on every call
 * gives CUDA_ERROR_DEINITIALIZED, and is counted. Its environment makes it poor:
 *   FAKE_CUDA_INIT     what cuInit gives; 0
 *   FAKE_CUDA_COUNT    how many devices there are; 1
 *   FAKE_CUDA_WITHOUT  calls that it does not have, between blanks
 *   FAKE_CUDA_GIVES    a call and what it gives: "cuStreamIsCapturing 906"
 *   FAKE_CUDA_CALLS    when it calls a host function, although cuLaunchHostFunc gives an error:
 *                      "now 719", or "late 719", when a stream is waited for. Without this
 *                      variable it gives 0 and never calls. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { INVALID_VALUE = 1, DEINITIALIZED = 4, CONTEXT = 0x1000 };

static atomic_bool is_gone;
static atomic_long late_calls;
/* Streams, events, mappings, contexts: made and not yet destroyed. */
static atomic_long alive;

API long fake_late_calls(void) { return atomic_load(&late_calls); }
API long fake_alive(void) { return atomic_load(&alive); }

static void ends(void) { atomic_store(&is_gone, 1); }

/* What every call begins with. */
static int state(void)
{
    if (!atomic_load(&is_gone))
        return 0;
    atomic_fetch_add(&late_calls, 1);
    return DEINITIALIZED;
}

#define ENTER() \
    do { \
        const int code = state(); \
        if (code != 0) \
            return code; \
    } while (0)

/* A new address or handle: never used twice, never touched. */
static uintptr_t fresh(uintptr_t bytes)
{
    static atomic_uintptr_t next = (uintptr_t)1 << 40;
    const uintptr_t unit = (uintptr_t)1 << 21;
    return atomic_fetch_add(&next, (bytes + unit - 1) / unit * unit + unit);
}

static int setting(const char *name, int otherwise)
{
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

/* Where a name stands between blanks. */
static const char *find(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at != NULL && (at = strstr(at, name)) != NULL; at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return at;
    return NULL;
}

/* ---- The calls ---- */

/* Whatever has no output. It ignores its arguments, as the calling conventions of Linux allow. */
static int yes(void) { return state(); }

static int makes(uintptr_t *object)
{
    ENTER();
    atomic_fetch_add(&alive, 1);
    return *object = fresh(0), 0;
}

static int destroys(void)
{
    ENTER();
    atomic_fetch_sub(&alive, 1);
    return 0;
}

API int cuInit(unsigned flags)
{
    static atomic_bool registered;
    ENTER();
    if (!atomic_exchange(&registered, 1) && atexit(ends) != 0)
        return INVALID_VALUE;
    return flags ? INVALID_VALUE : setting("FAKE_CUDA_INIT", 0);
}

static int device_count(int *count)
{
    ENTER();
    return *count = setting("FAKE_CUDA_COUNT", 1), 0;
}

/* The call of FAKE_CUDA_GIVES. */
static int fails(void)
{
    ENTER();
    return atoi(strchr(getenv("FAKE_CUDA_GIVES"), ' '));
}

static int gives_one(int *value)
{
    ENTER();
    return *value = 1, 0;
}

static int gives_zero(int *value)
{
    ENTER();
    return *value = 0, 0;
}

static int second_gives_zero(void *unused, int *value)
{
    (void)unused;
    return gives_zero(value);
}

static int total_memory(size_t *bytes)
{
    ENTER();
    return *bytes = (size_t)1 << 30, 0;
}

static int memory_info(size_t *free, size_t *total)
{
    ENTER();
    return *free = *total = (size_t)1 << 30, 0;
}

static int priority_range(int *least, int *greatest)
{
    ENTER();
    return *least = *greatest = 0, 0;
}

static int stream_id(void *stream, unsigned long long *id)
{
    ENTER();
    return *id = (uintptr_t)stream, 0;
}

static int stream_context(void *stream, uintptr_t *context)
{
    (void)stream;
    ENTER();
    return *context = CONTEXT, 0;
}

static int granularity(size_t *bytes)
{
    ENTER();
    return *bytes = (size_t)1 << 21, 0;
}

static int reserve(uintptr_t *address, size_t bytes, size_t alignment)
{
    ENTER();
    const uintptr_t start = fresh(bytes + alignment);
    atomic_fetch_add(&alive, 1);
    return *address = alignment ? (start + alignment - 1) / alignment * alignment : start, 0;
}

/* Threads share one context. Initial-exec, because LeakSanitizer 12 fails over what a thread has of
 * a library that was loaded later. */
static _Thread_local uintptr_t current __attribute__((tls_model("initial-exec")));

static int retain(uintptr_t *context)
{
    ENTER();
    atomic_fetch_add(&alive, 1);
    return *context = CONTEXT, 0;
}

static int get_current(uintptr_t *context)
{
    ENTER();
    return *context = current, 0;
}

static int set_current(uintptr_t context)
{
    ENTER();
    return current = context, 0;
}

static int pop_current(uintptr_t *context)
{
    ENTER();
    *context = current;
    return current = 0, 0;
}

static int synchronize(void) { return state(); }

static void (*kept_function)(void *);
static void *kept_data;

static int launch_host_function(void *stream, void (*function)(void *), void *data)
{
    (void)stream;
    ENTER();
    const char *when = getenv("FAKE_CUDA_CALLS");
    if (when == NULL)
        return 0;
    if (when[0] == 'n') {
        function(data);
    } else {
        kept_function = function;
        kept_data = data;
    }
    return atoi(strchr(when, ' '));
}

static int synchronize_stream(void)
{
    ENTER();
    void (*const function)(void *) = kept_function;
    kept_function = NULL;
    if (function != NULL)
        function(kept_data);
    return 0;
}

/* ---- Finding them ---- */

typedef void (*any_function)(void);

#define FUNCTION(name, function) { name, (any_function)(function) }

static const struct { const char *name; any_function function; } known[] = {
    FUNCTION("cuInit", cuInit), FUNCTION("cuDeviceGetCount", device_count),
    FUNCTION("cuDeviceGet", gives_zero), FUNCTION("cuDeviceTotalMem", total_memory),
    FUNCTION("cuDeviceGetAttribute", gives_one), FUNCTION("cuDevicePrimaryCtxRetain", retain),
    FUNCTION("cuDevicePrimaryCtxRelease", destroys), FUNCTION("cuCtxGetCurrent", get_current),
    FUNCTION("cuCtxSetCurrent", set_current), FUNCTION("cuCtxPushCurrent", set_current),
    FUNCTION("cuCtxPopCurrent", pop_current), FUNCTION("cuCtxSynchronize", synchronize),
    FUNCTION("cuCtxGetStreamPriorityRange", priority_range),
    FUNCTION("cuStreamCreateWithPriority", makes), FUNCTION("cuStreamDestroy", destroys),
    FUNCTION("cuStreamGetId", stream_id), FUNCTION("cuStreamGetCtx", stream_context),
    FUNCTION("cuStreamIsCapturing", second_gives_zero),
    FUNCTION("cuStreamGetCaptureInfo", second_gives_zero), FUNCTION("cuEventCreate", makes),
    FUNCTION("cuEventDestroy", destroys), FUNCTION("cuMemGetInfo", memory_info),
    FUNCTION("cuMemHostAlloc", makes), FUNCTION("cuMemFreeHost", destroys),
    FUNCTION("cuMemGetAllocationGranularity", granularity),
    FUNCTION("cuMemAddressReserve", reserve), FUNCTION("cuMemAddressFree", destroys),
    FUNCTION("cuMemCreate", makes), FUNCTION("cuMemRelease", destroys),
    FUNCTION("cuModuleLoadData", makes), FUNCTION("cuModuleUnload", destroys),
    FUNCTION("cuModuleGetFunction", makes), FUNCTION("cuLaunchHostFunc", launch_host_function),
    FUNCTION("cuStreamSynchronize", synchronize_stream),
};

API int cuDriverGetVersion(int *version)
{
    ENTER();
    return *version = 12090, 0;
}

API int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
    int *status)
{
    (void)version, (void)flags;
    ENTER();
    const char *given = getenv("FAKE_CUDA_GIVES");
    any_function found = (any_function)yes;
    if (find(getenv("FAKE_CUDA_WITHOUT"), name) != NULL) {
        *address = NULL;
        return *status = 1, 0;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            found = known[i].function;
    if (given != NULL && find(given, name) == given)
        found = (any_function)fails;
    memcpy(address, &found, sizeof found);
    return *status = 0;
}
