/* How failures are reported and made: names, last errors, the log, backends, injection. */
#define _POSIX_C_SOURCE 200809L

#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

static void every_status_has_its_name(void)
{
    static const struct { int32_t number; const char *name; } statuses[] = {
        { 0, "OK" }, { 1, "INVALID_ARGUMENT" }, { 2, "INVALID_HANDLE" }, { 3, "INVALID_POINTER" },
        { 4, "INVALID_DEVICE" }, { 5, "INVALID_STATE" }, { 6, "NOT_READY" },
        { 7, "WOULD_SYNCHRONIZE" }, { 20, "OUT_OF_MEMORY" }, { 21, "OUT_OF_HOST_MEMORY" },
        { 22, "NO_DRIVER" }, { 23, "NO_DEVICE" }, { 24, "NO_LIBRARY" }, { 25, "NOT_SUPPORTED" },
        { 26, "FORKED" }, { 27, "FILE_ERROR" }, { 40, "CUDA_ERROR" }, { 41, "DEVICE_LOST" },
        { 42, "NVRTC_ERROR" }, { 43, "COMPILE_ERROR" }, { 44, "NVML_ERROR" }, { 45, "NCCL_ERROR" },
        { 46, "CUBLAS_ERROR" }, { 47, "CALLBACK_FAILED" }, { 48, "PEER_GONE" },
        { 49, "CUFILE_ERROR" }, { 60, "CAPTURING" }, { 61, "CAPTURE_INVALIDATED" },
        { 99, "INTERNAL" },
    };
    size_t next = 0;
    for (int32_t number = -10; number < 200; number++) {
        char expected[64] = "unknown";
        if (next < sizeof statuses / sizeof statuses[0] && statuses[next].number == number)
            snprintf(expected, sizeof expected, "TCUDA_STATUS_%s", statuses[next++].name);
        CHECK_STR(tcuda_status_name(number), expected);
    }
    CHECK_EQ(next, sizeof statuses / sizeof statuses[0]);
    CHECK_STR(tcuda_status_name(INT32_MIN), "unknown");
}

/* ---- The last error ---- */

static void *has_errors_of_its_own(void *unused)
{
    char buf[8] = "before";
    size_t needed = 77;
    (void)unused;
    CHECK_STR(tcuda_last_error(), "");
    CHECK_EQ(tcuda_last_error_native(), 0);
    CHECK_OK(tcuda_last_error_message(buf, sizeof buf, &needed));
    CHECK_EQ(needed, 0);
    CHECK_STR(buf, "");
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_synchronize(1234));
    CHECK(strstr(tcuda_last_error(), "1234") != NULL);
    return NULL;
}

/* The first call of a thread, which fails before it is inside: its sentence goes with it. */
static void *asks_wrongly_at_once(void *unused)
{
    (void)unused;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_last_error_message(NULL, 4, NULL));
    CHECK(strstr(tcuda_last_error(), "buf") != NULL);
    return NULL;
}

static void the_last_error_is_the_threads(void)
{
    run_on_thread(asks_wrongly_at_once, NULL);
    char before[256];
    int32_t device = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_synchronize(4321));
    const char *text = tcuda_last_error();
    CHECK(strstr(text, "4321") != NULL);
    CHECK(strlen(text) < sizeof before);
    snprintf(before, sizeof before, "%s", text);
    run_on_thread(has_errors_of_its_own, NULL);
    CHECK_STR(text, before);
    /* Successes keep it. */
    CHECK_OK(tcuda_device_current(&device));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK(tcuda_last_error() == text);
    CHECK_STR(text, before);
    /* The next failure replaces it. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_synchronize(5678));
    CHECK(strstr(tcuda_last_error(), "5678") != NULL);
    CHECK(strstr(tcuda_last_error(), "4321") == NULL);
}

/* ---- The log ---- */

typedef struct log_lines {
    atomic_int lines, destroyed;
    tcuda_log_level level;
    char all[2000];
} log_lines;

static void take_line(void *user_data, tcuda_log_level level, const char *message)
{
    log_lines *log = user_data;
    const size_t used = strlen(log->all);
    CHECK_EQ(log->destroyed, 0);
    CHECK(strchr(message, '\n') == NULL);
    log->lines++;
    log->level = level;
    snprintf(log->all + used, sizeof log->all - used, "%s|", message);
}

static void log_is_destroyed(void *user_data)
{
    log_lines *log = user_data;
    log->destroyed++;
}

static void the_log_tells_what_was_forgotten(void)
{
    static log_lines log;
    size_t live = 77;
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_WARNING, take_line, &log, log_is_destroyed));
    for (int i = 0; i < 5; i++)
        create_stream(0);
    for (int i = 0; i < 3; i++)
        create_event(0);
    CHECK_EQ(log.lines, 0);
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 8);
    CHECK_EQ(log.level, TCUDA_LOG_WARNING);
    CHECK(strstr(log.all, "5 stream") != NULL);
    CHECK(strstr(log.all, "3 event") != NULL);
    CHECK_EQ(log.lines, 2);
    /* It stays, and has nothing to say about a life without leaks. */
    tcuda_stream *stream = create_stream(0);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(log.lines, 2);
    CHECK_EQ(log.destroyed, 0);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(log.destroyed, 1);
}

