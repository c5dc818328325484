/* What is destroyed while other threads use it, beside shutdowns and beside threads that wait.
 * Nothing is used after its end, a shutdown comes to an end, and memory does not grow.
 *
 *     reclamation [--seconds N] [--only NAME]
 *
 * Each case runs for N seconds; by default for a fraction of one, as a test. One that has not ended
 * a minute after that says what it was doing. */
#define _GNU_SOURCE

#include <malloc.h>
#include <signal.h>

#include "reclamation.h"

enum { MAKERS = 4, USERS = 4 };

static double seconds = 0.3;
static atomic_bool over;
static const char *_Atomic doing = "nothing";

static void give_up(int number)
{
    const char *const text = atomic_load(&doing);
    (void)number;
    if (write(STDERR_FILENO, text, strlen(text)) > 0)
        (void)!write(STDERR_FILENO, ": not over\n", 11);
    _exit(EXIT_FAILURE);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static size_t resident_bytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *const file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%lu %lu", &all, &resident), 2);
    fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Memory that the process has beyond `before`. A sanitizer keeps what is freed. */
static void check_growth(size_t before, size_t most)
{
    const size_t after = resident_bytes();
    if (UNDER_ADDRESS_SANITIZER || after < before + most)
        return;
    fprintf(stderr, "memory grew from %zu to %zu MiB\n", before >> 20, after >> 20);
    CHECK(after < before + most);
}

/* What the process has of malloc, and has not freed. */
static size_t bytes_of_malloc(void)
{
    const struct mallinfo2 all = mallinfo2();
    return all.uordblks + all.hblkhd;
}

/* On a machine that does much else, threads are taken off the processor inside calls: what others
 * destroy meanwhile is kept, and a shutdown waits for them. In a long run what stays counts. */
static bool runs_long(void)
{
    return seconds > 60;
}

/* One handle of each kind, which makers replace and users use. */
static _Atomic(void *) shown[KINDS];
/* The kind that is made; KINDS: all in turn. */
static size_t chosen;

static size_t next_kind(size_t round)
{
    return chosen < KINDS ? chosen : round % KINDS;
}

static void *make_and_destroy(void *argument)
{
    (void)argument;
    for (size_t round = 0; !atomic_load(&over); round++) {
        const size_t kind = next_kind(round);
        handle made = { NULL };
        if (kinds[kind].make(&made) != TCUDA_STATUS_OK)
            continue;
        handle old;
        old.any = atomic_exchange(&shown[kind], made.any);
        kinds[kind].destroy(old);
    }
    return NULL;
}

static void *use(void *argument)
{
    (void)argument;
    for (size_t round = 0; !atomic_load(&over); round++) {
        const size_t kind = next_kind(round);
        handle used;
        used.any = atomic_load(&shown[kind]);
        if (used.any != NULL)
            kinds[kind].use(used);
    }
    return NULL;
}

/* When all is over the host's memory is what it was. Resident memory says less: what many threads
 * have had of malloc stays with it. */
static void check_what_stayed(size_t before)
{
    const size_t after = bytes_of_malloc();
    printf("%.1f MiB stayed\n", ((double)after - (double)before) / 1048576);
    CHECK(UNDER_ADDRESS_SANITIZER || after < before + (on_simulator() ? 8 : 64) * (size_t)1048576);
}

/* ---- Beside shutdowns ---- */

/* Shuts down until time is up; no call takes longer than some seconds. */
static size_t shut_down_again_and_again(void)
{
    const size_t before = resident_bytes();
    size_t count = 0, most = 0;
    double longest = 0;
    for (const double end = now() + seconds; now() < end; count++) {
        const double start = now();
        CHECK_OK(tcuda_shutdown(NULL));
        longest = now() - start > longest ? now() - start : longest;
        CHECK(longest < (runs_long() ? 600 : 20));
        check_growth(before, (size_t)(runs_long() ? 4096 : 512) << 20);
        most = resident_bytes() > most ? resident_bytes() : most;
        sleep_ms(1);
    }
    printf("%zu shutdowns, the longest took %.3f s, memory grew by at most %.1f MiB\n", count,
        longest, ((double)most - (double)before) / 1048576);
    return count;
}

static void handles_are_exchanged_beside_shutdowns(void)
{
    pthread_t threads[MAKERS + USERS];
    atomic_store(&over, false);
    const size_t before = bytes_of_malloc();
    for (int i = 0; i < MAKERS + USERS; i++)
        threads[i] = start_thread(i < MAKERS ? make_and_destroy : use, NULL);
    CHECK(shut_down_again_and_again() > 0);
    atomic_store(&over, true);
    for (int i = 0; i < MAKERS + USERS; i++)
        join_thread(threads[i]);
    CHECK_OK(tcuda_shutdown(NULL));
    check_what_stayed(before);
}

static void all_kinds_beside_shutdowns(void)
{
    chosen = KINDS;
    handles_are_exchanged_beside_shutdowns();
}

static void functions_beside_shutdowns(void)
{
    chosen = 0;
    handles_are_exchanged_beside_shutdowns();
}

static void *make_graphs(void *argument)
{
    (void)argument;
    while (!atomic_load(&over)) {
        tcuda_graph *graph = NULL;
        CHECK_OK(tcuda_graph_create(0, &graph));
        (void)tcuda_graph_destroy(graph);
    }
    return NULL;
}

static void shutdowns_end_beside_graphs(void)
{
    const size_t before = bytes_of_malloc();
    atomic_store(&over, false);
    const pthread_t threads[] = {
        start_thread(make_graphs, NULL),
        start_thread(make_graphs, NULL),
    };
    CHECK(shut_down_again_and_again() > 0);
    atomic_store(&over, true);
    join_thread(threads[0]);
    join_thread(threads[1]);
    CHECK_OK(tcuda_shutdown(NULL));
    check_what_stayed(before);
}

/* What a log function gets, until it is destroyed. */
typedef struct logged {
    atomic_int uses;
    atomic_bool is_destroyed;
} logged;

static void take_line(void *user_data, tcuda_log_level level, const char *message)
{
    logged *const data = user_data;
    (void)level;
    (void)message;
    atomic_fetch_add(&data->uses, 1);
    CHECK(!atomic_load(&data->is_destroyed));
    sleep_ms(1);
    CHECK(!atomic_load(&data->is_destroyed));
    atomic_fetch_sub(&data->uses, 1);
}

static void destroy_logged(void *user_data)
{
    logged *const data = user_data;
    CHECK_EQ(atomic_load(&data->uses), 0);
    atomic_store(&data->is_destroyed, true);
}

/* Never freed, so that a use after the end is seen. */
static logged *new_logged(void)
{
    enum { MANY = 4096 };
    static logged all[MANY];
    static atomic_size_t next;
    logged *const data = &all[atomic_fetch_add(&next, 1) % MANY];
    CHECK_EQ(atomic_load(&data->uses), 0);
    atomic_store(&data->is_destroyed, false);
    return data;
}

static void *change_log(void *argument)
{
    (void)argument;
    while (!atomic_load(&over)) {
        CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, take_line, new_logged(), destroy_logged));
        sleep_ms(2);
    }
    return NULL;
}

