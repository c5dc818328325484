/* Runs a race once for each seed, each on a machine of its own.
 *
 * usage: RACE [--seeds FIRST LAST] [--until-caught] [--schedule NAME] [--sanitizer] [--json]
 *
 * A racy build succeeds when a seed shows the race, its twin when none does. A schedule other than
 * the adversarial one, "immediate" or "threads", takes no notice of the seeds. With --sanitizer a
 * run counts as wrong when the stream sanitizer reports something, whatever the bytes are. */
#define _POSIX_C_SOURCE 200809L

#include "race.h"

#include <inttypes.h>
#include <pthread.h>
#include <time.h>

enum { MOST = 512, SHOWN = 3, CHUNK = 4096 };

/* What a run made, to be freed after it. */
static struct made {
    tcuda_stream *streams[MOST];
    tcuda_event *events[MOST];
    void *blocks[MOST];
    void *pinned[MOST];
    size_t num_streams, num_events, num_blocks, num_pinned;
} made;

/* The first call of this run that failed. */
static struct broken {
    bool is_set;
    char text[256];
    pthread_mutex_t lock; /* runs may have threads */
} broken = { .lock = PTHREAD_MUTEX_INITIALIZER };

uint64_t race_seed;

static bool is_watched;

void race_do(tcuda_status status, const char *call)
{
    recovery_point();
    if (status == TCUDA_STATUS_OK)
        return;
    recover(call);
    pthread_mutex_lock(&broken.lock);
    if (!broken.is_set)
        snprintf(broken.text, sizeof broken.text, "%s gave %s: %s", call,
            tcuda_status_name(status), tcuda_last_error());
    broken.is_set = true;
    pthread_mutex_unlock(&broken.lock);
}

tcuda_stream *make_stream(int32_t device)
{
    tcuda_stream *stream = NULL;
    CHECK(made.num_streams < MOST);
    DO(tcuda_stream_create(device, 0, &stream));
    made.streams[made.num_streams++] = stream;
    return stream;
}

tcuda_stream *make_per_thread_stream(int32_t device)
{
    tcuda_stream *stream = NULL;
    const uintptr_t per_thread = 2; /* CU_STREAM_PER_THREAD */
    CHECK(made.num_streams < MOST);
    DO(tcuda_stream_from_external(device, (struct CUstream_st *)per_thread, &stream));
    made.streams[made.num_streams++] = stream;
    return stream;
}

tcuda_event *make_event(void)
{
    tcuda_event *event = NULL;
    CHECK(made.num_events < MOST);
    DO(tcuda_event_create(0, &event));
    made.events[made.num_events++] = event;
    return event;
}

unsigned char *make_memory(size_t bytes, tcuda_stream *stream)
{
    void *ptr = NULL;
    CHECK(made.num_blocks < MOST);
    DO(tcuda_malloc(bytes, TCUDA_CURRENT_DEVICE, stream, &ptr));
    made.blocks[made.num_blocks++] = ptr;
    return ptr;
}

unsigned char *make_pinned(size_t bytes)
{
    void *ptr = NULL;
    CHECK(made.num_pinned < MOST);
    CHECK_OK(tcuda_host_malloc(bytes, &ptr));
    made.pinned[made.num_pinned++] = ptr;
    memset(ptr, 0, bytes);
    return ptr;
}

void fill(void *ptr, int value, size_t bytes, tcuda_stream *stream)
{
    const unsigned char byte = (unsigned char)value;
    DO(tcuda_fill(ptr, &byte, 1, bytes, stream));
}

void copy(void *dst, const void *src, size_t bytes, tcuda_stream *stream)
{
    DO(tcuda_copy(dst, src, bytes, stream));
}

static void *call_body(void *body)
{
    (*(void (**)(void))body)();
    return NULL;
}

void run_both(void (*first)(void), void (*second)(void))
{
    pthread_t threads[2];
    CHECK_EQ(pthread_create(&threads[0], NULL, call_body, &first), 0);
    CHECK_EQ(pthread_create(&threads[1], NULL, call_body, &second), 0);
    CHECK_EQ(pthread_join(threads[0], NULL), 0);
    CHECK_EQ(pthread_join(threads[1], NULL), 0);
}

bool host_is(const unsigned char *ptr, int value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (ptr[i] != (unsigned char)value)
            return false;
    return true;
}

static void wait_for_everything(void)
{
    int32_t count = 0;
    DO(tcuda_device_count(&count));
    for (int32_t device = 0; device < count; device++)
        DO(tcuda_device_synchronize(device));
}

bool memory_is(const void *ptr, int value, size_t bytes)
{
    const unsigned char *const start = ptr;
    wait_for_everything();
    for (size_t done = 0; done < bytes; done += CHUNK) {
        unsigned char chunk[CHUNK];
        const size_t size = bytes - done < CHUNK ? bytes - done : CHUNK;
        memset(chunk, value ^ 0xff, size);
        DO(tcuda_copy(chunk, start + done, size, NULL));
        DO(tcuda_stream_synchronize(NULL));
        if (!host_is(chunk, value, size))
            return false;
    }
    return true;
}

