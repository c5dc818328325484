/* What a mistake of the host's makes CUDA refuse: the sentence says what to do. */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <sys/resource.h>

#include "support.h"

static void says(const char *part)
{
    if (strstr(tcuda_last_error(), part) == NULL)
        check_failed(__FILE__, __LINE__, part, tcuda_last_error());
}

static void looks_for_a_gpu(void)
{
    SKIP_WITHOUT_GPU();
}

/* ---- Events ---- */

static void an_own_handle_is_not_opened(void)
{
    tcuda_event *event = create_event(TCUDA_EVENT_INTERPROCESS), *again = NULL;
    tcuda_ipc_event_handle handle;
    CHECK_OK(tcuda_event_record(event, NULL));
    CHECK_OK(tcuda_event_ipc_handle(event, &handle));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_event_from_ipc_handle(0, &handle, &again));
    says("the handle is this process's own, which only others can open: use the event itself");
    memset(&handle, 7, sizeof handle);
    CHECK(tcuda_event_from_ipc_handle(0, &handle, &again) != TCUDA_STATUS_OK && again == NULL);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* Two simulated GPUs, and an event of the second, by another process. */
static void a_foreign_event_is_opened_on_its_device(void)
{
    int to_here[2], to_there[2];
    tcuda_ipc_event_handle handle;
    tcuda_event *event = NULL;
    char byte = 0;
    if (!on_simulator())
        return;
    CHECK_OK(tcuda_backend_select("sim", "devices=2"));
    CHECK_EQ(pipe(to_here), 0);
    CHECK_EQ(pipe(to_there), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        tcuda_stream *stream = create_stream(1);
        event = create_event(TCUDA_EVENT_INTERPROCESS);
        CHECK_OK(tcuda_event_record(event, stream));
        CHECK_OK(tcuda_event_ipc_handle(event, &handle));
        CHECK(write(to_here[1], &handle, sizeof handle) == sizeof handle);
        CHECK(read(to_there[0], &byte, 1) == 1);
        _exit(EXIT_SUCCESS);
    }
    CHECK(read(to_here[0], &handle, sizeof handle) == sizeof handle);
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_event_from_ipc_handle(0, &handle, &event));
    says("the event is of another device");
    CHECK_OK(tcuda_event_from_ipc_handle(1, &handle, &event));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK(write(to_there[1], &byte, 1) == 1);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static void time_is_between_events_of_one_device(void)
{
    float elapsed = 77;
    if (on_simulator())
        CHECK_OK(tcuda_backend_select("sim", "devices=2"));
    if (num_devices() < 2)
        return;
    tcuda_event *start = create_event(TCUDA_EVENT_TIMING), *end = create_event(TCUDA_EVENT_TIMING);
    tcuda_stream *stream = create_stream(1);
    CHECK_OK(tcuda_event_record(start, NULL));
    CHECK_OK(tcuda_event_record(end, stream));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_elapsed_ms(start, end, &elapsed));
    says("start is of device 0 and end of device 1");
    CHECK(elapsed == 77);
    CHECK_OK(tcuda_event_destroy(start));
    CHECK_OK(tcuda_event_destroy(end));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* ---- Captures ---- */

typedef struct capture {
    tcuda_stream *stream, *other;
    tcuda_graph *graph;
    void *block;
} capture;

static capture begin_capture(void)
{
    capture begun = { create_stream(0), create_stream(0), NULL, allocate(4096, 0, NULL) };
    CHECK_OK(tcuda_graph_create(0, &begun.graph));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_graph_capture_begin(begun.graph, begun.stream, NULL, TCUDA_CAPTURE_GLOBAL));
    fill_bytes(begun.block, 1, 4096, begun.stream);
    return begun;
}

static void drop_capture(capture ended)
{
    CHECK_OK(tcuda_graph_destroy(ended.graph));
    CHECK_OK(tcuda_free(ended.block));
    CHECK_OK(tcuda_stream_destroy(ended.stream));
    CHECK_OK(tcuda_stream_destroy(ended.other));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static void a_stream_that_was_not_joined(void)
{
    const capture begun = begin_capture();
    CHECK_OK(tcuda_stream_wait_stream(begun.other, begun.stream));
    fill_bytes(begun.block, 2, 4096, begun.other);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_graph_capture_end(begun.graph));
    says("before the end call tcuda_stream_wait_stream(captured, that stream)");
    drop_capture(begun);
}

static void a_capture_that_was_broken_names_the_call(void)
{
    const char one = 1;
    capture begun = begin_capture();
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_stream_synchronize(begun.stream));
    says("do it before or after the capture");
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED,
        tcuda_fill(begun.block, &one, 1, 64, begun.stream));
    says("it was broken by a call of tcuda_stream_synchronize,");
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_capture_end(begun.graph));
    says("it was broken by a call of tcuda_stream_synchronize,");
    /* What broke one capture has not broken the next. */
    CHECK_OK(tcuda_graph_capture_begin(begun.graph, begun.stream, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_device_synchronize(0));
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_capture_end(begun.graph));
    says("it was broken by a call of tcuda_device_synchronize,");
    drop_capture(begun);
}

typedef int (*cu_stream_synchronize)(struct CUstream_st *stream);

static void a_capture_that_cuda_broke(void)
{
    union { void *address; cu_stream_synchronize function; } call;
    capture begun = begin_capture();
    CHECK_OK(tcuda_backend_function("cuStreamSynchronize", &call.address));
    CHECK_EQ(call.function(native_of(begun.stream)), 900);
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_capture_end(begun.graph));
    says("it was broken by a call to CUDA that did not go through tcuda");
    drop_capture(begun);
}

