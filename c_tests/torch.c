/* The functions that PyTorch calls for its memory: called as PyTorch calls them, with native
 * streams, ids of pools by value, and no check of what failed. */
#define _POSIX_C_SOURCE 200809L

#include "torch.h"

enum { NOT_READY = 600 };

static void memory_is_that_of_the_library(void)
{
    tcuda_stream *stream = create_stream(0);
    struct CUstream_st *native = native_of(stream);
    void *block = torch_malloc(3000, 0, native), *other;
    CHECK_EQ((uintptr_t)block % 512, 0);
    CHECK_EQ(stat_of("allocated_bytes.all.current"), 3072);
    CHECK_EQ(stat_of("requested_bytes.all.current"), 3000);
    fill_bytes(block, 7, 3000, stream);
    CHECK_EQ(count_other_bytes(block, 7, 3000, stream), 0);
    torch_free(block);
    /* A native stream is the stream that has it. */
    CHECK_OK(tcuda_malloc(3000, 0, stream, &other));
    CHECK(other == block);
    torch_free(other);
    /* NULL is the default stream, whichever is current. */
    tcuda_stream *usual = NULL;
    CHECK_OK(tcuda_stream_default(0, &usual));
    CHECK_OK(tcuda_stream_set_current(stream));
    block = torch_malloc(3000, 0, NULL);
    CHECK_OK(tcuda_stream_set_current(usual));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_malloc(3000, 0, usual, &other));
    CHECK(other == block);
    CHECK_OK(tcuda_free(other));
    CHECK(tcuda_torch_malloc(0, 0, native) == NULL);
    tcuda_torch_free(NULL, 0, 0, native);
    expect_silence();
    CHECK_EQ(stat_of("allocation.all.current"), 0);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_memory_empty_cache());
}

static void a_recorded_stream_is_waited_for(void)
{
    tcuda_stream *stream = create_stream(0), *second = create_stream(0);
    struct CUstream_st *foreign = native_of(second), *native = native_of(stream);
    void *own = torch_malloc(MIB, 0, native), *shared = torch_malloc(MIB, 0, native);
    tcuda_torch_record_stream(own, native);
    tcuda_torch_record_stream(shared, foreign);
    tcuda_torch_record_stream(NULL, foreign);
    expect_silence();
    if (on_simulator()) {
        CHECK_OK(tcuda_backend_inject("cuStreamQuery", 1, NOT_READY, true));
        CHECK_OK(tcuda_backend_inject("cuEventQuery", 1, NOT_READY, true));
    }
    torch_free(own);
    torch_free(shared);
    if (on_simulator()) {
        CHECK_EQ(stat_of("active_bytes.all.current"), MIB);
        void *again = torch_malloc(MIB, 0, native);
        CHECK(again == own);
        void *other = torch_malloc(MIB, 0, native);
        CHECK(other != shared);
        torch_free(again);
        torch_free(other);
        CHECK_OK(tcuda_backend_inject("cuStreamQuery", 0, 0, false));
        CHECK_OK(tcuda_backend_inject("cuEventQuery", 0, 0, false));
    }
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(stat_of("active_bytes.all.current"), 0);
    CHECK_OK(tcuda_stream_destroy(second));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* A stream of another device than the block's is found by its context. */
static void a_stream_of_another_device_can_be_recorded(void)
{
    if (num_devices() < 2)
        return;
    tcuda_stream *far = create_stream(1);
    void *block = torch_malloc(MIB, 0, NULL);
    tcuda_torch_record_stream(block, native_of(far));
    expect_silence();
    torch_free(block);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(stat_of("active_bytes.all.current"), 0);
    CHECK(tcuda_torch_malloc(512, 0, native_of(far)) == NULL);
    expect_line("tcuda_torch_malloc: cu_stream belongs to another device");
    CHECK_OK(tcuda_stream_destroy(far));
}

static void failures_are_logged(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total_bytes));
    CHECK(tcuda_torch_malloc((ptrdiff_t)total_bytes + 1, 0, NULL) == NULL);
    expect_line("tcuda_torch_malloc: CUDA out of memory.");
    CHECK(tcuda_torch_malloc(-1, 0, NULL) == NULL);
    expect_line("tcuda_torch_malloc: bytes is -1");
    CHECK(tcuda_torch_malloc(512, 4711, NULL) == NULL);
    expect_line("device 4711 does not exist");
    void *block = torch_malloc(512, 0, NULL);
    torch_free(block);
    tcuda_torch_free(block, 512, 0, NULL);
    expect_line("tcuda_torch_free: invalid device pointer");
    tcuda_torch_free(&block, 512, 0, NULL);
    expect_line("was not allocated by tcuda");
    tcuda_torch_record_stream(block, NULL);
    expect_line("tcuda_torch_record_stream: invalid device pointer");
    tcuda_torch_record_stream(&block, NULL);
    expect_line("was not allocated by tcuda");
    tcuda_torch_memory_fraction(1.5, 0);
    expect_line("tcuda_torch_memory_fraction: ");
    tcuda_torch_end_allocate_to_pool(0, 1, 0);
    expect_line("begin it first");
    tcuda_torch_release_pool(0, 1, 0);
    expect_line("never begun");
    CHECK_OK(tcuda_memory_empty_cache());
}

