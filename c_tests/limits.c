/* The system refuses memory, as the limits of a container do: calls say so, nothing is lost, and once there
 * is memory again everything works. On the simulated machine alone: a driver has limits of its own. */
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

/* A file that may not grow is an error, and no end of the process: the system has a signal for it. */
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
    return finish();
}
