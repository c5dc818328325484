/* The forks of teardown.c: copies of a process in which other threads are inside the library. */
#ifndef FORKS_H
#define FORKS_H

/* Runs `body` in a child and waits for it: a child that hangs is ended by its alarm. */
static void in_a_child(void (*body)(void))
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        body();
        _exit(EXIT_SUCCESS); /* leak checkers would miss the threads that the parent has */
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static void begins_anew(void)
{
    CHECK_OK(tcuda_stream_destroy(use_the_library()));
    CHECK_EQ(shut_down(), 0);
}

static void begins_anew_in_a_grandchild(void)
{
    in_a_child(begins_anew);
    begins_anew();
}

/* What needs no driver leaves nothing that a child could not use. */
static void a_child_begins_anew(void)
{
    CHECK_EQ(tcuda_version(), TCUDA_VERSION);
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(&calls_made));
    in_a_child(begins_anew_in_a_grandchild);
    begins_anew();
}

/* A child cannot use a driver that was started, even after a shutdown; a simulated one can. */
static void a_child_begins_anew_after_shutdown(void)
{
    begins_anew();
    if (on_simulator())
        in_a_child(begins_anew);
    begins_anew();
}

/* ---- While other threads are inside ---- */

static void ignores_lines(void *unused, tcuda_log_level level, const char *message)
{
    (void)unused, (void)level, (void)message;
}

/* Calls that need no driver, and take every lock that exists before there is one. */
static void calls_without_a_driver(void)
{
    bool initialized = true;
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, ignores_lines, NULL, does_nothing));
    CHECK_OK(tcuda_backend_inject("cuMemMap", 0, 0, 0));
    CHECK_OK(tcuda_backend_faults(NULL));
    CHECK_OK(tcuda_is_initialized(&initialized));
    CHECK(!initialized);
}

static void *stays_inside(void *unused)
{
    (void)unused;
    for (;; calls_made++)
        calls_without_a_driver();
    return NULL;
}

static void calls_and_begins_anew(void)
{
    calls_without_a_driver();
    begins_anew();
}

static void a_child_of_a_thread_inside_begins_anew(void)
{
    for (int i = 0; i < 2; i++)
        start_thread(stays_inside, NULL);
    while (atomic_load(&calls_made) < 100)
        sleep_ms(1);
    /* Each starts the driver, which takes half a second on a GPU. */
    const int children = on_simulator() ? 100 : 20;
    for (int i = 0; i < children; i++)
        in_a_child(calls_and_begins_anew);
    _exit(EXIT_SUCCESS);
}

static void is_refused(void)
{
    tcuda_stream *stream = NULL;
    tcuda_event *event = NULL;
    void *block = NULL;
    CHECK_STATUS(TCUDA_STATUS_FORKED, tcuda_init());
    CHECK_STATUS(TCUDA_STATUS_FORKED, tcuda_malloc(4096, 0, NULL, &block));
    CHECK_STATUS(TCUDA_STATUS_FORKED, tcuda_stream_create(0, 0, &stream));
    CHECK_STATUS(TCUDA_STATUS_FORKED, tcuda_event_create(0, &event));
    CHECK_STATUS(TCUDA_STATUS_FORKED, tcuda_device_synchronize(0));
    CHECK_STATUS(TCUDA_STATUS_FORKED, tcuda_shutdown(NULL));
}

static void children_of_busy_threads_are_refused(void)
{
    keep_threads_busy();
    for (int i = 0; i < 50; i++)
        in_a_child(is_refused);
    /* The parent has lost nothing. */
    CHECK_OK(tcuda_stream_destroy(use_the_library()));
    _exit(EXIT_SUCCESS);
}

/* ---- Inside a callback ---- */

static void forks(void *count)
{
    in_a_child(is_refused);
    atomic_fetch_add((atomic_int *)count, 1);
}

static void a_callback_forks(void)
{
    static atomic_int count;
    tcuda_stream *stream = use_the_library();
    CHECK_OK(tcuda_stream_add_callback(stream, forks, &count, forks));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_EQ(shut_down(), 0);
    CHECK_EQ(atomic_load(&count), 2);
}

static void forks_in_a_line(void *count, tcuda_log_level level, const char *message)
{
    (void)level, (void)message;
    forks(count);
}

static void a_line_of_log_forks(void)
{
    static atomic_int count;
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, forks_in_a_line, &count, NULL));
    (void)use_the_library();
    CHECK_EQ(shut_down(), 1);
    CHECK_EQ(atomic_load(&count), 1);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
}

#endif /* FORKS_H */
