/* Frames are stored while an entry of the history or a live block names them: a program whose
 * stacks are all distinct keeps as many as its ring has entries, whatever it recorded before. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

enum { MIB = 1 << 20, ENTRIES = 100, THREADS = 3, BATCH = 20 };

static atomic_int running; /* threads that have not done enough */

/* The stack of a call: two names, of which one occurs once. */
typedef struct place {
    char name[160];
    int32_t line;
} place;

static _Thread_local place here;

static size_t frames_of(void *user_data, tcuda_frame *frames, size_t capacity)
{
    (void)user_data;
    if (capacity < 2)
        return 0;
    frames[0] = (tcuda_frame) { .name = here.name, .filename = "request.c", .line = here.line };
    frames[1] = (tcuda_frame) { .name = "main", .filename = "request.c", .line = 1 };
    return 2;
}

static void at(const char *what, int32_t line)
{
    snprintf(here.name, sizeof here.name, "%s_of_a_program_whose_names_are_long_enough_that_"
        "what_is_stored_for_nothing_is_seen_in_its_resident_memory_%d", what, line);
    here.line = line;
}

static void record(tcuda_history_mode mode, uint32_t flags)
{
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    options.max_entries = ENTRIES;
    options.flags = flags;
    options.frames = frames_of;
    CHECK_OK(tcuda_memory_record_history(mode, &options));
}

static void *take(const char *what, int32_t line)
{
    void *block = NULL;
    at(what, line);
    CHECK_OK(tcuda_malloc(1000, 0, NULL, &block));
    CHECK(block != NULL);
    return block;
}

/* Requests that come and go, each from a place of its own. */
static void churn(int32_t from, int32_t to)
{
    for (int32_t line = from; line < to; line++) {
        void *const block = take("churn", line);
        at("free", line);
        CHECK_OK(tcuda_free(block));
    }
}

static size_t resident_bytes(void)
{
    long total = 0, resident = 0;
    FILE *const file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%ld %ld", &total, &resident), 2);
    fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* How often a snapshot names a place. */
static size_t count_in_snapshot(const char *what, int32_t line)
{
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    size_t needed = 0, count = 0;
    CHECK_OK(tcuda_memory_snapshot_json(snapshot, NULL, 0, &needed));
    char *const text = calloc(needed + 1, 1);
    CHECK(text != NULL);
    CHECK_OK(tcuda_memory_snapshot_json(snapshot, text, needed + 1, &needed));
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    at(what, line);
    char wanted[256];
    snprintf(wanted, sizeof wanted, "{\"name\":\"%s\",\"filename\":\"request.c\",\"line\":%d},"
        "{\"name\":\"main\"", here.name, line);
    for (const char *found = text; (found = strstr(found, wanted)) != NULL; found++)
        count++;
    free(text);
    return count;
}

static void a_small_ring_stays_small(void)
{
    const int32_t rounds = under_adversary() ? 3000 : 16000;
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_CLEAR | TCUDA_RECORD_HOST);
    void *const held = take("held", 7), *pinned = NULL;
    at("pinned", 8);
    CHECK_OK(tcuda_host_malloc(1000, &pinned));
    churn(0, rounds / 4);
    const size_t before = resident_bytes();
    churn(rounds / 4, rounds);
    const size_t after = resident_bytes();
    /* Two stacks of some 300 bytes each in a round: 8 MiB if they stay. */
    if (!UNDER_ADDRESS_SANITIZER)
        CHECK(after < before + 4 * MIB);
    CHECK_EQ(count_in_snapshot("held", 7), 1); /* its event has left the ring */
    CHECK_EQ(count_in_snapshot("churn", rounds - 1), 1);
    CHECK(count_in_snapshot("free", rounds - 1) >= 1);
    CHECK_EQ(count_in_snapshot("churn", rounds - ENTRIES), 0);
    CHECK_OK(tcuda_host_free(pinned));
    CHECK_OK(tcuda_free(held));
}

/* OFF keeps what was recorded, CLEAR does not; what lives keeps its frames in either case. */
static void clear_and_off_keep_the_frames_of_live_blocks(void)
{
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_CLEAR);
    void *const held = take("held", 9);
    churn(100, 105);
    record(TCUDA_HISTORY_OFF, 0);
    CHECK_EQ(count_in_snapshot("held", 9), 2); /* block and event */
    CHECK_EQ(count_in_snapshot("churn", 104), 1);
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR);
    CHECK_EQ(count_in_snapshot("held", 9), 1);
    CHECK_EQ(count_in_snapshot("churn", 104), 0);
    CHECK_OK(tcuda_free(held));
    /* The block that comes next to its place has no frames. */
    void *const next = take("unrecorded", 1);
    CHECK_EQ(count_in_snapshot("held", 9), 0);
    CHECK_OK(tcuda_free(next));
}

/* Blocks that are allocated, from places that are new, while stacks are searched for. */
static void *come_and_go(void *argument)
{
    const int32_t number = (int32_t)(intptr_t)argument, rounds = under_adversary() ? 3 : 40;
    void *blocks[BATCH];
    for (int32_t round = 0; round < rounds; round++) {
        const int32_t line = 100000 * number + BATCH * round;
        for (int32_t index = 0; index < BATCH; index++)
            blocks[index] = take("mine", line + index);
        const int32_t chosen = round % BATCH;
        CHECK_EQ(count_in_snapshot("mine", line + chosen), 1);
        for (int32_t index = 0; index < BATCH; index++)
            CHECK_OK(tcuda_free(blocks[index]));
    }
    atomic_fetch_sub(&running, 1);
    return NULL;
}

