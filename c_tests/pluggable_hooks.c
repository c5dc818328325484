/* Functions of a pluggable allocator that call the library, each time that they are called: each
 * call works or gives a status. */
#include "support.h"

enum hook { INIT, MALLOC, FREE, RESET, FRACTION, BASE, RECORD, HOOKS };
static const char *const hook_names[] = { "init", "malloc", "free", "reset", "memory_fraction",
    "base_alloc", "record_stream" };

static enum hook hook;
static void (*pending)(void);
static int reached;

static void here(enum hook in)
{
    if (in != hook || pending == NULL)
        return;
    reached = 1;
    pending();
}

static void accept(tcuda_status status)
{
    CHECK(status != TCUDA_STATUS_INTERNAL);
    CHECK(status == TCUDA_STATUS_OK || tcuda_last_error()[0] != '\0');
}

static void *give(ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    void *ptr = NULL;
    (void)device, (void)stream;
    here(MALLOC);
    accept(tcuda_host_malloc((size_t)bytes, &ptr));
    return ptr;
}

static void take(void *ptr, ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    (void)bytes, (void)device, (void)stream;
    here(FREE);
    accept(tcuda_host_free(ptr));
}

static void init(int32_t devices)
{
    (void)devices;
    here(INIT);
}

static void reset(void)
{
    here(RESET);
}

static void fraction(double value, int32_t device)
{
    (void)value, (void)device;
    here(FRACTION);
}

static void *base(void *ptr, size_t *bytes)
{
    here(BASE);
    *bytes = 4096;
    return ptr;
}

static void record(void *ptr, struct CUstream_st *stream)
{
    (void)ptr, (void)stream;
    here(RECORD);
}

static tcuda_pluggable_allocator *allocator;

/* ---- What they call ---- */

static void memory(void)
{
    void *ptr = NULL;
    const tcuda_status status = tcuda_malloc(4096, 0, NULL, &ptr);
    accept(status);
    if (status == TCUDA_STATUS_OK)
        accept(tcuda_free(ptr));
}

static void kept_memory(void)
{
    void *ptr = NULL;
    accept(tcuda_malloc(4096, 0, NULL, &ptr));
}

static void collectives(void)
{
    static int64_t shape[] = { 1024 };
    static const int32_t devices[] = { 0, 1 };
    tcuda_tensor tensor = { .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 1,
        .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = shape };
    tcuda_tensor copies[2], sum;
    void *ptr = NULL;
    if (tcuda_malloc(4096, 0, NULL, &ptr) != TCUDA_STATUS_OK)
        return;
    tensor.data = ptr;
    memset(copies, 0, sizeof copies);
    memset(&sum, 0, sizeof sum);
    const tcuda_status status = tcuda_comm_broadcast(&tensor, devices, 2, copies);
    accept(status);
    if (status == TCUDA_STATUS_OK) {
        const tcuda_status added = tcuda_comm_reduce_add(copies, 2, 0, &sum);
        accept(added);
        if (added == TCUDA_STATUS_OK)
            accept(tcuda_tensor_release(&sum));
        accept(tcuda_tensor_release(&copies[0]));
        accept(tcuda_tensor_release(&copies[1]));
    }
    accept(tcuda_free(ptr));
}

static void caches(void)
{
    accept(tcuda_memory_empty_cache());
    accept(tcuda_host_memory_empty_cache());
    accept(tcuda_memory_fraction_set(0, 0.5));
    accept(tcuda_memory_fraction_set(0, 1.0));
}

static void numbers(void)
{
    tcuda_memory_statistics statistics = TCUDA_INIT(tcuda_memory_statistics);
    tcuda_memory_snapshot *snapshot = NULL;
    accept(tcuda_memory_stats(0, &statistics));
    if (tcuda_memory_snapshot_create(1, &snapshot) == TCUDA_STATUS_OK)
        accept(tcuda_memory_snapshot_destroy(snapshot));
}

static void end_of_life(void)
{
    accept(tcuda_shutdown(NULL));
}

static void choices(void)
{
    accept(tcuda_allocator_set_current(NULL));
    accept(tcuda_allocator_set_current(allocator));
    accept(tcuda_allocator_config_set("backend:cudaMallocAsync"));
    accept(tcuda_memory_caching_enable(0));
    accept(tcuda_memory_caching_enable(1));
    accept(tcuda_pluggable_allocator_destroy(allocator));
}

