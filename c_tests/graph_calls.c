/* Every function of tcuda.h while a stream is captured: it works and leaves the capture alone,
 * is recorded, or is refused with a status and a name; what CUDA says breaks a capture does, and
 * no more than that. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

enum { BYTES = 4096 };

/* What a call may find. */
struct scene {
    tcuda_stream *captured, *other;
    tcuda_event *event, *recorded, *external;
    tcuda_mem_pool *pool;
    tcuda_graph *ready, *kept, *under_way;
    unsigned char *captured_bytes, *bytes, *pinned;
};

enum effect { WORKS, IS_REFUSED, BREAKS };

struct row {
    const char *name;
    enum effect effect;
    tcuda_status (*call)(struct scene *scene);
};

#define ROW(function, effect) { #function, effect, on_##function }
#define CALL(function) static tcuda_status on_##function(struct scene *s)
#define UNUSED (void)s

/* ---- Devices, the library ---- */

CALL(tcuda_init) { UNUSED; return tcuda_init(); }
CALL(tcuda_is_available) { bool b; UNUSED; return tcuda_is_available(&b); }
CALL(tcuda_device_count) { int32_t n; UNUSED; return tcuda_device_count(&n); }
CALL(tcuda_device_set) { UNUSED; return tcuda_device_set(0); }
CALL(tcuda_device_name)
{
    char text[256];
    UNUSED;
    return tcuda_device_name(0, text, sizeof text, NULL);
}
CALL(tcuda_device_properties)
{
    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    UNUSED;
    return tcuda_device_properties(0, &info);
}
CALL(tcuda_device_synchronize) { UNUSED; return tcuda_device_synchronize(0); }

/* ---- Streams and events ---- */

CALL(tcuda_stream_create)
{
    tcuda_stream *stream;
    UNUSED;
    const tcuda_status status = tcuda_stream_create(0, -1, &stream);
    if (status == TCUDA_STATUS_OK) CHECK_OK(tcuda_stream_destroy(stream));
    return status;
}
CALL(tcuda_stream_current)
{
    tcuda_stream *stream;
    UNUSED;
    return tcuda_stream_current(0, &stream);
}
CALL(tcuda_stream_exchange)
{
    tcuda_stream *before;
    int32_t device;
    CHECK_OK(tcuda_stream_exchange(s->captured, &before, &device));
    return tcuda_stream_set_current(before);
}
CALL(tcuda_stream_query) { bool b; return tcuda_stream_query(s->captured, &b); }
CALL(tcuda_stream_synchronize) { return tcuda_stream_synchronize(s->captured); }
CALL(tcuda_stream_native) { struct CUstream_st *n; return tcuda_stream_native(s->captured, &n); }
CALL(tcuda_stream_id) { int64_t id; return tcuda_stream_id(s->captured, &id); }
CALL(tcuda_stream_priority) { int32_t p; return tcuda_stream_priority(s->captured, &p); }
CALL(tcuda_stream_is_capturing) { bool b; return tcuda_stream_is_capturing(s->captured, &b); }
CALL(tcuda_stream_wait_stream)
{
    CHECK_OK(tcuda_stream_wait_stream(s->other, s->captured));
    fill_bytes(s->bytes, 7, BYTES, s->other);
    return tcuda_stream_wait_stream(s->captured, s->other);
}
CALL(tcuda_stream_wait_event)
{
    CHECK_OK(tcuda_stream_record_event(s->captured, s->event));
    return tcuda_stream_wait_event(s->captured, s->event);
}
/* What was recorded before the capture is no part of it. */
CALL(tcuda_event_wait) { return tcuda_event_wait(s->recorded, s->captured); }
CALL(tcuda_event_record)
{
    return tcuda_event_record(s->external, s->captured);
}
CALL(tcuda_event_query)
{
    bool b;
    CHECK_OK(tcuda_event_record(s->event, s->captured));
    return tcuda_event_query(s->event, &b);
}
CALL(tcuda_event_synchronize)
{
    CHECK_OK(tcuda_event_record(s->event, s->captured));
    return tcuda_event_synchronize(s->event);
}
CALL(tcuda_event_create)
{
    tcuda_event *event;
    UNUSED;
    CHECK_OK(tcuda_event_create(TCUDA_EVENT_TIMING, &event));
    return tcuda_event_destroy(event);
}
static void host_function(void *user_data) { (void)user_data; }
CALL(tcuda_stream_add_callback)
{
    return tcuda_stream_add_callback(s->captured, host_function, NULL, NULL);
}