static void log_callbacks_are_let_go_once(void)
{
    static log_lines logs[4];
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, take_line, &logs[0], log_is_destroyed));
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, take_line, &logs[1], log_is_destroyed));
    /* A failed registration takes nothing, and leaves the last one in place. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_set_log_callback(5, take_line, &logs[2], log_is_destroyed));
    CHECK(strstr(tcuda_last_error(), "5") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_set_log_callback(-1, take_line, &logs[2], log_is_destroyed));
    /* It is never called, so that nothing keeps its data. */
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, NULL, &logs[3], log_is_destroyed));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(logs[0].destroyed, 1);
    CHECK_EQ(logs[1].destroyed, 1);
    CHECK_EQ(logs[2].destroyed, 0);
    CHECK_EQ(logs[3].destroyed, 1);
    /* A warning is no error: the second one would not have been logged. */
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, take_line, &logs[2], NULL));
    create_stream(0);
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(logs[2].lines, 0);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
}

/* ---- The backend ---- */

static void refuses_backend(const char *name, const char *options, const char *told)
{
    char before[8];
    snprintf(before, sizeof before, "%s", tcuda_backend_name());
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_select(name, options));
    CHECK(strstr(tcuda_last_error(), told) != NULL);
    CHECK_STR(tcuda_backend_name(), before);
}

static void backends_are_chosen_before_use(void)
{
    const char *original = tcuda_backend_name();
    int32_t major = 0, minor = 0;
    char name[32];
    CHECK(strcmp(original, "sim") == 0 || strcmp(original, "cuda") == 0);
    CHECK_OK(tcuda_shutdown(NULL));
    refuses_backend("rocm", NULL, "rocm");
    refuses_backend("", NULL, "name");
    refuses_backend("SIM", NULL, "SIM");
    refuses_backend(NULL, NULL, "name");
    refuses_backend("sim", "colour=red", "colour");
    refuses_backend("sim", "devices=0", "devices");
    refuses_backend("sim", "devices=1000", "1000");
    refuses_backend("sim", "devices", "devices");
    refuses_backend("sim", "memory=16GB", "16GB");
    refuses_backend("sim", "schedule=sometimes", "sometimes");
    refuses_backend("sim", "\xff", "UTF-8");
    refuses_backend("cuda", "devices=2", "devices=2");

    /* The simulated machine is everywhere. */
    CHECK_OK(tcuda_backend_select("sim", "devices=3, name=Test GPU, compute_capability=8.6"));
    CHECK_STR(tcuda_backend_name(), "sim");
    CHECK_EQ(num_devices(), 3);
    /* Counting does not settle it; using does. */
    CHECK_OK(tcuda_backend_select("sim", "devices=2, name=Test GPU, compute_capability=8.6"));
    CHECK_EQ(num_devices(), 2);
    CHECK_OK(tcuda_device_name(1, name, sizeof name, NULL));
    CHECK_STR(name, "Test GPU");
    CHECK_OK(tcuda_device_capability(1, &major, &minor));
    CHECK(major == 8 && minor == 6);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_backend_select("sim", NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_backend_select("cuda", NULL));
    CHECK(strstr(tcuda_last_error(), "tcuda_shutdown") != NULL);
    CHECK_EQ(num_devices(), 2);
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_backend_select(original, NULL));
    CHECK_STR(tcuda_backend_name(), original);
}

static void environment_is_refused(const char *variable, const char *value, const char *told)
{
    tcuda_stream *stream = NULL;
    CHECK_EQ(setenv(variable, value, 1), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_init());
    CHECK(strstr(tcuda_last_error(), told) != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_stream_create(0, 0, &stream));
}

static void bad_environments_are_refused(void)
{
    for (int i = 0; i < 2; i++) {
        int status = 0;
        fflush(NULL);
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (i == 0) {
                environment_is_refused("TCUDA_BACKEND", "gpu", "gpu");
            } else {
                CHECK_EQ(setenv("TCUDA_BACKEND", "sim", 1), 0);
                environment_is_refused("TCUDA_SIM", "devics=4", "devics");
            }
            exit(finish());
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(child_status(status), EXIT_SUCCESS);
    }
}

/* ---- Injection ---- */

enum { OUT_OF_MEMORY = 2, UNKNOWN = 999, LARGE = 256 << 20 };

static void refuses_injection(const char *function, int32_t forever, const char *told)
{
    uint64_t count = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_backend_inject(function, 1, UNKNOWN, forever));
    CHECK(strstr(tcuda_last_error(), told) != NULL);
    if (forever == 0) {
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_call_count(function, &count));
        CHECK_EQ(count, 77);
    }
}

