/* A host that is not linked with tcuda: it opens the library whose path is in TCUDA_LIBRARY, uses
 * it, closes it, and ends in every way that a process can. Each case has a process of its own. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RECOVERY_NOT_LINKED
#include "check.h"

/* What the cases use of tcuda.h. */
typedef struct api {
    void *library;
    uint32_t (*version)(void);
    const char *(*last_error)(void);
    tcuda_status (*is_available)(bool *);
    tcuda_status (*stream_create)(int32_t, int32_t, tcuda_stream **);
    tcuda_status (*stream_set_current)(tcuda_stream *);
    tcuda_status (*stream_synchronize)(tcuda_stream *);
    tcuda_status (*stream_add_callback)(tcuda_stream *, tcuda_host_fn, void *, tcuda_destroy_fn);
    tcuda_status (*malloc)(size_t, int32_t, tcuda_stream *, void **);
    tcuda_status (*free)(void *);
    tcuda_status (*fill)(void *, const void *, size_t, size_t, tcuda_stream *);
    tcuda_status (*shutdown)(size_t *);
} api;

/* C has no cast from an object's pointer to a function's. */
static void find(void *library, const char *name, void *function)
{
    void *const symbol = dlsym(library, name);
    if (symbol == NULL)
        check_failed(__FILE__, __LINE__, "dlsym", name);
    memcpy(function, &symbol, sizeof symbol);
}

static api open_library(void)
{
    const char *path = getenv("TCUDA_LIBRARY");
    api tcuda;
    CHECK(path != NULL);
    tcuda.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (tcuda.library == NULL)
        check_failed(__FILE__, __LINE__, "dlopen", dlerror());
    find(tcuda.library, "tcuda_version", &tcuda.version);
    find(tcuda.library, "tcuda_last_error", &tcuda.last_error);
    find(tcuda.library, "tcuda_is_available", &tcuda.is_available);
    find(tcuda.library, "tcuda_stream_create", &tcuda.stream_create);
    find(tcuda.library, "tcuda_stream_set_current", &tcuda.stream_set_current);
    find(tcuda.library, "tcuda_stream_synchronize", &tcuda.stream_synchronize);
    find(tcuda.library, "tcuda_stream_add_callback", &tcuda.stream_add_callback);
    find(tcuda.library, "tcuda_malloc", &tcuda.malloc);
    find(tcuda.library, "tcuda_free", &tcuda.free);
    find(tcuda.library, "tcuda_fill", &tcuda.fill);
    find(tcuda.library, "tcuda_shutdown", &tcuda.shutdown);
    CHECK_EQ(tcuda.version(), TCUDA_VERSION);
    return tcuda;
}

/* Leaves a stream, a block, queued work and a last error behind. */
static void use(const api *tcuda)
{
    tcuda_stream *stream = NULL;
    void *block = NULL;
    CHECK_EQ(tcuda->stream_create(0, 0, &stream), TCUDA_STATUS_OK);
    CHECK_EQ(tcuda->stream_set_current(stream), TCUDA_STATUS_OK);
    CHECK_EQ(tcuda->malloc(1 << 20, 0, stream, &block), TCUDA_STATUS_OK);
    CHECK_EQ(tcuda->fill(block, "value", 5, 1000, NULL), TCUDA_STATUS_OK);
    CHECK_EQ(tcuda->free(&stream), TCUDA_STATUS_INVALID_POINTER);
    CHECK(strlen(tcuda->last_error()) > 0);
}

static void shut_down(const api *tcuda, size_t expected)
{
    size_t live = 77;
    CHECK_EQ(tcuda->shutdown(&live), TCUDA_STATUS_OK);
    CHECK_EQ(live, expected);
}

/* ---- The cases ---- */

static void opens_and_closes_again_and_again(void)
{
    for (int i = 0; i < 5; i++) {
        const api tcuda = open_library();
        use(&tcuda);
        shut_down(&tcuda, 1);
        CHECK_EQ(dlclose(tcuda.library), 0);
    }
}

