/* The kinds of handles that reclamation.c makes, uses and destroys on many threads. */
#ifndef RECLAMATION_H
#define RECLAMATION_H

#include "support.h"

/* ---- Kinds of handles ---- */

static void *torch_malloc(ptrdiff_t bytes, int device, struct CUstream_st *stream)
{
    (void)device;
    (void)stream;
    (void)bytes;
    return NULL;
}

static void torch_free(void *ptr, ptrdiff_t bytes, int device, struct CUstream_st *stream)
{
    (void)ptr;
    (void)bytes;
    (void)device;
    (void)stream;
}

static int32_t out_of_memory(void *user_data, int32_t device, size_t bytes, size_t limit,
    size_t free_bytes)
{
    (void)user_data;
    (void)device;
    (void)bytes;
    (void)limit;
    (void)free_bytes;
    return 0;
}

typedef union handle {
    void *any;
    tcuda_jit *jit;
    tcuda_event *event;
    tcuda_graph *graph;
    tcuda_generator *generator;
    tcuda_memory_snapshot *snapshot;
    tcuda_pluggable_allocator *allocator;
    tcuda_observer *observer;
    tcuda_mem_pool *pool;
} handle;

static tcuda_status make_jit(handle *made)
{
    return tcuda_jit_create(
        "template <typename T> T twice_the_value_of_the_input(T x) { return x + x; }", NULL,
        &made->jit);
}

static void use_jit(handle used)
{
    /* Refused, with a sentence that names the function. */
    CHECK(tcuda_jit_call(used.jit, NULL, 0, NULL, 0, NULL, 0, NULL) != TCUDA_STATUS_OK);
}

static void destroy_jit(handle old)
{
    (void)tcuda_jit_destroy(old.jit);
}

static tcuda_status make_event(handle *made)
{
    const tcuda_status status = tcuda_event_create(0, &made->event);
    /* Now and then it has a driver event. */
    static atomic_uint count;
    if (status == TCUDA_STATUS_OK && atomic_fetch_add(&count, 1) % 16 == 0)
        (void)!tcuda_event_record(made->event, NULL);
    return status;
}

static void use_event(handle used)
{
    bool done = false;
    (void)!tcuda_event_query(used.event, &done);
}

static void destroy_event(handle old)
{
    (void)tcuda_event_destroy(old.event);
}

static tcuda_status make_graph(handle *made)
{
    return tcuda_graph_create(0, &made->graph);
}

static void use_graph(handle used)
{
    (void)!tcuda_graph_replay(used.graph, NULL);
}

static void destroy_graph(handle old)
{
    (void)tcuda_graph_destroy(old.graph);
}

static tcuda_status make_generator(handle *made)
{
    return tcuda_generator_create(TCUDA_CURRENT_DEVICE, &made->generator);
}

static void use_generator(handle used)
{
    uint64_t seed = 0;
    (void)!tcuda_generator_seed_get(used.generator, &seed);
}

static void destroy_generator(handle old)
{
    (void)tcuda_generator_destroy(old.generator);
}

static tcuda_status make_snapshot(handle *made)
{
    return tcuda_memory_snapshot_create(0, &made->snapshot);
}

static void use_snapshot(handle used)
{
    char text[256];
    (void)!tcuda_memory_snapshot_json(used.snapshot, text, sizeof text, NULL);
}

static void destroy_snapshot(handle old)
{
    (void)tcuda_memory_snapshot_destroy(old.snapshot);
}

static tcuda_status make_allocator(handle *made)
{
    return tcuda_pluggable_allocator_create(torch_malloc, torch_free, &made->allocator);
}

static void use_allocator(handle used)
{
    tcuda_mem_pool *pool = NULL;
    if (tcuda_mem_pool_create(used.allocator, 0, &pool) == TCUDA_STATUS_OK)
        (void)tcuda_mem_pool_destroy(pool);
}

static void destroy_allocator(handle old)
{
    (void)tcuda_pluggable_allocator_destroy(old.allocator);
}

static tcuda_status make_pool(handle *made)
{
    return tcuda_mem_pool_create(NULL, 0, &made->pool);
}

static void use_pool(handle used)
{
    uint64_t first = 0, second = 0;
    (void)!tcuda_mem_pool_id(used.pool, &first, &second);
}

static void destroy_pool(handle old)
{
    (void)tcuda_mem_pool_destroy(old.pool);
}

static tcuda_status make_observer(handle *made)
{
    return tcuda_memory_on_out_of_memory(out_of_memory, NULL, NULL, &made->observer);
}

static void use_observer(handle used)
{
    /* Called by each allocation that finds no memory. */
    void *ptr = NULL;
    (void)used;
    CHECK(tcuda_malloc((size_t)1 << 50, TCUDA_CURRENT_DEVICE, NULL, &ptr) != TCUDA_STATUS_OK);
}

static void destroy_observer(handle old)
{
    (void)tcuda_observer_destroy(old.observer);
}

static const struct kind {
    const char *name;
    tcuda_status (*make)(handle *made);
    void (*use)(handle used);
    void (*destroy)(handle old);
} kinds[] = {
    { "jit", make_jit, use_jit, destroy_jit },
    { "event", make_event, use_event, destroy_event },
    { "graph", make_graph, use_graph, destroy_graph },
    { "generator", make_generator, use_generator, destroy_generator },
    { "snapshot", make_snapshot, use_snapshot, destroy_snapshot },
    { "allocator", make_allocator, use_allocator, destroy_allocator },
    { "pool", make_pool, use_pool, destroy_pool },
    { "observer", make_observer, use_observer, destroy_observer },
};

enum { KINDS = sizeof kinds / sizeof *kinds };

#endif /* RECLAMATION_H */
