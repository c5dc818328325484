/* What the stream sanitizer costs: the host's time of a call while it is off, and while it is on,
 * in turns, so that clocks and caches are the same. JSON, or with --table a table of Markdown, with
 * the best and the median of the rounds.
 *
 * usage: sanitizer [--table] [rounds]      TCUDA_BACKEND: the GPU or the simulated machine */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcuda.h>
#include <time.h>

enum { CALLS = 200, MOST_ROUNDS = 1000, BYTES = 1 << 16, NODES = 20 };

static tcuda_stream *on, *other;
static tcuda_event *event;
static tcuda_graph *graph;
static tcuda_jit *jit;
static unsigned char *memory;
static unsigned char *pinned;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, tcuda_last_error());
    exit(EXIT_FAILURE);
}

#define OK(call) do { if ((call) != TCUDA_STATUS_OK) fail(#call); } while (0)

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

/* ---- What is measured: one call, or the calls that a host makes together ---- */

static void copy(int i) { OK(tcuda_copy(memory + 4096 * (i % 8), memory + 32768, 256, on)); }

static void copy_2d(int i)
{
    OK(tcuda_copy_2d(memory + 64 * (i % 8), 512, memory + 32768, 512, 64, 16, on));
}

static void copy_pinned(int i) { OK(tcuda_copy(memory + 4096 * (i % 8), pinned, 256, on)); }

static void fill(int i)
{
    const uint32_t value = 7;
    OK(tcuda_fill(memory + 4096 * (i % 8), &value, 4, 64, on));
}

static void order(int i)
{
    (void)i;
    OK(tcuda_event_record(event, on));
    OK(tcuda_event_wait(event, other));
}

/* What a pipeline does: two streams take turns with the same memory. */
static void hand_over(int i)
{
    tcuda_stream *stream = i % 2 ? on : other, *next = i % 2 ? other : on;
    const uint32_t value = 7;
    OK(tcuda_fill(memory, &value, 4, 64, stream));
    OK(tcuda_event_record(event, stream));
    OK(tcuda_event_wait(event, next));
}

static void allocate(int i)
{
    void *ptr = NULL;
    OK(tcuda_malloc((size_t)512 << i % 6, 0, on, &ptr));
    OK(tcuda_free(ptr));
}

static void allocate_and_use(int i)
{
    void *ptr = NULL;
    const uint32_t value = 7;
    OK(tcuda_malloc((size_t)512 << i % 6, 0, on, &ptr));
    OK(tcuda_fill(ptr, &value, 4, 64, on));
    OK(tcuda_free(ptr));
}

static void record_stream(int i)
{
    (void)i;
    OK(tcuda_record_stream(memory, other));
}

static void call_elements(int i)
{
    int64_t size[1] = {64};
    tcuda_tensor tensor = {.data = memory + 4096 * (i % 8),
        .device = {TCUDA_DEVICE_CUDA, 0},
        .ndim = 1,
        .dtype = {TCUDA_DTYPE_FLOAT, 32, 1},
        .shape = size};
    OK(tcuda_jit_call(jit, &tensor, 1, NULL, 0, &tensor, 1, on));
}

static void replay(int i)
{
    (void)i;
    OK(tcuda_graph_replay(graph, on));
}

static void synchronize(int i)
{
    (void)i;
    OK(tcuda_stream_synchronize(on));
}

static const struct work {
    const char *name;
    void (*call)(int i);
    int needs_compiler, calls;
} works[] = {
    {"tcuda_copy", copy, 0, 1},
    {"tcuda_copy, pinned memory", copy_pinned, 0, 1},
    {"tcuda_copy_2d, 16 rows", copy_2d, 0, 1},
    {"tcuda_fill", fill, 0, 1},
    {"event record and wait", order, 0, 2},
    {"fill, record and wait, two streams in turns", hand_over, 0, 3},
    {"tcuda_malloc and tcuda_free", allocate, 0, 2},
    {"tcuda_malloc, tcuda_fill, tcuda_free", allocate_and_use, 0, 3},
    {"tcuda_record_stream", record_stream, 0, 1},
    {"tcuda_jit_call", call_elements, 1, 1},
    {"tcuda_graph_replay, 20 fills", replay, 0, 1},
    {"tcuda_stream_synchronize, idle", synchronize, 0, 1},
};

struct times {
    double all[MOST_ROUNDS];
};

static size_t count_reports(void)
{
    size_t reports = 0;
    OK(tcuda_sanitizer_report_count(&reports));
    return reports;
}

/* Time of one call, the queues empty before and after. */
static double round_of(const struct work *work)
{
    OK(tcuda_device_synchronize(0));
    const double start = now_ns();
    for (int i = 0; i < CALLS; i++)
        work->call(i);
    const double taken = now_ns() - start;
    OK(tcuda_device_synchronize(0));
    return taken / CALLS;
}