static void closes_without_use(void)
{
    const api tcuda = open_library();
    CHECK_EQ(dlclose(tcuda.library), 0);
}

static void closes_without_shutdown(void)
{
    api tcuda = open_library();
    use(&tcuda);
    CHECK_EQ(dlclose(tcuda.library), 0);
    /* The library stays loaded, with all it had. */
    tcuda = open_library();
    shut_down(&tcuda, 1);
}

/* The simulator is found beside the library when the name of its folder means another one. */
static void is_opened_by_a_relative_name(void)
{
    char folder[4096], name[4096];
    const char *const path = getenv("TCUDA_LIBRARY");
    CHECK(path != NULL && path[0] == '/');
    const int end = (int)(strrchr(path, '/') - path);
    snprintf(folder, sizeof folder, "%.*s", end, path);
    snprintf(name, sizeof name, "./%s", path + end + 1);
    CHECK_EQ(chdir(folder), 0);
    CHECK_EQ(setenv("TCUDA_LIBRARY", name, 1), 0);
    const api tcuda = open_library();
    CHECK_EQ(chdir("/"), 0);
    use(&tcuda);
    shut_down(&tcuda, 1);
    CHECK_EQ(dlclose(tcuda.library), 0);
}

/* Does queued work run after the call that queues it? */
static bool runs_late(void)
{
    const char *backend = getenv("TCUDA_BACKEND"), *options = getenv("TCUDA_SIM");
    const bool simulated = backend != NULL && strcmp(backend, "sim") == 0;
    return !simulated || (options != NULL && strstr(options, "schedule=") != NULL);
}

static atomic_int gate; /* 0: closed; 1: open; 2: a thread went through */

static void waits_at_the_gate(void *unused)
{
    const struct timespec time = { 0, 1000000 };
    (void)unused;
    for (int i = 0; i < 30000 && atomic_load(&gate) == 0; i++)
        nanosleep(&time, NULL);
    atomic_fetch_add(&gate, 1);
}

static void closes_while_work_waits(void)
{
    api tcuda = open_library();
    tcuda_stream *stream = NULL;
    void *block = NULL;
    atomic_store(&gate, runs_late() ? 0 : 1);
    CHECK_EQ(tcuda.stream_create(0, 0, &stream), TCUDA_STATUS_OK);
    CHECK_EQ(tcuda.malloc(1 << 20, 0, stream, &block), TCUDA_STATUS_OK);
    CHECK_EQ(tcuda.fill(block, "values", 4, 1000, stream), TCUDA_STATUS_OK);
    CHECK_EQ(tcuda.stream_add_callback(stream, waits_at_the_gate, NULL, NULL), TCUDA_STATUS_OK);
    CHECK_EQ(tcuda.fill(block, "values", 4, 1000, stream), TCUDA_STATUS_OK);
    CHECK_EQ(dlclose(tcuda.library), 0);
    if (runs_late())
        CHECK_EQ(atomic_exchange(&gate, 1), 0);
    tcuda = open_library();
    CHECK_EQ(tcuda.stream_synchronize(stream), TCUDA_STATUS_OK);
    CHECK_EQ(atomic_load(&gate), 2);
    CHECK_EQ(tcuda.free(block), TCUDA_STATUS_OK);
    shut_down(&tcuda, 1);
}

/* Exit finds a closed library whose stream still holds a callback back. */
static void exits_while_work_waits(void)
{
    const api tcuda = open_library();
    tcuda_stream *stream = NULL;
    atomic_store(&gate, runs_late() ? 0 : 1);
    CHECK_EQ(tcuda.stream_create(0, 0, &stream), TCUDA_STATUS_OK);
    CHECK_EQ(tcuda.stream_add_callback(stream, waits_at_the_gate, NULL, NULL), TCUDA_STATUS_OK);
    CHECK_EQ(dlclose(tcuda.library), 0);
}

static void ends_without_shutdown(void)
{
    const api tcuda = open_library();
    use(&tcuda);
}

