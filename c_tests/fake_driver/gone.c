/* The driver is gone before us: exit handlers run newest first, and libcuda's own is among them.
 * The driver is libcuda.c of this folder, which fails and counts what is called too late. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

static long ask_the_driver(const char *name)
{
    long (*function)(void) = NULL;
    void *library = dlopen(getenv("TCUDA_CUDA_DRIVER_PATH"), RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != NULL);
    void *const symbol = dlsym(library, name);
    CHECK(symbol != NULL);
    memcpy(&function, &symbol, sizeof symbol);
    return function();
}

/* One of each kind, in use. */
static tcuda_stream *stream;
static tcuda_event *event;
static tcuda_allocation *allocation;
static void *block, *host_block;

static void make_things(void)
{
    stream = create_stream(0);
    event = create_event(TCUDA_EVENT_TIMING);
    block = allocate(1 << 20, 0, stream);
    CHECK_OK(tcuda_allocation_create(4096, 0, stream, &allocation));
    CHECK_OK(tcuda_host_malloc(4096, &host_block));
    fill_bytes(block, 5, 1 << 20, stream);
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_stream_set_current(stream));
}

static void is_gone(tcuda_status status)
{
    CHECK_EQ(status, TCUDA_STATUS_CUDA_ERROR);
    CHECK(strstr(tcuda_last_error(), "CUDA_ERROR_DEINITIALIZED (4): driver shutting down") != NULL);
    CHECK_EQ(tcuda_last_error_native(), 4);
}

/* ---- What exit handlers do ---- */

static void nobody_called_it(void)
{
    CHECK_EQ(ask_the_driver("fake_late_calls"), 0);
}

static void work_fails(void)
{
    const unsigned char byte = 1;
    bool done = false;
    is_gone(tcuda_fill(block, &byte, 1, 4096, stream));
    is_gone(tcuda_event_record(event, stream));
    is_gone(tcuda_event_synchronize(event));
    is_gone(tcuda_stream_query(stream, &done));
    is_gone(tcuda_stream_synchronize(stream));
    is_gone(tcuda_device_synchronize(0));
    is_gone(tcuda_stream_wait_event(stream, event));
    CHECK(!done);
}

static void drop(tcuda_status status)
{
    if (status != TCUDA_STATUS_OK)
        is_gone(status);
}

/* As the destructors of a C++ host's static objects do. */
static void destroys_what_it_has(void)
{
    drop(tcuda_free(block));
    drop(tcuda_host_free(host_block));
    drop(tcuda_allocation_destroy(allocation));
    drop(tcuda_event_destroy(event));
    drop(tcuda_stream_destroy(stream));
    /* Each is gone, whatever the driver said. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_allocation_destroy(allocation));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_event_destroy(event));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_stream_destroy(stream));
}

static size_t shut_down(void)
{
    size_t live = 77;
    CHECK_OK(tcuda_shutdown(&live));
    return live;
}

static void uses_and_destroys(void)
{
    work_fails();
    destroys_what_it_has();
    CHECK_EQ(shut_down(), 0);
}

static void shuts_down(void)
{
    CHECK_EQ(shut_down(), 3);
    is_gone(tcuda_init());
    CHECK_EQ(shut_down(), 0);
}

/* ---- The cases ---- */

static void runs_after_the_driver(void (*handler)(void))
{
    CHECK_EQ(atexit(handler), 0);
    make_things();
}

static void nothing_is_called_at_exit(void)
{
    runs_after_the_driver(nobody_called_it);
}

static void *makes_things_and_returns(void *unused)
{
    (void)unused;
    make_things();
    return NULL;
}

static void nothing_is_called_for_other_threads(void)
{
    runs_after_the_driver(nobody_called_it);
    run_on_thread(makes_things_and_returns, NULL);
}

static void what_is_left_can_be_destroyed(void)
{
    runs_after_the_driver(uses_and_destroys);
}

static void it_can_be_shut_down(void)
{
    runs_after_the_driver(shuts_down);
}

/* A handler that is newer than the driver's finds it there, and leaves nothing in it. */
static void shuts_down_in_time(void)
{
    CHECK(ask_the_driver("fake_alive") > 0);
    CHECK_EQ(shut_down(), 3);
    CHECK_EQ(ask_the_driver("fake_late_calls"), 0);
    CHECK_EQ(ask_the_driver("fake_alive"), 0);
}

static void a_newer_handler_is_in_time(void)
{
    make_things();
    CHECK_EQ(atexit(shuts_down_in_time), 0);
}

/* Threads do not know that the process ends. */
static atomic_long count;

static void *calls_for_ever(void *unused)
{
    (void)unused;
    for (;; count++) {
        void *small = NULL;
        tcuda_event *mark = NULL;
        if (tcuda_malloc(100, 0, NULL, &small) == TCUDA_STATUS_OK)
            drop(tcuda_free(small));
        if (tcuda_event_create(0, &mark) == TCUDA_STATUS_OK) {
            drop(tcuda_event_record(mark, NULL));
            drop(tcuda_event_destroy(mark));
        }
    }
    return NULL;
}

static void waits_for_more_calls(void)
{
    const long before = atomic_load(&count);
    while (atomic_load(&count) < before + 1000)
        sleep_ms(1);
    CHECK(ask_the_driver("fake_late_calls") > 0);
}

static void threads_go_on_calling(void)
{
    CHECK_EQ(atexit(waits_for_more_calls), 0);
    CHECK_OK(tcuda_init());
    for (int i = 0; i < 3; i++)
        start_thread(calls_for_ever, NULL);
    while (atomic_load(&count) < 100)
        sleep_ms(1);
}

int main(void)
{
    RUNS(nothing_is_called_at_exit);
    RUNS(nothing_is_called_for_other_threads);
    RUNS(what_is_left_can_be_destroyed);
    RUNS(it_can_be_shut_down);
    RUNS(a_newer_handler_is_in_time);
    RUNS(threads_go_on_calling);
    return finish_cases();
}