/* Lines that need no runtime: warnings of a sentence that is too long, say. */
static void *write_lines(void *argument)
{
    (void)argument;
    while (!atomic_load(&over))
        (void)!tcuda_init();
    return NULL;
}

static void log_data_outlive_their_callback(void)
{
    pthread_t threads[6];
    atomic_store(&over, false);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, take_line, new_logged(), destroy_logged));
    for (int i = 0; i < 6; i++)
        threads[i] = start_thread(i < 2 ? change_log : write_lines, NULL);
    CHECK(shut_down_again_and_again() > 0);
    atomic_store(&over, true);
    for (int i = 0; i < 6; i++)
        join_thread(threads[i]);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    CHECK_OK(tcuda_shutdown(NULL));
}

/* ---- Beside a thread that waits ---- */

static atomic_bool is_waiting, may_end;

static void wait_for_the_end(void)
{
    atomic_store(&is_waiting, true);
    while (!atomic_load(&may_end))
        sleep_ms(1);
}

static void hold_back(void *user_data)
{
    (void)user_data;
    wait_for_the_end();
}

static void close_gate(tcuda_stream *stream)
{
    CHECK_OK(tcuda_stream_add_callback(stream, hold_back, NULL, NULL));
}

static tcuda_stream *held_stream;

static void *synchronize_stream(void *argument)
{
    (void)argument;
    close_gate(held_stream);
    CHECK_OK(tcuda_stream_synchronize(held_stream));
    return NULL;
}

static void *synchronize_device(void *argument)
{
    (void)argument;
    close_gate(held_stream);
    CHECK_OK(tcuda_device_synchronize(0));
    return NULL;
}

static void *synchronize_event(void *argument)
{
    tcuda_event *event = NULL;
    (void)argument;
    close_gate(held_stream);
    CHECK_OK(tcuda_event_create(0, &event));
    CHECK_OK(tcuda_event_record(event, held_stream));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_event_destroy(event));
    return NULL;
}

static void *copy_to_host(void *argument)
{
    static char bytes[4096];
    void *ptr = NULL;
    (void)argument;
    CHECK_OK(tcuda_malloc(sizeof bytes, 0, held_stream, &ptr));
    close_gate(held_stream);
    CHECK_OK(tcuda_copy(bytes, ptr, sizeof bytes, held_stream));
    CHECK_OK(tcuda_free(ptr));
    return NULL;
}