/* ---- Work ---- */

CALL(tcuda_copy) { return tcuda_copy(s->bytes, s->captured_bytes, BYTES, s->captured); }
CALL(tcuda_copy_2d)
{
    return tcuda_copy_2d(s->bytes, 64, s->captured_bytes, 64, 32, 8, s->captured);
}
CALL(tcuda_fill)
{
    const uint32_t value[3] = {1, 2, 3};
    CHECK_OK(tcuda_fill(s->bytes, value, 12, BYTES / 12, s->captured));
    return tcuda_fill(s->bytes, value, 1, BYTES, s->captured);
}
CALL(tcuda_host_record) { return tcuda_host_record(s->pinned, s->captured); }
static tcuda_status copy_pinned(struct scene *s)
{
    return tcuda_copy(s->captured_bytes, s->pinned, BYTES, s->captured);
}

/* ---- Memory ---- */

CALL(tcuda_malloc)
{
    void *small, *large;
    CHECK_OK(tcuda_malloc(3, 0, s->captured, &small));
    CHECK_OK(tcuda_malloc(30 << 20, 0, s->captured, &large));
    CHECK_OK(tcuda_free(small));
    return tcuda_free(large);
}
CALL(tcuda_record_stream)
{
    void *block;
    CHECK_OK(tcuda_malloc(BYTES, 0, s->other, &block));
    CHECK_OK(tcuda_record_stream(block, s->captured));
    return tcuda_free(block);
}
CALL(tcuda_allocation_create)
{
    tcuda_allocation *allocation;
    CHECK_OK(tcuda_allocation_create(BYTES, 0, s->captured, &allocation));
    return tcuda_allocation_destroy(allocation);
}
CALL(tcuda_memory_empty_cache) { UNUSED; return tcuda_memory_empty_cache(); }
CALL(tcuda_memory_info) { size_t a, b; UNUSED; return tcuda_memory_info(0, &a, &b); }
CALL(tcuda_memory_stats)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    UNUSED;
    CHECK_OK(tcuda_memory_reset_peak(0));
    return tcuda_memory_stats(0, &stats);
}
CALL(tcuda_memory_stats_push)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    UNUSED;
    CHECK_OK(tcuda_memory_stats_push(0));
    return tcuda_memory_stats_pop(0, &stats);
}
CALL(tcuda_memory_summary) { UNUSED; return tcuda_memory_summary(0, 0, NULL, 0, NULL); }
CALL(tcuda_memory_snapshot_create)
{
    tcuda_memory_snapshot *snapshot;
    UNUSED;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    return tcuda_memory_snapshot_destroy(snapshot);
}
CALL(tcuda_memory_fraction_set) { UNUSED; return tcuda_memory_fraction_set(0, 1.0); }
CALL(tcuda_host_malloc)
{
    void *small, *large;
    UNUSED;
    CHECK_OK(tcuda_host_malloc(100, &small));
    CHECK_OK(tcuda_host_malloc(70 << 20, &large));
    CHECK_OK(tcuda_host_free(small));
    return tcuda_host_free(large);
}
CALL(tcuda_host_memory_empty_cache) { UNUSED; return tcuda_host_memory_empty_cache(); }
CALL(tcuda_host_memory_stats)
{
    tcuda_host_memory_statistics stats = TCUDA_INIT(tcuda_host_memory_statistics);
    UNUSED;
    return tcuda_host_memory_stats(&stats);
}
CALL(tcuda_mem_pool_create)
{
    tcuda_mem_pool *pool;
    void *block;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_OK(tcuda_malloc(BYTES, 0, s->captured, &block));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    return tcuda_mem_pool_destroy(pool);
}
CALL(tcuda_mem_pool_snapshot)
{
    tcuda_memory_snapshot *snapshot;
    CHECK_OK(tcuda_mem_pool_snapshot(s->pool, 0, &snapshot));
    return tcuda_memory_snapshot_destroy(snapshot);
}
/* It waits for the device. */
CALL(tcuda_mem_pool_sleep) { return tcuda_mem_pool_sleep(s->pool, 0); }

/* ---- Graphs ---- */

