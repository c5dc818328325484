/* Allocators of other libraries: functions of this process, a library made for PyTorch
 * (pluggable/torch_style.c), and any other: with TCUDA_TEST_TORCH_ALLOCATOR=PATH:ALLOC:FREE the
 * test runs on that one alone. */
#include "support.h"

#include <dlfcn.h>

#include "pluggable/torch_style.h"

static const size_t mib = 1 << 20;

static tcuda_memory_statistics statistics(void)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    CHECK_OK(tcuda_memory_stats(0, &stats));
    return stats;
}

/* ---- Functions of this process, with addresses that are made up ---- */

static struct {
    atomic_uint_fast64_t next;
    atomic_int allocated, freed, resets;
    atomic_bool is_empty, repeats;
    int inits, device_count;
    double fraction;
    ptrdiff_t bytes;
    struct CUstream_st *stream;
    void *recorded;
    struct CUstream_st *recorded_stream;
} own;

/* Called with no lock held, so that it may call back. */
static void call_back(void)
{
    size_t bytes = 0;
    CHECK_OK(tcuda_memory_allocated(0, &bytes));
}

static void *own_alloc(ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    CHECK_EQ(device, 0);
    call_back();
    own.bytes = bytes;
    own.stream = stream;
    if (atomic_load(&own.is_empty))
        return NULL;
    atomic_fetch_add(&own.allocated, 1);
    const uint64_t step = atomic_load(&own.repeats) ? 0 : 1 << 21;
    return (void *)(uintptr_t)(((uint64_t)1 << 50) + atomic_fetch_add(&own.next, step));
}

static void own_free(void *ptr, ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    CHECK_EQ(device, 0);
    CHECK((uintptr_t)ptr >= (uint64_t)1 << 50);
    own.bytes = bytes;
    own.stream = stream;
    atomic_fetch_add(&own.freed, 1);
}

static void own_init(int32_t device_count)
{
    own.inits++;
    own.device_count = device_count;
}

static void own_reset(void)
{
    call_back();
    atomic_fetch_add(&own.resets, 1);
}

static void own_memory_fraction(double fraction, int32_t device)
{
    CHECK_EQ(device, 0);
    own.fraction = fraction;
}

static void own_record_stream(void *ptr, struct CUstream_st *stream)
{
    call_back();
    own.recorded = ptr;
    own.recorded_stream = stream;
}

static tcuda_pluggable_hooks own_hooks(void)
{
    tcuda_pluggable_hooks hooks = TCUDA_INIT(tcuda_pluggable_hooks);
    hooks.init = own_init;
    hooks.reset = own_reset;
    hooks.memory_fraction = own_memory_fraction;
    hooks.record_stream = own_record_stream;
    return hooks;
}

static tcuda_pluggable_allocator *begin_own(void)
{
    const tcuda_pluggable_hooks hooks = own_hooks();
    tcuda_pluggable_allocator *allocator = NULL;
    memset(&own, 0, sizeof own);
    CHECK_OK(tcuda_pluggable_allocator_create(own_alloc, own_free, &allocator));
    CHECK_OK(tcuda_pluggable_allocator_set_hooks(allocator, &hooks));
    CHECK_OK(tcuda_allocator_set_current(allocator));
    return allocator;
}

static void end_own(tcuda_pluggable_allocator *allocator)
{
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_EQ(finish(), EXIT_SUCCESS);
    CHECK_STR(tcuda_allocator_backend(), "native");
    CHECK_EQ(atomic_load(&own.allocated), atomic_load(&own.freed));
}

