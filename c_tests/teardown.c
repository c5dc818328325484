/* How a process ends, and how its copies begin: every case runs in a child of its own, whose exit
 * status and words are the test. See process.c for forks after the first call and for shutdown. */
#define _GNU_SOURCE /* pthread_attr_setstack, MAP_ANONYMOUS, quick_exit */

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* At exit libcuda may be gone before the threads that call it: they stop then. */
static inline void stop_if_the_driver_is_gone(void)
{
    while (tcuda_last_error_native() == 4)
        pause();
}

#undef CHECK_STATUS
#define CHECK_STATUS(expected, call) \
    do { \
        recovery_point(); \
        tcuda_status check_status_ = (call); \
        if (check_status_ != (expected)) { \
            stop_if_the_driver_is_gone(); \
            check_status_failed(__FILE__, __LINE__, #call, (expected), check_status_); \
        } \
    } while (0)

#include "support.h"

static size_t shut_down(void)
{
    size_t live = 77;
    CHECK_OK(tcuda_shutdown(&live));
    return live;
}

/* A stream, a block and work: three driver objects, and one handle that shutdown counts. */
static tcuda_stream *use_the_library(void)
{
    tcuda_stream *stream = create_stream(0);
    void *block = allocate(1 << 20, 0, stream);
    fill_bytes(block, 5, 1 << 20, stream);
    CHECK_EQ(count_other_bytes(block, 5, 1 << 20, stream), 0);
    CHECK_OK(tcuda_free(block));
    return stream;
}

/* Never returns: another thread ends the process. The alarm ends it if none does. */
static void wait_for_the_end(void)
{
    for (;;)
        sleep_ms(1000);
}

/* ---- Exits while threads are inside ---- */

static atomic_long calls_made;

/* Every kind of call; at exit each of them is in the middle of something. */
static void *allocates(void *unused)
{
    (void)unused;
    for (;; calls_made++) {
        void *block = allocate(100000, 0, NULL);
        CHECK_OK(tcuda_free(block));
    }
    return NULL;
}

static void *makes_handles(void *unused)
{
    (void)unused;
    for (;; calls_made++) {
        tcuda_event *event = create_event(TCUDA_EVENT_TIMING);
        tcuda_stream *stream = create_stream(0);
        CHECK_OK(tcuda_event_record(event, stream));
        CHECK_OK(tcuda_stream_wait_event(NULL, event));
        CHECK_OK(tcuda_event_destroy(event));
        CHECK_OK(tcuda_stream_destroy(stream));
    }
    return NULL;
}

static void *waits_for_work(void *unused)
{
    tcuda_stream *stream = create_stream(0);
    void *block = allocate(1 << 16, 0, stream);
    (void)unused;
    for (;; calls_made++) {
        fill_bytes(block, 3, 1 << 16, stream);
        CHECK_EQ(count_other_bytes(block, 3, 1 << 16, stream), 0);
    }
    return NULL;
}

static void does_nothing(void *unused)
{
    (void)unused;
}

static void *queues_callbacks(void *unused)
{
    tcuda_stream *stream = create_stream(0);
    (void)unused;
    for (;; calls_made++) {
        CHECK_OK(tcuda_stream_add_callback(stream, does_nothing, NULL, does_nothing));
        CHECK_OK(tcuda_stream_synchronize(stream));
    }
    return NULL;
}

static void keep_threads_busy(void)
{
    CHECK_OK(tcuda_init());
    start_thread(allocates, NULL);
    start_thread(makes_handles, NULL);
    start_thread(waits_for_work, NULL);
    start_thread(queues_callbacks, NULL);
    while (atomic_load(&calls_made) < 100)
        sleep_ms(1);
}

static void exits_with_busy_threads(void)
{
    keep_threads_busy();
}

static void leaves_at_once(void)
{
    keep_threads_busy();
    _exit(EXIT_SUCCESS);
}

static void shuts_down_in_exit_handler(void)
{
    (void)shut_down();
}

static void leaves_quickly(void)
{
    CHECK_EQ(at_quick_exit(shuts_down_in_exit_handler), 0);
    (void)use_the_library();
    quick_exit(EXIT_SUCCESS);
}

static void leaves_quickly_without_shutdown(void)
{
    keep_threads_busy();
    quick_exit(EXIT_SUCCESS);
}

/* The exit handler waits for the calls in progress; what they get from then on is a new library, or
 * a status. */
static void *calls_regardless(void *unused)
{
    (void)unused;
    for (;; calls_made++) {
        tcuda_stream *stream = NULL;
        void *block = NULL;
        bool done = false;
        if (tcuda_stream_create(0, 0, &stream) == TCUDA_STATUS_OK &&
            tcuda_stream_query(stream, &done) == TCUDA_STATUS_OK)
            (void)tcuda_stream_destroy(stream);
        if (tcuda_malloc(4096, 0, NULL, &block) == TCUDA_STATUS_OK)
            (void)tcuda_free(block);
    }
    return NULL;
}

static void shuts_down_under_busy_threads(void)
{
    CHECK_EQ(atexit(shuts_down_in_exit_handler), 0);
    for (int i = 0; i < 3; i++)
        start_thread(calls_regardless, NULL);
    while (atomic_load(&calls_made) < 100)
        sleep_ms(1);
}

/* ---- Exits inside a callback ---- */

static void exits(void *unused)
{
    (void)unused;
    exit(EXIT_SUCCESS);
}

static void exits_in_a_callback(void)
{
    tcuda_stream *stream = use_the_library();
    CHECK_OK(tcuda_stream_add_callback(stream, exits, NULL, NULL));
    CHECK_OK(tcuda_stream_synchronize(stream));
    wait_for_the_end();
}

static void exits_in_a_destroy(void)
{
    tcuda_stream *stream = use_the_library();
    CHECK_OK(tcuda_stream_add_callback(stream, does_nothing, NULL, exits));
    CHECK_OK(tcuda_stream_synchronize(stream));
    wait_for_the_end();
}

static void exits_in_a_line(void *unused, tcuda_log_level level, const char *message)
{
    (void)unused;
    CHECK_EQ(level, TCUDA_LOG_WARNING);
    CHECK_STR(message, "tcuda_shutdown: 1 stream handle is alive");
    exit(EXIT_SUCCESS);
}

static void exits_in_a_log_callback(void)
{
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, exits_in_a_line, NULL, NULL));
    (void)use_the_library();
    (void)shut_down();
    wait_for_the_end();
}

