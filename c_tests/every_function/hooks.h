/* Calls every function of tcuda.h in every function of the host's that the library calls. Each call
 * works or gives a status, within some seconds; the process goes on. */
#ifndef HOOKS_H
#define HOOKS_H

#include "../support.h"

/* What is to be called in the next hook that is reached. */
static tcuda_status (*_Atomic waiting)(void *);
static void *waiting_arguments;
static tcuda_status given;
static char sentence[512];

/* Each hook calls this. */
static inline void here(void)
{
    tcuda_status (*const perform)(void *) = atomic_exchange(&waiting, NULL);
    if (perform == NULL)
        return;
    given = perform(waiting_arguments);
    if (given != TCUDA_STATUS_OK)
        snprintf(sentence, sizeof sentence, "%s", tcuda_last_error());
}

/* ---- The hooks ---- */

static inline void on_data(void *user_data)
{
    (void)user_data;
    here();
}

static inline void nothing_with_data(void *user_data)
{
    (void)user_data;
}

static inline void on_line(void *user_data, tcuda_log_level level, const char *line)
{
    (void)user_data, (void)level, (void)line;
    here();
}

static inline void no_line(void *user_data, tcuda_log_level level, const char *line)
{
    (void)user_data, (void)level, (void)line;
}

static inline int32_t on_shortage(void *user_data, int32_t device, size_t bytes,
    size_t limit, size_t free)
{
    (void)user_data, (void)device, (void)bytes, (void)limit, (void)free;
    here();
    return 0;
}

static inline int32_t no_help(void *user_data, int32_t device, size_t bytes, size_t limit,
    size_t free)
{
    (void)user_data, (void)device, (void)bytes, (void)limit, (void)free;
    return 0;
}

static inline void on_graph(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    struct CUgraph_st *cu_graph, struct CUgraphExec_st *cu_graph_exec)
{
    (void)user_data, (void)event, (void)graph, (void)cu_graph, (void)cu_graph_exec;
    here();
}

static inline void no_graph(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    struct CUgraph_st *cu_graph, struct CUgraphExec_st *cu_graph_exec)
{
    (void)user_data, (void)event, (void)graph, (void)cu_graph, (void)cu_graph_exec;
}

static inline size_t on_frames(void *user_data, tcuda_frame *frames, size_t capacity)
{
    (void)user_data, (void)frames, (void)capacity;
    here();
    return 0;
}

static inline size_t no_frames(void *user_data, tcuda_frame *frames, size_t capacity)
{
    (void)user_data, (void)frames, (void)capacity;
    return 0;
}

static inline void on_report(void *user_data, const tcuda_sanitizer_report *report)
{
    (void)user_data, (void)report;
    here();
}

static inline int32_t on_capture(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs)
{
    (void)user_data, (void)num_inputs, (void)stream, (void)num_outputs;
    here();
    outputs[0] = inputs[0];
    return 0;
}

static inline int32_t return_input(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs)
{
    (void)user_data, (void)num_inputs, (void)stream, (void)num_outputs;
    outputs[0] = inputs[0];
    return 0;
}

/* An allocator whose memory is pinned, so that it may be used. The hook of this number calls. */
enum { IN_MALLOC, IN_FREE, IN_INIT, IN_RESET, IN_FRACTION, IN_BASE, IN_RECORD, OUT_OF_MEMORY };
static int hook;

static inline void *on_malloc(ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    (void)device, (void)stream;
    void *ptr = NULL;
    if (hook == IN_MALLOC)
        here();
    if (hook == OUT_OF_MEMORY || tcuda_host_malloc((size_t)bytes, &ptr) != TCUDA_STATUS_OK)
        return NULL;
    return ptr;
}

static inline void on_free(void *ptr, ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    (void)bytes, (void)device, (void)stream;
    if (hook == IN_FREE)
        here();
    (void)!tcuda_host_free(ptr);
}

static inline void on_init(int32_t devices)
{
    (void)devices;
    if (hook == IN_INIT)
        here();
}

static inline void on_reset(void)
{
    if (hook == IN_RESET)
        here();
}

static inline void on_fraction(double fraction, int32_t device)
{
    (void)fraction, (void)device;
    if (hook == IN_FRACTION)
        here();
}

static inline void *on_base(void *ptr, size_t *bytes)
{
    if (hook == IN_BASE)
        here();
    *bytes = 4096;
    return ptr;
}

static inline void on_record(void *ptr, struct CUstream_st *stream)
{
    (void)ptr, (void)stream;
    if (hook == IN_RECORD)
        here();
}

/* ---- What reaches them ---- */