static void what_is_wrong_is_told(void)
{
    tcuda_pluggable_allocator *const none = (tcuda_pluggable_allocator *)(void *)&own;
    tcuda_pluggable_allocator *allocator = none;
    tcuda_pluggable_hooks hooks = own_hooks();
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY,
        tcuda_pluggable_allocator_load("/nonexistent.so", "alloc", "free", &allocator));
    CHECK(strstr(tcuda_last_error(), "/nonexistent.so cannot be opened: ") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_pluggable_allocator_load("libc.so.6", "no_such_function", "free", &allocator));
    CHECK_STR(tcuda_last_error(), "alloc_symbol is \"no_such_function\"; the library has no such "
        "symbol; name a function that it exports as C");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_pluggable_allocator_load("libc.so.6", "malloc", "no_such_function", &allocator));
    CHECK(strstr(tcuda_last_error(), "free_symbol is ") == tcuda_last_error());
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_pluggable_allocator_load(NULL, "malloc", "free", &allocator));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_pluggable_allocator_create(NULL, own_free, &allocator));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_pluggable_allocator_create(own_alloc, NULL, &allocator));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_pluggable_allocator_create(own_alloc, own_free, NULL));
    CHECK(allocator == none);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_allocator_set_current(none));
    CHECK_OK(tcuda_pluggable_allocator_destroy(NULL));
    CHECK_OK(tcuda_pluggable_allocator_create(own_alloc, own_free, &allocator));
    hooks.struct_size = 0;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_pluggable_allocator_set_hooks(allocator, &hooks));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_pluggable_allocator_set_hooks(allocator, NULL));
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_pluggable_allocator_destroy(allocator));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_allocator_set_current(allocator));
    /* After the first allocation it is too late, for another one and for none. */
    CHECK_OK(tcuda_free(allocate(1, 0, NULL)));
    CHECK_OK(tcuda_pluggable_allocator_create(own_alloc, own_free, &allocator));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_allocator_set_current(allocator));
    CHECK(strstr(tcuda_last_error(), "after the first allocation") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_allocator_set_current(NULL));
    CHECK_STR(tcuda_allocator_backend(), "native");
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* It gets the very values of the host, and nothing is rounded. */
static void an_allocator_gets_what_the_host_asks(void)
{
    tcuda_pluggable_allocator *const allocator = begin_own();
    const tcuda_pluggable_hooks hooks = own_hooks();
    CHECK_STR(tcuda_allocator_backend(), "pluggable");
    CHECK_EQ(own.inits, 1);
    CHECK_EQ(own.device_count, num_devices());
    CHECK_OK(tcuda_allocator_set_current(allocator));
    CHECK_EQ(own.inits, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_pluggable_allocator_set_hooks(allocator, &hooks));
    tcuda_stream *const stream = create_stream(0), *const other = create_stream(0);
    void *const block = allocate(1001, 0, stream);
    CHECK_EQ(own.bytes, 1001);
    CHECK(own.stream == native_of(stream));
    void *const large = allocate(2 * mib, 0, NULL);
    CHECK(own.stream == NULL);
    CHECK_OK(tcuda_record_stream(block, other));
    CHECK(own.recorded == block && own.recorded_stream == native_of(other));
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(own.bytes, 1001);
    CHECK(own.stream == native_of(stream));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(block));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free((char *)large + 1));
    const tcuda_memory_statistics stats = statistics();
    CHECK_EQ(stats.allocation.all.current, 1);
    CHECK_EQ(stats.allocation.all.allocated, 2);
    CHECK_EQ(stats.allocation.small_pool.peak, 1);
    CHECK_EQ(stats.allocated_bytes.all.current, 2 * mib);
    CHECK_EQ(stats.allocated_bytes.all.peak, 2 * mib + 1001);
    CHECK_EQ(stats.requested_bytes.small_pool.freed, 1001);
    CHECK_EQ(stats.active_bytes.all.current, 2 * mib);
    CHECK_EQ(stats.reserved_bytes.large_pool.current, 2 * mib);
    CHECK_EQ(stats.segment.all.current, 1);
    CHECK_EQ(stats.num_device_alloc, 2);
    CHECK_EQ(stats.num_device_free, 1);
    tcuda_memory_snapshot *snapshot = NULL;
    tcuda_segment_info info = TCUDA_INIT(tcuda_segment_info);
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_segment(snapshot, 0, &info));
    CHECK(info.ptr == large && info.total_bytes == 2 * mib && info.block_count == 1);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(atomic_load(&own.resets), 1);
    CHECK_OK(tcuda_memory_fraction_set(0, 0.5));
    CHECK(own.fraction == 0.5);
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_mem_pool_begin(pool, 0));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
    CHECK_OK(tcuda_free(large));
    end_own(allocator);
}

