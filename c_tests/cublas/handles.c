/* Handles of cuBLAS on the simulated machine, by a stand-in that keeps what it is given. */
#include <dlfcn.h>
#include <stdlib.h>

#include "../support.h"
#include "cublas.h"

enum { MIB = 1 << 20, DEFAULT_BYTES = 32 * MIB };

static stand_in_count_fn alive;
static stand_in_fail_fn fail;

static struct cublasContext *handle_of(int32_t device)
{
    struct cublasContext *handle = NULL;
    CHECK_OK(tcuda_blas_handle(device, &handle));
    CHECK(handle != NULL && handle->is_alive);
    return handle;
}

static uint64_t allocated(int32_t device)
{
    uint64_t bytes = 0;
    CHECK_OK(tcuda_memory_allocated(device, &bytes));
    return bytes;
}

static void a_thread_has_one_handle(void)
{
    struct cublasContext *const handle = handle_of(0);
    CHECK(handle_of(0) == handle);
    CHECK(handle_of(TCUDA_CURRENT_DEVICE) == handle);
    CHECK(handle->stream == NULL && handle->workspace != NULL);
    CHECK_EQ(handle->workspace_bytes, DEFAULT_BYTES);
    CHECK_EQ(allocated(0), DEFAULT_BYTES);
    if (num_devices() > 1) {
        int32_t owner = -1;
        CHECK(handle_of(1) != handle);
        CHECK_OK(tcuda_device_of(handle_of(1)->workspace, &owner));
        CHECK_EQ(owner, 1);
        CHECK_EQ(current_device(), 0);
    }
}

/* Each stream has a workspace, and has the same one again. */
static void it_follows_the_current_stream(void)
{
    struct cublasContext *const handle = handle_of(0);
    void *const of_default = handle->workspace;
    tcuda_stream *previous = NULL, *streams[2] = { create_stream(0), create_stream(0) };
    void *workspaces[2];
    int32_t device = -1;
    const uint64_t before = allocated(0);
    CHECK_OK(tcuda_stream_exchange(streams[0], &previous, &device));
    for (int i = 0; i < 4; i++) {
        CHECK_OK(tcuda_stream_set_current(streams[i % 2]));
        CHECK(handle_of(0) == handle);
        CHECK(handle->stream == native_of(streams[i % 2]));
        CHECK(handle->workspace != of_default);
        if (i < 2)
            workspaces[i] = handle->workspace;
        else
            CHECK(handle->workspace == workspaces[i - 2]);
    }
    CHECK(workspaces[0] != workspaces[1]);
    CHECK_EQ(allocated(0) - before, 2 * DEFAULT_BYTES);
    CHECK_OK(tcuda_stream_set_current(previous));
    CHECK(handle_of(0) == handle && handle->workspace == of_default);
    CHECK_OK(tcuda_stream_destroy(streams[0]));
    CHECK_OK(tcuda_stream_destroy(streams[1]));
}

/* Streams that are others', one after the other: what the first had is not kept for ever. */
static void streams_that_go_leave_nothing(void)
{
    int (*create)(struct CUstream_st **stream, unsigned flags, int priority);
    int (*destroy)(struct CUstream_st *stream);
    void *address = NULL;
    CHECK_OK(tcuda_device_set(0));
    CHECK_OK(tcuda_backend_function("cuStreamCreateWithPriority", &address));
    memcpy(&create, &address, sizeof address);
    CHECK_OK(tcuda_backend_function("cuStreamDestroy", &address));
    memcpy(&destroy, &address, sizeof address);
    (void)handle_of(0);
    const uint64_t before = allocated(0);
    for (int i = 0; i < 20; i++) {
        struct CUstream_st *native = NULL;
        tcuda_stream *stream = NULL, *previous = NULL;
        int32_t device = -1;
        CHECK_EQ(create(&native, 1, 0), 0);
        CHECK_OK(tcuda_stream_from_external(0, native, &stream));
        CHECK_OK(tcuda_stream_exchange(stream, &previous, &device));
        const struct cublasContext *const handle = handle_of(0);
        CHECK(handle->stream == native);
        fill_bytes(handle->workspace, i, DEFAULT_BYTES, stream);
        CHECK_OK(tcuda_stream_set_current(previous));
        CHECK_OK(tcuda_stream_destroy(stream));
        CHECK_EQ(destroy(native), 0);
        CHECK(allocated(0) - before <= DEFAULT_BYTES);
    }
    (void)handle_of(0);
    CHECK_EQ(allocated(0), before);
}