static tcuda_pluggable_allocator *allocator;
static tcuda_mem_pool *pool;
static tcuda_stream *others[2];
static tcuda_tensor *make_tensor(void);

static inline void streams(void)
{
    CHECK_OK(tcuda_stream_create(0, 0, &others[0]));
    CHECK_OK(tcuda_stream_create(0, 0, &others[1]));
}

static inline void reach_callback(void)
{
    CHECK_OK(tcuda_stream_add_callback(NULL, on_data, NULL, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
}

static inline void reach_end_of_callback(void)
{
    CHECK_OK(tcuda_stream_add_callback(NULL, nothing_with_data, NULL, on_data));
    CHECK_OK(tcuda_stream_synchronize(NULL));
}

/* By then the thread that waits for this function does. */
static inline void on_data_later(void *user_data)
{
    (void)user_data;
    if (runs_late())
        sleep_ms(2);
    here();
}

/* Another thread gives memory back that this stream used. */
static inline void reach_beside_empty_cache(void)
{
    void *small[128], *large = NULL;
    CHECK_OK(tcuda_malloc(64 << 20, 0, NULL, &large));
    for (int i = 0; i < 128; i++)
        CHECK_OK(tcuda_malloc(64 << 10, 0, NULL, &small[i]));
    CHECK_OK(tcuda_stream_add_callback(NULL, on_data_later, NULL, NULL));
    for (int i = 0; i < 128; i++)
        CHECK_OK(tcuda_free(small[i]));
    CHECK_OK(tcuda_free(large));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_stream_synchronize(NULL));
}

/* Another one waits for memory that a stream uses. */
static inline void reach_beside_malloc(void)
{
    void *ptr = NULL, *other = NULL;
    size_t free_bytes = 0, total = 0;
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total));
    CHECK_OK(tcuda_malloc(free_bytes / 2 + (1 << 20), 0, others[0], &ptr));
    CHECK_OK(tcuda_stream_add_callback(others[0], on_data_later, NULL, NULL));
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_malloc(free_bytes / 2 + (1 << 20), 0, others[1], &other));
    CHECK_OK(tcuda_stream_synchronize(others[0]));
    CHECK_OK(tcuda_free(other));
}

static inline void reach_beside_shutdown(void)
{
    CHECK_OK(tcuda_stream_add_callback(NULL, on_data_later, NULL, NULL));
    CHECK_OK(tcuda_shutdown(NULL));
}

static inline void replay(tcuda_host_fn function, tcuda_destroy_fn destroy)
{
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, others[0], NULL, TCUDA_CAPTURE_RELAXED));
    CHECK_OK(tcuda_stream_add_callback(others[0], function, NULL, destroy));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_replay(graph, others[0]));
    CHECK_OK(tcuda_stream_synchronize(others[0]));
    (void)!tcuda_graph_destroy(graph);
}

static inline void reach_replay(void)
{
    replay(on_data, NULL);
}

static inline void reach_end_of_graph(void)
{
    replay(nothing_with_data, on_data);
}

static inline void reach_log(void)
{
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_WARNING, on_line, NULL, NULL));
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_WARN));
    (void)!tcuda_stream_synchronize(NULL);
    (void)!tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_DEFAULT);
    (void)!tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL);
}

static inline void reach_end_of_log(void)
{
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_WARNING, no_line, NULL, on_data));
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
}

static inline void run_short(tcuda_out_of_memory_fn function, tcuda_destroy_fn destroy)
{
    tcuda_observer *observer = NULL;
    void *ptr = NULL;
    CHECK_OK(tcuda_memory_on_out_of_memory(function, NULL, destroy, &observer));
    CHECK(tcuda_malloc((size_t)1 << 46, 0, NULL, &ptr) != TCUDA_STATUS_OK);
    (void)!tcuda_observer_destroy(observer);
}

static inline void reach_observer(void)
{
    run_short(on_shortage, NULL);
}

static inline void reach_end_of_observer(void)
{
    run_short(no_help, on_data);
}

/* A graph from its capture to its end, with a hook and an object that it keeps. */
static inline void live_once(tcuda_graph_event event, tcuda_graph_hook_fn hook,
    tcuda_destroy_fn destroy, tcuda_destroy_fn end_of_object)
{
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(1, &graph));
    CHECK_OK(tcuda_graph_on_event(graph, event, hook, NULL, destroy, NULL));
    CHECK_OK(tcuda_graph_retain(graph, NULL, end_of_object, 1));
    if (tcuda_graph_capture_begin(graph, others[0], NULL, TCUDA_CAPTURE_RELAXED)
        == TCUDA_STATUS_OK) {
        (void)!tcuda_graph_capture_end(graph);
        (void)!tcuda_graph_replay(graph, others[1]);
    }
    (void)!tcuda_graph_destroy(graph);
}

