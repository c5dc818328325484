/* Very many of a thing at once: each costs about as much as the first. Times are those of this
 * process, so that others on the machine do not count, and what is four times as many may take
 * eight times as long. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double time_of(void (*body)(int), int count)
{
    const double begin = seconds();
    body(count);
    return seconds() - begin;
}

/* What takes no time says nothing. */
static void is_linear(const char *name, void (*body)(int), int count)
{
    body(count / 4);
    for (int attempt = 0;; attempt++) {
        const double few = time_of(body, count / 4), many = time_of(body, count);
        printf("%s: %.3f s for %d, %.3f s for %d\n", name, few, count / 4, many, count);
        if (many < 0.2 || many < 8 * few)
            return;
        CHECK(attempt < 3);
    }
}

static void scopes(int count)
{
    void *block;
    for (int i = 0; i < count; i++) {
        CHECK_OK(tcuda_memory_stats_push(0));
        CHECK_OK(tcuda_malloc(512, 0, NULL, &block));
        CHECK_OK(tcuda_free(block));
    }
    for (int i = 0; i < count; i++) {
        tcuda_memory_statistics statistics = TCUDA_INIT(tcuda_memory_statistics);
        CHECK_OK(tcuda_memory_stats_pop(0, &statistics));
        CHECK_EQ(statistics.allocation.all.allocated, i + 1);
    }
}

static atomic_int called;

static void counts(void *user_data)
{
    (void)user_data;
    atomic_fetch_add(&called, 1);
}

static void callbacks(int count)
{
    static gate held;
    const int before = atomic_load(&called);
    tcuda_stream *stream = create_stream(0);
    gate_close(&held, stream);
    for (int i = 0; i < count; i++)
        CHECK_OK(tcuda_stream_add_callback(stream, counts, NULL, NULL));
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(atomic_load(&called), before + count);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void functions_of_a_graph(int count)
{
    tcuda_graph *graph = NULL;
    tcuda_stream *stream = create_stream(0);
    const int before = atomic_load(&called);
    CHECK_OK(tcuda_graph_create(false, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    for (int i = 0; i < count; i++)
        CHECK_OK(tcuda_stream_add_callback(stream, counts, NULL, counts));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(atomic_load(&called), before + count);
}

static void pools(int count)
{
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    for (int i = 0; i < count; i++)
        CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    for (int i = 0; i < count; i++)
        CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_init());
    is_linear("nested scopes of statistics", scopes, 8000);
    is_linear("pending callbacks", callbacks, 40000);
    is_linear("functions of a graph", functions_of_a_graph, 20000);
    is_linear("nested pools", pools, 40000);
    return finish();
}