static void *take_one(void *result)
{
    struct cublasContext *const handle = handle_of(0);
    CHECK(handle->math_mode == 0 && handle->pointer_mode == 0 && handle->atomics_mode == 0);
    handle->math_mode = handle->pointer_mode = handle->atomics_mode = 1;
    CHECK(handle_of(0)->math_mode == 1); /* it is this thread's */
    *(struct cublasContext **)result = handle;
    return NULL;
}

/* What a thread leaves, the next one gets, as it was made. */
static void threads_hand_their_handles_on(void)
{
    struct cublasContext *first = NULL, *second = NULL;
    run_on_thread(take_one, &first);
    const int before = alive();
    run_on_thread(take_one, &second);
    CHECK(first == second && first != handle_of(0));
    CHECK_EQ(alive(), before);
}

/* A graph has a workspace of its own, out of its own memory. */
static void captures_have_workspaces_of_their_own(void)
{
    struct cublasContext *const handle = handle_of(0);
    tcuda_graph *graph = NULL;
    tcuda_stream *stream = create_stream(0), *previous = NULL;
    int32_t device = -1;
    CHECK_OK(tcuda_stream_exchange(stream, &previous, &device));
    (void)handle_of(0);
    void *const beside = handle->workspace;
    const uint64_t before = allocated(0);
    CHECK_OK(tcuda_graph_create(0, &graph));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
        (void)handle_of(0);
        CHECK(handle->workspace != beside && handle->stream == native_of(stream));
        void *const captured = handle->workspace;
        fill_bytes(captured, i, DEFAULT_BYTES, stream);
        (void)handle_of(0);
        CHECK(handle->workspace == captured);
        CHECK_OK(tcuda_graph_capture_end(graph));
        (void)handle_of(0);
        CHECK(handle->workspace == beside);
        CHECK_OK(tcuda_graph_replay(graph, stream));
        CHECK_OK(tcuda_graph_reset(graph));
    }
    CHECK_EQ(allocated(0), before);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_set_current(previous));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void *fail_to_make_one(void *unused)
{
    (void)unused;
    struct cublasContext *handle = NULL;
    fail(1, 14);
    CHECK_STATUS(TCUDA_STATUS_CUBLAS_ERROR, tcuda_blas_handle(0, &handle));
    CHECK_EQ(tcuda_last_error_native(), 14);
    /* What may be want of memory is tried again, without the cache. */
    fail(2, 3);
    CHECK_STATUS(TCUDA_STATUS_CUBLAS_ERROR, tcuda_blas_handle(0, &handle));
    CHECK(handle == NULL);
    fail(1, 3);
    CHECK_OK(tcuda_blas_handle(0, &handle));
    CHECK(handle != NULL);
    return NULL;
}

static void *fail_to_find_memory(void *unused)
{
    (void)unused;
    struct cublasContext *handle = NULL;
    tcuda_stream *stream = create_stream(0), *previous = NULL;
    int32_t device = -1;
    CHECK_OK(tcuda_stream_exchange(stream, &previous, &device));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_fraction_set(0, 0.0));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_blas_handle(0, &handle));
    CHECK(handle == NULL);
    CHECK_OK(tcuda_memory_fraction_set(0, 1.0));
    CHECK(handle_of(0)->workspace_bytes == DEFAULT_BYTES);
    CHECK_OK(tcuda_stream_set_current(previous));
    CHECK_OK(tcuda_stream_destroy(stream));
    return NULL;
}

static struct cusolverDnContext *solver_of(int32_t device)
{
    struct cusolverDnContext *handle = NULL;
    CHECK_OK(tcuda_solver_handle(device, &handle));
    CHECK(handle != NULL && handle->is_alive);
    return handle;
}

static void *use_a_solver(void *handle)
{
    struct cusolverDnContext *const own = solver_of(0);
    CHECK_EQ(own->determinism, 1);
    own->determinism = 2;
    *(struct cusolverDnContext **)handle = own;
    return NULL;
}

/* As those of cuBLAS, without workspaces: one for each thread, which follows the stream, and goes
 * to the next thread with its mode reset. */