static void *empty_cache(void *argument)
{
    void *ptr = NULL;
    (void)argument;
    CHECK_OK(tcuda_malloc(8 << 20, 0, held_stream, &ptr));
    CHECK_OK(tcuda_free(ptr));
    close_gate(held_stream);
    CHECK_OK(tcuda_memory_empty_cache());
    return NULL;
}

static int32_t wait_in_observer(void *user_data, int32_t device, size_t bytes, size_t limit,
    size_t free_bytes)
{
    wait_for_the_end();
    return out_of_memory(user_data, device, bytes, limit, free_bytes);
}

static void *sit_in_observer(void *argument)
{
    void *ptr = NULL;
    tcuda_observer *observer = NULL;
    (void)argument;
    CHECK_OK(tcuda_memory_on_out_of_memory(wait_in_observer, NULL, NULL, &observer));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc((size_t)1 << 50, 0, NULL, &ptr));
    CHECK_OK(tcuda_observer_destroy(observer));
    return NULL;
}

static const struct wait {
    const char *name;
    void *(*body)(void *argument);
} waits[] = {
    { "stream_synchronize", synchronize_stream },
    { "device_synchronize", synchronize_device },
    { "event_synchronize", synchronize_event },
    { "copy to the host", copy_to_host },
    { "empty_cache", empty_cache },
    { "observer", sit_in_observer },
};

enum { WAITS = sizeof waits / sizeof *waits };

/* Makes and destroys handles of all kinds for a while; memory does not grow. */
static void make_beside_wait(const struct wait *wait)
{
    enum { FEWEST = 2000 };
    size_t before = 0, count = 0;
    for (const double end = now() + seconds / WAITS; now() < end || count < FEWEST; count++) {
        /* What is made once and kept is there by then. */
        if (count == FEWEST / 10)
            before = resident_bytes();
        for (const struct kind *kind = kinds; kind < kinds + KINDS; kind++) {
            handle made = { NULL };
            atomic_store(&doing, kind->name);
            /* The end of a pool looks at all memory, and waits for a thread that frees some. */
            if (wait->body == empty_cache && kind->make == make_pool)
                continue;
            CHECK_OK(kind->make(&made));
            kind->destroy(made);
        }
    }
    printf("%zu of each kind beside %s: memory grew by %.1f MiB\n", count, wait->name,
        ((double)resident_bytes() - (double)before) / 1048576);
    fflush(stdout);
    check_growth(before, (size_t)3 << 20);
}

static void nothing_is_kept_for_a_thread_that_waits(void)
{
    void *argument = NULL;
    for (size_t i = 0; i < WAITS; i++) {
        /* A GPU's driver has a lock meanwhile that most of its functions take. */
        if (waits[i].body == copy_to_host && !on_simulator())
            continue;
        CHECK_OK(tcuda_init());
        CHECK_OK(tcuda_stream_create(0, 0, &held_stream));
        atomic_store(&is_waiting, false);
        atomic_store(&may_end, false);
        const pthread_t waiting = start_thread(waits[i].body, argument);
        while (!atomic_load(&is_waiting))
            sleep_ms(1);
        sleep_ms(20);
        make_beside_wait(&waits[i]);
        atomic_store(&may_end, true);
        join_thread(waiting);
        CHECK_OK(tcuda_stream_destroy(held_stream));
        CHECK_OK(tcuda_shutdown(NULL));
    }
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0)
            seconds = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
    }
    SKIP_WITHOUT_GPU();
    signal(SIGALRM, give_up);
    if (on_simulator())
        CHECK_OK(tcuda_shutdown(NULL));
    if (on_simulator() && !runs_late())
        CHECK_OK(tcuda_backend_select("sim", "schedule=threads,memory=1GiB"));
    const struct {
        const char *name;
        void (*body)(void);
    } cases[] = {
        { "functions_beside_shutdowns", functions_beside_shutdowns },
        { "all_kinds_beside_shutdowns", all_kinds_beside_shutdowns },
        { "shutdowns_end_beside_graphs", shutdowns_end_beside_graphs },
        { "log_data_outlive_their_callback", log_data_outlive_their_callback },
        { "nothing_is_kept_for_a_thread_that_waits", nothing_is_kept_for_a_thread_that_waits },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (only != NULL && strcmp(only, cases[i].name) != 0)
            continue;
        printf("%s\n", cases[i].name);
        fflush(stdout);
        atomic_store(&doing, cases[i].name);
        alarm((unsigned)seconds + 60 * (runs_long() ? 10 : 1));
        cases[i].body();
    }
    return finish();
}
