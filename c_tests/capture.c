/* The library's own work never breaks, or becomes part of, a capture that a host has under way: on
 * a GPU a stream is captured by the driver, in the strictest mode, while the allocator does all that
 * it does. The simulated machine cannot capture yet; there the same calls run without one. */
#include "check.h"

#include <dlfcn.h>
#include <string.h>

typedef int (*begin_fn)(struct CUstream_st *stream, unsigned mode);
typedef int (*end_fn)(struct CUstream_st *stream, struct CUgraph_st **graph);
typedef int (*nodes_fn)(struct CUgraph_st *graph, void **nodes, size_t *count);

struct driver {
    begin_fn begin;
    end_fn end;
    nodes_fn nodes;
};

/* dlsym gives an object pointer, and C has no cast from one to a function. */
static void find(void *library, const char *name, void *function, size_t size)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol != NULL);
    memcpy(function, &symbol, size);
}

static bool open_driver(struct driver *driver)
{
    if (strcmp(tcuda_backend_name(), "cuda") != 0) return false;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library != NULL);
    find(library, "cuStreamBeginCapture_v2", &driver->begin, sizeof driver->begin);
    find(library, "cuStreamEndCapture", &driver->end, sizeof driver->end);
    find(library, "cuGraphGetNodes", &driver->nodes, sizeof driver->nodes);
    return true;
}

/* Growing, reuse, waiting for streams, giving back: with `captured` among the streams in use. */
static void allocate_in_every_way(tcuda_stream *captured, tcuda_stream *other)
{
    static const size_t sizes[] = {512, 70000, 3 << 20, 90 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *own, *shared, *foreign;
        CHECK_OK(tcuda_malloc(sizes[i], TCUDA_CURRENT_DEVICE, captured, &own));
        CHECK_OK(tcuda_malloc(sizes[i], TCUDA_CURRENT_DEVICE, other, &shared));
        CHECK_OK(tcuda_malloc(sizes[i], TCUDA_CURRENT_DEVICE, other, &foreign));
        /* Freed while `captured` may still use it: its event must not be recorded there now. */
        CHECK_OK(tcuda_record_stream(shared, captured));
        CHECK_OK(tcuda_free(shared));
        CHECK_OK(tcuda_record_stream(own, other));
        CHECK_OK(tcuda_free(own));
        CHECK_OK(tcuda_malloc(sizes[i], TCUDA_CURRENT_DEVICE, other, &own));
        CHECK_OK(tcuda_free(own));
        CHECK_OK(tcuda_free(foreign));
    }
    CHECK_OK(tcuda_memory_empty_cache());
    size_t free_bytes, total_bytes;
    CHECK_OK(tcuda_memory_info(TCUDA_CURRENT_DEVICE, &free_bytes, &total_bytes));
}

static uint64_t active(void)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(TCUDA_CURRENT_DEVICE, "active.all.current", &value));
    return value;
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    tcuda_stream *captured, *other;
    CHECK_OK(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &captured));
    CHECK_OK(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &other));
    struct CUstream_st *native;
    CHECK_OK(tcuda_stream_native(captured, &native));

    struct driver driver;
    bool captures = open_driver(&driver);
    if (captures) CHECK(driver.begin(native, 0) == 0); /* CU_STREAM_CAPTURE_MODE_GLOBAL */
    allocate_in_every_way(captured, other);
    if (captures) {
        CHECK(active() > 0); /* what the captured stream may use waits for the end of the capture */
        struct CUgraph_st *graph = NULL;
        CHECK(driver.end(native, &graph) == 0);
        size_t nodes = 99;
        CHECK(driver.nodes(graph, NULL, &nodes) == 0);
        CHECK(nodes == 0);
    }
    /* With the capture over, everything moves on. */
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK(active() == 0);

    CHECK_OK(tcuda_stream_destroy(captured));
    CHECK_OK(tcuda_stream_destroy(other));
    return finish();
}