CALL(tcuda_graph_capture_begin)
{
    return tcuda_graph_capture_begin(s->kept, s->captured, NULL, TCUDA_CAPTURE_GLOBAL);
}
CALL(tcuda_graph_replay) { return tcuda_graph_replay(s->ready, s->captured); }
static tcuda_status replay_elsewhere(struct scene *s)
{
    return tcuda_graph_replay(s->ready, s->other);
}
CALL(tcuda_graph_instantiate) { return tcuda_graph_instantiate(s->kept); }
CALL(tcuda_graph_update) { return tcuda_graph_update(s->kept, s->kept); }
CALL(tcuda_graph_native)
{
    struct CUgraph_st *graph;
    return tcuda_graph_native(s->kept, &graph, NULL);
}
CALL(tcuda_graph_debug_dump)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/tcuda_graph_calls_%d.dot", (int)getpid());
    const tcuda_status status = tcuda_graph_debug_dump(s->kept, path);
    unlink(path);
    return status;
}
CALL(tcuda_graph_pool)
{
    tcuda_mem_pool *pool;
    CHECK_OK(tcuda_graph_pool(s->ready, &pool));
    return tcuda_mem_pool_destroy(pool);
}
CALL(tcuda_graph_reset)
{
    tcuda_graph *graph;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, s->other, NULL, TCUDA_CAPTURE_RELAXED));
    fill_bytes(s->bytes, 1, BYTES, s->other);
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_reset(graph));
    return tcuda_graph_destroy(graph);
}

static const struct row rows[] = {
    ROW(tcuda_init, WORKS), ROW(tcuda_is_available, WORKS), ROW(tcuda_device_count, WORKS),
    ROW(tcuda_device_set, WORKS), ROW(tcuda_device_name, WORKS),
    ROW(tcuda_device_properties, WORKS), ROW(tcuda_device_synchronize, BREAKS),
    ROW(tcuda_stream_create, WORKS), ROW(tcuda_stream_current, WORKS),
    ROW(tcuda_stream_exchange, WORKS), ROW(tcuda_stream_query, BREAKS),
    ROW(tcuda_stream_synchronize, BREAKS), ROW(tcuda_stream_native, WORKS),
    ROW(tcuda_stream_id, WORKS), ROW(tcuda_stream_priority, WORKS),
    ROW(tcuda_stream_is_capturing, WORKS), ROW(tcuda_stream_wait_stream, WORKS),
    ROW(tcuda_stream_wait_event, WORKS), ROW(tcuda_event_wait, BREAKS),
    ROW(tcuda_event_record, WORKS), ROW(tcuda_event_query, BREAKS),
    ROW(tcuda_event_synchronize, BREAKS), ROW(tcuda_event_create, WORKS),
    ROW(tcuda_stream_add_callback, WORKS),
    ROW(tcuda_copy, WORKS), ROW(tcuda_copy_2d, WORKS), ROW(tcuda_fill, WORKS),
    ROW(tcuda_host_record, WORKS), { "tcuda_copy of pinned memory", WORKS, copy_pinned },
    ROW(tcuda_malloc, WORKS), ROW(tcuda_record_stream, WORKS),
    ROW(tcuda_allocation_create, WORKS), ROW(tcuda_memory_empty_cache, WORKS),
    ROW(tcuda_memory_info, WORKS), ROW(tcuda_memory_stats, WORKS),
    ROW(tcuda_memory_stats_push, WORKS), ROW(tcuda_memory_summary, WORKS),
    ROW(tcuda_memory_snapshot_create, WORKS), ROW(tcuda_memory_fraction_set, WORKS),
    ROW(tcuda_host_malloc, WORKS), ROW(tcuda_host_memory_empty_cache, WORKS),
    ROW(tcuda_host_memory_stats, WORKS), ROW(tcuda_mem_pool_create, WORKS),
    ROW(tcuda_mem_pool_snapshot, WORKS), ROW(tcuda_mem_pool_sleep, BREAKS),
    ROW(tcuda_graph_capture_begin, IS_REFUSED), ROW(tcuda_graph_replay, IS_REFUSED),
    { "tcuda_graph_replay elsewhere", WORKS, replay_elsewhere },
    ROW(tcuda_graph_instantiate, WORKS), ROW(tcuda_graph_update, WORKS),
    ROW(tcuda_graph_native, WORKS), ROW(tcuda_graph_debug_dump, WORKS),
    ROW(tcuda_graph_pool, WORKS), ROW(tcuda_graph_reset, WORKS),
};

static void capture_into(tcuda_graph *graph, struct scene *s)
{
    CHECK_OK(tcuda_graph_capture_begin(graph, s->other, s->pool, TCUDA_CAPTURE_RELAXED));
    fill_bytes(s->bytes, 3, BYTES, s->other);
    CHECK_OK(tcuda_graph_capture_end(graph));
}

