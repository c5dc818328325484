/* Training-like steps in rotation over several streams, with the host up to four steps ahead: how much
 * memory tcuda needs for it, what the host's calls cost, and how long all of it takes. Prints JSON.
 *
 *   rotation [--streams N] [--steps N] [--layers N] [--kernel-us N] [--weights MIB] [--vary]
 *
 * Step k runs on stream k % N. A layer keeps blocks of 64 MiB, 16 MiB and 20 KiB until the way back,
 * uses 96 MiB on its way forth and 64 MiB on the way back; --vary makes steps of 5/8 to all of that.
 * --kernel-us: a kernel of that duration at the end of each step, or, on the simulated machine, a host
 * function. --weights: memory that stays, on the default stream. TCUDA_BACKEND, TCUDA_SIM (work is
 * behind with schedule=threads only) and TCUDA_ALLOC_CONF (share_between_streams:False) are the
 * library's. Exit status: 0 all well, 1 a failure, 2 a wrong command line. */

#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcuda.h>
#include <time.h>

enum { MAX_STREAMS = 32, MAX_LAYERS = 256, AHEAD = 4 };

static const size_t MIB = (size_t)1 << 20;

/* Spins for a number of nanoseconds. */
static const char SPIN[] = ".version 4.3\n"
                           ".target sm_52\n"
                           ".address_size 64\n"
                           ".visible .entry spin(.param .u64 duration)\n"
                           "{\n"
                           "    .reg .pred %p<2>;\n"
                           "    .reg .b64 %rd<5>;\n"
                           "    ld.param.u64 %rd1, [duration];\n"
                           "    mov.u64 %rd2, %globaltimer;\n"
                           "AGAIN:\n"
                           "    mov.u64 %rd3, %globaltimer;\n"
                           "    sub.s64 %rd4, %rd3, %rd2;\n"
                           "    setp.lt.u64 %p1, %rd4, %rd1;\n"
                           "    @%p1 bra AGAIN;\n"
                           "    ret;\n"
                           "}\n";

typedef int (*load_fn)(void **module, const void *image);
typedef int (*function_fn)(void **function, void *module, const char *name);
typedef int (*launch_fn)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
    struct CUstream_st *stream, void **parameters, void **extra);

static struct {
    long streams, steps, layers, kernel_us, weights;
    bool vary;
} options = { 4, 100, 24, 0, 0, false };

static struct {
    bool is_simulated;
    void *spin;
    launch_fn launch;
} kernel;

static double alloc_ns;
static long allocations;

static void check(tcuda_status status, const char *call)
{
    if (status == TCUDA_STATUS_OK)
        return;
    fprintf(stderr, "rotation: %s: %s: %s\n", call, tcuda_status_name((int32_t)status),
        tcuda_last_error());
    exit(EXIT_FAILURE);
}

static void check_driver(int status, const char *call)
{
    if (status == 0)
        return;
    fprintf(stderr, "rotation: %s gave %d\n", call, status);
    exit(EXIT_FAILURE);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void usage(void)
{
    fprintf(stderr, "usage: rotation [--streams N] [--steps N] [--layers N] [--kernel-us N] "
                    "[--weights MIB] [--vary]\n");
    exit(2);
}

static long number(const char *text, long least, long most)
{
    char *end = NULL;
    const long value = text == NULL ? 0 : strtol(text, &end, 10);
    if (text == NULL || end == text || *end != '\0' || value < least || value > most)
        usage();
    return value;
}

static void read_options(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        const char *const word = words[i];
        if (strcmp(word, "--vary") == 0)
            options.vary = true;
        else if (strcmp(word, "--streams") == 0)
            options.streams = number(words[++i], 1, MAX_STREAMS);
        else if (strcmp(word, "--steps") == 0)
            options.steps = number(words[++i], 1, 1000000);
        else if (strcmp(word, "--layers") == 0)
            options.layers = number(words[++i], 1, MAX_LAYERS);
        else if (strcmp(word, "--kernel-us") == 0)
            options.kernel_us = number(words[++i], 0, 1000000);
        else if (strcmp(word, "--weights") == 0)
            options.weights = number(words[++i], 0, 1 << 20);
        else
            usage();
    }
}