static void pools(void)
{
    tcuda_mem_pool *pool = NULL;
    accept(tcuda_mem_pool_create(allocator, 0, &pool));
    accept(tcuda_mem_pool_begin(pool, 0));
    memory();
    accept(tcuda_mem_pool_end(pool, 0));
    accept(tcuda_mem_pool_destroy(pool));
}

static void synchronisation(void)
{
    accept(tcuda_device_synchronize(0));
    accept(tcuda_stream_synchronize(NULL));
}

static void graphs(void)
{
    tcuda_graph *graph = NULL;
    tcuda_stream *stream = NULL;
    accept(tcuda_stream_create(0, 0, &stream));
    accept(tcuda_graph_create(0, &graph));
    if (tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL) == TCUDA_STATUS_OK) {
        memory();
        accept(tcuda_graph_capture_end(graph));
    }
    accept(tcuda_graph_destroy(graph));
    accept(tcuda_stream_destroy(stream));
}

static const struct { const char *name; void (*call)(void); } calls[] = {
    { "memory", memory }, { "kept memory", kept_memory }, { "collectives", collectives },
    { "caches", caches }, { "numbers", numbers }, { "shutdown", end_of_life },
    { "choices", choices }, { "pools", pools }, { "synchronisation", synchronisation },
    { "graphs", graphs },
};

/* Reaches each hook with the allocator as the current one, and in a pool. */
static void use(void)
{
    void *ptr = NULL;
    size_t bytes = 0;
    tcuda_stream *stream = NULL;
    if (tcuda_malloc(1 << 20, 0, NULL, &ptr) == TCUDA_STATUS_OK) {
        (void)!tcuda_torch_base_alloc(ptr, &bytes);
        accept(tcuda_stream_create(0, 0, &stream));
        accept(tcuda_record_stream(ptr, stream));
        accept(tcuda_stream_destroy(stream));
        accept(tcuda_free(ptr));
    }
    accept(tcuda_memory_fraction_set(0, 1.0));
    accept(tcuda_memory_empty_cache());
}

static void run(enum hook in, void (*call)(void), bool in_pool)
{
    tcuda_pluggable_hooks hooks = TCUDA_INIT(tcuda_pluggable_hooks);
    tcuda_mem_pool *pool = NULL;
    hooks.init = init;
    hooks.reset = reset;
    hooks.memory_fraction = fraction;
    hooks.base_alloc = base;
    hooks.record_stream = record;
    hook = in;
    pending = call;
    CHECK_OK(tcuda_pluggable_allocator_create(give, take, &allocator));
    CHECK_OK(tcuda_pluggable_allocator_set_hooks(allocator, &hooks));
    if (in_pool) {
        CHECK_OK(tcuda_mem_pool_create(allocator, 0, &pool));
        CHECK_OK(tcuda_mem_pool_begin(pool, 0));
        use();
        accept(tcuda_mem_pool_end(pool, 0));
        accept(tcuda_mem_pool_destroy(pool));
        accept(tcuda_memory_empty_cache());
    } else {
        accept(tcuda_allocator_set_current(allocator));
        use();
        CHECK(reached);
    }
    CHECK_OK(tcuda_shutdown(NULL));
    /* The library is as good as new. */
    pending = NULL;
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(4096, 0, NULL, &ptr));
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_shutdown(NULL));
}

int main(void)
{
    skip_without_gpu_before_forks();
    for (int in = 0; in < HOOKS; in++)
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
            for (int in_pool = 0; in_pool < 2; in_pool++) {
                fflush(NULL);
                const pid_t child = fork();
                CHECK(child >= 0);
                if (child == 0) {
                    alarm(20);
                    run((enum hook)in, calls[i].call, in_pool);
                    exit(EXIT_SUCCESS);
                }
                int status = 0;
                CHECK_EQ(waitpid(child, &status, 0), child);
                if (status != 0) {
                    fprintf(stderr, "%s in %s%s: wait status %#x\n", calls[i].name, hook_names[in],
                        in_pool ? " of a pool" : "", (unsigned)status);
                    ++*failed_cases();
                }
            }
    return finish_cases();
}