static void begin_scene(struct scene *s)
{
    void *pinned = NULL;
    s->captured = create_stream(0);
    s->other = create_stream(0);
    s->event = create_event(0);
    s->recorded = create_event(0);
    s->external = create_event(TCUDA_EVENT_EXTERNAL);
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &s->pool));
    CHECK_OK(tcuda_mem_pool_begin(s->pool, 0));
    CHECK_OK(tcuda_free(allocate(BYTES, 0, s->other)));
    CHECK_OK(tcuda_mem_pool_end(s->pool, 0));
    s->captured_bytes = allocate(BYTES, 0, s->captured);
    s->bytes = allocate(BYTES, 0, s->other);
    CHECK_OK(tcuda_host_malloc(BYTES, &pinned));
    s->pinned = pinned;
    fill_bytes(s->captured_bytes, 1, BYTES, s->captured);
    fill_bytes(s->bytes, 2, BYTES, s->other);
    CHECK_OK(tcuda_graph_create(0, &s->ready));
    CHECK_OK(tcuda_graph_create(1, &s->kept));
    CHECK_OK(tcuda_graph_create(0, &s->under_way));
    capture_into(s->ready, s);
    capture_into(s->kept, s);
    CHECK_OK(tcuda_graph_instantiate(s->kept));
    CHECK_OK(tcuda_event_record(s->recorded, s->other));
    CHECK_OK(tcuda_device_synchronize(0));
}

static void end_scene(struct scene *s)
{
    CHECK_OK(tcuda_graph_destroy(s->under_way));
    CHECK_OK(tcuda_graph_destroy(s->kept));
    CHECK_OK(tcuda_graph_destroy(s->ready));
    CHECK_OK(tcuda_mem_pool_destroy(s->pool));
    CHECK_OK(tcuda_host_free(s->pinned));
    CHECK_OK(tcuda_free(s->captured_bytes));
    CHECK_OK(tcuda_free(s->bytes));
    CHECK_OK(tcuda_event_destroy(s->event));
    CHECK_OK(tcuda_event_destroy(s->recorded));
    CHECK_OK(tcuda_event_destroy(s->external));
    CHECK_OK(tcuda_stream_destroy(s->captured));
    CHECK_OK(tcuda_stream_destroy(s->other));
}

/* A stream is captured, some work recorded, and the call made; then the capture ends as it must. */
static void judge(const struct row *row, struct scene *s, int mode)
{
    CHECK_OK(tcuda_graph_capture_begin(s->under_way, s->captured, NULL, mode));
    fill_bytes(s->captured_bytes, 4, BYTES, s->captured);
    const tcuda_status status = row->call(s);
    const bool right = row->effect == WORKS ? status == TCUDA_STATUS_OK
                                            : status == TCUDA_STATUS_CAPTURING;
    if (!right) {
        fprintf(stderr, "%s in mode %d gave %s: %s\n", row->name, mode, tcuda_status_name(status),
            tcuda_last_error());
        exit(EXIT_FAILURE);
    }
    if (row->effect == IS_REFUSED) {
        char name[64];
        snprintf(name, sizeof name, "%s", row->name);
        CHECK(strstr(tcuda_last_error(), name) != NULL);
    }
    const tcuda_status ended = tcuda_graph_capture_end(s->under_way);
    if ((ended == TCUDA_STATUS_OK) != (row->effect != BREAKS)) {
        fprintf(stderr, "after %s in mode %d the capture ends with %s: %s\n", row->name, mode,
            tcuda_status_name(ended), tcuda_last_error());
        exit(EXIT_FAILURE);
    }
    /* And then everything goes on. */
    if (ended == TCUDA_STATUS_OK) {
        CHECK_OK(tcuda_graph_replay(s->under_way, s->captured));
        CHECK_EQ(count_other_bytes(s->captured_bytes, strstr(row->name, "pinned") ? 0 : 4, BYTES,
            s->captured), 0);
    }
    CHECK_OK(tcuda_graph_reset(s->under_way));
    fill_bytes(s->captured_bytes, 1, BYTES, s->captured);
    CHECK_OK(tcuda_device_synchronize(0));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    for (int mode = TCUDA_CAPTURE_GLOBAL; mode <= TCUDA_CAPTURE_RELAXED; mode++) {
        struct scene scene = {NULL};
        begin_scene(&scene);
        memset(scene.pinned, 0, BYTES);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            judge(&rows[i], &scene, mode);
        end_scene(&scene);
    }
    return finish();
}
