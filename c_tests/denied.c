/* A system that refuses calls, one kind at a time, as sandboxes do: the library goes on, or says
 * what it lacks; it never waits for ever, and never ends the process. On the simulated machine: a
 * driver has needs of its own. */
#define _GNU_SOURCE

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "support.h"

/* For all threads of this process; a process that may not is skipped. */
static void deny(long number, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)error & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
        printf("skipped: this process cannot deny system calls\n");
        _exit(CHECK_SKIPPED);
    }
}

/* What a call may say where the system refuses something. */
static bool works(tcuda_status status)
{
    CHECK(status != TCUDA_STATUS_INTERNAL);
    CHECK(status != TCUDA_STATUS_DEVICE_LOST);
    return status == TCUDA_STATUS_OK;
}

static void *uses_memory(void *argument)
{
    tcuda_stream *stream = NULL;
    void *block = NULL;
    char bytes[64] = "bytes";
    if (works(tcuda_stream_create(0, 0, &stream))
        && works(tcuda_malloc(3 << 20, 0, stream, &block))) {
        works(tcuda_copy(block, bytes, sizeof bytes, stream));
        works(tcuda_stream_synchronize(stream));
    }
    works(tcuda_free(block));
    works(tcuda_stream_destroy(stream));
    return argument;
}

/* Compiles once in each process: nothing is found on disk. */
static void compiles(void)
{
    tcuda_kernel *kernel = NULL;
    char source[200];
    snprintf(source, sizeof source,
        "/* %d %ld */ extern \"C\" __global__ void nothing(int *p) { if (p) *p = 1; }",
        (int)getpid(), (long)time(NULL));
    if (works(tcuda_kernel_compile(source, "nothing", NULL, &kernel)))
        works(tcuda_kernel_destroy(kernel));
}

static bool is_for_compilers(void);

static void uses_everything(void)
{
    tcuda_event *event = NULL;
    tcuda_memory_snapshot *snapshot = NULL;
    void *pinned = NULL, *block = NULL;
    tcuda_ipc_handle handle;
    uses_memory(NULL);
    run_on_thread(uses_memory, NULL);
    if (works(tcuda_event_create(TCUDA_EVENT_INTERPROCESS, &event)) &&
        works(tcuda_event_record(event, NULL)))
        works(tcuda_event_synchronize(event));
    works(tcuda_event_destroy(event));
    if (works(tcuda_host_malloc(100000, &pinned)))
        works(tcuda_host_free(pinned));
    works(tcuda_host_memory_empty_cache());
    if (works(tcuda_malloc(1 << 20, 0, NULL, &block)))
        works(tcuda_ipc_export(block, NULL, &handle));
    works(tcuda_free(block));
    if (is_for_compilers())
        compiles();
    if (works(tcuda_memory_snapshot_create(0, &snapshot)))
        works(tcuda_memory_snapshot_save(snapshot, "/tmp/tcuda-denied.json"));
    works(tcuda_memory_snapshot_destroy(snapshot));
    works(tcuda_memory_empty_cache());
}

static long denied;

/* A compilation takes long. */
static bool is_for_compilers(void)
{
    return denied == SYS_read || denied == SYS_ioctl || denied == SYS_write || denied == SYS_fcntl;
}

static void denied_from_the_start(void)
{
    deny(denied, EPERM);
    if (works(tcuda_init()))
        uses_everything();
    works(tcuda_shutdown(NULL));
    _exit(EXIT_SUCCESS);
}

static void denied_later(void)
{
    CHECK_OK(tcuda_init());
    uses_everything();
    deny(denied, EPERM);
    uses_everything();
    works(tcuda_shutdown(NULL));
    _exit(EXIT_SUCCESS);
}

/* Every descriptor is the host's to close, as daemons do. */
static void descriptors_are_closed(void)
{
    CHECK_OK(tcuda_init());
    uses_everything();
    for (int i = 3; i < 100; i++)
        close(i);
    works(tcuda_shutdown(NULL));
    _exit(EXIT_SUCCESS);
}

/* ---- The adversarial schedule asks the system what threads do ---- */

static void *events_in_turn(void *argument)
{
    for (int i = 0; i < 20; i++) {
        tcuda_event *event = create_event(0);
        CHECK_OK(tcuda_event_record(event, NULL));
        CHECK_OK(tcuda_event_synchronize(event));
        CHECK_OK(tcuda_event_destroy(event));
    }
    return argument;
}

static void threads_take_turns(void)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        threads[i] = start_thread(events_in_turn, NULL);
    events_in_turn(NULL);
    for (int i = 0; i < 3; i++)
        join_thread(threads[i]);
    CHECK_OK(tcuda_shutdown(NULL));
    _exit(EXIT_SUCCESS);
}

