/* The life of a process: forks, shutdown and new beginnings, threads that shutdown interrupts, exit
 * without shutdown. What ends a process runs in a child, forked before this one uses CUDA. */
#define _POSIX_C_SOURCE 200809L

#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

/* Runs `body` in a child and gives its exit status; the child's own exit is part of the test. */
static int exit_status_of(void (*body)(void))
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        body();
        exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    return child_status(status);
}

static bool is_initialized(void)
{
    bool initialized = true;
    CHECK_OK(tcuda_is_initialized(&initialized));
    return initialized;
}

/* One of each kind of handle, a block, and work that is perhaps not over. */
typedef struct things {
    tcuda_stream *stream;
    tcuda_event *event;
    tcuda_allocation *allocation;
    void *block;
} things;

static things make_things(void)
{
    things made = { create_stream(0), create_event(TCUDA_EVENT_TIMING), NULL, NULL };
    made.block = allocate(1 << 20, 0, made.stream);
    CHECK_OK(tcuda_allocation_create(4096, 0, made.stream, &made.allocation));
    fill_bytes(made.block, 5, 1 << 20, made.stream);
    CHECK_OK(tcuda_event_record(made.event, made.stream));
    return made;
}

static void drop_things(things made)
{
    CHECK_EQ(count_other_bytes(made.block, 5, 1 << 20, made.stream), 0);
    CHECK(is_reached(made.event));
    CHECK_OK(tcuda_free(made.block));
    CHECK_OK(tcuda_allocation_destroy(made.allocation));
    CHECK_OK(tcuda_event_destroy(made.event));
    CHECK_OK(tcuda_stream_destroy(made.stream));
}

/* ---- Forks ---- */