/* The handler runs inside the callback, which shutdown would wait for. */
static void is_refused_in_a_callback(void)
{
    size_t live = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_shutdown(&live));
    CHECK_STR(tcuda_last_error(), "tcuda_shutdown cannot be called from a callback");
    CHECK_EQ(live, 77);
}

static void shuts_down_inside_a_callback(void)
{
    CHECK_EQ(atexit(is_refused_in_a_callback), 0);
    exits_in_a_callback();
}

static void shuts_down_inside_a_destroy(void)
{
    CHECK_EQ(atexit(is_refused_in_a_callback), 0);
    exits_in_a_destroy();
}

static void shuts_down_inside_a_line(void)
{
    CHECK_EQ(atexit(is_refused_in_a_callback), 0);
    exits_in_a_log_callback();
}

/* ---- The main thread ends first ---- */

static pthread_t main_thread;

static void *outlives_main(void *unused)
{
    (void)unused;
    CHECK_EQ(pthread_join(main_thread, NULL), 0);
    CHECK_OK(tcuda_stream_destroy(use_the_library()));
    CHECK_EQ(shut_down(), 1); /* what main made */
    /* Without exit: glibc leaves out the destructors of a main thread that ends, which leak
     * checkers tell. */
    _exit(EXIT_SUCCESS);
}

static void main_ends_first(void)
{
    CHECK_OK(tcuda_stream_set_current(use_the_library()));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(&main_thread));
    main_thread = pthread_self();
    start_thread(outlives_main, NULL);
    pthread_exit(NULL);
}

/* ---- Destructors of threads ---- */

static pthread_key_t before_ours, after_ours;
static atomic_int rounds, refused;

/* As a runtime does that frees its objects when a thread ends; it comes back as long as it may.
 * What the driver keeps for a thread may be gone by then. */
static void uses_it_again(void *key)
{
    tcuda_event *event = NULL;
    void *block = NULL;
    CHECK_EQ(pthread_setspecific(*(pthread_key_t *)key, key), 0);
    rounds++;
    const tcuda_status created = tcuda_event_create(0, &event);
    if (created == TCUDA_STATUS_INVALID_STATE) {
        CHECK_STR(tcuda_last_error(), "this thread is ending: it has left tcuda for good");
        refused++;
        return;
    }
    CHECK_EQ(created, TCUDA_STATUS_OK);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(&block));
    const tcuda_status allocated = tcuda_malloc(4096, 0, NULL, &block);
    CHECK(allocated == TCUDA_STATUS_OK || allocated == TCUDA_STATUS_CUDA_ERROR);
    CHECK_OK(tcuda_free(block));
}

static void *ends_with_destructors(void *unused)
{
    (void)unused;
    CHECK_EQ(pthread_setspecific(before_ours, &before_ours), 0);
    CHECK_EQ(pthread_setspecific(after_ours, &after_ours), 0);
    CHECK_OK(tcuda_stream_set_current(use_the_library()));
    return NULL;
}

