/* Faults by rules: failing and slow calls, lost devices, and what ends them. */
#define _POSIX_C_SOURCE 200809L

#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

static uint64_t fired(void)
{
    uint64_t count = 0;
    CHECK_OK(tcuda_backend_fault_count(&count));
    return count;
}

static void texts_are_checked(void)
{
    static const char *const wrong[] = { "cuMemMap", "mmap@2=12", "*@0=2", "*@1=0", "*@1=lost:2",
        "*@1=slow:61s", "*@1=2!!" };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "cuInit@9=1, %s", wrong[i]);
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_faults(text));
        CHECK(strstr(tcuda_last_error(), wrong[i]) != NULL);
    }
    CHECK_OK(tcuda_backend_faults(""));
    CHECK_OK(tcuda_backend_faults(NULL));
}

static void calls_fail_by_rules(void)
{
    CHECK_OK(tcuda_device_synchronize(0));
    const uint64_t before = fired();
    CHECK_OK(tcuda_backend_faults("cuCtxSynchronize@2=999, cuCtxSynchronize@4=1"));
    static const tcuda_status expected[] = { TCUDA_STATUS_OK, TCUDA_STATUS_CUDA_ERROR,
        TCUDA_STATUS_OK, TCUDA_STATUS_CUDA_ERROR, TCUDA_STATUS_OK };
    for (int i = 0; i < 5; i++)
        CHECK_STATUS(expected[i], tcuda_device_synchronize(0));
    CHECK_EQ(tcuda_last_error_native(), 1);
    CHECK_EQ(fired() - before, 2);
    CHECK_OK(tcuda_backend_faults("cuCtxSynchronize@2=999!"));
    CHECK_OK(tcuda_device_synchronize(0));
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_device_synchronize(0));
    CHECK_OK(tcuda_backend_faults(NULL));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_backend_faults("cuCtxSynchronize@1=slow:1ms"));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_EQ(fired() - before, 6);
}

static void a_lost_device_stays_lost(void)
{
    const bool has_two = num_devices() > 1;
    tcuda_stream *stream = create_stream(0);
    tcuda_event *event = create_event(0);
    bool done = false;
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_backend_faults("cuStreamSynchronize@1=lost:700"));
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_stream_synchronize(stream));
    CHECK_EQ(tcuda_last_error_native(), 700);
    CHECK_OK(tcuda_backend_faults(NULL));
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_stream_synchronize(stream));
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_stream_query(stream, &done));
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_event_record(event, stream));
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_device_synchronize(0));
    /* What needs no working context. */
    CHECK_OK(tcuda_device_set(0));
    CHECK(num_devices() >= 1);
    if (has_two) {
        /* Also while the lost device is the current one. */
        tcuda_stream *other = create_stream(1);
        void *block = allocate(1000, 1, other);
        fill_bytes(block, 7, 1000, other);
        CHECK_EQ(count_other_bytes(block, 7, 1000, other), 0);
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_stream_destroy(other));
    }
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_device_synchronize(0));
    void *block = allocate(1000, 0, NULL);
    fill_bytes(block, 9, 1000, NULL);
    CHECK_EQ(count_other_bytes(block, 9, 1000, NULL), 0);
    CHECK_OK(tcuda_free(block));
}

/* That nothing is left behind, the option leaks=report says. */
static void what_is_refused_is_not_lost(void)
{
    static const char refusals[] = "cuMemFreeHost@1=999, cuMemUnmap@1=999, cuMemRelease@1=999, "
        "cuMemAddressFree@1=999";
    void *pinned = NULL;
    CHECK_OK(tcuda_host_malloc(100, &pinned));
    CHECK_OK(tcuda_backend_faults("cuMemFreeHost@1=999"));
    CHECK_OK(tcuda_host_free(pinned));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_host_memory_empty_cache());
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_free(pinned));
    /* It is in the cache as before, and goes when it is asked for once more. */
    tcuda_host_memory_statistics stats = TCUDA_INIT(tcuda_host_memory_statistics);
    CHECK_OK(tcuda_host_memory_stats(&stats));
    CHECK_EQ(stats.allocations.current, 1);
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_OK(tcuda_host_memory_stats(&stats));
    CHECK_EQ(stats.allocations.current, 0);
    /* A shutdown queries everything once more. */
    CHECK_OK(tcuda_host_malloc(100, &pinned));
    CHECK_OK(tcuda_free(allocate(1000, 0, NULL)));
    const uint64_t before = fired();
    CHECK_OK(tcuda_backend_faults(refusals));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(fired() - before, 4);
    CHECK_OK(tcuda_backend_faults(NULL));
}

static void reads_the_environment(void)
{
    CHECK_EQ(setenv("TCUDA_FAULTS", "cuInit@x=2", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_init());
    CHECK(strstr(tcuda_last_error(), "cuInit@x=2") != NULL);
    CHECK_EQ(setenv("TCUDA_FAULTS", "cuDeviceGet@1=999", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_init());
    CHECK_EQ(fired(), 1);
    CHECK_OK(tcuda_init());
    exit(finish());
}

int main(void)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        SKIP_WITHOUT_GPU();
        CHECK_OK(tcuda_shutdown(NULL));
        reads_the_environment();
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (child_status(status) == CHECK_SKIPPED)
        return CHECK_SKIPPED;
    CHECK_EQ(child_status(status), EXIT_SUCCESS);
    texts_are_checked();
    calls_fail_by_rules();
    a_lost_device_stays_lost();
    what_is_refused_is_not_lost();
    return finish();
}
