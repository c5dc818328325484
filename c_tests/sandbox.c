/* A sandbox that forbids membarrier, as those of containers and browsers do, from the start or
 * later: threads announce themselves with fences then, and nothing else changes. */
#define _GNU_SOURCE

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

static long membarrier_query(void)
{
    return syscall(SYS_membarrier, 0, 0, 0);
}

/* For all threads of this process; a process that may not is skipped. */
static void forbid_membarrier(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0 ||
        membarrier_query() >= 0) {
        printf("skipped: this process cannot forbid membarrier\n");
        _exit(CHECK_SKIPPED);
    }
}

static atomic_bool stop;
static atomic_long rounds;

static bool went_well(tcuda_status status)
{
    CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_INVALID_HANDLE ||
        status == TCUDA_STATUS_INVALID_POINTER || status == TCUDA_STATUS_INVALID_STATE);
    return status == TCUDA_STATUS_OK;
}

/* Handles that others destroy, memory that others free, a library that goes and comes. */
static tcuda_event *_Atomic shared_event;

static void *works(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        tcuda_event *event = NULL, *old;
        tcuda_stream *stream = NULL;
        void *block = NULL;
        if (went_well(tcuda_stream_create(0, 0, &stream)) &&
            went_well(tcuda_event_create(0, &event))) {
            went_well(tcuda_event_record(event, stream));
            old = atomic_exchange(&shared_event, event);
            went_well(tcuda_stream_wait_event(stream, event));
            went_well(tcuda_event_destroy(old));
        }
        if (went_well(tcuda_malloc(100000, 0, stream, &block)))
            went_well(tcuda_free(block));
        went_well(tcuda_stream_destroy(stream));
        rounds++;
    }
    return NULL;
}

static void work_through_shutdowns(void (*in_between)(void))
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        threads[i] = start_thread(works, NULL);
    for (int i = 0; i < 20; i++) {
        const long before = atomic_load(&rounds);
        while (atomic_load(&rounds) < before + 20)
            sleep_ms(1);
        if (i == 5)
            in_between();
        CHECK_OK(tcuda_shutdown(NULL));
        CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        join_thread(threads[i]);
    CHECK_OK(tcuda_shutdown(NULL));
}

static void nothing(void)
{
}

static void forbidden_from_the_start(void)
{
    forbid_membarrier();
    SKIP_WITHOUT_GPU();
    work_through_shutdowns(nothing);
}

static void forbidden_later(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_init());
    work_through_shutdowns(forbid_membarrier);
}

enum { STREAMS = 8 };
static tcuda_stream *streams[STREAMS];

static void *uses_all_streams(void *unused)
{
    (void)unused;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < STREAMS; i++) {
            void *block = NULL;
            CHECK_OK(tcuda_malloc(512 << i, 0, streams[i], &block));
            CHECK_OK(tcuda_free(block));
        }
    }
    return NULL;
}

/* What the first thread has for itself, without fences, goes over to others all the same. */
static void forbidden_between_two_users(void)
{
    pthread_t threads[2];
    tcuda_memory_statistics statistics = TCUDA_INIT(tcuda_memory_statistics);
    SKIP_WITHOUT_GPU();
    for (int i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_create(0, 0, &streams[i]));
    uses_all_streams(NULL);
    forbid_membarrier();
    for (int i = 0; i < 2; i++)
        threads[i] = start_thread(uses_all_streams, NULL);
    uses_all_streams(NULL);
    for (int i = 0; i < 2; i++)
        join_thread(threads[i]);
    CHECK_OK(tcuda_memory_stats(0, &statistics));
    CHECK_EQ(statistics.allocation.all.allocated, 4 * 100 * STREAMS);
    CHECK_EQ(statistics.allocation.all.current, 0);
    for (int i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_destroy(streams[i]));
    CHECK_OK(tcuda_shutdown(NULL));
}

static int runs(void (*body)(void))
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(100);
        body();
        exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(void)
{
    const int first = runs(forbidden_from_the_start);
    if (first != EXIT_SUCCESS)
        return first;
    const int second = runs(forbidden_later);
    return second != EXIT_SUCCESS ? second : runs(forbidden_between_two_users);
}
