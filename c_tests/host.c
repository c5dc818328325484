/* Pinned memory: blocks, wrong pointers, copies that run while the host goes on, blocks that are
 * not used again before work is done with them. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { BYTES = 100000, LARGE = 5 << 20, DEVICES = 4, THREADS = 4, TURNS = 50 };

static unsigned char *pinned(size_t bytes)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_host_malloc(bytes, &ptr));
    CHECK(ptr != NULL);
    CHECK_EQ((uintptr_t)ptr % 64, 0);
    return ptr;
}

static void no_bytes_are_no_block(void)
{
    void *ptr = &ptr;
    CHECK_OK(tcuda_host_malloc(0, &ptr));
    CHECK(ptr == NULL);
    CHECK_OK(tcuda_host_free(NULL));
}

static void is_refused(void *ptr)
{
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_free(ptr));
    CHECK(strstr(tcuda_last_error(), "invalid host pointer: 0x") == tcuda_last_error());
}

static void wrong_pointers_are_refused(void)
{
    unsigned char *const block = pinned(BYTES);
    int local = 0;
    is_refused(&local);
    is_refused(block + 1);
    void *const device = allocate(512, TCUDA_CURRENT_DEVICE, NULL);
    is_refused(device);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(block));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_record_stream(block, NULL));
    memset(block, 1, BYTES); /* still ours */
    CHECK_OK(tcuda_host_free(block));
    is_refused(block);
    CHECK_OK(tcuda_free(device));
}

/* Copies return while the stream is held back; the bytes go through every device. */
static void copies_run_while_the_host_goes_on(int32_t device)
{
    tcuda_stream *const stream = create_stream(device);
    unsigned char *const source = pinned(BYTES), *const target = pinned(BYTES);
    void *const memory = allocate(BYTES, device, stream);
    for (size_t i = 0; i < BYTES; i++)
        source[i] = (unsigned char)(i * 7 + 1);
    memset(target, 0xee, BYTES);

    gate held;
    gate_close(&held, stream);
    CHECK_OK(tcuda_copy(memory, source, BYTES, stream));
    CHECK_OK(tcuda_copy(target, memory, BYTES, stream));
    if (runs_late())
        CHECK_EQ(target[1], 0xee);
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK(memcmp(source, target, BYTES) == 0);

    CHECK_OK(tcuda_free(memory));
    CHECK_OK(tcuda_host_free(source));
    CHECK_OK(tcuda_host_free(target));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* The host goes on at once, and the block is another's when the copy is over. */
static void a_freed_block_waits_for_the_copy_that_uses_it(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const source = pinned(BYTES), *const bystander = pinned(BYTES);
    void *const memory = allocate(BYTES, TCUDA_CURRENT_DEVICE, stream);
    fill_bytes(memory, 1, BYTES, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    memset(source, 2, BYTES);

    gate held;
    gate_close(&held, stream);
    CHECK_OK(tcuda_copy(memory, source + 1, BYTES - 1, stream));
    CHECK_OK(tcuda_host_free(source));
    is_refused(source);
    /* A block that no stream uses can be reused at once. */
    CHECK_OK(tcuda_host_free(bystander));
    unsigned char *const again = pinned(BYTES), *const next = pinned(BYTES);
    CHECK(again == bystander || !runs_late());
    CHECK(next != source || !runs_late());
    memset(again, 3, BYTES);
    memset(next, 3, BYTES);
    gate_open(&held);
    CHECK_EQ(count_other_bytes(memory, 2, BYTES - 1, stream), 0);

    CHECK_OK(tcuda_host_free(again));
    CHECK_OK(tcuda_host_free(next));
    CHECK_OK(tcuda_free(memory));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void failures_leave_no_trace(void)
{
    void *ptr = &ptr;
    CHECK_OK(tcuda_host_memory_empty_cache());
    /* First a segment is asked for, then as much as is needed. */
    CHECK_OK(tcuda_backend_faults("cuMemHostAlloc@1=2, cuMemHostAlloc@2=2"));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_HOST_MEMORY, tcuda_host_malloc(BYTES, &ptr));
    CHECK(strstr(tcuda_last_error(), "tcuda_host_memory_empty_cache") != NULL);
    CHECK_OK(tcuda_backend_faults("cuMemHostAlloc@1=2"));
    void *block = pinned(BYTES);
    CHECK_OK(tcuda_host_free(block));
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_OK(tcuda_backend_faults(NULL));
    CHECK_OK(tcuda_backend_inject("cuMemHostAlloc", 1, 999, 0));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_host_malloc(BYTES, &ptr));
    CHECK_EQ(tcuda_last_error_native(), 999);
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_HOST_MEMORY, tcuda_host_malloc(SIZE_MAX / 2, &ptr));
    CHECK(ptr == &ptr);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_host_malloc(BYTES, NULL));
}

static void *allocate_and_free(void *unused)
{
    (void)unused;
    for (int i = 0; i < TURNS; i++) {
        unsigned char *const block = pinned((size_t)(i + 1) * 1000);
        if (threads_keep_memory())
            block[i * 1000] = 1;
        CHECK_OK(tcuda_host_free(block));
    }
    return NULL;
}

static void threads_can_do_it_at_once(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(allocate_and_free, NULL);
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
}

static void shutdown_frees_what_is_left(void)
{
    /* Several segments of one size class. */
    unsigned char *const kept = pinned(BYTES), *const large[] = { pinned(LARGE), pinned(LARGE) };
    size_t live_handles = 99;
    CHECK_OK(tcuda_shutdown(&live_handles));
    CHECK_EQ(live_handles, 0);
    is_refused(kept);
    is_refused(large[0]);
    is_refused(large[1]);
    unsigned char *const again = pinned(BYTES);
    memset(again, 1, BYTES);
    CHECK_OK(tcuda_host_free(again));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    no_bytes_are_no_block();
    wrong_pointers_are_refused();
    for (int32_t device = 0; device < num_devices() && device < DEVICES; device++)
        copies_run_while_the_host_goes_on(device);
    a_freed_block_waits_for_the_copy_that_uses_it();
    failures_leave_no_trace();
    threads_can_do_it_at_once();
    shutdown_frees_what_is_left();
    return finish();
}
