/* Drivers that lack something: a GPU, a call, or the will. The driver is libcuda.c of this folder;
 * each case runs in a process of its own, because the environment is the process's. */
#define _POSIX_C_SOURCE 200809L

#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

static void driver_has(const char *name, const char *value)
{
    CHECK_EQ(setenv(name, value, 1), 0);
}

static void says(const char *part)
{
    if (strstr(tcuda_last_error(), part) == NULL)
        check_failed(__FILE__, __LINE__, part, tcuda_last_error());
}

/* Nothing breaks, and an answer is not an error. */
static void no_device_is_there(void)
{
    bool available = true;
    int32_t count = 77;
    void *block = NULL;
    CHECK_OK(tcuda_is_available(&available));
    CHECK(!available);
    CHECK_OK(tcuda_device_count(&count));
    CHECK_EQ(count, 0);
    CHECK(tcuda_malloc(512, 0, NULL, &block) != TCUDA_STATUS_OK);
    CHECK(block == NULL);
}

/* ---- Without a GPU ---- */

static void says_that_no_device_is_there(void)
{
    driver_has("FAKE_CUDA_INIT", "100");
    no_device_is_there();
    CHECK_STATUS(TCUDA_STATUS_NO_DEVICE, tcuda_init());
    says("no CUDA GPUs are available; check CUDA_VISIBLE_DEVICES");
}

static void has_none(void)
{
    driver_has("FAKE_CUDA_COUNT", "0");
    no_device_is_there();
    CHECK_STATUS(TCUDA_STATUS_NO_DEVICE, tcuda_init());
}

static void counts_below_none(void)
{
    driver_has("FAKE_CUDA_COUNT", "-3");
    no_device_is_there();
    CHECK_STATUS(TCUDA_STATUS_NO_DEVICE, tcuda_init());
}

/* More devices than a process can use are not a fault. */
static void counts_too_many(void)
{
    driver_has("FAKE_CUDA_COUNT", "1000");
    CHECK_OK(tcuda_init());
    CHECK_EQ(num_devices(), 64);
}

static void is_a_stub(void)
{
    driver_has("FAKE_CUDA_INIT", "34");
    no_device_is_there();
    CHECK_STATUS(TCUDA_STATUS_NO_DEVICE, tcuda_init());
    says("libcuda is a stub of the CUDA toolkit");
}

static void does_not_start(void)
{
    driver_has("FAKE_CUDA_INIT", "999");
    no_device_is_there();
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_init());
    says("cuInit failed: CUDA_ERROR_UNKNOWN (999)");
    CHECK_EQ(tcuda_last_error_native(), 999);
}

/* ---- Without calls ---- */

static void use_streams_and_memory(void)
{
    tcuda_stream *stream = create_stream(0);
    tcuda_event *event = create_event(0);
    void *block = allocate(4 << 20, 0, stream);
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_stream_wait_event(NULL, event));
    CHECK_OK(tcuda_record_stream(block, NULL));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* Streams are known by their handles then. */
static void is_too_old_for_numbers_of_streams(void)
{
    struct CUstream_st *native;
    tcuda_stream *external = NULL, *again = NULL;
    driver_has("FAKE_CUDA_WITHOUT", "cuStreamGetId");
    tcuda_stream *stream = create_stream(0);
    native = native_of(stream);
    CHECK_OK(tcuda_stream_from_external(0, native, &external));
    CHECK_OK(tcuda_stream_from_external(0, native, &again));
    CHECK(native_of(external) == native && native_of(again) == native);
    CHECK_OK(tcuda_stream_destroy(again));
    CHECK_OK(tcuda_stream_destroy(external));
    CHECK_OK(tcuda_stream_destroy(stream));
    use_streams_and_memory();
}

static void knows_no_captures(void)
{
    driver_has("FAKE_CUDA_WITHOUT",
        "cuStreamIsCapturing cuStreamGetCaptureInfo cuThreadExchangeStreamCaptureMode");
    use_streams_and_memory();
}