static void uses_cuda(void)
{
    CHECK(!is_initialized());
    drop_things(make_things());
    CHECK(is_initialized());
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static void is_forked(tcuda_status status)
{
    CHECK_EQ(status, TCUDA_STATUS_FORKED);
    CHECK_STR(tcuda_last_error(),
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
        "must use the 'spawn' start method");
}

static things of_the_parent;

static void every_call_is_refused(void)
{
    const things *theirs = &of_the_parent;
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    struct CUstream_st *native = NULL;
    struct CUevent_st *native_event = NULL;
    tcuda_stream *stream = NULL;
    tcuda_event *event = NULL;
    tcuda_allocation *allocation = NULL;
    void *ptr = NULL;
    bool answer = true;
    int32_t number = 77, other = 77;
    int64_t id = 77;
    uint64_t count = 77;
    size_t bytes = 77, total = 77;
    float elapsed = 77;
    char text[64] = "before";

    CHECK(!is_initialized());
    is_forked(tcuda_init());
    CHECK_OK(tcuda_is_available(&answer));
    CHECK(!answer);
    answer = true;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_is_available(NULL));
    CHECK_OK(tcuda_random_manual_seed(0, 1));
    CHECK_OK(tcuda_random_manual_seed(TCUDA_CPU_DEVICE, 1));
    CHECK_OK(tcuda_random_manual_seed_all(1));
    CHECK_OK(tcuda_random_seed(0));
    CHECK_OK(tcuda_random_seed_all());
    is_forked(tcuda_random_initial_seed(0, &count));
    is_forked(tcuda_device_count(&number));
    is_forked(tcuda_device_current(&number));
    is_forked(tcuda_device_set(0));
    is_forked(tcuda_device_exchange(0, &number));
    is_forked(tcuda_device_of(theirs->block, &number));
    is_forked(tcuda_device_name(0, text, sizeof text, &bytes));
    is_forked(tcuda_device_capability(0, &number, &other));
    is_forked(tcuda_device_properties(0, &info));
    is_forked(tcuda_device_can_access_peer(0, 0, &answer));
    is_forked(tcuda_device_enable_peer_access(0, 0));
    is_forked(tcuda_device_synchronize(0));
    is_forked(tcuda_stream_create(0, 0, &stream));
    is_forked(tcuda_stream_from_external(0, NULL, &stream));
    is_forked(tcuda_stream_current(0, &stream));
    is_forked(tcuda_stream_default(0, &stream));
    is_forked(tcuda_stream_set_current(theirs->stream));
    is_forked(tcuda_stream_exchange(theirs->stream, &stream, &number));
    is_forked(tcuda_stream_query(theirs->stream, &answer));
    is_forked(tcuda_stream_synchronize(theirs->stream));
    is_forked(tcuda_stream_wait_event(theirs->stream, theirs->event));
    is_forked(tcuda_stream_wait_stream(theirs->stream, NULL));
    is_forked(tcuda_stream_record_event(theirs->stream, theirs->event));
    is_forked(tcuda_stream_add_callback(theirs->stream, gate_hold, NULL, free));
    is_forked(tcuda_stream_device(theirs->stream, &number));
    is_forked(tcuda_stream_priority(theirs->stream, &number));
    is_forked(tcuda_stream_id(theirs->stream, &id));
    is_forked(tcuda_stream_native(theirs->stream, &native));
    is_forked(tcuda_stream_priority_range(0, &number, &other));
    is_forked(tcuda_stream_destroy(theirs->stream));
    is_forked(tcuda_event_create(0, &event));
    is_forked(tcuda_event_record(theirs->event, theirs->stream));
    is_forked(tcuda_event_query(theirs->event, &answer));
    is_forked(tcuda_event_synchronize(theirs->event));
    is_forked(tcuda_event_wait(theirs->event, theirs->stream));
    is_forked(tcuda_event_elapsed_ms(theirs->event, theirs->event, &elapsed));
    is_forked(tcuda_event_device(theirs->event, &number));
    is_forked(tcuda_event_native(theirs->event, &native_event));
    is_forked(tcuda_event_destroy(theirs->event));
    is_forked(tcuda_copy(theirs->block, text, 1, theirs->stream));
    is_forked(tcuda_copy_2d(theirs->block, 1, text, 1, 1, 1, theirs->stream));
    is_forked(tcuda_fill(theirs->block, text, 1, 1, theirs->stream));
    is_forked(tcuda_malloc(512, 0, NULL, &ptr));
    is_forked(tcuda_free(theirs->block));
    is_forked(tcuda_record_stream(theirs->block, theirs->stream));
    is_forked(tcuda_allocation_create(512, 0, NULL, &allocation));
    is_forked(tcuda_allocation_pointer(theirs->allocation, &ptr));
    is_forked(tcuda_allocation_destroy(theirs->allocation));
    is_forked(tcuda_memory_empty_cache());
    is_forked(tcuda_memory_info(0, &bytes, &total));
    is_forked(tcuda_memory_stats(0, &stats));
    is_forked(tcuda_memory_stat(0, "num_ooms", &count));
    is_forked(tcuda_memory_allocated(0, &bytes));
    is_forked(tcuda_memory_reset_peak(0));
    is_forked(tcuda_backend_select("sim", NULL));
    is_forked(tcuda_shutdown(&bytes));
    CHECK(stream == NULL && event == NULL && allocation == NULL && ptr == NULL && answer);
    CHECK(native == NULL && native_event == NULL && number == 77 && other == 77 && id == 77);
    CHECK(count == 77 && bytes == 77 && total == 77 && elapsed == 77);
    CHECK_STR(text, "before");
    /* What needs no CUDA. */
    CHECK_EQ(tcuda_version(), TCUDA_VERSION);
    CHECK_STR(tcuda_status_name(26), "TCUDA_STATUS_FORKED");
}

/* Leaves without exit: leak checkers would miss the parent's other threads, which kept things. */
static void every_call_is_refused_on_a_thread(void)
{
    every_call_is_refused();
    _exit(EXIT_SUCCESS);
}

static void *is_refused(void *unused)
{
    (void)unused;
    is_forked(tcuda_init());
    return NULL;
}

/* A thread that the parent did not have either. */
static void new_threads_are_refused(void)
{
    run_on_thread(is_refused, NULL);
}

static void *forks(void *unused)
{
    (void)unused;
    CHECK_EQ(exit_status_of(every_call_is_refused_on_a_thread), EXIT_SUCCESS);
    return NULL;
}

static void the_child_of_a_user_is_refused(void)
{
    of_the_parent = make_things();
    /* The sanitizer's own allocator is no good in a child of threads: another one of the parent, at
     * work for the simulated machine, may have held its locks. counts_and_forks() is its share. */
    if (!UNDER_ADDRESS_SANITIZER) {
        CHECK_EQ(exit_status_of(every_call_is_refused), EXIT_SUCCESS);
        CHECK_EQ(exit_status_of(new_threads_are_refused), EXIT_SUCCESS);
        run_on_thread(forks, NULL);
    }
    /* The parent has lost nothing. */
    CHECK(is_initialized());
    drop_things(of_the_parent);
}