/* Each block comes from the driver: the cache is emptied before. */
static tcuda_status allocate_anew(void)
{
    void *block = NULL;
    CHECK_OK(tcuda_memory_empty_cache());
    const tcuda_status status = tcuda_malloc(LARGE, 0, NULL, &block);
    CHECK_EQ(block != NULL, status == TCUDA_STATUS_OK);
    CHECK_OK(tcuda_free(block));
    return status;
}

static void fails_at_the_nth_call(uint64_t nth)
{
    const uint64_t before = calls_of("cuMemCreate");
    CHECK_OK(tcuda_backend_inject("cuMemCreate", nth, UNKNOWN, 0));
    while (calls_of("cuMemCreate") - before < nth) {
        const tcuda_status status = allocate_anew();
        const bool fired = calls_of("cuMemCreate") - before >= nth;
        CHECK_EQ(status, fired ? TCUDA_STATUS_CUDA_ERROR : TCUDA_STATUS_OK);
    }
    CHECK_EQ(calls_of("cuMemCreate") - before, nth);
    CHECK_EQ(tcuda_last_error_native(), UNKNOWN);
    CHECK(strstr(tcuda_last_error(), "cuMemCreate") != NULL);
    CHECK(strstr(tcuda_last_error(), "CUDA_ERROR_UNKNOWN") != NULL);
    CHECK_OK(allocate_anew());
}

static void driver_functions_can_be_made_to_fail(void)
{
    CHECK_OK(allocate_anew());
    CHECK(calls_of("cuMemCreate") > 0);
    CHECK(calls_of(NULL) > calls_of("cuMemCreate"));
    /* A call that is not made has no result to give: OK would be a lie to the library. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_inject("cuMemCreate", 1, 0, 0));
    CHECK(strstr(tcuda_last_error(), "result") != NULL);
    refuses_injection("cuNoSuchCall", 0, "cuNoSuchCall");
    refuses_injection("cuMemCreate", 2, "forever");
    refuses_injection("cuMemCreate", -1, "forever");
    fails_at_the_nth_call(1);
    fails_at_the_nth_call(2);
    fails_at_the_nth_call(7);

    /* Out of memory once is not the end: everything is given back, and the driver asked again. */
    const uint64_t before = calls_of("cuMemCreate");
    CHECK_OK(tcuda_backend_inject("cuMemCreate", 1, OUT_OF_MEMORY, 0));
    CHECK_OK(allocate_anew());
    CHECK(calls_of("cuMemCreate") - before >= 2);

    CHECK_OK(tcuda_backend_inject("cuMemCreate", 1, OUT_OF_MEMORY, 1));
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, allocate_anew());
        CHECK_EQ(tcuda_last_error_native(), OUT_OF_MEMORY);
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_inject("cuMemCreate", 1, 0, 0));
    CHECK(strstr(tcuda_last_error(), "result") != NULL);
    CHECK_OK(tcuda_backend_inject("cuMemCreate", 0, 0, 0));
    CHECK_OK(allocate_anew());

    /* Any function; a second rule for it replaces the first. */
    CHECK_OK(tcuda_backend_inject(NULL, 1, UNKNOWN, 1));
    CHECK_OK(tcuda_backend_inject(NULL, 1, UNKNOWN, 0));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_device_synchronize(0));
    CHECK_OK(tcuda_device_synchronize(0));
    /* What is sticky on a GPU is reported as such. */
    CHECK_OK(tcuda_backend_inject("cuCtxSynchronize", 1, 700, 0));
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_device_synchronize(0));
    CHECK_OK(tcuda_device_synchronize(0));
    /* Rules end with the life of the library. */
    CHECK_OK(tcuda_backend_inject("cuCtxSynchronize", 1, UNKNOWN, 1));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_device_synchronize(0));
}

static void an_event_whose_first_record_failed_is_as_before(void)
{
    tcuda_event *const event = create_event(0);
    int32_t device = 7;
    struct CUevent_st *native = NULL;
    CHECK_OK(tcuda_backend_inject("cuEventRecord", 1, 999, 0));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_event_record(event, NULL));
    CHECK_OK(tcuda_event_device(event, &device));
    CHECK_EQ(device, -1);
    CHECK_OK(tcuda_event_native(event, &native));
    CHECK(native == NULL);
    CHECK(is_reached(event));
    CHECK_OK(tcuda_event_record(event, NULL));
    CHECK_OK(tcuda_event_device(event, &device));
    CHECK_EQ(device, 0);
    CHECK_OK(tcuda_event_destroy(event));
}

int main(void)
{
    bad_environments_are_refused();
    SKIP_WITHOUT_GPU();
    every_status_has_its_name();
    the_last_error_is_the_threads();
    the_log_tells_what_was_forgotten();
    log_callbacks_are_let_go_once();
    driver_functions_can_be_made_to_fail();
    an_event_whose_first_record_failed_is_as_before();
    backends_are_chosen_before_use();
    return finish();
}