static void turns_without_proc(void)
{
    CHECK_OK(tcuda_backend_select("sim", "memory=64MiB,schedule=adversarial:1"));
    CHECK_OK(tcuda_init());
    deny(SYS_openat, ENOENT);
    threads_take_turns();
}

static void turns_without_descriptors(void)
{
    CHECK_OK(tcuda_backend_select("sim", "memory=64MiB,schedule=adversarial:1"));
    CHECK_OK(tcuda_init());
    const struct rlimit limit = { 4, 4 };
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    threads_take_turns();
}

/* ---- A limit on files is none on the simulated machine's memory, or is reported ---- */

static void files_are_short(void)
{
    const struct rlimit limit = { 1 << 20, 1 << 20 };
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const tcuda_status status = tcuda_init();
    CHECK(status != TCUDA_STATUS_OK && status != TCUDA_STATUS_INTERNAL);
    CHECK(strstr(tcuda_last_error(), "ulimit -f") != NULL);
    _exit(EXIT_SUCCESS);
}

#define DENIED(call) { SYS_##call, #call }

static const struct { long number; const char *name; } calls[] = {
    DENIED(write), DENIED(poll), DENIED(munmap), DENIED(ioctl), DENIED(read), DENIED(madvise),
    DENIED(membarrier), DENIED(fallocate), DENIED(memfd_create), DENIED(ftruncate),
    DENIED(eventfd2), DENIED(socket), DENIED(connect), DENIED(accept4), DENIED(pidfd_open),
    DENIED(getrandom), DENIED(clock_nanosleep), DENIED(nanosleep), DENIED(sched_yield),
    DENIED(fcntl), DENIED(openat), DENIED(prctl), DENIED(pread64), DENIED(getdents64), DENIED(kill),
    DENIED(tgkill), DENIED(sched_getaffinity), DENIED(sigaltstack), DENIED(mlock), DENIED(mremap),
};

/* ---- Records that fail ---- */

/* The stream has no thread, and none can be started: its record fails, and the event stays as it
 * was. */
static void records_fail(void)
{
    tcuda_stream *first = NULL, *second = NULL;
    tcuda_event *recorded = NULL, *fresh = NULL;
    tcuda_ipc_event_handle handle;
    gate held;
    alarm(20);
    CHECK_OK(tcuda_backend_select("sim", "schedule=threads"));
    CHECK_OK(tcuda_stream_create(0, 0, &first));
    CHECK_OK(tcuda_stream_create(0, 0, &second));
    CHECK_OK(tcuda_event_create(TCUDA_EVENT_INTERPROCESS, &recorded));
    CHECK_OK(tcuda_event_create(TCUDA_EVENT_INTERPROCESS, &fresh));
    CHECK_OK(tcuda_event_ipc_handle(fresh, &handle));
    atomic_init(&held.is_open, false);
    CHECK_OK(tcuda_stream_add_callback(first, gate_hold, &held, NULL));
    CHECK_OK(tcuda_event_record(recorded, first));
    deny(SYS_clone3, EAGAIN);
    CHECK(!works(tcuda_event_record(recorded, second)));
    CHECK(!works(tcuda_event_record(fresh, second)));
    CHECK_OK(tcuda_event_synchronize(fresh));
    bool is_reached = true;
    CHECK_OK(tcuda_event_query(recorded, &is_reached));
    CHECK(!is_reached);
    atomic_store(&held.is_open, true);
    CHECK_OK(tcuda_event_synchronize(recorded));
    CHECK_OK(tcuda_event_query(recorded, &is_reached));
    CHECK(is_reached);
    CHECK_OK(tcuda_event_destroy(recorded));
    CHECK_OK(tcuda_event_destroy(fresh));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
    works(tcuda_shutdown(NULL));
    _exit(EXIT_SUCCESS);
}

int main(void)
{
#ifdef __SANITIZE_ADDRESS__
    printf("skipped: AddressSanitizer needs what is denied here\n");
    return CHECK_SKIPPED;
#endif
    if (!on_simulator()) {
        printf("skipped: a driver has needs of its own\n");
        return CHECK_SKIPPED;
    }
    RUNS(turns_without_proc);
    RUNS(turns_without_descriptors);
    RUNS(files_are_short);
    RUNS(records_fail);
    /* The schedule has files open that it looks into all the time. */
    if (!under_adversary())
        RUNS(descriptors_are_closed);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char name[64];
        denied = calls[i].number;
        snprintf(name, sizeof name, "%s denied from the start", calls[i].name);
        run_in_child(name, denied_from_the_start);
        snprintf(name, sizeof name, "%s denied later", calls[i].name);
        run_in_child(name, denied_later);
    }
    return finish_cases();
}
