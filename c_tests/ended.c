/* Streams, threads, pools and graphs that come and go leave nothing: no addresses, no tables, no
 * memory, no descriptor, and the next one costs what the first did. `--rounds N` or `--seconds N`
 * lets every case run longer; a name after that runs one case. */
#define _GNU_SOURCE

#include <dirent.h>

#include "support.h"
#include "graph.h"

typedef struct {
    long maps, resident, descriptors;
    size_t reserved;
} usage;

static long lines_of(const char *path)
{
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    long lines = 0;
    for (int c; (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    CHECK_EQ(fclose(file), 0);
    return lines;
}

static usage used_now(void)
{
    usage now = { lines_of("/proc/self/maps"), 0, 0, 0 };
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;
    CHECK(file != NULL && fscanf(file, "%ld %ld", &pages, &now.resident) == 2);
    CHECK_EQ(fclose(file), 0);
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != NULL);
    while (readdir(directory) != NULL)
        now.descriptors++;
    CHECK_EQ(closedir(directory), 0);
    CHECK_OK(tcuda_memory_reserved(0, &now.reserved));
    return now;
}

static long rounds = 240;
static double seconds;

static double clock_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Do streams run beside the host? Then some 128 of those that ended at work wait for the next
 * search, with their memory. */
static bool runs_beside(void)
{
    const char *options = getenv("TCUDA_SIM");
    return options != NULL && strstr(options, "schedule=") != NULL;
}

/* Runs the rounds of a case; after the first half of them nothing grows any more. */
static void run_rounds(const char *name, void (*round)(void))
{
    const double began = clock_now();
    usage early = { 0, 0, 0, 0 };
    double first_part = 0;
    long done = 0;
    for (; seconds > 0 ? clock_now() - began < seconds : done < rounds; done++) {
        if (seconds > 0 ? done == 1000 : done == rounds / 2) {
            early = used_now();
            first_part = clock_now() - began;
        }
        round();
    }
    const usage late = used_now();
    printf("%s: %ld rounds, %.1f us each at first and %.1f in all; maps %ld to %ld, resident pages "
        "%ld to %ld, descriptors %ld to %ld, reserved %zu to %zu\n", name, done,
        first_part * 1e6 / (double)(seconds > 0 ? 1000 : rounds / 2),
        (clock_now() - began) * 1e6 / (double)done, early.maps, late.maps, early.resident,
        late.resident, early.descriptors, late.descriptors, early.reserved, late.reserved);
    CHECK(late.maps <= early.maps + (runs_beside() ? 200 : 40));
    /* AddressSanitizer keeps freed memory for a time. Where work runs beside the host, a busy
     * machine has more streams whose work is not over. */
    CHECK(UNDER_ADDRESS_SANITIZER
        || late.resident <= early.resident + (runs_beside() ? 8000 : 2000));
    CHECK(late.descriptors <= early.descriptors);
    CHECK(late.reserved <= early.reserved + ((size_t)(runs_beside() ? 1600 : 64) << 20));
}

static bool empties;

static void allocate_on(tcuda_stream *stream)
{
    void *small = allocate(1000, 0, stream), *large = allocate(3 << 20, 0, stream);
    CHECK_OK(tcuda_free(small));
    CHECK_OK(tcuda_free(large));
}

static void *thread_body(void *unused)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_from_external(0, (struct CUstream_st *)2, &stream));
    allocate_on(stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    return unused;
}

static void thread_round(void)
{
    run_on_thread(thread_body, NULL);
    if (empties)
        CHECK_OK(tcuda_memory_empty_cache());
}

static int (*driver_create)(struct CUstream_st **, unsigned flags, int priority);
static int (*driver_destroy)(struct CUstream_st *);

static void find(const char *name, void *function)
{
    void *address = NULL;
    CHECK_OK(tcuda_backend_function(name, &address));
    CHECK(address != NULL);
    memcpy(function, &address, sizeof address);
}

enum { AT_ONCE = 4 };

static bool allocates;

static void external_round(void)
{
    struct CUstream_st *native[AT_ONCE];
    tcuda_stream *streams[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        CHECK_EQ(driver_create(&native[i], 1, 0), 0);
        CHECK_OK(tcuda_stream_from_external(0, native[i], &streams[i]));
        if (allocates)
            allocate_on(streams[i]);
    }
    for (int i = 0; i < AT_ONCE; i++) {
        CHECK_OK(tcuda_stream_destroy(streams[i]));
        CHECK_EQ(driver_destroy(native[i]), 0);
    }
    if (empties)
        CHECK_OK(tcuda_memory_empty_cache());
}

