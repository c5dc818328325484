/* Settings of pinned memory, as texts: each does what docs/configuration.md says, from the
 * environment and at run time. */
#include <dirent.h>

#include "support.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

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
    return all;
}

static void set(const char *text)
{
    CHECK_OK(tcuda_allocator_config_set(text));
}

/* What is allocated, and freed again, counts as so many bytes. */
static void takes(size_t bytes, uint64_t counted)
{
    const uint64_t before = stats().active_bytes.current;
    unsigned char *const block = pinned(bytes);
    CHECK_EQ(stats().active_bytes.current - before, counted);
    CHECK_OK(tcuda_host_free(block));
    CHECK_EQ(stats().active_bytes.current, before);
}

static void begin_anew(void)
{
    size_t live = 0;
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 0);
    CHECK_EQ(stats().allocations.current, 0);
}

static void sizes_are_rounded_up_to_the_threshold(void)
{
    takes(600 * KIB, 600 * KIB);
    set("pinned_max_round_threshold_mb:2");
    takes(600 * KIB, MIB);
    takes(65, 128);
    takes(2 * MIB, 2 * MIB);
    takes(2 * MIB + 1, 2 * MIB + 512);
    /* Above what is cached nothing is rounded to a power of two, but to pages. */
    set("pinned_max_cached_size_mb:1");
    takes(MIB + 5000, MIB + 8 * KIB);
    takes(600 * KIB, MIB);
    set("pinned_max_round_threshold_mb:0,pinned_max_cached_size_mb:17592186044415");
    takes(600 * KIB, 600 * KIB);
}

static void what_is_larger_is_not_cached(void)
{
    begin_anew();
    set("pinned_max_cached_size_mb:1");
    unsigned char *const kept = pinned(MIB), *const gone = pinned(MIB + 1);
    CHECK_EQ(stats().allocations.current, 2);
    CHECK_OK(tcuda_host_free(gone));
    CHECK_EQ(stats().allocations.current, 1);
    CHECK_EQ(stats().num_host_free, 1);
    CHECK_OK(tcuda_host_free(kept));
    CHECK_EQ(stats().allocations.current, 1);
}

static void the_reserve_is_made_once_and_cut(void)
{
    begin_anew();
    set("pinned_reserve_segment_size_mb:5");
    unsigned char *const small = pinned(100), *const large = pinned(100 * KIB);
    CHECK_EQ(stats().num_host_alloc, 1);
    CHECK_EQ(stats().allocated_bytes.current, 5 * MIB);
    CHECK_OK(tcuda_host_free(small));
    CHECK_OK(tcuda_host_free(large));
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_EQ(stats().allocated_bytes.current, 5 * MIB);

    begin_anew();
    void *ptr = NULL;
    set("pinned_reserve_segment_size_mb:17592186044415");
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_HOST_MEMORY, tcuda_host_malloc(100, &ptr));
    CHECK(strstr(tcuda_last_error(), "pinned_reserve_segment_size_mb") != NULL);
    set("pinned_reserve_segment_size_mb:4");
    CHECK_OK(tcuda_host_free(pinned(100)));
    CHECK_EQ(stats().allocated_bytes.current, 4 * MIB);
}

static void memory_of_the_system_is_registered(void)
{
    begin_anew();
    set("pinned_use_cuda_host_register:True,pinned_num_register_threads:4");
    const uint64_t before = calls_of("cuMemHostAlloc"), registered = calls_of("cuMemHostRegister");
    unsigned char *const block = pinned(9 * MIB);
    CHECK_EQ(calls_of("cuMemHostAlloc") - before, 0);
    CHECK_EQ(calls_of("cuMemHostRegister") - registered, 1);
    memset(block, 1, 9 * MIB);
    void *const memory = allocate(9 * MIB, TCUDA_CURRENT_DEVICE, NULL);
    CHECK_OK(tcuda_copy(memory, block, 9 * MIB, NULL));
    CHECK_EQ(count_other_bytes(memory, 1, 9 * MIB, NULL), 0);
    CHECK_OK(tcuda_free(memory));
    CHECK_OK(tcuda_host_free(block));
    /* What was registered goes back as that, whatever is set meanwhile. */
    set("pinned_use_cuda_host_register:False");
    const uint64_t unregistered = calls_of("cuMemHostUnregister");
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_EQ(calls_of("cuMemHostUnregister") - unregistered, 1);
}

/* Threads of this process, where nothing else starts any. */
static size_t count_threads(void)
{
    size_t count = 0;
    DIR *const tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count;
}

/* A thread of the library's gets more while half of the first segment is left. */
static void the_next_segment_comes_ahead(void)
{
    begin_anew();
    const size_t threads = count_threads();
    set("pinned_use_background_threads:True");
    unsigned char *const first = pinned(MIB);
    /* It comes while the memory is in use that makes it wanted. Where a fault refused it, it is
     * asked for anew. */
    const int turns = threads_keep_memory() ? 200 : 10;
    for (int i = 0; i < turns && stats().allocations.current < 2; i++) {
        unsigned char *const other_half = pinned(MIB - 512);
        for (int wait = 0; wait < 100 && stats().allocations.current < 2; wait++)
            sleep_ms(1);
        CHECK_OK(tcuda_host_free(other_half));
    }
    CHECK(stats().allocations.current >= 2);
    CHECK_OK(tcuda_host_free(first));
    /* No more once it is not wanted any more. */
    set("pinned_use_background_threads:False");
    begin_anew();
    /* The thread has ended; the system may take a moment to forget it. */
    for (int i = 0; i < 20000 && on_simulator() && count_threads() > threads; i++)
        sleep_ms(1);
    CHECK(!on_simulator() || count_threads() <= threads);
    unsigned char *const second = pinned(MIB);
    for (int i = 0; i < 100; i++)
        CHECK_OK(tcuda_host_free(pinned(MIB - 512)));
    CHECK_EQ(stats().allocations.current, 1);
    CHECK_OK(tcuda_host_free(second));
}

static void the_environment_counts_from_the_beginning(void)
{
    begin_anew();
    CHECK_EQ(setenv("TCUDA_ALLOC_CONF", "pinned_max_round_threshold_mb:1", 1), 0);
    takes(600 * KIB, MIB);
    CHECK_EQ(unsetenv("TCUDA_ALLOC_CONF"), 0);
    begin_anew();
    takes(600 * KIB, 600 * KIB);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    sizes_are_rounded_up_to_the_threshold();
    what_is_larger_is_not_cached();
    the_reserve_is_made_once_and_cut();
    memory_of_the_system_is_registered();
    the_next_segment_comes_ahead();
    the_environment_counts_from_the_beginning();
    return finish();
}