static void has_no_virtual_memory(const char *call)
{
    void *block = NULL;
    driver_has("FAKE_CUDA_WITHOUT", call);
    const tcuda_status status = tcuda_malloc(512, 0, NULL, &block);
    CHECK_EQ(status, TCUDA_STATUS_NOT_SUPPORTED);
    says(call);
    says("is not supported by this driver");
    CHECK(block == NULL);
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static void cannot_reserve(void)
{
    has_no_virtual_memory("cuMemAddressReserve");
}

static void cannot_map(void)
{
    has_no_virtual_memory("cuMemMap");
}

/* ---- Calls that fail ---- */

static void callback(void *called)
{
    *(bool *)called = true;
}

/* The default stream while a stream that it waits for is captured: hands off. */
static void refuses_while_it_captures(void)
{
    bool called = false;
    driver_has("FAKE_CUDA_GIVES", "cuStreamIsCapturing 906");
    CHECK_STATUS(TCUDA_STATUS_CAPTURING,
        tcuda_stream_add_callback(NULL, callback, &called, callback));
    says("not possible while the stream is captured");
    CHECK(!called);
    CHECK_EQ(finish(), EXIT_SUCCESS);
    CHECK(!called);
}

/* A failed registration takes nothing. */
static void takes_no_callback(void)
{
    bool called = false;
    driver_has("FAKE_CUDA_GIVES", "cuLaunchHostFunc 801");
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR,
        tcuda_stream_add_callback(NULL, callback, &called, callback));
    CHECK_EQ(tcuda_last_error_native(), 801);
    CHECK_EQ(finish(), EXIT_SUCCESS);
    CHECK(!called);
}

typedef struct callback_counts {
    int calls, destroyed;
} callback_counts;

static void count_call(void *counts)
{
    ((callback_counts *)counts)->calls++;
}

static void count_destroyed(void *counts)
{
    ((callback_counts *)counts)->destroyed++;
}

/* Any call may report the failure of earlier work: a callback that has run was accepted all the
 * same, and a host that got an error instead would free its data again. */
static void calls_although_it_fails(void)
{
    callback_counts counts = { 0, 0 };
    driver_has("FAKE_CUDA_CALLS", "now 719");
    CHECK_OK(tcuda_stream_add_callback(NULL, count_call, &counts, count_destroyed));
    CHECK(counts.calls == 1 && counts.destroyed == 1);
    CHECK_EQ(finish(), EXIT_SUCCESS);
    CHECK(counts.calls == 1 && counts.destroyed == 1);
}

/* The error means that the host keeps its data: they are not touched again. */
static void calls_long_after_it_failed(void)
{
    callback_counts counts = { 0, 0 };
    driver_has("FAKE_CUDA_CALLS", "late 719");
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST,
        tcuda_stream_add_callback(NULL, count_call, &counts, count_destroyed));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_EQ(finish(), EXIT_SUCCESS);
    CHECK(counts.calls == 0 && counts.destroyed == 0);
}

static void recording_gives(const char *code, tcuda_status expected)
{
    char gives[64];
    snprintf(gives, sizeof gives, "cuEventRecord %s", code);
    driver_has("FAKE_CUDA_GIVES", gives);
    tcuda_event *event = create_event(0);
    CHECK_STATUS(expected, tcuda_event_record(event, NULL));
    CHECK_EQ(tcuda_last_error_native(), atoi(code));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static void says_that_a_capture_is_broken(void)
{
    recording_gives("901", TCUDA_STATUS_CAPTURE_INVALIDATED);
}

static void says_that_it_captures(void)
{
    recording_gives("900", TCUDA_STATUS_CAPTURING);
}

static void says_what_is_new(void)
{
    recording_gives("9984", TCUDA_STATUS_CUDA_ERROR);
    says("an unknown CUresult (9984)");
}

/* Addresses run out at every size that is asked for. */
static void has_no_addresses(void)
{
    void *block = NULL;
    driver_has("FAKE_CUDA_GIVES", "cuMemAddressReserve 2");
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_HOST_MEMORY, tcuda_malloc(512, 0, NULL, &block));
    says("device addresses ran out");
    CHECK(block == NULL);
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* ---- Children ---- */

/* What libcuda left in the process is not gone with a shutdown. */
static void refuses_a_child_after_a_shutdown(void)
{
    int status = 0;
    use_streams_and_memory();
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_STATUS(TCUDA_STATUS_FORKED, tcuda_init());
        exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    use_streams_and_memory();
}

int main(void)
{
    RUNS(says_that_no_device_is_there);
    RUNS(has_none);
    RUNS(counts_below_none);
    RUNS(counts_too_many);
    RUNS(is_a_stub);
    RUNS(does_not_start);
    RUNS(use_streams_and_memory);
    RUNS(is_too_old_for_numbers_of_streams);
    RUNS(knows_no_captures);
    RUNS(cannot_reserve);
    RUNS(cannot_map);
    RUNS(refuses_while_it_captures);
    RUNS(takes_no_callback);
    RUNS(calls_although_it_fails);
    RUNS(calls_long_after_it_failed);
    RUNS(says_that_a_capture_is_broken);
    RUNS(says_that_it_captures);
    RUNS(says_what_is_new);
    RUNS(has_no_addresses);
    RUNS(refuses_a_child_after_a_shutdown);
    return finish_cases();
}