static int32_t fill_again(void *user_data, int32_t device, size_t bytes, size_t limit_bytes,
    size_t free_bytes)
{
    (void)user_data;
    (void)limit_bytes;
    (void)free_bytes;
    CHECK_EQ(device, 0);
    CHECK_EQ(bytes, 100);
    atomic_store(&own.is_empty, false);
    return 1;
}

static void null_is_out_of_memory(void)
{
    tcuda_pluggable_allocator *const allocator = begin_own();
    void *ptr = NULL;
    atomic_store(&own.is_empty, true);
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(100, 0, NULL, &ptr));
    CHECK(ptr == NULL);
    CHECK(strstr(tcuda_last_error(), "CUDA out of memory. Tried to allocate 100 bytes.") != NULL);
    CHECK_EQ(atomic_load(&own.resets), 1);
    CHECK_EQ(statistics().num_ooms, 1);
    CHECK_EQ(statistics().num_alloc_retries, 1);
    CHECK_EQ(statistics().allocation.all.allocated, 0);
    CHECK_OK(tcuda_memory_on_out_of_memory(fill_again, NULL, NULL, NULL));
    CHECK_OK(tcuda_free(allocate(100, 0, NULL)));
    CHECK_EQ(statistics().num_ooms, 1);
    /* If it returns a block twice, the call fails, and the first holder keeps it. */
    atomic_store(&own.repeats, true);
    void *const block = allocate(7, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_malloc(8, 0, NULL, &ptr));
    CHECK(strstr(tcuda_last_error(), "gave an address that is in use already") != NULL);
    CHECK_EQ(statistics().allocated_bytes.all.current, 7);
    CHECK_OK(tcuda_free(block));
    atomic_fetch_sub(&own.allocated, 1);
    end_own(allocator);
}

/* Blocks keep an allocator whose handle is gone; what the host forgot goes back at the end. */
static void blocks_keep_their_allocator(void)
{
    tcuda_pluggable_allocator *const allocator = begin_own();
    void *const block = allocate(100, 0, NULL), *const left = allocate(200, 0, NULL);
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(atomic_load(&own.freed), 1);
    CHECK_EQ(finish(), EXIT_SUCCESS);
    CHECK_EQ(atomic_load(&own.freed), 2);
    CHECK_EQ(own.bytes, 200);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(left));
}

static void *allocate_and_free(void *argument)
{
    tcuda_stream *const stream = create_stream(0);
    (void)argument;
    for (size_t i = 0; i < 200; i++) {
        void *const block = allocate(1 + i, 0, stream), *const other = allocate(mib + i, 0, NULL);
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_free(other));
    }
    CHECK_OK(tcuda_stream_destroy(stream));
    return NULL;
}

static void threads_share_an_allocator(void)
{
    tcuda_pluggable_allocator *const allocator = begin_own();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        threads[i] = start_thread(allocate_and_free, NULL);
    for (int i = 0; i < 4; i++)
        join_thread(threads[i]);
    CHECK_EQ(atomic_load(&own.freed), 1600);
    CHECK_EQ(statistics().allocation.all.allocated, 1600);
    CHECK_EQ(statistics().allocated_bytes.all.current, 0);
    CHECK(statistics().allocation.all.peak <= 8);
    end_own(allocator);
}

/* ---- A library ---- */

static bool is_loaded(const char *path)
{
    void *const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library != NULL)
        dlclose(library);
    return library != NULL;
}

/* As dlsym, both give object pointers, and C has no cast from one to a function. */
static void find(const char *name, void *function)
{
    void *address = NULL;
    CHECK_OK(tcuda_backend_function(name, &address));
    memcpy(function, &address, sizeof address);
}

static void symbol(void *library, const char *name, void *function)
{
    void *const address = dlsym(library, name);
    CHECK(address != NULL);
    memcpy(function, &address, sizeof address);
}

