/* Graphs: captured by the library, launched by it, with memory of their own. What a host does
 * beside a capture, on whatever thread, goes on. */
#include "graph.h"

static void nothing_is_captured_yet(void)
{
    tcuda_graph *graph = create_graph(0);
    tcuda_mem_pool *pool = NULL;
    template *native = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_create(2, &graph));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_replay(graph, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_capture_end(graph));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_instantiate(graph));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_pool(graph, &pool));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_native(graph, &native, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_debug_dump(graph, "/nonexistent/x"));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_update(graph, graph));
    CHECK_OK(tcuda_graph_capture_abort(graph));
    CHECK_OK(tcuda_graph_reset(graph));
    CHECK(pool == NULL && native == NULL);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_graph_destroy(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_graph_replay(graph, NULL));
}

static void what_is_captured_runs_at_each_replay(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *other = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *bytes = allocate(2 * PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *graph = create_graph(0);
    fill_bytes(bytes, 1, 2 * PAGE, stream);
    CHECK(!is_capturing(stream));

    begin(graph, stream);
    CHECK(is_capturing(stream) && !is_capturing(other));
    fill_bytes(bytes, 2, PAGE, stream);
    CHECK_OK(tcuda_stream_wait_stream(other, stream));
    CHECK(is_capturing(other));
    CHECK_OK(tcuda_copy(bytes + PAGE, bytes, PAGE, other));
    CHECK_OK(tcuda_stream_wait_stream(stream, other));
    end(graph);
    CHECK(!is_capturing(stream) && !is_capturing(other));
    CHECK_EQ(count_other_bytes(bytes, 1, 2 * PAGE, stream), 0);

    for (int i = 0; i < 3; i++) {
        tcuda_stream *on = i == 1 ? other : i == 2 ? NULL : stream;
        fill_bytes(bytes, 9, 2 * PAGE, on);
        replay(graph, on);
        CHECK_EQ(count_other_bytes(bytes, 2, 2 * PAGE, on), 0);
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* The default stream cannot be captured; one graph holds one capture, and a stream one at a
 * time. */
static void what_cannot_be_captured(void)
{
    tcuda_stream *legacy = NULL, *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *graph = create_graph(0), *second = create_graph(0);
    CHECK_OK(tcuda_stream_default(TCUDA_CURRENT_DEVICE, &legacy));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graph_capture_begin(graph, legacy, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graph_capture_begin(graph, NULL, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_capture_begin(graph, stream, NULL, 3));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_capture_begin(graph, stream, NULL, -1));
    CHECK(!is_capturing(stream));

    begin(graph, stream);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING,
        tcuda_graph_capture_begin(second, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK(strstr(tcuda_last_error(), "tcuda_graph_capture_begin") != NULL);
    tcuda_stream *other = create_stream(TCUDA_CURRENT_DEVICE);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_graph_capture_begin(graph, other, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_replay(graph, other));
    end(graph);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_capture_abort(graph));
    CHECK_OK(tcuda_graph_reset(graph));
    begin(graph, stream);
    end(graph);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_graph_destroy(second));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

static int64_t current_id(void)
{
    tcuda_stream *stream = NULL;
    int64_t id = -1;
    CHECK_OK(tcuda_stream_current(TCUDA_CURRENT_DEVICE, &stream));
    CHECK_OK(tcuda_stream_id(stream, &id));
    return id;
}

/* A free block of 40 MiB, which a capture of torch.cuda.graph's does not find any more. */
static void cache_something(size_t *reserved)
{
    CHECK_OK(tcuda_free(allocate(40 << 20, 0, NULL)));
    CHECK_OK(tcuda_memory_reserved(0, reserved));
}

/* torch.cuda.graph: waits, empties the caches, makes a side stream current, begins; and back. */
static void a_scope_has_torchs_steps(void)
{
    tcuda_stream *own = create_stream(0), *side = NULL, *previous = NULL;
    tcuda_graph *graph = create_graph(0);
    int64_t side_id = -1, own_id = -1;
    int32_t device = -1;
    size_t before = 0, after = 0;
    bool done = false;
    CHECK_OK(tcuda_graph_stream(TCUDA_CURRENT_DEVICE, &side));
    CHECK_OK(tcuda_stream_id(side, &side_id));
    CHECK_OK(tcuda_stream_id(own, &own_id));
    CHECK_OK(tcuda_stream_set_current(own));
    char *const bytes = allocate(PAGE, 0, own);
    cache_something(&before);
    fill_bytes(bytes, 1, PAGE, own);
    CHECK_OK(tcuda_graph_begin(graph, NULL, NULL, TCUDA_CAPTURE_RELAXED, &previous, &device));
    CHECK_OK(tcuda_stream_query(own, &done));
    CHECK_OK(tcuda_memory_reserved(0, &after));
    CHECK(done && after + (40 << 20) <= before);
    CHECK(current_id() == side_id && is_capturing(NULL) && device == 0);
    fill_bytes(bytes, 2, PAGE, NULL);
    CHECK_OK(tcuda_graph_end(graph, previous, device));
    CHECK(current_id() == own_id && !is_capturing(side));
    CHECK_EQ(count_other_bytes(bytes, 1, PAGE, own), 0);
    replay(graph, own);
    CHECK_EQ(count_other_bytes(bytes, 2, PAGE, own), 0);

    /* What fails leaves all as it was: a graph that has one already, a default stream. */
    tcuda_stream *legacy = NULL, *untouched = own;
    CHECK_OK(tcuda_stream_default(0, &legacy));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_graph_begin(graph, NULL, NULL, TCUDA_CAPTURE_GLOBAL, &untouched, &device));
    CHECK_OK(tcuda_graph_reset(graph));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graph_begin(graph, legacy, NULL, TCUDA_CAPTURE_GLOBAL, &untouched, &device));
    CHECK(untouched == own && current_id() == own_id);

    /* A capture that is broken ends, and the stream is back all the same. */
    CHECK_OK(tcuda_graph_begin(graph, side, NULL, TCUDA_CAPTURE_RELAXED, &previous, &device));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_stream_synchronize(side));
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_end(graph, previous, device));
    CHECK(current_id() == own_id);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_end(graph, NULL, -1));
    CHECK_OK(tcuda_stream_set_current(legacy));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(own));
}