static inline void reach_capture_hook(void)
{
    live_once(TCUDA_GRAPH_CAPTURE_BEGUN, on_graph, NULL, nothing_with_data);
}

static inline void reach_capture_end_hook(void)
{
    live_once(TCUDA_GRAPH_CAPTURE_ENDED, on_graph, NULL, nothing_with_data);
}

static inline void reach_replay_hook(void)
{
    live_once(TCUDA_GRAPH_REPLAY_BEGINS, on_graph, NULL, nothing_with_data);
}

static inline void reach_destroy_hook(void)
{
    live_once(TCUDA_GRAPH_DESTROYED, on_graph, NULL, nothing_with_data);
}

static inline void reach_end_of_hook(void)
{
    live_once(TCUDA_GRAPH_DESTROYED, no_graph, on_data, nothing_with_data);
}

static inline void reach_end_of_object(void)
{
    live_once(TCUDA_GRAPH_DESTROYED, no_graph, NULL, on_data);
}

static inline void allocate_once(void)
{
    void *ptr = NULL;
    if (tcuda_malloc(1 << 20, 0, NULL, &ptr) == TCUDA_STATUS_OK)
        (void)!tcuda_free(ptr);
}

static inline void record_once(tcuda_frames_fn frames, tcuda_destroy_fn destroy)
{
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    options.max_entries = 64;
    options.frames_for = TCUDA_FRAMES_ALL;
    options.frames = frames;
    options.destroy = destroy;
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
    allocate_once();
    (void)!tcuda_memory_record_history(TCUDA_HISTORY_OFF, NULL);
}

static inline void reach_frames(void)
{
    record_once(on_frames, NULL);
}

static inline void reach_end_of_history(void)
{
    record_once(no_frames, on_data);
}

static inline void race(tcuda_report_fn report, tcuda_frames_fn frames, tcuda_destroy_fn destroy)
{
    tcuda_sanitizer_options options = TCUDA_INIT(tcuda_sanitizer_options);
    void *ptr = NULL;
    const int zero = 0;
    options.report = report;
    options.frames = frames;
    options.destroy = destroy;
    CHECK_OK(tcuda_sanitizer_enable(&options));
    if (tcuda_malloc(4096, 0, NULL, &ptr) == TCUDA_STATUS_OK) {
        (void)!tcuda_fill(ptr, &zero, 4, 16, others[0]);
        (void)!tcuda_fill(ptr, &zero, 4, 16, others[1]);
        (void)!tcuda_free(ptr);
    }
    (void)!tcuda_sanitizer_disable();
}

static inline void reach_report(void)
{
    race(on_report, NULL, NULL);
}

static inline void reach_frames_of_sanitizer(void)
{
    race(NULL, on_frames, NULL);
}

static inline void reach_end_of_sanitizer(void)
{
    race(NULL, NULL, on_data);
}

static inline void capture(tcuda_callable_fn forward, tcuda_callable_fn backward,
    tcuda_destroy_fn destroy)
{
    tcuda_callable callable = TCUDA_INIT(tcuda_callable);
    tcuda_graphed_callable *graphed = NULL;
    callable.sample_inputs = make_tensor();
    callable.num_inputs = callable.num_outputs = 1;
    callable.forward = forward;
    callable.backward = backward;
    callable.destroy = destroy;
    if (tcuda_graphed_callable_create(&callable, 1, NULL, &graphed) == TCUDA_STATUS_OK)
        (void)!tcuda_graphed_callable_destroy(graphed);
}

static inline void allocator_of(int of)
{
    tcuda_pluggable_hooks hooks = TCUDA_INIT(tcuda_pluggable_hooks);
    hook = of;
    hooks.init = on_init;
    hooks.reset = on_reset;
    hooks.memory_fraction = on_fraction;
    hooks.base_alloc = on_base;
    hooks.record_stream = on_record;
    CHECK_OK(tcuda_pluggable_allocator_create(on_malloc, on_free, &allocator));
    CHECK_OK(tcuda_pluggable_allocator_set_hooks(allocator, &hooks));
}

static inline void reach_forward(void)
{
    capture(on_capture, NULL, NULL);
}

static inline void reach_backward(void)
{
    capture(return_input, on_capture, NULL);
}

static inline void reach_end_of_callable(void)
{
    capture(return_input, NULL, on_data);
}

static inline void serve(int of)
{
    allocator_of(of);
    CHECK_OK(tcuda_allocator_set_current(allocator));
}

