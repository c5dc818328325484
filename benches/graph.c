/* What graphs cost beside the raw driver: recording a node, and a replay. Both sides run on the
 * same stream in turns, so that clocks and caches are the same; JSON with the best and the median
 * of the rounds.
 *
 * usage: graph kernels/fill.ptx [rounds]      TCUDA_BACKEND: the GPU or the simulated machine */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcuda.h>
#include <time.h>

enum { NODES = 1000, MOST_ROUNDS = 2000, BYTES = 1 << 16 };

typedef struct CUgraph_st graph;
typedef struct CUgraphExec_st executable;
typedef struct CUstream_st stream;
typedef struct CUmod_st module;
typedef struct CUfunc_st function;

static struct {
    int (*begin)(stream *stream, int mode);
    int (*end)(stream *stream, graph **made);
    int (*destroy)(graph *graph);
    int (*launch)(executable *exec, stream *stream);
    int (*synchronize)(stream *stream);
    int (*set)(unsigned long long ptr, unsigned value, size_t count, stream *stream);
    int (*copy)(unsigned long long dst, unsigned long long src, size_t bytes, stream *stream);
    int (*load)(module **module, const void *image);
    int (*unload)(module *module);
    int (*find)(function **function, module *module, const char *name);
    int (*kernel)(function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, stream *stream,
        void **parameters, void **extra);
} driver;

static tcuda_stream *on;
static stream *native;
static unsigned char *memory;
static function *pattern;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, tcuda_last_error());
    exit(EXIT_FAILURE);
}

#define OK(call) do { if ((call) != TCUDA_STATUS_OK) fail(#call); } while (0)
#define DRIVER(call) do { if ((call) != 0) fail(#call); } while (0)

static void find(const char *name, void *function)
{
    void *address = NULL;
    OK(tcuda_backend_function(name, &address));
    memcpy(function, &address, sizeof address);
}