/* Of another device, which is current in the scope. */
static void a_scope_has_its_device(void)
{
    int32_t count = 0, current = -1, before = -1;
    tcuda_stream *previous = NULL;
    CHECK_OK(tcuda_device_count(&count));
    tcuda_stream *const far = create_stream(count - 1);
    tcuda_graph *const graph = create_graph(0);
    CHECK_OK(tcuda_graph_begin(graph, far, NULL, TCUDA_CAPTURE_GLOBAL, &previous, &before));
    CHECK_OK(tcuda_device_current(&current));
    CHECK(before == 0 && current == count - 1);
    CHECK_OK(tcuda_graph_end(graph, previous, before));
    CHECK_OK(tcuda_device_current(&current));
    CHECK_EQ(current, 0);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(far));
}

static void heard(void *user_data, tcuda_log_level level, const char *message)
{
    if (level == TCUDA_LOG_WARNING && strstr(message, "is empty") != NULL) ++*(int *)user_data;
}

static void empty_graphs_are_told(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *graph = create_graph(0);
    int lines = 0;
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_WARNING, heard, &lines, NULL));
    begin(graph, stream);
    end(graph);
    CHECK_EQ(lines, 1);
    replay(graph, stream);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void templates_are_kept(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *graph = create_graph(1), *plain = create_graph(0);
    template *native = NULL;
    executable *exec = (executable *)(void *)&exec;
    begin(graph, stream);
    fill_bytes(bytes, 3, PAGE, stream);
    end(graph);
    CHECK_OK(tcuda_graph_native(graph, &native, &exec));
    CHECK(native != NULL && exec == NULL);
    replay(graph, stream);
    CHECK_EQ(count_other_bytes(bytes, 3, PAGE, stream), 0);
    CHECK_OK(tcuda_graph_native(graph, NULL, &exec));
    CHECK(exec != NULL);
    CHECK_OK(tcuda_graph_instantiate(graph));
    CHECK_OK(tcuda_graph_instantiate(graph));
    fill_bytes(bytes, 4, PAGE, stream);
    replay(graph, stream);
    CHECK_EQ(count_other_bytes(bytes, 3, PAGE, stream), 0);

    char path[64], line[256];
    snprintf(path, sizeof path, "/tmp/tcuda_graph_%d.dot", (int)getpid());
    CHECK_OK(tcuda_graph_debug_dump(graph, path));
    FILE *file = fopen(path, "r");
    CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
    CHECK(strstr(line, "digraph") != NULL);
    fclose(file);
    unlink(path);
    CHECK_STATUS(TCUDA_STATUS_FILE_ERROR,
        tcuda_graph_debug_dump(graph, "/nonexistent/directory/x.dot"));

    begin(plain, stream);
    fill_bytes(bytes, 3, PAGE, stream);
    end(plain);
    CHECK_OK(tcuda_graph_native(plain, &native, &exec));
    CHECK(native == NULL && exec != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_instantiate(plain));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_debug_dump(plain, path));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_update(graph, plain));
    CHECK_OK(tcuda_graph_destroy(plain));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void parameters_are_taken_over(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *bytes = allocate(2 * PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *graph = create_graph(0), *source = create_graph(1), *longer = create_graph(1);
    fill_bytes(bytes, 1, 2 * PAGE, stream);
    begin(graph, stream);
    fill_bytes(bytes, 2, PAGE, stream);
    end(graph);
    begin(source, stream);
    unsigned char *own = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    fill_bytes(own, 3, PAGE, stream);
    end(source);
    begin(longer, stream);
    fill_bytes(bytes, 4, PAGE, stream);
    fill_bytes(bytes, 5, PAGE, stream);
    end(longer);

    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_graph_update(graph, longer));
    replay(graph, stream);
    CHECK_EQ(count_other_bytes(bytes, 2, PAGE, stream), 0);
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_graph_update(graph, source));
    CHECK_OK(tcuda_graph_destroy(source));
    /* What it writes now is the memory of `source`, which no other allocation gets. */
    CHECK_OK(tcuda_free(own));
    CHECK_OK(tcuda_memory_empty_cache());
    fill_bytes(bytes, 1, PAGE, stream);
    replay(graph, stream);
    CHECK_EQ(count_other_bytes(own, 3, PAGE, stream), 0);
    CHECK_EQ(count_other_bytes(bytes, 1, PAGE, stream), 0);
    /* A kept graph is updated by itself, too. */
    CHECK_OK(tcuda_graph_instantiate(longer));
    CHECK_OK(tcuda_graph_update(longer, longer));
    CHECK_OK(tcuda_graph_destroy(longer));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void captures_can_be_broken_and_aborted(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *graph = create_graph(0);
    CHECK_OK(tcuda_memory_empty_cache());
    const uint64_t before = reserved();
    for (int way = 0; way < 6; way++) {
        const int mode = way % 3;
        CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, mode));
        unsigned char *block = allocate(3 * MIB, TCUDA_CURRENT_DEVICE, stream);
        fill_bytes(block, 2, PAGE, stream);
        CHECK_OK(tcuda_free(block));
        if (way < 3) {
            CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_stream_synchronize(stream));
            CHECK(is_capturing(stream));
            CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_capture_end(graph));
            CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_capture_end(graph));
        }
        CHECK_OK(tcuda_graph_capture_abort(graph));
        CHECK(!is_capturing(stream));
        fill_bytes(bytes, way, PAGE, stream);
        CHECK_EQ(count_other_bytes(bytes, way, PAGE, stream), 0);
        CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_replay(graph, stream));
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_EQ(reserved(), before);
    }
    /* What was not joined is no graph. */
    tcuda_stream *branch = create_stream(TCUDA_CURRENT_DEVICE);
    begin(graph, stream);
    CHECK_OK(tcuda_stream_wait_stream(branch, stream));
    fill_bytes(bytes, 2, PAGE, stream);
    fill_bytes(bytes, 2, PAGE, branch);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_graph_capture_end(graph));
    CHECK(!is_capturing(stream) && !is_capturing(branch));
    /* Destroying a graph aborts its capture. */
    begin(graph, stream);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK(!is_capturing(stream));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(branch));
}