static void *driver_function(const char *name)
{
    void *address = NULL;
    check(tcuda_backend_function(name, &address), name);
    return address;
}

/* Pointers to functions and to objects are alike where there is a dlsym. */
static void load_kernel(void)
{
    kernel.is_simulated = strcmp(tcuda_backend_name(), "sim") == 0;
    if (kernel.is_simulated || options.kernel_us == 0)
        return;
    load_fn load;
    function_fn get;
    void *address = driver_function("cuModuleLoadData"), *module = NULL;
    memcpy(&load, &address, sizeof load);
    address = driver_function("cuModuleGetFunction");
    memcpy(&get, &address, sizeof get);
    address = driver_function("cuLaunchKernel");
    memcpy(&kernel.launch, &address, sizeof kernel.launch);
    check_driver(load(&module, SPIN), "cuModuleLoadData");
    check_driver(get(&kernel.spin, module, "spin"), "cuModuleGetFunction");
}

static void work_of_host(void *unused)
{
    (void)unused;
    const struct timespec time = { options.kernel_us / 1000000,
        options.kernel_us % 1000000 * 1000 };
    nanosleep(&time, NULL);
}

static void run_kernel(tcuda_stream *stream)
{
    if (options.kernel_us == 0)
        return;
    if (kernel.is_simulated) {
        check(tcuda_stream_add_callback(stream, work_of_host, NULL, NULL),
            "tcuda_stream_add_callback");
        return;
    }
    struct CUstream_st *native = NULL;
    check(tcuda_stream_native(stream, &native), "tcuda_stream_native");
    uint64_t duration = (uint64_t)options.kernel_us * 1000;
    void *parameters[] = { &duration };
    check_driver(kernel.launch(kernel.spin, 1, 1, 1, 1, 1, 1, 0, native, parameters, NULL),
        "cuLaunchKernel");
}

static void *allocate(size_t bytes, tcuda_stream *stream)
{
    void *ptr = NULL;
    const double start = now_ns();
    check(tcuda_malloc(bytes, TCUDA_CURRENT_DEVICE, stream, &ptr), "tcuda_malloc");
    alloc_ns += now_ns() - start;
    allocations++;
    return ptr;
}

static void release(void *ptr)
{
    const double start = now_ns();
    check(tcuda_free(ptr), "tcuda_free");
    alloc_ns += now_ns() - start;
}

/* One step: forth and back. */
static void step(tcuda_stream *stream, long number)
{
    static void *kept[3 * MAX_LAYERS];
    const size_t eighths = options.vary ? 5 + (size_t)(number * 5 % 4) : 8;
    const size_t scale = MIB / 8 * eighths;
    long count = 0;
    for (long layer = 0; layer < options.layers; layer++) {
        void *const buffer = allocate(96 * scale, stream);
        kept[count++] = allocate(64 * scale, stream);
        kept[count++] = allocate(16 * scale, stream);
        kept[count++] = allocate(20 * 1024, stream);
        release(buffer);
    }
    run_kernel(stream);
    for (long layer = 0; layer < options.layers; layer++) {
        void *const gradient = allocate(64 * scale, stream);
        for (int i = 0; i < 3; i++)
            release(kept[--count]);
        release(gradient);
    }
}

static uint64_t calls_of(const char *function)
{
    uint64_t count = 0;
    check(tcuda_backend_call_count(function, &count), "tcuda_backend_call_count");
    return count;
}