static void use(size_t bytes)
{
    tcuda_stream *const stream = create_stream(0);
    unsigned char *const block = allocate(bytes, 0, stream);
    fill_bytes(block, 5, bytes, stream);
    CHECK_EQ(count_other_bytes(block, 5, bytes, stream), 0);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void a_library_made_for_pytorch_serves(const char *path)
{
    tcuda_pluggable_allocator *allocator = NULL;
    CHECK(!is_loaded(path));
    CHECK_OK(tcuda_pluggable_allocator_load(path, "torch_style_alloc", "torch_style_free",
        &allocator));
    void *const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != NULL);
    struct torch_style *const seen = dlsym(library, "torch_style");
    CHECK(seen != NULL);
    find("cuMemAlloc", &seen->allocate);
    find("cuMemFree", &seen->release);
    tcuda_pluggable_hooks hooks = TCUDA_INIT(tcuda_pluggable_hooks);
    symbol(library, "torch_style_init", &hooks.init);
    symbol(library, "torch_style_reset", &hooks.reset);
    symbol(library, "torch_style_memory_fraction", &hooks.memory_fraction);
    symbol(library, "torch_style_base_alloc", &hooks.base_alloc);
    symbol(library, "torch_style_record_stream", &hooks.record_stream);
    CHECK_OK(tcuda_pluggable_allocator_set_hooks(allocator, &hooks));
    CHECK_OK(tcuda_memory_fraction_set(0, 0.75));
    CHECK_OK(tcuda_allocator_set_current(allocator));
    CHECK(seen->inits == 1 && seen->device_count == num_devices() && seen->fraction == 0.75);
    use(3 * mib + 5);
    CHECK(seen->allocated == 1 && seen->freed == 1 && seen->bytes == (ptrdiff_t)(3 * mib + 5));
    void *const block = allocate(10, 0, NULL);
    CHECK_OK(tcuda_record_stream(block, NULL));
    CHECK(seen->recorded == block && seen->recorded_stream == NULL);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(seen->resets, 1);
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(seen->freed, 2);
    CHECK_EQ(dlclose(library), 0);
    CHECK(is_loaded(path));
    CHECK_EQ(finish(), EXIT_SUCCESS);
    CHECK(!is_loaded(path));
}

/* PATH:ALLOC:FREE, of a library that gets its memory by itself. */
static void any_library_serves(const char *name)
{
    static char text[4096];
    tcuda_pluggable_allocator *allocator = NULL;
    snprintf(text, sizeof text, "%s", name);
    char *const free_symbol = strrchr(text, ':');
    CHECK(free_symbol != NULL);
    *free_symbol = '\0';
    char *const alloc_symbol = strrchr(text, ':');
    CHECK(alloc_symbol != NULL);
    *alloc_symbol = '\0';
    CHECK_OK(tcuda_pluggable_allocator_load(text, alloc_symbol + 1, free_symbol + 1, &allocator));
    CHECK_OK(tcuda_allocator_set_current(allocator));
    CHECK_STR(tcuda_allocator_backend(), "pluggable");
    for (size_t bytes = 1; bytes < 200 * mib; bytes = bytes * 3 + 1)
        use(bytes);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        threads[i] = start_thread(allocate_and_free, NULL);
    for (int i = 0; i < 4; i++)
        join_thread(threads[i]);
    const tcuda_memory_statistics stats = statistics();
    CHECK_EQ(stats.allocated_bytes.all.current, 0);
    CHECK_EQ(stats.allocation.all.allocated, stats.allocation.all.freed);
    printf("%s: %llu blocks, at most %llu bytes at a time\n", text,
        (unsigned long long)stats.allocation.all.allocated,
        (unsigned long long)stats.allocated_bytes.all.peak);
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

int main(void)
{
    const char *const foreign = getenv("TCUDA_TEST_TORCH_ALLOCATOR");
    const char *const torch_style = getenv("TCUDA_TEST_TORCH_STYLE");
    SKIP_WITHOUT_GPU();
    if (foreign != NULL) {
        any_library_serves(foreign);
        return EXIT_SUCCESS;
    }
    what_is_wrong_is_told();
    an_allocator_gets_what_the_host_asks();
    null_is_out_of_memory();
    blocks_keep_their_allocator();
    threads_share_an_allocator();
    if (torch_style != NULL)
        a_library_made_for_pytorch_serves(torch_style);
    return finish();
}