/* A process that has called the library, but started no driver, may fork. */
static void asks_and_forks(void)
{
    CHECK(!is_initialized());
    CHECK_EQ(exit_status_of(uses_cuda), EXIT_SUCCESS);
    uses_cuda();
}

/* Counting starts the driver, which a child cannot use either. */
static void counts_and_forks(void)
{
    CHECK(num_devices() >= 1);
    CHECK(!is_initialized());
    of_the_parent = (things){ NULL, NULL, NULL, NULL };
    CHECK_EQ(exit_status_of(every_call_is_refused), EXIT_SUCCESS);
    CHECK_OK(tcuda_init());
}

/* ---- Exits ---- */

static void leaves_all_behind(void)
{
    make_things();
}

static void *makes_things_and_exits(void *unused)
{
    (void)unused;
    make_things();
    exit(EXIT_SUCCESS);
}

static void exits_on_a_second_thread(void)
{
    make_things();
    run_on_thread(makes_things_and_exits, NULL);
    CHECK(false);
}

static void *allocates_for_ever(void *count)
{
    for (;;) {
        void *block = NULL;
        if (tcuda_malloc(4096, 0, NULL, &block) == TCUDA_STATUS_OK)
            tcuda_free(block);
        atomic_fetch_add((atomic_long *)count, 1);
    }
    return NULL;
}

static void exits_while_a_thread_is_inside(void)
{
    static atomic_long count;
    start_thread(allocates_for_ever, &count);
    while (atomic_load(&count) < 100)
        sleep_ms(1);
}

static void shuts_down_at_exit(void)
{
    size_t live = 77;
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 3);
}

static void shuts_down_in_an_exit_handler(void)
{
    CHECK_EQ(atexit(shuts_down_at_exit), 0);
    make_things();
}

static void looks_for_a_gpu(void)
{
    SKIP_WITHOUT_GPU();
}

/* ---- Shutdown ---- */

static void shutdown_and_start_again(void)
{
    for (int round = 0; round < 10; round++) {
        size_t live = 77;
        things made[10];
        for (int i = 0; i < round; i++)
            made[i] = make_things();
        tcuda_stream *borrowed = NULL;
        CHECK_OK(tcuda_stream_default(0, &borrowed));
        CHECK(is_initialized());
        CHECK_OK(tcuda_shutdown(&live));
        CHECK_EQ(live, 3 * round); /* borrowed ones do not count */
        CHECK(!is_initialized());
        CHECK_EQ(calls_of(NULL), 0);
        for (int i = 0; i < round; i++) {
            CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_stream_synchronize(made[i].stream));
            CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_event_destroy(made[i].event));
            CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(made[i].block));
        }
        CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_stream_synchronize(borrowed));
        CHECK_OK(tcuda_shutdown(NULL));
        live = 77;
        CHECK_OK(tcuda_shutdown(&live));
        CHECK_EQ(live, 0);
        /* The pools of streams begin again. */
        tcuda_stream *stream = create_stream(0);
        CHECK_EQ(id_of(stream), 3);
        CHECK_OK(tcuda_stream_set_current(stream));
        CHECK_OK(tcuda_stream_destroy(stream));
        CHECK_OK(tcuda_shutdown(NULL));
        CHECK_OK(tcuda_stream_current(0, &stream));
        CHECK_EQ(id_of(stream), 0);
    }
}

/* A current stream of an earlier life is not believed, on any thread. */
static void *keeps_a_current_stream(void *argument)
{
    pthread_barrier_t *barrier = argument;
    tcuda_stream *stream = create_stream(0);
    CHECK_OK(tcuda_stream_set_current(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    CHECK_OK(tcuda_stream_current(0, &stream));
    CHECK_EQ(id_of(stream), 0);
    return NULL;
}

static void shutdown_resets_other_threads(void)
{
    pthread_barrier_t barrier;
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, 2), 0);
    pthread_t thread = start_thread(keeps_a_current_stream, &barrier);
    pthread_barrier_wait(&barrier);
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_init());
    pthread_barrier_wait(&barrier);
    join_thread(thread);
    CHECK_EQ(pthread_barrier_destroy(&barrier), 0);
}