static void solvers_have_handles_too(void)
{
    tcuda_stream *previous = NULL, *stream = create_stream(0);
    int32_t device = -1;
    struct cusolverDnContext *handle = NULL;
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_solver_handle(0, &handle));
    CHECK(strstr(tcuda_last_error(), "TCUDA_CUSOLVER_PATH") != NULL && handle == NULL);
    CHECK_EQ(setenv("TCUDA_CUSOLVER_PATH", getenv("TCUDA_CUBLAS_PATH"), 1), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_solver_handle(0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_solver_handle(num_devices(), &handle));
    handle = solver_of(0);
    CHECK((void *)handle != (void *)handle_of(0) && solver_of(0) == handle);
    CHECK_OK(tcuda_stream_exchange(stream, &previous, &device));
    CHECK(solver_of(TCUDA_CURRENT_DEVICE) == handle && handle->stream == native_of(stream));
    CHECK_OK(tcuda_stream_set_current(previous));
    CHECK(solver_of(0)->stream == native_of(previous));
    struct cusolverDnContext *others[2] = { NULL, NULL };
    run_on_thread(use_a_solver, &others[0]);
    run_on_thread(use_a_solver, &others[1]);
    CHECK(others[0] != handle && others[1] == others[0]);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void shut_down(void)
{
    CHECK(alive() > 0);
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(alive(), 0);
}

/* The size of a workspace, as PyTorch reads it; each life of the library reads it anew. */
static void sizes_are_as_the_environment_wants(void)
{
    struct cublasContext *handle = NULL;
    CHECK_EQ(setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8", 1), 0);
    CHECK_EQ(handle_of(0)->workspace_bytes, 8519680);
    shut_down();
    CHECK_EQ(setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0", 1), 0);
    CHECK(handle_of(0)->workspace == NULL);
    CHECK_EQ(allocated(0), 0);
    shut_down();
    CHECK_EQ(setenv("CUBLAS_WORKSPACE_CONFIG", "nonsense", 1), 0);
    CHECK_EQ(handle_of(0)->workspace_bytes, DEFAULT_BYTES);
    shut_down();
    CHECK_EQ(setenv("CUBLAS_WORKSPACE_CONFIG", ":18446744073709551616:1", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_blas_handle(0, &handle));
    CHECK_EQ(unsetenv("CUBLAS_WORKSPACE_CONFIG"), 0);
    shut_down();
}

/* What computes on a GPU does not work past the simulated machine. */
static void refuse_the_real_one(void)
{
    struct cublasContext *handle = NULL;
    CHECK_EQ(setenv("TCUDA_CUBLAS_PATH", getenv("TCUDA_TEST_REAL_CUBLAS"), 1), 0);
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_blas_handle(0, &handle));
    CHECK_EQ(unsetenv("TCUDA_CUBLAS_PATH"), 0);
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_blas_handle(0, &handle));
    CHECK(strstr(tcuda_last_error(), "TCUDA_CUBLAS_PATH") != NULL && handle == NULL);
}

static void miss_it(void)
{
    struct cublasContext *handle = NULL;
    CHECK_EQ(setenv("TCUDA_CUBLAS_PATH", "/nonexistent/libcublas.so", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_blas_handle(0, &handle));
    CHECK(handle == NULL);
}

int main(void)
{
    struct cublasContext *handle = NULL;
    RUNS(refuse_the_real_one);
    RUNS(miss_it);
    void *const stand_in = dlopen(getenv("TCUDA_CUBLAS_PATH"), RTLD_NOW);
    CHECK(stand_in != NULL);
    *(void **)&alive = dlsym(stand_in, "stand_in_alive");
    *(void **)&fail = dlsym(stand_in, "stand_in_fail");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_blas_handle(0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_blas_handle(num_devices(), &handle));
    CHECK(handle == NULL);
    a_thread_has_one_handle();
    it_follows_the_current_stream();
    streams_that_go_leave_nothing();
    threads_hand_their_handles_on();
    captures_have_workspaces_of_their_own();
    solvers_have_handles_too();
    run_on_thread(fail_to_find_memory, NULL);
    shut_down();
    run_on_thread(fail_to_make_one, NULL);
    shut_down();
    sizes_are_as_the_environment_wants();
    CHECK_EQ(*failed_cases(), 0);
    return finish();
}