static void free_what_was_made(void)
{
    for (size_t i = 0; i < made.num_blocks; i++)
        DO(tcuda_free(made.blocks[i]));
    for (size_t i = 0; i < made.num_pinned; i++)
        DO(tcuda_host_free(made.pinned[i]));
    for (size_t i = 0; i < made.num_events; i++)
        DO(tcuda_event_destroy(made.events[i]));
    for (size_t i = 0; i < made.num_streams; i++)
        DO(tcuda_stream_destroy(made.streams[i]));
    made.num_blocks = made.num_pinned = made.num_events = made.num_streams = 0;
}

/* Did the sanitizer report nothing? */
static bool nothing_is_reported(void)
{
    size_t reports = 0;
    char text[2048];
    CHECK_OK(tcuda_sanitizer_report_count(&reports));
    if (reports > 0 && !the_race.is_racy) {
        CHECK_OK(tcuda_sanitizer_report_text(0, text, sizeof text, NULL));
        fprintf(stderr, "%s\n", text);
    }
    return reports == 0;
}

/* One run on a machine of its own; were the bytes right? */
static bool is_right(const char *options)
{
    size_t live_handles = 0;
    broken.is_set = false;
    CHECK_OK(tcuda_backend_select("sim", options));
    CHECK_OK(tcuda_device_set(0));
    if (is_watched)
        CHECK_OK(tcuda_sanitizer_enable(NULL));
    bool right = the_race.run();
    if (is_watched)
        right = nothing_is_reported();
    free_what_was_made();
    CHECK_OK(tcuda_shutdown(&live_handles));
    CHECK_EQ(live_handles, 0);
    return right && !broken.is_set;
}

static double seconds(void)
{
    struct timespec time;
    CHECK_EQ(clock_gettime(CLOCK_MONOTONIC, &time), 0);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint64_t number(const char *text)
{
    char *end = NULL;
    const uint64_t value = text == NULL ? 0 : strtoull(text, &end, 10);
    if (text == NULL || *text == '\0' || *end != '\0') {
        fprintf(stderr, "\"%s\" is not a number\n", text == NULL ? "" : text);
        exit(EXIT_FAILURE);
    }
    return value;
}

int main(int argc, char **argv)
{
    uint64_t first = 1, last = the_race.is_racy ? 1000 : 300;
    uint64_t failed = 0, tried = 0, first_failed = 0;
    bool until_caught = false, json = false;
    const char *schedule = NULL;
    const char *const more = recovery_file() != NULL ? ",leaks=report" : "";
    char options[256];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 2 < argc) {
            first = number(argv[++i]);
            last = number(argv[++i]);
        } else if (strcmp(argv[i], "--schedule") == 0 && i + 1 < argc) {
            schedule = argv[++i];
        } else if (strcmp(argv[i], "--until-caught") == 0) {
            until_caught = true;
        } else if (strcmp(argv[i], "--sanitizer") == 0) {
            is_watched = true;
        } else if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else {
            fprintf(stderr, "usage: %s [--seeds FIRST LAST] [--until-caught] [--schedule NAME] "
                            "[--sanitizer] [--json]\n", argv[0]);
            return EXIT_FAILURE;
        }
    }

    const double start = seconds();
    for (uint64_t seed = first; seed <= last && !(until_caught && failed > 0); seed++) {
        if (schedule != NULL)
            snprintf(options, sizeof options, "%s,schedule=%s%s", the_race.options, schedule, more);
        else
            snprintf(options, sizeof options, "%s,schedule=adversarial:%" PRIu64 "%s",
                the_race.options, seed, more);
        race_seed = seed;
        tried++;
        if (is_right(options))
            continue;
        if (failed++ == 0)
            first_failed = seed;
        if (!the_race.is_racy && failed <= SHOWN)
            fprintf(stderr, "wrong with %s%s%s\n", options, broken.is_set ? ": " : "",
                broken.is_set ? broken.text : "");
    }
    const double rate = (double)tried / (seconds() - start);

    if (json)
        printf("{\"kind\": \"%s\", \"racy\": %s, \"seeds\": %" PRIu64 ", \"failed\": %" PRIu64
               ", \"first_failed\": %" PRIu64 ", \"seeds_per_second\": %.0f}\n",
            the_race.kind, the_race.is_racy ? "true" : "false", tried, failed, first_failed, rate);
    else if (failed > 0)
        printf("%" PRIu64 " of %" PRIu64 " seeds failed, the first is %" PRIu64
               "; %.0f seeds a second\n", failed, tried, first_failed, rate);
    else
        printf("none of %" PRIu64 " seeds failed; %.0f seeds a second\n", tried, rate);
    return the_race.is_racy == (failed > 0) ? EXIT_SUCCESS : EXIT_FAILURE;
}