/* What names streams is searched for those that ended: blocks that other processes may have, and
 * handles of allocations, are no exception. */
static void streams_beside_exports(void)
{
    void *const exported = allocate(1000, 0, NULL);
    tcuda_ipc_handle handle;
    CHECK_OK(tcuda_ipc_export(exported, NULL, &handle));
    struct CUstream_st *native = NULL;
    tcuda_stream *stream = NULL, *of_allocation = NULL;
    CHECK_EQ(driver_create(&native, 1, 0), 0);
    CHECK_OK(tcuda_stream_from_external(0, native, &stream));
    tcuda_allocation *allocation = NULL;
    void *block = NULL;
    CHECK_OK(tcuda_allocation_create(1000, 0, stream, &allocation));
    CHECK_OK(tcuda_allocation_pointer(allocation, &block));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_EQ(driver_destroy(native), 0);
    allocates = true;
    for (int i = 0; i < 200; i++)
        external_round();
    allocates = false;
    CHECK_OK(tcuda_allocation_stream(allocation, &of_allocation));
    CHECK(of_allocation != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_allocation_destroy(allocation));
    CHECK_OK(tcuda_free(exported));
}

/* One that was a thread's current stream, and used another's block. */
static void current_round(void)
{
    struct CUstream_st *native = NULL;
    tcuda_stream *stream = NULL, *before = NULL, *borrowed = NULL;
    int32_t device = -1;
    CHECK_EQ(driver_create(&native, 1, 0), 0);
    CHECK_OK(tcuda_stream_from_external(0, native, &stream));
    CHECK_OK(tcuda_stream_exchange(stream, &before, &device));
    void *block = allocate(1000, 0, NULL), *kept = allocate(5000, 0, before);
    CHECK_OK(tcuda_record_stream(kept, stream));
    CHECK_OK(tcuda_free(kept));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_exchange(before, &borrowed, &device));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_EQ(driver_destroy(native), 0);
}

static void pool_round(void)
{
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    allocate_on(NULL);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
}

static tcuda_stream *first, *second;

static void graph_round(void)
{
    tcuda_graph *graph = NULL;
    void *block = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    begin(graph, first);
    block = allocate(256, 0, first);
    CHECK_OK(tcuda_fill(block, "", 1, 256, first));
    end(graph);
    CHECK_OK(tcuda_graph_replay(graph, second));
    CHECK_OK(tcuda_record_stream(block, second));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_device_synchronize(0));
}

/* A capture gets the memory of graphs that are gone, of its stream and of others. */
static void capture_beside_dead_graphs(void)
{
    size_t available = 0, total = 0;
    CHECK_OK(tcuda_memory_info(0, &available, &total));
    if (total > (size_t)1 << 30)
        return;
    tcuda_stream *streams[] = { first, second };
    for (int i = 0; i < 4; i++) {
        tcuda_graph *graph = NULL;
        void *block = NULL;
        CHECK_OK(tcuda_graph_create(0, &graph));
        begin(graph, streams[i % 2]);
        block = allocate(total / 5 * (size_t)(i < 2 ? 2 : 4), 0, streams[i % 2]);
        CHECK_OK(tcuda_fill(block, "", 1, 256, streams[i % 2]));
        end(graph);
        CHECK_OK(tcuda_graph_replay(graph, second));
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_graph_destroy(graph));
        CHECK_OK(tcuda_device_synchronize(0));
    }
}

/* The work of graphs that are gone ends only after the next capture of their stream has begun,
 * which then gets the memory of all of them. */