static inline void serve_malloc(void)
{
    serve(IN_MALLOC);
}

static inline void serve_free(void)
{
    serve(IN_FREE);
}

static inline void serve_reset(void)
{
    serve(IN_RESET);
}

static inline void serve_fraction(void)
{
    serve(IN_FRACTION);
}

static inline void serve_base(void)
{
    serve(IN_BASE);
}

static inline void serve_record(void)
{
    serve(IN_RECORD);
}

static inline void reach_reset(void)
{
    (void)!tcuda_memory_empty_cache();
}

static inline void reach_fraction(void)
{
    (void)!tcuda_memory_fraction_set(0, 1.0);
}

static inline void reach_base(void)
{
    void *ptr = NULL;
    size_t bytes = 0;
    if (tcuda_malloc(4096, 0, NULL, &ptr) == TCUDA_STATUS_OK) {
        (void)!tcuda_torch_base_alloc(ptr, &bytes);
        (void)!tcuda_free(ptr);
    }
}

static inline void reach_record(void)
{
    void *ptr = NULL;
    tcuda_stream *stream = NULL;
    if (tcuda_malloc(4096, 0, NULL, &ptr) == TCUDA_STATUS_OK) {
        CHECK_OK(tcuda_stream_create(0, 0, &stream));
        (void)!tcuda_record_stream(ptr, stream);
        (void)!tcuda_stream_destroy(stream);
        (void)!tcuda_free(ptr);
    }
}

static inline void pool_of(int of)
{
    allocator_of(of);
    CHECK_OK(tcuda_mem_pool_create(allocator, 0, &pool));
}

static inline void pool_malloc(void)
{
    pool_of(IN_MALLOC);
}

static inline void pool_free(void)
{
    pool_of(IN_FREE);
}

static inline void reach_pool(void)
{
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    allocate_once();
    (void)!tcuda_mem_pool_end(pool, 0);
    (void)!tcuda_mem_pool_destroy(pool);
    (void)!tcuda_memory_empty_cache();
    (void)!tcuda_mem_pool_create(allocator, 0, &pool);
}

static inline void reach_init(void)
{
    allocator_of(IN_INIT);
    (void)!tcuda_allocator_set_current(allocator);
}

static inline void reach_shutdown(void)
{
    allocate_once();
    void *ptr = NULL;
    (void)!tcuda_malloc(4096, 0, NULL, &ptr);
    (void)!tcuda_shutdown(NULL);
}

static inline void nothing(void)
{
}

/* Where functions are called. */
static const struct hook_place {
    const char *name;
    void (*prepare)(void); /* once in each life of the library */
    void (*reach)(void);
    int is_stream; /* the host function of a stream, in which nothing may wait */
    int begins;    /* it is reached once in each life, before the first allocation */
} hook_places[] = {
    { "a callback of a stream", nothing, reach_callback, 1, 0 },
    { "a callback beside empty_cache", nothing, reach_beside_empty_cache, 1, 0 },
    { "a callback beside malloc", streams, reach_beside_malloc, 1, 0 },
    { "a callback beside shutdown", nothing, reach_beside_shutdown, 1, 1 },
    { "the end of a callback", nothing, reach_end_of_callback, 1, 0 },
    { "a function of a graph", streams, reach_replay, 1, 0 },
    { "the end of a graph's function", streams, reach_end_of_graph, 0, 0 },
    { "the log", nothing, reach_log, 0, 0 },
    { "the end of the log", nothing, reach_end_of_log, 0, 0 },
    { "an observer", nothing, reach_observer, 0, 0 },
    { "the end of an observer", nothing, reach_end_of_observer, 0, 0 },
    { "a hook of a capture", streams, reach_capture_hook, 0, 0 },
    { "a hook of a capture's end", streams, reach_capture_end_hook, 0, 0 },
    { "a hook of a replay", streams, reach_replay_hook, 0, 0 },
    { "a hook of a graph's end", streams, reach_destroy_hook, 0, 0 },
    { "the end of a hook", streams, reach_end_of_hook, 0, 0 },
    { "the end of a graph's object", streams, reach_end_of_object, 0, 0 },
    { "frames", nothing, reach_frames, 0, 0 },
    { "the end of frames", nothing, reach_end_of_history, 0, 0 },
    { "a report", streams, reach_report, 0, 0 },
    { "frames of the sanitizer", streams, reach_frames_of_sanitizer, 0, 0 },
    { "the end of the sanitizer", streams, reach_end_of_sanitizer, 0, 0 },
    { "forward", nothing, reach_forward, 0, 0 },
    { "backward", nothing, reach_backward, 0, 0 },
    { "the end of a callable", nothing, reach_end_of_callable, 0, 0 },
    { "an allocator's malloc", serve_malloc, allocate_once, 0, 0 },
    { "an allocator's free", serve_free, allocate_once, 0, 0 },
    { "an allocator's reset", serve_reset, reach_reset, 0, 0 },
    { "an allocator's memory_fraction", serve_fraction, reach_fraction, 0, 0 },
    { "an allocator's base_alloc", serve_base, reach_base, 0, 0 },
    { "an allocator's record_stream", serve_record, reach_record, 0, 0 },
    { "malloc of a pool's allocator", pool_malloc, reach_pool, 0, 0 },
    { "free of a pool's allocator", pool_free, reach_pool, 0, 0 },
    { "an allocator's init", nothing, reach_init, 0, 1 },
    { "an allocator's free at the shutdown", serve_free, reach_shutdown, 0, 1 },
};

