/* What several tests need beside check.h: where they run, gates that hold a stream back, threads,
 * and getters that cannot be ignored. C only; the includer asks for POSIX. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

/* Its allocator is not held still over a fork: a child of busy threads cannot allocate. */
#ifdef __SANITIZE_ADDRESS__
enum { UNDER_ADDRESS_SANITIZER = true };
#else
enum { UNDER_ADDRESS_SANITIZER = false };
#endif

/* Asked of a child, because CUDA does not work in a child of a process that has used it. */
static inline bool has_gpu(void)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        SKIP_WITHOUT_GPU();
        exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status) != CHECK_SKIPPED;
}

/* SKIP_WITHOUT_GPU for programs whose children use the GPU. */
static inline void skip_without_gpu_before_forks(void)
{
    if (!has_gpu())
        exit(CHECK_SKIPPED);
}

/* Can kernels be compiled? If no path names NVRTC, a source that is none tells. */
static inline bool has_compiler(void)
{
    const char *const path = getenv("TCUDA_NVRTC_PATH");
    tcuda_kernel *kernel = NULL;
    return (path != NULL && *path != '\0')
        || tcuda_kernel_compile("none", "none", NULL, &kernel) != TCUDA_STATUS_NO_LIBRARY;
}

/* First lines of a test that compiles kernels. */
static inline void skip_without_compiler(void)
{
    if (!has_compiler()) {
        printf("skipped: %s\n", tcuda_last_error());
        exit(CHECK_SKIPPED);
    }
}

static inline bool on_simulator(void)
{
    return strcmp(tcuda_backend_name(), "sim") == 0;
}

/* Does queued work run after the call that queues it? The simulated machine does it at once unless
 * its options say otherwise; then a stream cannot be held back, and those checks are left out. */
static inline bool runs_late(void)
{
    const char *options = getenv("TCUDA_SIM");
    return !on_simulator() || (options != NULL && (strstr(options, "schedule=threads") != NULL
        || strstr(options, "schedule=adversarial") != NULL));
}

/* A turn of another thread costs tens of microseconds there: tests of many calls on many threads
 * make fewer, since it is the seed that decides what they meet. */
static inline bool under_adversary(void)
{
    const char *options = getenv("TCUDA_SIM");
    return on_simulator() && options != NULL && strstr(options, "schedule=adversarial") != NULL;
}

static inline void sleep_ms(long milliseconds)
{
    const struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
    nanosleep(&time, NULL);
}

/* ---- Gates: a callback that returns when the test says so ---- */

typedef struct gate {
    atomic_bool is_open;
    atomic_bool expired; /* the test never opened it */
} gate;

static inline void gate_hold(void *user_data)
{
    gate *held = user_data;
    for (int i = 0; i < 30000 && !atomic_load(&held->is_open) && !atomic_load(&recovery_began); i++)
        sleep_ms(1);
    atomic_store(&held->expired, !atomic_load(&held->is_open));
}

/* Holds back what is queued on `stream` from now on, where work runs late. While a gate is closed
 * nothing may be called that waits, as copies from and to pageable host memory do, nor be used for
 * the first time: CUDA may load code then, and waits for the device to do so. */
static inline void gate_close(gate *held, tcuda_stream *stream)
{
    atomic_init(&held->is_open, false);
    atomic_init(&held->expired, false);
    if (runs_late())
        CHECK_OK(tcuda_stream_add_callback(stream, gate_hold, held, NULL));
}

static inline void gate_open(gate *held)
{
    CHECK(!atomic_load(&held->expired));
    atomic_store(&held->is_open, true);
}

/* ---- Threads ---- */

static inline pthread_t start_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, body, argument), 0);
    return thread;
}

static inline void join_thread(pthread_t thread)
{
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static inline void run_on_thread(void *(*body)(void *), void *argument)
{
    join_thread(start_thread(body, argument));
}

/* ---- Cases: each in a process of its own, whose exit status is the test ---- */

static inline int *failed_cases(void)
{
    static int failures;
    return &failures;
}

static inline void run_in_child(const char *name, void (*body)(void))
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
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS) {
        fprintf(stderr, "%s: wait status %#x\n", name, (unsigned)status);
        ++*failed_cases();
    }
}

#define RUNS(body) run_in_child(#body, body)

/* Last line of a test of cases, instead of finish. */
static inline int finish_cases(void)
{
    return *failed_cases() > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- Getters ---- */

static inline int32_t num_devices(void)
{
    int32_t count = -1;
    CHECK_OK(tcuda_device_count(&count));
    return count;
}

static inline int32_t current_device(void)
{
    int32_t device = -2;
    CHECK_OK(tcuda_device_current(&device));
    return device;
}

static inline tcuda_stream *create_stream(int32_t device)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_create(device, 0, &stream));
    CHECK(stream != NULL);
    return stream;
}

static inline int64_t id_of(tcuda_stream *stream)
{
    int64_t id = -1;
    CHECK_OK(tcuda_stream_id(stream, &id));
    return id;
}

static inline struct CUstream_st *native_of(tcuda_stream *stream)
{
    struct CUstream_st *native = (struct CUstream_st *)(void *)&native;
    CHECK_OK(tcuda_stream_native(stream, &native));
    return native;
}

static inline tcuda_event *create_event(uint32_t flags)
{
    tcuda_event *event = NULL;
    CHECK_OK(tcuda_event_create(flags, &event));
    CHECK(event != NULL);
    return event;
}

static inline bool is_reached(tcuda_event *event)
{
    bool done = false;
    CHECK_OK(tcuda_event_query(event, &done));
    return done;
}

static inline void *allocate(size_t bytes, int32_t device, tcuda_stream *stream)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(bytes, device, stream, &ptr));
    CHECK(ptr != NULL);
    return ptr;
}

/* Device 0 may have so many bytes; a quarter more, so that rounding down gives just them. */
static inline void limit_to(size_t bytes)
{
    size_t unused = 0, total = 0;
    CHECK_OK(tcuda_memory_info(0, &unused, &total));
    CHECK_OK(tcuda_memory_fraction_set(0, ((double)bytes + 0.25) / (double)total));
}

static inline uint64_t calls_of(const char *function)
{
    uint64_t count = 0;
    CHECK_OK(tcuda_backend_call_count(function, &count));
    return count;
}

/* ---- Bytes ---- */

static inline void fill_bytes(void *ptr, int value, size_t bytes, tcuda_stream *stream)
{
    const unsigned char byte = (unsigned char)value;
    CHECK_OK(tcuda_fill(ptr, &byte, 1, bytes, stream));
}

/* Waits for `stream`; the number of bytes at `ptr` that are not `value`. */
static inline size_t count_other_bytes(const void *ptr, int value, size_t bytes,
    tcuda_stream *stream)
{
    unsigned char *host = malloc(bytes);
    size_t others = 0;
    CHECK(host != NULL);
    CHECK_OK(tcuda_copy(host, ptr, bytes, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (size_t i = 0; i < bytes; i++)
        others += host[i] != (unsigned char)value;
    free(host);
    return others;
}

#endif /* SUPPORT_H */