static void work_ends_in_the_next_capture(void)
{
    enum { GRAPHS = 3 };
    size_t available = 0, total = 0;
    gate held;
    CHECK_OK(tcuda_memory_info(0, &available, &total));
    if (total > (size_t)1 << 30 || !runs_late())
        return;
    for (int i = 0; i < 3; i++) {
        tcuda_graph *gone[GRAPHS], *next = NULL;
        bool is_over = false;
        void *block = NULL;
        CHECK_OK(tcuda_memory_empty_cache());
        for (int j = 0; j < GRAPHS; j++) {
            CHECK_OK(tcuda_graph_create(0, &gone[j]));
            begin(gone[j], first);
            block = allocate(total / 4, 0, first);
            CHECK_OK(tcuda_fill(block, "", 1, 256, first));
            end(gone[j]);
            CHECK_OK(tcuda_free(block));
        }
        gate_close(&held, second);
        for (int j = 0; j < GRAPHS; j++)
            CHECK_OK(tcuda_graph_replay(gone[j], second));
        for (int j = 0; j < GRAPHS; j++)
            CHECK_OK(tcuda_graph_destroy(gone[j]));
        CHECK_OK(tcuda_graph_create(0, &next));
        CHECK_OK(tcuda_graph_capture_begin(next, first, NULL, TCUDA_CAPTURE_RELAXED));
        gate_open(&held);
        while (!is_over)
            CHECK_OK(tcuda_stream_query(second, &is_over));
        block = allocate(total / 5 * 4, 0, first);
        CHECK_OK(tcuda_fill(block, "", 1, 256, first));
        end(next);
        CHECK_OK(tcuda_graph_replay(next, first));
        CHECK_OK(tcuda_stream_synchronize(first));
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_graph_destroy(next));
        CHECK_OK(tcuda_device_synchronize(0));
    }
}

/* Pools that live at a time, each with memory: what the last one gets is as good as what the first
 * got. */
static void pools_at_a_time(void)
{
    enum { POOLS = 300 };
    static tcuda_mem_pool *pools[POOLS];
    static void *blocks[POOLS];
    size_t available = 0, total = 0;
    CHECK_OK(tcuda_memory_info(0, &available, &total));
    if (available < (size_t)8 << 30)
        return;
    for (int i = 0; i < POOLS; i++) {
        CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pools[i]));
        CHECK_OK(tcuda_mem_pool_begin(pools[i], 0));
        blocks[i] = allocate(1000, 0, NULL);
        CHECK_OK(tcuda_mem_pool_end(pools[i], 0));
    }
    /* The last one grows beyond what it began with. */
    enum { MORE = 100 };
    void *more[MORE];
    CHECK_OK(tcuda_mem_pool_begin(pools[POOLS - 1], 0));
    for (int i = 0; i < MORE; i++)
        more[i] = allocate((size_t)(i + 1) << 20, 0, NULL);
    CHECK_OK(tcuda_mem_pool_end(pools[POOLS - 1], 0));
    for (int i = 0; i < MORE; i++) {
        CHECK_OK(tcuda_free(more[i]));
    }
    for (int i = 0; i < POOLS; i++) {
        CHECK_OK(tcuda_free(blocks[i]));
        CHECK_OK(tcuda_mem_pool_destroy(pools[i]));
    }
    CHECK_OK(tcuda_memory_empty_cache());
    size_t left = 1;
    CHECK_OK(tcuda_memory_reserved(0, &left));
    CHECK(left <= 64 << 20);
}

static const char *only;

static bool runs(const char *name)
{
    return only == NULL || strcmp(only, name) == 0;
}

int main(int count, char **arguments)
{
    SKIP_WITHOUT_GPU();
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--rounds") == 0 && i + 1 < count)
            rounds = atol(arguments[++i]);
        else if (strcmp(arguments[i], "--seconds") == 0 && i + 1 < count)
            seconds = atof(arguments[++i]);
        else
            only = arguments[i];
    }
    find("cuStreamCreateWithPriority", &driver_create);
    find("cuStreamDestroy", &driver_destroy);
    CHECK_OK(tcuda_device_set(0));
    first = create_stream(0);
    second = create_stream(0);
    allocate_on(NULL);
    for (int i = 0; i < 2; i++) {
        empties = i == 1;
        if (runs("threads"))
            run_rounds(empties ? "threads, emptied" : "threads", thread_round);
        allocates = true;
        if (runs("streams"))
            run_rounds(empties ? "streams, emptied" : "streams", external_round);
    }
    empties = allocates = false;
    if (runs("exports"))
        streams_beside_exports();
    if (runs("handles"))
        run_rounds("handles", external_round);
    if (runs("current"))
        run_rounds("current", current_round);
    if (runs("pools"))
        run_rounds("pools", pool_round);
    if (runs("graphs"))
        run_rounds("graphs", graph_round);
    if (runs("captures"))
        capture_beside_dead_graphs();
    if (runs("captures"))
        work_ends_in_the_next_capture();
    if (runs("many"))
        pools_at_a_time();
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
    return finish();
}
