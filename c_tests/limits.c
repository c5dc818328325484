/* The system refuses memory, as the limits of a container do: calls say so, nothing is lost, and
 * once there is memory again everything works. On the simulated machine alone: a driver has limits
 * of its own. */
#define _GNU_SOURCE /* RLIMIT_AS */

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support.h"

static struct rlimit before;

/* No new memory from now on: what is there may be used. */
static void allow_no_more(int resource)
{
    CHECK_EQ(getrlimit(resource, &before), 0);
    struct rlimit limit = before;
    limit.rlim_cur = 1 << 20;
    CHECK_EQ(setrlimit(resource, &limit), 0);
}

static void allow_all_again(int resource)
{
    CHECK_EQ(setrlimit(resource, &before), 0);
}

static bool is_refused(tcuda_status status)
{
    CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_OUT_OF_HOST_MEMORY ||
        status == TCUDA_STATUS_OUT_OF_MEMORY);
    return status != TCUDA_STATUS_OK;
}

enum { STREAMS = 8, SIZES = 4 };
static const size_t sizes[SIZES] = { 512, 300000, 3 << 20, 40 << 20 };

static tcuda_stream *streams[STREAMS];

static void drop_streams(void)
{
    for (int i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_destroy(streams[i]));
}

/* Blocks of streams that have none yet, and of one that has. */
static int allocate_all(void *blocks[STREAMS][SIZES])
{
    int refused = 0;
    for (int i = 0; i < STREAMS; i++)
        for (int j = 0; j < SIZES; j++) {
            blocks[i][j] = NULL;
            const bool failed = is_refused(tcuda_malloc(sizes[j], 0, streams[i], &blocks[i][j]));
            CHECK_EQ(blocks[i][j] == NULL, failed);
            refused += failed;
        }
    return refused;
}

static void free_all(void *blocks[STREAMS][SIZES])
{
    for (int i = 0; i < STREAMS; i++)
        for (int j = 0; j < SIZES; j++)
            CHECK_OK(tcuda_free(blocks[i][j]));
}

static void memory_that_the_system_refuses(int resource)
{
    void *some[STREAMS][SIZES], *all[STREAMS][SIZES];
    for (int i = 0; i < STREAMS; i++)
        streams[i] = create_stream(0);
    void *first = allocate(512, 0, streams[0]);
    allow_no_more(resource);
    const int refused = allocate_all(some);
    allow_all_again(resource);
    CHECK(refused > 0);
    CHECK_EQ(allocate_all(all), 0);
    free_all(some);
    free_all(all);
    CHECK_OK(tcuda_free(first));
    CHECK_OK(tcuda_memory_empty_cache());
    drop_streams();
}

/* Many small things, until no more of them can be made. */
static void handles_that_the_system_refuses(int resource)
{
    enum { MOST = 200000 };
    static tcuda_event *events[MOST];
    int made = 0;
    allow_no_more(resource);
    while (made < MOST && !is_refused(tcuda_event_create(0, &events[made])) &&
        !is_refused(tcuda_event_record(events[made], NULL)))
        made++;
    const bool is_half_made = made < MOST && events[made] != NULL;
    allow_all_again(resource);
    CHECK(made < MOST);
    if (is_half_made)
        CHECK_OK(tcuda_event_destroy(events[made]));
    tcuda_event *one_more = create_event(0);
    CHECK_OK(tcuda_event_record(one_more, NULL));
    CHECK_OK(tcuda_event_destroy(one_more));
    while (made-- > 0) {
        CHECK_OK(tcuda_event_destroy(events[made]));
        events[made] = NULL;
    }
}

/* A file that may not grow is an error, and does not end the process by a signal. */
static void files_that_the_system_refuses(void)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/tcuda-limits-%d.json", (int)getpid());
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit limit = before;
    limit.rlim_cur = 16;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const tcuda_status status = tcuda_memory_snapshot_save(snapshot, path);
    const int code = tcuda_last_error_native();
    allow_all_again(RLIMIT_FSIZE);
    CHECK_EQ(status, TCUDA_STATUS_FILE_ERROR);
    CHECK_EQ(code, EFBIG);
    CHECK_EQ(access(path, F_OK), -1);
    CHECK_OK(tcuda_memory_snapshot_save(snapshot, path));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
}

static long number_after(const char *text, const char *name)
{
    const char *const at = strstr(text, name);
    CHECK(at != NULL);
    return at == NULL ? -1 : strtol(at + strlen(name), NULL, 10);
}

/* The events of a snapshot's page, and the number that it says were dropped. */
static long events_in(tcuda_memory_snapshot *snapshot, long *dropped)
{
    size_t needed = 0;
    CHECK_OK(tcuda_memory_snapshot_html(snapshot, NULL, 0, &needed));
    char *const page = malloc(needed + 1);
    CHECK(page != NULL);
    CHECK_OK(tcuda_memory_snapshot_html(snapshot, page, needed + 1, NULL));
    *dropped = number_after(page, "\"dropped\":");
    /* Seven numbers an event. */
    enum { NUMBERS = 7 };
    static const char list[] = "\"events\":[";
    const char *at = strstr(page, list);
    CHECK(at != NULL);
    size_t commas = 0;
    for (at = at == NULL ? "]" : at + strlen(list); *at != ']' && *at != '\0'; at++)
        commas += *at == ',';
    free(page);
    CHECK_EQ((commas + 1) % NUMBERS, 0);
    return (long)((commas + 1) / NUMBERS);
}

/* An event that finds no host memory is dropped and counted, and no allocation fails for it. */
static void events_that_the_system_refuses(int resource)
{
    /* Three of each pair, and the snapshot itself. */
    enum { PAIRS = 200000, EVENTS = 3 * PAIRS };
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    options.frames_for = TCUDA_FRAMES_NONE;
    options.max_entries = 1 << 28;
    options.flags = TCUDA_RECORD_CLEAR;
    CHECK_OK(tcuda_free(allocate(512, 0, NULL)));
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
    CHECK_OK(tcuda_free(allocate(512, 0, NULL)));
    allow_no_more(resource);
    for (int i = 1; i < PAIRS; i++)
        CHECK_OK(tcuda_free(allocate(512, 0, NULL)));
    allow_all_again(resource);
    tcuda_memory_snapshot *snapshot = NULL;
    long dropped = 0;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    const long kept = events_in(snapshot, &dropped);
    CHECK(dropped > 0);
    CHECK_EQ(kept + dropped, EVENTS);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_OFF, NULL));
}

int main(void)
{
#ifdef __SANITIZE_ADDRESS__
    printf("skipped: AddressSanitizer ends a process that finds no memory\n");
    return CHECK_SKIPPED;
#endif
    SKIP_WITHOUT_GPU();
    if (!on_simulator()) {
        printf("skipped: a driver that finds no memory has ways of its own\n");
        return CHECK_SKIPPED;
    }
    memory_that_the_system_refuses(RLIMIT_AS);
    memory_that_the_system_refuses(RLIMIT_DATA);
    handles_that_the_system_refuses(RLIMIT_DATA);
    files_that_the_system_refuses();
    events_that_the_system_refuses(RLIMIT_AS);
    events_that_the_system_refuses(RLIMIT_DATA);
    return finish();
}