int main(int argument_count, char **arguments)
{
    static const char *const functions[] = { "cuMemCreate", "cuMemMap", "cuMemSetAccess",
        "cuMemUnmap", "cuEventRecord", "cuStreamWaitEvent", "cuStreamQuery", "cuEventQuery",
        "cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize" };
    enum { FUNCTIONS = sizeof functions / sizeof *functions };
    read_options(argument_count, arguments);
    tcuda_stream *streams[MAX_STREAMS];
    tcuda_event *events[AHEAD];
    /* Its context stays current, which the calls of the driver want. */
    check(tcuda_device_set(0), "tcuda_device_set");
    for (long i = 0; i < options.streams; i++)
        check(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &streams[i]), "tcuda_stream_create");
    for (int i = 0; i < AHEAD; i++)
        check(tcuda_event_create(0, &events[i]), "tcuda_event_create");
    void *weights = NULL;
    check(tcuda_malloc((size_t)options.weights * MIB, TCUDA_CURRENT_DEVICE, NULL, &weights),
        "tcuda_malloc");
    load_kernel();

    /* The host's own events, one of each a step, are not counted. */
    uint64_t before[FUNCTIONS];
    for (int i = 0; i < FUNCTIONS; i++)
        before[i] = calls_of(functions[i]);
    const double start = now_ns();
    for (long k = 0; k < options.steps; k++) {
        tcuda_event *const event = events[k % AHEAD];
        tcuda_stream *const stream = streams[k % options.streams];
        if (k >= AHEAD)
            check(tcuda_event_synchronize(event), "tcuda_event_synchronize");
        step(stream, k);
        check(tcuda_event_record(event, stream), "tcuda_event_record");
    }
    const double enqueued = now_ns() - start;
    check(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE), "tcuda_device_synchronize");
    const double total = now_ns() - start;

    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    check(tcuda_memory_stats(TCUDA_CURRENT_DEVICE, &stats), "tcuda_memory_stats");
    const double reserved = (double)stats.reserved_bytes.all.peak;
    const double allocated = (double)stats.allocated_bytes.all.peak;
    printf("{\"backend\": \"%s\", \"streams\": %ld, \"steps\": %ld, \"layers\": %ld, "
           "\"kernel_us\": %ld, \"weights_mib\": %ld, \"vary\": %s,\n",
        tcuda_backend_name(), options.streams, options.steps, options.layers, options.kernel_us,
        options.weights, options.vary ? "true" : "false");
    printf(" \"peak_reserved\": %.0f, \"peak_allocated\": %.0f, \"ratio\": %.5f, "
           "\"num_alloc_retries\": %lld,\n",
        reserved, allocated, reserved / allocated, (long long)stats.num_alloc_retries);
    printf(" \"driver_calls\": {");
    for (int i = 0; i < FUNCTIONS; i++) {
        uint64_t own = 0;
        if (strcmp(functions[i], "cuEventRecord") == 0)
            own = (uint64_t)options.steps;
        if (strcmp(functions[i], "cuEventSynchronize") == 0 && options.steps > AHEAD)
            own = (uint64_t)(options.steps - AHEAD);
        if (strcmp(functions[i], "cuCtxSynchronize") == 0)
            own = 1;
        printf("%s\"%s\": %lld", i == 0 ? "" : ", ", functions[i],
            (long long)(calls_of(functions[i]) - before[i] - own));
    }
    printf("},\n \"allocations\": %ld, \"ns_per_allocation_and_free\": %.1f, "
           "\"enqueue_ms\": %.3f, \"total_ms\": %.3f}\n",
        allocations, alloc_ns / (double)allocations, enqueued / 1e6, total / 1e6);

    check(tcuda_free(weights), "tcuda_free");
    for (int i = 0; i < AHEAD; i++)
        check(tcuda_event_destroy(events[i]), "tcuda_event_destroy");
    for (long i = 0; i < options.streams; i++)
        check(tcuda_stream_destroy(streams[i]), "tcuda_stream_destroy");
    check(tcuda_shutdown(NULL), "tcuda_shutdown");
    return EXIT_SUCCESS;
}