static void the_other_hooks_do_what_they_say(void)
{
    double fraction = 0;
    tcuda_torch_init(num_devices());
    tcuda_torch_memory_fraction(0.5, 0);
    CHECK_OK(tcuda_memory_fraction_get(0, &fraction));
    CHECK(fraction == 0.5);
    tcuda_torch_memory_fraction(1, 0);

    unsigned char *small = torch_malloc(1000, 0, NULL), *large = torch_malloc(70 * MIB, 0, NULL);
    size_t length = 77;
    unsigned char *base = tcuda_torch_base_alloc(small, &length);
    CHECK(base != NULL && base <= small && small < base + length);
    CHECK_EQ(length, 2 * MIB);
    CHECK(tcuda_torch_base_alloc(base + length - 1, NULL) == base);
    base = tcuda_torch_base_alloc(large + 70 * MIB - 1, &length);
    CHECK(base != NULL && base <= large && large + 70 * MIB <= base + length);
    CHECK_EQ(length, reserved() - 2 * MIB);
    expect_silence();
    length = 77;
    CHECK(tcuda_torch_base_alloc(NULL, &length) == NULL);
    expect_silence();
    CHECK(tcuda_torch_base_alloc(&base, &length) == NULL);
    expect_line("tcuda_torch_base_alloc: invalid device pointer");
    CHECK(tcuda_torch_base_alloc(base + 4096 * MIB, &length) == NULL);
    expect_line("tcuda_torch_base_alloc: invalid device pointer");
    CHECK_EQ(length, 77);
    torch_free(small);
    torch_free(large);
    tcuda_torch_reset();
    CHECK_EQ(reserved(), 0);
}

static void *allocate_outside(void *unused)
{
    (void)unused;
    void *block = torch_malloc(1000, 0, NULL);
    CHECK_EQ(pool_of(block), 0);
    torch_free(block);
    return NULL;
}

/* torch.cuda.use_mem_pool: the pool is for the thread. */
static void a_pool_of_the_host_is_for_its_thread(void)
{
    tcuda_torch_begin_allocate_to_pool(0, 0, 7, NULL);
    void *block = torch_malloc(1000, 0, NULL);
    CHECK(pool_of(block) != 0);
    run_on_thread(allocate_outside, NULL);
    tcuda_torch_begin_allocate_to_pool(0, 0, 7, NULL);
    expect_line("end it before");
    tcuda_torch_end_allocate_to_pool(0, 0, 7);
    allocate_outside(NULL);
    torch_free(block);
    tcuda_torch_release_pool(0, 0, 7);
    tcuda_torch_reset();
    CHECK_EQ(reserved(), 0);
    expect_silence();
}