static void *end_on_a_thread(void *user_data)
{
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_capture_end(user_data));
    return NULL;
}

static void *end_relaxed(void *user_data)
{
    end(user_data);
    return NULL;
}

static void *abort_on_a_thread(void *user_data)
{
    CHECK_OK(tcuda_graph_capture_abort(user_data));
    return NULL;
}

static void captures_end_on_their_thread(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    for (int mode = TCUDA_CAPTURE_GLOBAL; mode <= TCUDA_CAPTURE_RELAXED; mode++) {
        tcuda_graph *graph = create_graph(0);
        CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, mode));
        fill_bytes(bytes, mode, PAGE, stream);
        if (mode == TCUDA_CAPTURE_RELAXED) {
            run_on_thread(end_relaxed, graph);
        } else {
            run_on_thread(end_on_a_thread, graph);
            CHECK(is_capturing(stream));
            end(graph);
        }
        replay(graph, stream);
        CHECK_EQ(count_other_bytes(bytes, mode, PAGE, stream), 0);
        CHECK_OK(tcuda_graph_reset(graph));
        CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, mode));
        run_on_thread(abort_on_a_thread, graph);
        CHECK(!is_capturing(stream));
        CHECK_OK(tcuda_graph_destroy(graph));
    }
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

enum { THREADS = 4, ROUNDS = 20 };

