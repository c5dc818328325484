/* pthread_cancel of threads that are in the library: a call is finished first, and the thread ends
 * at the next point of its own where it can be cancelled. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

/* Which call a thread makes again and again. */
typedef struct looping {
    void (*call)(void);
    atomic_int calls;
    atomic_bool cleaned;
} looping;

static char path[64];

static void save_snapshot(void)
{
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_save(snapshot, path));
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
}

static void compile_kernel(void)
{
    static atomic_int number;
    char source[128];
    tcuda_kernel *kernel = NULL;
    /* Another source each time, so that it is compiled. */
    snprintf(source, sizeof source, "extern \"C\" __global__ void set(int *x) { *x = %d; }",
        atomic_fetch_add(&number, 1) + (int)getpid() * 1000);
    CHECK_OK(tcuda_kernel_compile(source, "set", NULL, &kernel));
    CHECK_OK(tcuda_kernel_destroy(kernel));
}

static void dump_graph(void)
{
    tcuda_graph *graph = NULL;
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_create(0, 0, &stream));
    CHECK_OK(tcuda_graph_create(1, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_THREAD_LOCAL));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_debug_dump(graph, path));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void shut_down(void)
{
    CHECK_OK(tcuda_init());
    CHECK_OK(tcuda_shutdown(NULL));
}

static void export_memory(void)
{
    tcuda_ipc_handle shared;
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(1 << 20, 0, NULL, &ptr));
    if (tcuda_ipc_export(ptr, NULL, &shared) == TCUDA_STATUS_OK)
        CHECK_OK(tcuda_ipc_withdraw(&shared));
    CHECK_OK(tcuda_free(ptr));
}

static void wait_for_stream(void)
{
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_OK(tcuda_device_synchronize(0));
}

static void copy(void)
{
    static char bytes[1 << 16];
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(sizeof bytes, 0, NULL, &ptr));
    CHECK_OK(tcuda_copy(bytes, ptr, sizeof bytes, NULL));
    CHECK_OK(tcuda_free(ptr));
}

static void use_pinned_memory(void)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_host_malloc(1 << 20, &ptr));
    CHECK_OK(tcuda_host_free(ptr));
    CHECK_OK(tcuda_host_memory_empty_cache());
}

/* A function of the host's that could be cancelled is not: frames of the library are below it. */
static void sleep_in_line(void *user_data, tcuda_log_level level, const char *message)
{
    (void)user_data;
    (void)level;
    (void)message;
    sleep_ms(1);
    pthread_testcancel();
}

static void log_lines(void)
{
    tcuda_event *event = NULL;
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, sleep_in_line, NULL, NULL));
    CHECK_OK(tcuda_event_create(0, &event));
    CHECK_OK(tcuda_shutdown(NULL)); /* Warns of the event. */
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
}

static void clean(void *argument)
{
    atomic_store(&((looping *)argument)->cleaned, true);
}

static void *loop(void *argument)
{
    looping *const self = argument;
    pthread_cleanup_push(clean, self);
    for (;;) {
        self->call();
        atomic_fetch_add(&self->calls, 1);
        pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return NULL;
}

/* Threads that make a call are cancelled after some time: early and late in a call. */
static void cancel(void (*call)(void))
{
    for (int i = 0; i < 12; i++) {
        looping state = { .call = call };
        void *result = NULL;
        const pthread_t thread = start_thread(loop, &state);
        while (atomic_load(&state.calls) == 0)
            sleep_ms(0);
        const struct timespec some = { 0, i * 173000L };
        nanosleep(&some, NULL);
        CHECK_EQ(pthread_cancel(thread), 0);
        CHECK_EQ(pthread_join(thread, &result), 0);
        CHECK(result == PTHREAD_CANCELED);
        CHECK(atomic_load(&state.cleaned));
    }
    /* The library is as it was. */
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(1000, 0, NULL, &ptr));
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_shutdown(NULL));
}

/* What a host has put off stays off, and what it has not comes back. */
static void the_state_is_the_hosts(void)
{
    int before = -1;
    CHECK_EQ(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before), 0);
    CHECK_EQ(before, PTHREAD_CANCEL_ENABLE);
    save_snapshot();
    CHECK_EQ(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before), 0);
    CHECK_EQ(before, PTHREAD_CANCEL_DISABLE);
    save_snapshot();
    CHECK_EQ(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before), 0);
    CHECK_EQ(before, PTHREAD_CANCEL_ENABLE);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    snprintf(path, sizeof path, "/tmp/tcuda_cancel_%d.json", (int)getpid());
    the_state_is_the_hosts();
    cancel(save_snapshot);
    cancel(dump_graph);
    cancel(export_memory);
    cancel(wait_for_stream);
    cancel(copy);
    cancel(use_pinned_memory);
    cancel(log_lines);
    cancel(shut_down);
    if (has_compiler())
        cancel(compile_kernel);
    CHECK_EQ(unlink(path), 0);
    return finish();
}