static void the_default_stream_takes_no_part(void)
{
    tcuda_stream *legacy = NULL;
    capture begun = begin_capture();
    CHECK_OK(tcuda_stream_default(0, &legacy));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_stream_wait_stream(legacy, begun.stream));
    says("use streams of tcuda_stream_create");
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_capture_end(begun.graph));
    says("tcuda_stream_wait_stream");
    drop_capture(begun);
}

static void an_event_of_a_capture_has_no_meaning_outside(void)
{
    bool done = false;
    capture begun = begin_capture();
    tcuda_event *event = create_event(0);
    CHECK_OK(tcuda_event_record(event, begun.stream));
    CHECK_OK(tcuda_graph_capture_end(begun.graph));
    CHECK(tcuda_event_query(event, &done) != TCUDA_STATUS_OK);
    says("record it anew");
    CHECK(tcuda_event_synchronize(event) != TCUDA_STATUS_OK);
    says("record it anew");
    CHECK(tcuda_stream_wait_event(begun.other, event) != TCUDA_STATUS_OK);
    says("record it anew");
    CHECK_OK(tcuda_event_destroy(event));
    drop_capture(begun);
}

/* ---- Launches and copies ---- */

static void what_is_too_large(void)
{
    char text[64] = { 0 }, *block = allocate(4096, 0, NULL);
    tcuda_kernel *kernel = NULL;
    tcuda_launch_options options = TCUDA_INIT(tcuda_launch_options);
    void *arguments[] = { &block };
    if (on_simulator()) { /* a GPU's driver does not look at the range */
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_copy(block, text, (size_t)1 << 40, NULL));
        says("the range is longer than its memory");
        tcuda_stream *stream = NULL;
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR,
            tcuda_stream_from_external(0, (struct CUstream_st *)(uintptr_t)0x123450, &stream));
        says("a native stream or event is none");
    }
    const tcuda_status compiled =
        tcuda_kernel_compile("__global__ void f(int *x) { *x = 1; }", "f", NULL, &kernel);
    if (compiled != TCUDA_STATUS_NO_LIBRARY) {
        CHECK_EQ(compiled, TCUDA_STATUS_OK);
        options.block[0] = 2048;
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR,
            tcuda_kernel_launch(kernel, &options, arguments, 1, NULL));
        says("its grid, block or shared memory is beyond what the device and the kernel allow");
        CHECK_OK(tcuda_kernel_destroy(kernel));
    }
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* ---- Functions of elements ---- */

static void a_function_with_another_number_of_inputs(void)
{
    static int64_t shape[] = { 16 };
    tcuda_tensor all[3];
    tcuda_jit *add = NULL, *split = NULL;
    char *block = allocate(4096, 0, NULL);
    for (size_t i = 0; i < 3; i++)
        all[i] = (tcuda_tensor){ .data = block + 512 * i, .device = { TCUDA_DEVICE_CUDA, 0 },
            .ndim = 1, .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = shape };
    CHECK_OK(tcuda_jit_create("template <typename T> T add(T x, T y) { return x + y; }", NULL,
        &add));
    const tcuda_status fewer = tcuda_jit_call(add, all, 1, NULL, 0, all, 1, NULL);
    if (fewer != TCUDA_STATUS_NO_LIBRARY) { /* nothing that compiles */
        CHECK_EQ(fewer, TCUDA_STATUS_INVALID_ARGUMENT);
        says("the function has 2 parameters, and got 1 inputs");
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_jit_call(add, all, 3, NULL, 0, all, 1, NULL));
        says("the function has 2 parameters, and got 3 inputs");
        CHECK_OK(tcuda_jit_create_multi(
            "template <typename T> void f(T x, T &a, T &b) { a = b = x; }", 2, NULL, &split));
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_jit_call(split, all, 2, NULL, 0, all + 1, 2, NULL));
        says("the function has 3 parameters, and got 2 inputs, 0 extra arguments and 2 outputs");
    }
    CHECK_OK(tcuda_jit_destroy(add));
    CHECK_OK(tcuda_jit_destroy(split));
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* ---- Descriptors ---- */

static void no_descriptor_is_left(void)
{
    struct rlimit limit;
    tcuda_ipc_handle handle;
    if (!on_simulator())
        return;
    void *block = allocate(4096, 0, NULL);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 64;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_OK(tcuda_ipc_export(block, NULL, &handle));
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
    void *other = allocate(40 << 20, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_ipc_export(other, NULL, &handle));
    says("CUDA_ERROR_OPERATING_SYSTEM");
    says("raise the limit of open files (ulimit -n)");
    _exit(EXIT_SUCCESS); /* a leak checker would want descriptors */
}

static void no_descriptor_is_left_for_the_machine(void)
{
    if (!on_simulator())
        return;
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
    CHECK(tcuda_init() != TCUDA_STATUS_OK);
    says("raise the limit of open files (ulimit -n)");
    _exit(EXIT_SUCCESS);
}

int main(void)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        looks_for_a_gpu();
        exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CHECK_SKIPPED)
        return CHECK_SKIPPED;
    RUNS(an_own_handle_is_not_opened);
    RUNS(a_foreign_event_is_opened_on_its_device);
    RUNS(time_is_between_events_of_one_device);
    RUNS(a_stream_that_was_not_joined);
    RUNS(a_capture_that_was_broken_names_the_call);
    RUNS(a_capture_that_cuda_broke);
    RUNS(the_default_stream_takes_no_part);
    RUNS(an_event_of_a_capture_has_no_meaning_outside);
    RUNS(what_is_too_large);
    RUNS(a_function_with_another_number_of_inputs);
    RUNS(no_descriptor_is_left);
    RUNS(no_descriptor_is_left_for_the_machine);
    return finish_cases();
}