/* On a stack that is gone afterwards, with the thread's own state: a later access fails. */
static void run_on_a_passing_stack(void *(*body)(void *))
{
    enum { BYTES = 1 << 20 };
    pthread_attr_t attributes;
    pthread_t thread;
    void *stack = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    CHECK_EQ(pthread_attr_init(&attributes), 0);
    CHECK_EQ(pthread_attr_setstack(&attributes, stack, BYTES), 0);
    CHECK_EQ(pthread_create(&thread, &attributes, body, NULL), 0);
    CHECK_EQ(pthread_attr_destroy(&attributes), 0);
    join_thread(thread);
    CHECK_EQ(munmap(stack, BYTES), 0);
}

static void destructors_come_back(void)
{
    CHECK_EQ(pthread_key_create(&before_ours, uses_it_again), 0);
    CHECK_OK(tcuda_init());
    CHECK_EQ(pthread_key_create(&after_ours, uses_it_again), 0);
    run_on_a_passing_stack(ends_with_destructors);
    CHECK(atomic_load(&rounds) >= 8); /* four for each key: what POSIX asks for, at least */
    CHECK_EQ(shut_down(), 1);
    CHECK_OK(tcuda_stream_destroy(use_the_library()));
    CHECK_EQ(shut_down(), 0);
    CHECK(atomic_load(&refused) >= 1);
    CHECK(atomic_load(&refused) <= 3);
}

static pthread_barrier_t barrier;

static void *ends_after_shutdown(void *unused)
{
    (void)unused;
    CHECK_OK(tcuda_stream_set_current(use_the_library()));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(&barrier));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

static void threads_end_after_shutdown(void)
{
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, 2), 0);
    for (int again = 0; again < 2; again++) {
        pthread_t thread = start_thread(ends_after_shutdown, NULL);
        pthread_barrier_wait(&barrier);
        CHECK_EQ(shut_down(), 1);
        if (again)
            CHECK_OK(tcuda_init());
        pthread_barrier_wait(&barrier);
        join_thread(thread);
    }
    CHECK_EQ(shut_down(), 0);
    CHECK_EQ(pthread_barrier_destroy(&barrier), 0);
}

/* ---- Addresses that are looked up beside shutdowns ---- */

static _Atomic(uintptr_t) looked_up;
static atomic_bool looks_no_more;

static void *looks_up(void *unused)
{
    while (!atomic_load(&looks_no_more)) {
        int64_t shape[1] = { 10 };
        struct DLManagedTensorVersioned *managed = NULL;
        tcuda_tensor tensor = { .data = (void *)atomic_load(&looked_up), .ndim = 1, .shape = shape,
            .device = { TCUDA_DEVICE_CUDA, 0 }, .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 } };
        /* A block that is there belongs to the capsule then, which is not deleted: the shutdown
         * frees it. */
        if (tcuda_tensor_to_dlpack(&tensor, &managed) == TCUDA_STATUS_OK)
            CHECK(managed != NULL);
    }
    return unused;
}

/* A call that needs no runtime of its own sees no memory that goes. */
static void looks_up_beside_shutdowns(void)
{
    pthread_t threads[2];
    struct timespec begin, now;
    for (int i = 0; i < 2; i++)
        threads[i] = start_thread(looks_up, NULL);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        void *block = NULL;
        if (tcuda_malloc(4096, 0, NULL, &block) == TCUDA_STATUS_OK)
            atomic_store(&looked_up, (uintptr_t)block);
        CHECK_OK(tcuda_shutdown(NULL));
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < 2);
    atomic_store(&looks_no_more, true);
    for (int i = 0; i < 2; i++)
        join_thread(threads[i]);
    CHECK_OK(tcuda_shutdown(NULL));
    _exit(EXIT_SUCCESS); /* the capsules are left */
}

#include "teardown/forks.h"

int main(void)
{
    if (!has_gpu())
        return CHECK_SKIPPED;
    RUNS(exits_with_busy_threads);
    RUNS(leaves_at_once);
    RUNS(leaves_quickly);
    RUNS(leaves_quickly_without_shutdown);
    RUNS(shuts_down_under_busy_threads);
    RUNS(exits_in_a_callback);
    RUNS(exits_in_a_destroy);
    RUNS(exits_in_a_log_callback);
    RUNS(shuts_down_inside_a_callback);
    RUNS(shuts_down_inside_a_destroy);
    RUNS(shuts_down_inside_a_line);
    RUNS(main_ends_first);
    RUNS(destructors_come_back);
    RUNS(threads_end_after_shutdown);
    RUNS(looks_up_beside_shutdowns);
    RUNS(a_child_begins_anew);
    if (!UNDER_ADDRESS_SANITIZER)
        RUNS(a_child_of_a_thread_inside_begins_anew);
    RUNS(children_of_busy_threads_are_refused);
    RUNS(a_callback_forks);
    RUNS(a_line_of_log_forks);
    RUNS(a_child_begins_anew_after_shutdown);
    return finish_cases();
}