static size_t measure(const struct work *work, int rounds, struct times *off, struct times *watched)
{
    size_t reports = 0;
    for (int round = -2; round < rounds; round++) {
        const double without = round_of(work);
        OK(tcuda_sanitizer_enable(NULL));
        /* What a host does when it turns the sanitizer on: the first calls make its tables. */
        work->call(0);
        const double with = round_of(work);
        reports += count_reports();
        OK(tcuda_sanitizer_disable());
        if (round < 0) continue;
        off->all[round] = without;
        watched->all[round] = with;
    }
    qsort(off->all, (size_t)rounds, sizeof *off->all, in_order);
    qsort(watched->all, (size_t)rounds, sizeof *watched->all, in_order);
    return reports;
}

static int has_compiler(void)
{
    static const char code[] = "template <typename T> T twice(T x) { return x + x; }";
    OK(tcuda_jit_create(code, NULL, &jit));
    int64_t size[1] = {64};
    tcuda_tensor tensor = {.data = memory,
        .device = {TCUDA_DEVICE_CUDA, 0},
        .ndim = 1,
        .dtype = {TCUDA_DTYPE_FLOAT, 32, 1},
        .shape = size};
    return tcuda_jit_call(jit, &tensor, 1, NULL, 0, &tensor, 1, on) == TCUDA_STATUS_OK;
}

static void make(void)
{
    void *block = NULL, *page = NULL;
    OK(tcuda_device_set(0));
    OK(tcuda_stream_create(0, 0, &on));
    OK(tcuda_stream_create(0, 0, &other));
    OK(tcuda_event_create(0, &event));
    OK(tcuda_malloc(BYTES, 0, on, &block));
    OK(tcuda_host_malloc(4096, &page));
    memory = block;
    pinned = page;
    memset(pinned, 1, 4096);
    /* A graph tells of what was captured while the sanitizer was on. */
    OK(tcuda_sanitizer_enable(NULL));
    OK(tcuda_graph_create(0, &graph));
    OK(tcuda_graph_capture_begin(graph, on, NULL, TCUDA_CAPTURE_RELAXED));
    for (int i = 0; i < NODES; i++)
        fill(i);
    OK(tcuda_graph_capture_end(graph));
    OK(tcuda_graph_replay(graph, on));
    OK(tcuda_device_synchronize(0));
    OK(tcuda_sanitizer_disable());
}

static void print(const struct work *work, int is_table, int is_first, int rounds,
    const struct times *off, const struct times *watched, size_t reports)
{
    const double best_off = off->all[0], best_on = watched->all[0];
    const double off_ns = off->all[rounds / 2], on_ns = watched->all[rounds / 2];
    if (is_table) {
        printf("| %s | %.0f | %.0f | %.2f | %.0f | %.0f | %.2f |\n", work->name, best_off, best_on,
            best_on / best_off, off_ns, on_ns, on_ns / off_ns);
        return;
    }
    printf("%s    {\"call\": \"%s\", \"calls\": %d, \"best_off_ns\": %.1f, \"best_on_ns\": %.1f,"
        " \"best_ratio\": %.3f, \"off_ns\": %.1f, \"on_ns\": %.1f, \"ratio\": %.3f,"
        " \"reports\": %zu}", is_first ? "" : ",\n", work->name, work->calls, best_off, best_on,
        best_on / best_off, off_ns, on_ns, on_ns / off_ns, reports);
}

int main(int argc, char **argv)
{
    const int is_table = argc > 1 && strcmp(argv[1], "--table") == 0;
    const int rounds = argc > 1 + is_table ? atoi(argv[1 + is_table]) : 50;
    if (rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: sanitizer [--table] [rounds, 1 to %d]\n", MOST_ROUNDS);
        return 2;
    }
    static struct times off, watched;
    char device[256];
    size_t reports = 0;
    make();
    const int compiles = has_compiler();
    OK(tcuda_device_name(0, device, sizeof device, NULL));
    if (is_table) {
        printf("%s, %s, %d rounds of %d\n\n", tcuda_backend_name(), device, rounds, CALLS);
        printf("| calls | off, ns | on, ns | ratio | median off | median on | ratio |\n");
        printf("|---|---:|---:|---:|---:|---:|---:|\n");
    } else {
        printf("{\n  \"backend\": \"%s\",\n  \"device\": \"%s\",\n  \"rounds\": %d,\n"
            "  \"calls\": [\n", tcuda_backend_name(), device, rounds);
    }
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        if (works[i].needs_compiler && !compiles) continue;
        const size_t found = measure(&works[i], rounds, &off, &watched);
        print(&works[i], is_table, i == 0, rounds, &off, &watched, found);
        reports += found;
    }
    if (!is_table) printf("\n  ]\n}\n");
    /* A false alarm would be measured as well, and is none of the sanitizer's business here. */
    if (reports > 0) fprintf(stderr, "%zu reports of work that is in order\n", reports);
    OK(tcuda_graph_destroy(graph));
    OK(tcuda_jit_destroy(jit));
    OK(tcuda_free(memory));
    OK(tcuda_host_free(pinned));
    OK(tcuda_event_destroy(event));
    OK(tcuda_stream_destroy(other));
    OK(tcuda_stream_destroy(on));
    OK(tcuda_shutdown(NULL));
    return reports > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
