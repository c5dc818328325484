/* Forks of a process whose threads call all that needs no GPU, and which is not initialised: each
 * child can use the library, whatever those threads were doing. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { THREADS = 4, FORKS = 100 };

static atomic_bool stop;

static void *gives(ptrdiff_t size, int32_t device, struct CUstream_st *stream)
{
    (void)size;
    (void)device;
    (void)stream;
    return NULL;
}

static void takes(void *ptr, ptrdiff_t size, int32_t device, struct CUstream_st *stream)
{
    (void)ptr;
    (void)size;
    (void)device;
    (void)stream;
}

static void line(void *user_data, tcuda_log_level level, const char *message)
{
    (void)user_data;
    (void)level;
    (void)message;
}

enum { KINDS = 7 };

/* What a process may do before it is initialised. */
static void uses_what_needs_no_gpu(int kind)
{
    tcuda_event *event = NULL;
    tcuda_graph *graph = NULL;
    tcuda_memory_snapshot *snapshot = NULL;
    tcuda_pluggable_allocator *allocator = NULL;
    tcuda_pluggable_hooks hooks = TCUDA_INIT(tcuda_pluggable_hooks);
    tcuda_jit *function = NULL;
    int32_t version = 0;
    const char *const code = "template <typename T> T twice(T x) { return x + x; }";
    switch (kind % KINDS) {
    case 0:
        CHECK_OK(tcuda_event_create(0, &event));
        CHECK_OK(tcuda_event_destroy(event));
        break;
    case 1:
        CHECK_OK(tcuda_graph_create(false, &graph));
        CHECK_OK(tcuda_graph_destroy(graph));
        break;
    case 2:
        CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
        CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
        break;
    case 3:
        CHECK_OK(tcuda_pluggable_allocator_create(gives, takes, &allocator));
        CHECK_OK(tcuda_pluggable_allocator_set_hooks(allocator, &hooks));
        CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
        break;
    case 4:
        CHECK_OK(tcuda_jit_create(code, NULL, &function));
        CHECK_OK(tcuda_jit_destroy(function));
        break;
    case 5:
        CHECK_OK(tcuda_allocator_config_set("max_split_size_mb:512"));
        CHECK_OK(tcuda_random_manual_seed_all(7));
        break;
    default:
        CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, line, NULL, NULL));
        CHECK_OK(tcuda_nvtx_mark("before initialisation"));
        /* There may be no NCCL. */
        CHECK(tcuda_nccl_version(&version, &version, &version) != TCUDA_STATUS_INTERNAL);
    }
}

static void *uses_it_all_the_time(void *kind)
{
    while (!atomic_load(&stop))
        uses_what_needs_no_gpu(*(const int *)kind);
    return NULL;
}

static void is_as_good_as_new(void)
{
    void *block = NULL;
    for (int kind = 0; kind < KINDS; kind++)
        uses_what_needs_no_gpu(kind);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    CHECK_OK(tcuda_malloc(1000, 0, NULL, &block));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_shutdown(NULL));
}

static void forks_beside_busy_threads(void)
{
    pthread_t threads[THREADS];
    int kinds[THREADS];
    for (int i = 0; i < THREADS; i++) {
        kinds[i] = i;
        threads[i] = start_thread(uses_it_all_the_time, &kinds[i]);
    }
    for (int i = 0; i < FORKS; i++) {
        int status = 0;
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            is_as_good_as_new();
            _exit(EXIT_SUCCESS);
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
        kinds[i % THREADS] = (kinds[i % THREADS] + 1) % KINDS;
    }
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
}

/* A call that does not end while others fork, here because it frees the data of a log callback. */
static atomic_bool stays;

static void frees_when_it_may(void *user_data)
{
    (void)user_data;
    atomic_store(&stays, true);
    while (!atomic_load(&stop))
        sleep_ms(1);
}

static void *stays_inside(void *unused)
{
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, line, NULL, frees_when_it_may));
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    for (int i = 0; i < 1000; i++)
        uses_what_needs_no_gpu(0);
    return unused;
}

/* The child cannot know what that call has left: it says so, and does not wait. */
static void forks_beside_a_call_that_stays(void)
{
    int status = 0;
    pthread_t thread = start_thread(stays_inside, NULL);
    while (!atomic_load(&stays))
        sleep_ms(1);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        tcuda_event *event = NULL;
        alarm(20);
        CHECK_STATUS(TCUDA_STATUS_FORKED, tcuda_event_create(0, &event));
        CHECK_OK(tcuda_nvtx_mark("in the child"));
        _exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    atomic_store(&stop, true);
    join_thread(thread);
    is_as_good_as_new();
}

int main(void)
{
    if (UNDER_ADDRESS_SANITIZER) {
        printf("skipped: its allocator is not held still over a fork\n");
        return CHECK_SKIPPED;
    }
    skip_without_gpu_before_forks();
    RUNS(forks_beside_busy_threads);
    RUNS(forks_beside_a_call_that_stays);
    return finish_cases();
}