static void find_driver(void)
{
    find("cuStreamBeginCapture", &driver.begin);
    find("cuStreamEndCapture", &driver.end);
    find("cuGraphDestroy", &driver.destroy);
    find("cuGraphLaunch", &driver.launch);
    find("cuStreamSynchronize", &driver.synchronize);
    find("cuMemsetD32Async", &driver.set);
    find("cuMemcpyAsync", &driver.copy);
    find("cuModuleLoadData", &driver.load);
    find("cuModuleUnload", &driver.unload);
    find("cuModuleGetFunction", &driver.find);
    find("cuLaunchKernel", &driver.kernel);
}

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int in_order(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

struct times {
    double all[MOST_ROUNDS];
    int count;
};

static double median(struct times *times)
{
    qsort(times->all, (size_t)times->count, sizeof *times->all, in_order);
    return times->all[times->count / 2];
}

/* ---- One node, by the driver and by tcuda ---- */

static void raw_set(void)
{
    DRIVER(driver.set((unsigned long long)(uintptr_t)memory, 7, 64, native));
}

static void own_set(void)
{
    const uint32_t value = 7;
    OK(tcuda_fill(memory, &value, 4, 64, on));
}

static void raw_copy(void)
{
    const unsigned long long from = (unsigned long long)(uintptr_t)memory;
    DRIVER(driver.copy(from + 4096, from, 256, native));
}

static void own_copy(void) { OK(tcuda_copy(memory + 4096, memory, 256, on)); }

/* The kernel that tcuda_fill launches for values that no memset has. */
static void raw_kernel(void)
{
    unsigned long long to = (unsigned long long)(uintptr_t)memory, bytes = 240, word = 7;
    unsigned period = 12;
    void *parameters[] = {&to, &bytes, &word, &word, &word, &word, &period};
    DRIVER(driver.kernel(pattern, 1, 1, 1, 256, 1, 1, 0, native, parameters, NULL));
}

static void own_kernel(void)
{
    const unsigned char value[12] = {7};
    OK(tcuda_fill(memory, value, 12, 20, on));
}

static double record(void (*node)(void))
{
    const double start = now_ns();
    for (int i = 0; i < NODES; i++)
        node();
    return (now_ns() - start) / NODES;
}

/* The driver's own capture of a node. */
static double by_driver(void (*node)(void))
{
    graph *made = NULL;
    DRIVER(driver.begin(native, 2));
    const double taken = record(node);
    DRIVER(driver.end(native, &made));
    DRIVER(driver.destroy(made));
    return taken;
}

static double by_tcuda(tcuda_graph *graph, void (*node)(void))
{
    OK(tcuda_graph_capture_begin(graph, on, NULL, TCUDA_CAPTURE_RELAXED));
    const double taken = record(node);
    OK(tcuda_graph_capture_abort(graph));
    return taken;
}

static void capture(const char *name, void (*raw)(void), void (*own)(void), int rounds)
{
    static struct times driver_times, host_times, own_times;
    tcuda_graph *graph;
    OK(tcuda_graph_create(0, &graph));
    driver_times.count = host_times.count = own_times.count = 0;
    for (int round = -2; round < rounds; round++) {
        const double by_raw = by_driver(raw);
        const double in_ours = by_tcuda(graph, raw), by_own = by_tcuda(graph, own);
        if (round < 0) continue;
        driver_times.all[driver_times.count++] = by_raw;
        host_times.all[host_times.count++] = in_ours;
        own_times.all[own_times.count++] = by_own;
    }
    const double raw_ns = median(&driver_times), host_ns = median(&host_times);
    const double own_ns = median(&own_times);
    printf("    {\"node\": \"%s\", \"driver_ns\": %.1f, \"driver_in_our_capture_ns\": %.1f,"
        " \"tcuda_ns\": %.1f, \"added_ns\": %.1f, \"best_driver_ns\": %.1f,"
        " \"best_tcuda_ns\": %.1f, \"best_added_ns\": %.1f}", name, raw_ns, host_ns, own_ns,
        own_ns - raw_ns, driver_times.all[0], own_times.all[0],
        own_times.all[0] - driver_times.all[0]);
    OK(tcuda_graph_destroy(graph));
}

/* ---- Replays ---- */

struct replays {
    struct times calls, whole;
};

static void replay(struct replays *replays, tcuda_graph *graph, executable *exec, int counts)
{
    DRIVER(driver.synchronize(native));
    const double start = now_ns();
    if (exec != NULL)
        DRIVER(driver.launch(exec, native));
    else
        OK(tcuda_graph_replay(graph, on));
    const double called = now_ns();
    DRIVER(driver.synchronize(native));
    const double end = now_ns();
    if (!counts) return;
    replays->calls.all[replays->calls.count++] = called - start;
    replays->whole.all[replays->whole.count++] = end - start;
}

static void launches(int nodes, int rounds)
{
    static struct replays raw, own;
    tcuda_graph *graph;
    executable *exec = NULL;
    OK(tcuda_graph_create(1, &graph));
    OK(tcuda_graph_capture_begin(graph, on, NULL, TCUDA_CAPTURE_RELAXED));
    for (int i = 0; i < nodes; i++)
        raw_kernel();
    OK(tcuda_graph_capture_end(graph));
    OK(tcuda_graph_instantiate(graph));
    OK(tcuda_graph_native(graph, NULL, &exec));
    raw.calls.count = raw.whole.count = own.calls.count = own.whole.count = 0;
    for (int round = -5; round < rounds; round++) {
        /* First the one, then the other first. */
        for (int turn = 0; turn < 2; turn++) {
            const int is_own = (round + turn) & 1;
            replay(is_own ? &own : &raw, graph, is_own ? NULL : exec, round >= 0);
        }
    }
    const double raw_call = median(&raw.calls), own_call = median(&own.calls);
    const double raw_whole = median(&raw.whole), own_whole = median(&own.whole);
    printf("    {\"nodes\": %d, \"driver_call_ns\": %.0f, \"tcuda_call_ns\": %.0f,"
        " \"driver_us\": %.2f, \"tcuda_us\": %.2f, \"ratio\": %.4f, \"best_ratio\": %.4f,"
        " \"best_call_added_ns\": %.0f}", nodes, raw_call, own_call, raw_whole / 1e3,
        own_whole / 1e3, own_whole / raw_whole, own.whole.all[0] / raw.whole.all[0],
        own.calls.all[0] - raw.calls.all[0]);
    OK(tcuda_graph_destroy(graph));
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (file == NULL || text == NULL || fread(text, 1, (1 << 20) - 1, file) == 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(EXIT_FAILURE);
    }
    fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 2 ? atoi(argv[2]) : 200;
    if (argc < 2 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: graph kernels/fill.ptx [rounds, 1 to %d]\n", MOST_ROUNDS);
        return 2;
    }
    module *loaded;
    char device[256];
    void *block = NULL;
    OK(tcuda_device_set(0));
    find_driver();
    OK(tcuda_stream_create(0, 0, &on));
    OK(tcuda_stream_native(on, &native));
    OK(tcuda_malloc(BYTES, 0, on, &block));
    memory = block;
    char *text = read_text(argv[1]);
    DRIVER(driver.load(&loaded, text));
    DRIVER(driver.find(&pattern, loaded, "tcuda_fill_pattern"));
    own_kernel();
    raw_kernel();
    DRIVER(driver.synchronize(native));
    OK(tcuda_device_name(0, device, sizeof device, NULL));
    printf("{\n  \"backend\": \"%s\",\n  \"device\": \"%s\",\n  \"rounds\": %d,\n",
        tcuda_backend_name(), device, rounds);
    printf("  \"capture\": [\n");
    capture("memset", raw_set, own_set, rounds);
    printf(",\n");
    capture("copy", raw_copy, own_copy, rounds);
    printf(",\n");
    capture("kernel", raw_kernel, own_kernel, rounds);
    printf("\n  ],\n  \"replay\": [\n");
    launches(1, rounds);
    printf(",\n");
    launches(1000, rounds);
    printf("\n  ]\n}\n");
    free(text);
    DRIVER(driver.unload(loaded));
    OK(tcuda_free(block));
    OK(tcuda_stream_destroy(on));
    OK(tcuda_shutdown(NULL));
    return EXIT_SUCCESS;
}