static atomic_int capturing_threads;

/* The streams that are captured again and again. */
static tcuda_stream *captured_streams[THREADS];

static void *capture_on_a_thread(void *user_data)
{
    const int number = *(int *)user_data;
    tcuda_stream *stream = captured_streams[number - 1];
    for (int round = 0; round < ROUNDS; round++) {
        tcuda_graph *graph = create_graph(round % 2);
        CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, 1 + round % 2));
        unsigned char *bytes = allocate((size_t)PAGE * (1 + round), TCUDA_CURRENT_DEVICE, stream);
        fill_bytes(bytes, number, PAGE, stream);
        unsigned char *copy = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
        CHECK_OK(tcuda_copy(copy, bytes, PAGE, stream));
        end(graph);
        for (int i = 0; i < 3; i++) {
            fill_bytes(copy, 99, PAGE, stream);
            replay(graph, stream);
            CHECK_EQ(count_other_bytes(copy, number, PAGE, stream), 0);
        }
        CHECK_OK(tcuda_free(bytes));
        CHECK_OK(tcuda_free(copy));
        CHECK_OK(tcuda_graph_destroy(graph));
    }
    atomic_fetch_sub(&capturing_threads, 1);
    return NULL;
}

/* What it frees waits for the streams that are captured: they are asked, and events are recorded
 * on them, unless they are captured just then. */
static void *allocate_beside(void *user_data)
{
    tcuda_stream *stream = captured_streams[*(int *)user_data - 1];
    for (int round = 0; atomic_load(&capturing_threads) > 0; round++) {
        const size_t bytes = (size_t)(1 + round % ROUNDS) * MIB;
        unsigned char *block = allocate(bytes, TCUDA_CURRENT_DEVICE, stream);
        fill_bytes(block, round, PAGE, stream);
        for (int i = 0; i < THREADS - 1; i++)
            CHECK_OK(tcuda_record_stream(block, captured_streams[i]));
        CHECK_OK(tcuda_free(block));
        if (round % 16 == 0)
            CHECK_OK(tcuda_memory_empty_cache());
    }
    return NULL;
}

/* Several captures at a time, while others wait for their streams, allocate and give memory
 * back: a capture with TCUDA_CAPTURE_GLOBAL would forbid the waiting. */
static void threads_capture_at_once(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    atomic_store(&capturing_threads, THREADS - 1);
    for (int i = 0; i < THREADS; i++)
        captured_streams[i] = create_stream(TCUDA_CURRENT_DEVICE);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i + 1;
        threads[i] = start_thread(i < THREADS - 1 ? capture_on_a_thread : allocate_beside,
            &numbers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    for (int i = 0; i < THREADS; i++)
        CHECK_OK(tcuda_stream_destroy(captured_streams[i]));
}

int main(void)
{
    bool capturing = true;
    CHECK_OK(tcuda_stream_is_capturing(NULL, &capturing));
    CHECK(!capturing);
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    nothing_is_captured_yet();
    what_is_captured_runs_at_each_replay();
    what_cannot_be_captured();
    a_scope_has_torchs_steps();
    a_scope_has_its_device();
    empty_graphs_are_told();
    templates_are_kept();
    parameters_are_taken_over();
    captures_can_be_broken_and_aborted();
    captures_end_on_their_thread();
    threads_capture_at_once();
    return finish();
}