static atomic_bool stop;
static atomic_long succeeded;

/* What a call may say when a shutdown comes in between. */
static bool went_well(tcuda_status status)
{
    CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_INVALID_HANDLE ||
        status == TCUDA_STATUS_INVALID_POINTER || status == TCUDA_STATUS_INVALID_STATE);
    succeeded += status == TCUDA_STATUS_OK;
    return status == TCUDA_STATUS_OK;
}

static void *works_regardless(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        tcuda_stream *stream = NULL;
        tcuda_event *event = NULL;
        tcuda_allocation *allocation = NULL;
        void *ptr = NULL;
        bool done = false;
        char byte = 1;
        if (went_well(tcuda_stream_create(0, 0, &stream))) {
            went_well(tcuda_stream_set_current(stream));
            went_well(tcuda_stream_query(stream, &done));
        }
        if (went_well(tcuda_event_create(0, &event))) {
            went_well(tcuda_event_record(event, NULL));
            went_well(tcuda_stream_wait_event(stream, event));
            went_well(tcuda_event_synchronize(event));
        }
        if (went_well(tcuda_allocation_create(4096, 0, NULL, &allocation)))
            went_well(tcuda_allocation_pointer(allocation, &ptr));
        if (went_well(tcuda_fill(NULL, &byte, 1, 0, NULL)))
            went_well(tcuda_device_synchronize(0));
        if (went_well(tcuda_malloc(100000, 0, NULL, &ptr)))
            went_well(tcuda_free(ptr));
        went_well(tcuda_allocation_destroy(allocation));
        went_well(tcuda_event_destroy(event));
        went_well(tcuda_stream_destroy(stream));
    }
    return NULL;
}

static void threads_survive_a_shutdown(void)
{
    pthread_t threads[3];
    atomic_store(&stop, false);
    for (int i = 0; i < 3; i++)
        threads[i] = start_thread(works_regardless, NULL);
    for (int round = 0; round < 50; round++) {
        size_t live = 77;
        sleep_ms(2);
        const tcuda_status status = tcuda_shutdown(&live);
        CHECK_EQ(status, TCUDA_STATUS_OK);
        CHECK(live <= 9);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        join_thread(threads[i]);
    CHECK(atomic_load(&succeeded) > 0);
}

/* Two at once: each waits for the other, or says that the other is at it. */
static void *shuts_down_in_a_loop(void *unused)
{
    (void)unused;
    for (int i = 0; i < 100; i++) {
        const tcuda_status status = tcuda_shutdown(NULL);
        CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_INVALID_STATE);
        const tcuda_status started = tcuda_init();
        CHECK(started == TCUDA_STATUS_OK || started == TCUDA_STATUS_INVALID_STATE);
    }
    return NULL;
}

static void several_may_shut_down(void)
{
    pthread_t first = start_thread(shuts_down_in_a_loop, NULL);
    pthread_t second = start_thread(shuts_down_in_a_loop, NULL);
    join_thread(first);
    join_thread(second);
}

int main(void)
{
    const int found = exit_status_of(looks_for_a_gpu);
    if (found == CHECK_SKIPPED)
        return CHECK_SKIPPED;
    CHECK_EQ(found, EXIT_SUCCESS);
    /* Forks of a process that has not used CUDA can use it, and then the parent can. */
    CHECK_EQ(exit_status_of(uses_cuda), EXIT_SUCCESS);
    CHECK_EQ(exit_status_of(asks_and_forks), EXIT_SUCCESS);
    CHECK_EQ(exit_status_of(leaves_all_behind), EXIT_SUCCESS);
    CHECK_EQ(exit_status_of(exits_on_a_second_thread), EXIT_SUCCESS);
    CHECK_EQ(exit_status_of(exits_while_a_thread_is_inside), EXIT_SUCCESS);
    CHECK_EQ(exit_status_of(shuts_down_in_an_exit_handler), EXIT_SUCCESS);
    counts_and_forks();
    the_child_of_a_user_is_refused();
    shutdown_and_start_again();
    shutdown_resets_other_threads();
    threads_survive_a_shutdown();
    several_may_shut_down();
    return finish();
}