static const struct hook_place *now_place;

static inline tcuda_status call_in_hook(tcuda_status (*perform)(void *), void *arguments)
{
    waiting_arguments = arguments;
    given = TCUDA_STATUS_OK;
    atomic_store(&waiting, perform);
    now_place->reach();
    /* What the call has queued uses its arguments, which go now. */
    if (!now_place->begins)
        (void)!tcuda_device_synchronize(0);
    /* An allocator is chosen before anything is allocated, also for the arguments of a call. */
    if (atomic_exchange(&waiting, NULL) != NULL && !now_place->begins) {
        fprintf(stderr, "%s, %s: the hook was not reached\n", now_place->name, now_function);
        exit(EXIT_FAILURE);
    }
    return given;
}

static inline void too_long(int signal_number)
{
    fflush(stdout);
    fprintf(stderr, "%s in %s: signal %d\n", now_function, now_place->name, signal_number);
    _exit(128 + signal_number);
}

/* In a host function of a stream what waits for the device is refused, and so is what the driver
 * refuses: by the name of the function. */
static inline int is_refused(tcuda_status status)
{
    static const char *const waits[] = { "tcuda_device_synchronize", "tcuda_stream_synchronize",
        "tcuda_memory_empty_cache", "tcuda_host_memory_empty_cache", "tcuda_mem_pool_sleep",
        "tcuda_mem_pool_wake", "tcuda_graph_begin", "tcuda_graph_capture_begin",
        "tcuda_graph_reset", "tcuda_graph_destroy", "tcuda_ipc_collect", "tcuda_shutdown" };
    if (!now_place->is_stream)
        return 1;
    if (status == TCUDA_STATUS_CUDA_ERROR)
        return 0;
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++)
        if (strcmp(now_function, waits[i]) == 0 && !now_place->begins)
            return status == TCUDA_STATUS_INVALID_STATE && strstr(sentence, now_function) != NULL;
    return 1;
}

/* Each function in one place; the number of failures. */
static inline int run_in_place(const struct function *functions, int function_count)
{
    int failures = 0, is_alive = 0;
    signal(SIGALRM, too_long);
    signal(SIGABRT, too_long);
    signal(SIGSEGV, too_long);
    for (int i = 0; i < function_count; i++) {
        now_function = functions[i].name;
        alarm(20);
        if (!is_alive) {
            CHECK_OK(tcuda_init());
            now_place->prepare();
        }
        call_place = call_in_hook;
        has_no_driver = now_place->begins;
        sentence[0] = '\0';
        const tcuda_status status = functions[i].call();
        call_place = NULL;
        const int good = (status == TCUDA_STATUS_OK || (status != TCUDA_STATUS_INTERNAL
            && sentence[0] != '\0' && outputs_untouched())) && is_refused(status);
        if (!good)
            fprintf(stderr, "%s in %s: %s: %s\n", now_function, now_place->name,
                tcuda_status_name((int32_t)status), sentence);
        failures += !good;
        drop_all();
        is_alive = !functions[i].alone && !now_place->begins;
        if (!is_alive)
            CHECK_OK(tcuda_shutdown(NULL));
    }
    CHECK_OK(tcuda_shutdown(NULL));
    return failures;
}

static inline int run_in_hooks(const struct function *functions, int function_count)
{
    int failures = 0;
    skip_without_gpu_before_forks();
    for (size_t i = 0; i < sizeof hook_places / sizeof hook_places[0]; i++) {
        now_place = &hook_places[i];
        if (in_child(run_in_place, functions, function_count)) {
            fprintf(stderr, "failed: %s\n", now_place->name);
            failures++;
        }
    }
    return failures > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif /* HOOKS_H */