/* Released before it is ended, a pool serves until the end. */
static void a_pool_ends_after_its_release(void)
{
    tcuda_torch_begin_allocate_to_pool(0, 0, 8, NULL);
    tcuda_torch_release_pool(0, 0, 8);
    void *block = torch_malloc(1000, 0, NULL);
    CHECK(pool_of(block) != 0);
    tcuda_torch_end_allocate_to_pool(0, 0, 8);
    expect_silence();
    allocate_outside(NULL);
    torch_free(block);
    tcuda_torch_reset();
    CHECK_EQ(reserved(), 0);
}

/* ---- Ends ---- */

/* Interpreters free their tensors last. */
static void nothing_happens_after_the_end(void)
{
    void *block = torch_malloc(1000, 0, NULL);
    tcuda_torch_begin_allocate_to_pool(0, 1, 0, NULL);
    CHECK_OK(tcuda_shutdown(NULL));
    bool is_initialized = true;
    tcuda_torch_free(block, 1000, 0, NULL);
    expect_line("tcuda was shut down since");
    tcuda_torch_record_stream(block, NULL);
    expect_line("tcuda was shut down since");
    CHECK(tcuda_torch_base_alloc(block, NULL) == NULL);
    expect_line("tcuda was shut down since");
    tcuda_torch_release_pool(0, 1, 0);
    tcuda_torch_reset();
    CHECK_OK(tcuda_is_initialized(&is_initialized));
    CHECK(!is_initialized);
    expect_silence();
    block = torch_malloc(1000, 0, NULL);
    CHECK_EQ(pool_of(block), 0);
    torch_free(block);
}

/* What a child writes to stderr while it allocates what it cannot have, twice. */
static void a_failure_that_nobody_hears_is_told_once(void)
{
    int ends[2];
    char said[4096];
    size_t length = 0;
    CHECK_EQ(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        void *blocks[2] = { tcuda_torch_malloc(-1, 0, NULL), tcuda_torch_malloc(-2, 0, NULL) };
        tcuda_torch_free(said, 1, 0, NULL);
        _exit(blocks[0] == NULL && blocks[1] == NULL ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    close(ends[1]);
    for (ssize_t got = 1; got > 0 && length < sizeof said - 1;) {
        got = read(ends[0], said + length, sizeof said - 1 - length);
        length += got > 0 ? (size_t)got : 0;
    }
    said[length] = '\0';
    close(ends[0]);
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(child_status(status), EXIT_SUCCESS);
    CHECK_STR(said, "tcuda: tcuda_torch_malloc: bytes is -1; no allocation is larger than "
                    "PTRDIFF_MAX\n");
}

/* A child cannot use the driver of its parent: it gets an error, and does not crash. */
static void a_child_is_refused(void)
{
    void *block = torch_malloc(1000, 0, NULL);
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        tcuda_torch_free(block, 1000, 0, NULL);
        tcuda_torch_record_stream(block, NULL);
        tcuda_torch_release_pool(0, 1, 0);
        tcuda_torch_reset();
        close(STDERR_FILENO);
        _exit(tcuda_torch_malloc(1000, 0, NULL) == NULL ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(child_status(status), EXIT_SUCCESS);
    torch_free(block);
}

int main(void)
{
    /* No driver was started: a child can begin. With a fault it says something else. */
    if (on_simulator() && recovery_file() == NULL)
        a_failure_that_nobody_hears_is_told_once();
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, take_line, NULL, NULL));
    CHECK_OK(tcuda_device_set(0));
    memory_is_that_of_the_library();
    a_recorded_stream_is_waited_for();
    a_stream_of_another_device_can_be_recorded();
    failures_are_logged();
    the_other_hooks_do_what_they_say();
    a_pool_of_the_host_is_for_its_thread();
    a_pool_ends_after_its_release();
    a_child_is_refused();
    nothing_happens_after_the_end();
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    return finish();
}