static void *uses_and_returns(void *unused)
{
    const api tcuda = open_library();
    (void)unused;
    use(&tcuda);
    return NULL;
}

static void *uses_and_closes(void *unused)
{
    const api tcuda = open_library();
    (void)unused;
    use(&tcuda);
    CHECK_EQ(dlclose(tcuda.library), 0);
    return NULL;
}

static void *uses_and_exits(void *unused)
{
    const api tcuda = open_library();
    (void)unused;
    use(&tcuda);
    exit(EXIT_SUCCESS);
}

static void *uses_for_ever(void *ready)
{
    const api tcuda = open_library();
    use(&tcuda);
    CHECK_EQ(pthread_barrier_wait(ready) > 0, false);
    for (;;) {
        void *block = NULL;
        if (tcuda.malloc(4096, 0, NULL, &block) == TCUDA_STATUS_OK)
            tcuda.free(block);
    }
    return NULL;
}

static void on_thread(void *(*body)(void *))
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, body, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void a_thread_ends_first(void)
{
    on_thread(uses_and_returns);
}

static void a_thread_ends_after_closing(void)
{
    on_thread(uses_and_closes);
}

static void exits_on_a_second_thread(void)
{
    on_thread(uses_and_exits);
    CHECK(false);
}

static void exits_while_a_thread_uses_it(void)
{
    pthread_barrier_t ready;
    pthread_t thread;
    CHECK_EQ(pthread_barrier_init(&ready, NULL, 2), 0);
    CHECK_EQ(pthread_create(&thread, NULL, uses_for_ever, &ready), 0);
    pthread_barrier_wait(&ready);
    /* The barrier is on this stack: exit is called while it is alive. */
    exit(EXIT_SUCCESS);
}

static api opened;

static void shuts_down_in_exit_handler(void)
{
    shut_down(&opened, 1);
}

static void an_exit_handler_shuts_down(void)
{
    CHECK_EQ(atexit(shuts_down_in_exit_handler), 0);
    opened = open_library();
    use(&opened);
}

static void in_a_process_of_its_own(const char *name, void (*body)(void))
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
        exit(EXIT_FAILURE);
    }
}

static void needs_a_gpu(void)
{
    const api tcuda = open_library();
    bool available = false;
    CHECK_EQ(tcuda.is_available(&available), TCUDA_STATUS_OK);
    shut_down(&tcuda, 0);
    exit(available ? EXIT_SUCCESS : CHECK_SKIPPED);
}

static bool has_gpu(void)
{
    int status = 0;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        needs_a_gpu();
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == EXIT_SUCCESS || WEXITSTATUS(status) == CHECK_SKIPPED);
    return WEXITSTATUS(status) == EXIT_SUCCESS;
}

int main(void)
{
    if (!has_gpu())
        return CHECK_SKIPPED;
    in_a_process_of_its_own("opens_and_closes", opens_and_closes_again_and_again);
    in_a_process_of_its_own("closes_without_use", closes_without_use);
    in_a_process_of_its_own("closes_without_shutdown", closes_without_shutdown);
    in_a_process_of_its_own("is_opened_by_a_relative_name", is_opened_by_a_relative_name);
    in_a_process_of_its_own("closes_while_work_waits", closes_while_work_waits);
    in_a_process_of_its_own("exits_while_work_waits", exits_while_work_waits);
    in_a_process_of_its_own("ends_without_shutdown", ends_without_shutdown);
    in_a_process_of_its_own("a_thread_ends_first", a_thread_ends_first);
    in_a_process_of_its_own("a_thread_ends_after_closing", a_thread_ends_after_closing);
    in_a_process_of_its_own("exits_on_a_second_thread", exits_on_a_second_thread);
    in_a_process_of_its_own("exits_while_a_thread_uses_it", exits_while_a_thread_uses_it);
    in_a_process_of_its_own("an_exit_handler_shuts_down", an_exit_handler_shuts_down);
    return EXIT_SUCCESS;
}
