/* Pinned memory on many threads: any thread may free a block, until then no other one gets it, and
 * all is counted. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { THREADS = 8, TURNS = 300 };

static unsigned char *pinned(size_t bytes)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_host_malloc(bytes, &ptr));
    CHECK(ptr != NULL);
    return ptr;
}

static tcuda_host_memory_statistics stats(void)
{
    tcuda_host_memory_statistics all = TCUDA_INIT(tcuda_host_memory_statistics);
    CHECK_OK(tcuda_host_memory_stats(&all));
    CHECK_EQ(all.struct_size, sizeof all);
    return all;
}

static _Atomic(unsigned char *) handed[THREADS];

/* Each writes a number of its own into what it has; some blocks another thread frees. */
static void *churn(void *argument)
{
    const size_t own = (size_t)(uintptr_t)argument;
    unsigned char *blocks[16] = { NULL };
    for (size_t i = 0; i < TURNS; i++) {
        const size_t slot = i * 7 % 16, bytes = 64 + i * 97 % 9000;
        if (blocks[slot] != NULL) {
            if (threads_keep_memory())
                CHECK_EQ(blocks[slot][63], own);
            unsigned char *const old = atomic_exchange(&handed[(own + i) % THREADS], blocks[slot]);
            CHECK_OK(tcuda_host_free(old));
        }
        blocks[slot] = pinned(bytes);
        if (threads_keep_memory())
            memset(blocks[slot], (int)own, bytes);
    }
    for (size_t slot = 0; slot < 16; slot++)
        CHECK_OK(tcuda_host_free(blocks[slot]));
    return NULL;
}

static void threads_free_what_others_allocated(void)
{
    pthread_t threads[THREADS];
    CHECK_OK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_OK(tcuda_host_memory_reset_accumulated());
    for (size_t i = 0; i < THREADS; i++)
        threads[i] = start_thread(churn, (void *)(uintptr_t)i);
    for (size_t i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    for (size_t i = 0; i < THREADS; i++)
        CHECK_OK(tcuda_host_free(atomic_load(&handed[i])));
    CHECK_EQ(stats().active_requests.current, 0);
    CHECK_EQ(stats().active_bytes.current, 0);
    CHECK_EQ(stats().active_requests.allocated, stats().active_requests.freed);
    CHECK_EQ(stats().active_requests.allocated, THREADS * TURNS);
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_EQ(stats().allocated_bytes.current, 0);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    threads_free_what_others_allocated();
    CHECK_EQ(stats().active_requests.peak <= THREADS * 17 + 8, 1);
    return finish();
}