static void threads_meet_a_search(void)
{
    pthread_t threads[THREADS];
    record(TCUDA_HISTORY_STATE, TCUDA_RECORD_CLEAR);
    atomic_store(&running, THREADS);
    for (int32_t number = 0; number < THREADS; number++)
        CHECK_EQ(pthread_create(&threads[number], NULL, come_and_go, (void *)(intptr_t)number), 0);
    while (atomic_load(&running) > 0)
        record(TCUDA_HISTORY_STATE, TCUDA_RECORD_CLEAR); /* this searches */
    for (int32_t number = 0; number < THREADS; number++)
        CHECK_EQ(pthread_join(threads[number], NULL), 0);
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR);
}

/* The frames of a block are found by its address, whatever left the ring. */
static void blocks_have_their_frames(void)
{
    char json[1024] = "", expected[600];
    size_t needed = 3;
    void *other = NULL;
    CHECK_OK(tcuda_malloc(1000, 0, NULL, &other));
    record(TCUDA_HISTORY_STATE, TCUDA_RECORD_CLEAR);
    char *const held = take("held", 11);
    snprintf(expected, sizeof expected, "[{\"name\":\"%s\",\"filename\":\"request.c\","
        "\"line\":11},{\"name\":\"main\",\"filename\":\"request.c\",\"line\":1}]", here.name);
    CHECK_OK(tcuda_memory_frames_of(held, json, sizeof json, &needed));
    CHECK_EQ(strcmp(json, expected), 0);
    CHECK_EQ(needed, strlen(expected));
    CHECK_OK(tcuda_memory_frames_of(held, json, 4, NULL));
    CHECK_EQ(strcmp(json, "[{\""), 0);
    CHECK_OK(tcuda_memory_frames_of(other, json, sizeof json, &needed));
    CHECK_EQ(strcmp(json, "[]"), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_frames_of(NULL, NULL, 0, &needed));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_memory_frames_of(held + 1, NULL, 0, &needed));
    CHECK_OK(tcuda_free(held));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_memory_frames_of(held, NULL, 0, &needed));
    CHECK_EQ(needed, 2);
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR);
    CHECK_OK(tcuda_free(other));
}

/* Memory that a call gives back has the frames of the call, if every event has frames. */
static void released_memory_has_frames(int32_t frames_for, int32_t line, bool expected)
{
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    options.max_entries = ENTRIES;
    options.frames_for = frames_for;
    options.flags = TCUDA_RECORD_CLEAR | TCUDA_RECORD_HOST;
    options.frames = frames_of;
    void *pinned = NULL, *const block = take("comes", line);
    CHECK_OK(tcuda_host_malloc(1000, &pinned));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_host_free(pinned));
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
    at("empties", line);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(count_in_snapshot("empties", line) >= 1, expected);
    at("empties_host", line);
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_EQ(count_in_snapshot("empties_host", line) >= 1, expected);
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR);
}

/* The frames of a call that failed are not those of later events. */
static void frames_end_with_their_call(void)
{
    tcuda_mem_pool *pool = NULL;
    void *none = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *const block = take("comes", 21);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_free(block));
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_CLEAR);
    at("fails", 22);
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc((size_t)1 << 46, 0, NULL, &none));
    CHECK_EQ(count_in_snapshot("fails", 22), 1);
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_EQ(count_in_snapshot("fails", 22), 1);
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR);
}

/* An observer of an allocation: frees a block, and empties the cache, from places of its own. */
static int32_t gives(void *block, int32_t device, size_t bytes, size_t limit_bytes,
    size_t free_bytes)
{
    (void)device, (void)bytes, (void)limit_bytes, (void)free_bytes;
    const place outer = here;
    at("gives", 31);
    CHECK_OK(tcuda_free(*(void **)block));
    at("empties_within", 32);
    CHECK_OK(tcuda_memory_empty_cache());
    here = outer;
    return 1;
}

/* A call within an allocation has its own frames, and the allocation keeps its own. */
static void calls_within_a_call_have_their_own_frames(void)
{
    enum { LARGE = 64 * MIB };
    size_t free_bytes = 0, total = 0, needed = 0;
    char json[1024] = "", expected[256];
    void *block = NULL, *wanted = NULL;
    tcuda_observer *observer = NULL;
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total));
    CHECK_OK(tcuda_malloc(LARGE, 0, NULL, &block));
    CHECK_OK(tcuda_memory_fraction_set(0, 1.5 * LARGE / (double)total));
    CHECK_OK(tcuda_memory_on_out_of_memory(gives, &block, NULL, &observer));
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_CLEAR);
    at("wants", 33);
    snprintf(expected, sizeof expected, "[{\"name\":\"%s\"", here.name);
    CHECK_OK(tcuda_malloc(LARGE, 0, NULL, &wanted));
    CHECK_OK(tcuda_memory_frames_of(wanted, json, sizeof json, &needed));
    CHECK_EQ(strncmp(json, expected, strlen(expected)), 0);
    CHECK(count_in_snapshot("gives", 31) >= 1);
    CHECK(count_in_snapshot("empties_within", 32) >= 1);
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR);
    CHECK_OK(tcuda_observer_destroy(observer));
    CHECK_OK(tcuda_memory_fraction_set(0, 1.0));
    CHECK_OK(tcuda_free(wanted));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    blocks_have_their_frames();
    a_small_ring_stays_small();
    clear_and_off_keep_the_frames_of_live_blocks();
    threads_meet_a_search();
    released_memory_has_frames(TCUDA_FRAMES_ALL, 12, true);
    released_memory_has_frames(TCUDA_FRAMES_ALLOC, 13, false);
    frames_end_with_their_call();
    calls_within_a_call_have_their_own_frames();
    return finish();
}
