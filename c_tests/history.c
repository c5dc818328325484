/* Recording: the events of known programs by value, frames, modes, and that it can be stopped,
 * cleared and cut. Events are read from the JSON of a snapshot. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MOST = 4096, ROUNDS = 500 };

typedef struct entry {
    char action[24];
    int64_t address; /* of "oom" the free bytes */
    int64_t bytes;
    int64_t stream;
    int64_t time_us;
    char frames[200]; /* "inner:7 outer:9" */
    char metadata[64];
} entry;

static entry entries[MOST];
static size_t entry_count;

static char *json_of(tcuda_memory_snapshot *snapshot)
{
    size_t needed = 0;
    CHECK_OK(tcuda_memory_snapshot_json(snapshot, NULL, 0, &needed));
    char *const text = calloc(needed + 1, 1);
    CHECK(text != NULL);
    CHECK_OK(tcuda_memory_snapshot_json(snapshot, text, needed + 1, &needed));
    CHECK_EQ(strlen(text), needed);
    return text;
}

/* The names and lines of the frames in a list that begins at `at`. */
static void read_frames(const char *at, char *names, size_t len)
{
    names[0] = '\0';
    while (*at == '[' || *at == ',') {
        char name[64] = "", filename[64] = "";
        int line = 0, read = 0;
        at++;
        if (sscanf(at, "{\"name\":\"%63[^\"]\",\"filename\":\"%63[^\"]\",\"line\":%d}%n", name,
                filename, &line, &read) != 3 || read == 0)
            return;
        const size_t used = strlen(names);
        snprintf(names + used, len - used, "%s%s:%d", used > 0 ? " " : "", name, line);
        at += read;
    }
}

/* Reads the events of a device into `entries`. */
static void read_events(int32_t device)
{
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    CHECK(snapshot != NULL);
    char *const text = json_of(snapshot);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    const char *at = strstr(text, "\"device_traces\":[");
    CHECK(at != NULL);
    at += strlen("\"device_traces\":[");
    for (int32_t skipped = 0; skipped < device; skipped++) {
        /* Between two devices is the only "],[" that no frames precede. */
        while (*at != '\0' && strncmp(at, "],[", 3) != 0)
            at++;
        at += 2;
    }
    CHECK(*at == '[');
    for (entry_count = 0; at[1] == '{' && entry_count < MOST; entry_count++) {
        entry *const to = &entries[entry_count];
        char key[16] = "";
        long long address = 0, bytes = 0, stream = 0, time_us = 0;
        at++;
        CHECK_EQ(sscanf(at, "{\"action\":\"%23[^\"]\",\"%15[^\"]\":%lld,\"size\":%lld,"
            "\"stream\":%lld,\"time_us\":%lld", to->action, key, &address, &bytes, &stream,
            &time_us), 6);
        CHECK_STR(key, strcmp(to->action, "oom") == 0 ? "device_free" : "addr");
        to->address = address;
        to->bytes = bytes;
        to->stream = stream;
        to->time_us = time_us;
        at = strstr(at, "\"user_metadata\":\"");
        CHECK(at != NULL);
        at += strlen("\"user_metadata\":\"");
        const size_t length = strcspn(at, "\"");
        CHECK(length < sizeof to->metadata);
        memcpy(to->metadata, at, length);
        to->metadata[length] = '\0';
        at = strstr(at, "\"frames\":[");
        CHECK(at != NULL);
        at += strlen("\"frames\":");
        read_frames(at, to->frames, sizeof to->frames);
        at = strstr(at, "]}");
        CHECK(at != NULL);
        at += strlen("]}");
    }
    free(text);
}

static void check_entry(size_t index, const char *action, const void *address, int64_t bytes)
{
    CHECK(index < entry_count);
    CHECK_STR(entries[index].action, action);
    CHECK_EQ(entries[index].address, (int64_t)(intptr_t)address);
    CHECK_EQ(entries[index].bytes, bytes);
}

/* Memory came to an address, or left it: in segments, always whole ones. */
static void check_memory(size_t index, bool comes, const void *address, size_t bytes)
{
    if (in_segments())
        check_entry(index, comes ? "segment_alloc" : "segment_free", address,
            bytes <= 2 * MIB ? 2 * MIB : 20 * MIB);
    else
        check_entry(index, comes ? "segment_map" : "segment_unmap", address, bytes);
}

static void record(tcuda_history_mode mode, tcuda_history_options options)
{
    options.flags |= TCUDA_RECORD_CLEAR;
    CHECK_OK(tcuda_memory_record_history(mode, &options));
}

static tcuda_history_options defaults(void)
{
    const tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    return options;
}

static void stop(void)
{
    record(TCUDA_HISTORY_OFF, defaults());
    CHECK_OK(tcuda_memory_empty_cache());
}

static int64_t now_us(void)
{
    struct timespec now;
    CHECK_EQ(clock_gettime(CLOCK_REALTIME, &now), 0);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void every_event_is_recorded_with_its_sizes(void)
{
    const int64_t before = now_us();
    tcuda_stream *const stream = create_stream(0);
    record(TCUDA_HISTORY_ALL, defaults());
    char *const small = allocate(1000, 0, stream);
    char *const second = allocate(513, 0, stream);
    CHECK_OK(tcuda_free(small));
    char *const large = allocate(3 * MIB, 0, stream);
    CHECK_OK(tcuda_free(second));
    CHECK_OK(tcuda_free(large));
    CHECK_OK(tcuda_memory_empty_cache());
    read_events(0);
    CHECK_EQ(entry_count, 13);
    check_memory(0, true, small, 2 * MIB);
    check_entry(1, "alloc", small, 1000);
    check_entry(2, "alloc", second, 513);
    CHECK(second == small + 1024);
    check_entry(3, "free_requested", small, 1000);
    check_entry(4, "free_completed", small, 1000);
    check_memory(5, true, large, 4 * MIB);
    check_entry(6, "alloc", large, 3 * MIB);
    check_entry(7, "free_requested", second, 513);
    check_entry(8, "free_completed", second, 513);
    check_entry(9, "free_requested", large, 3 * MIB);
    check_entry(10, "free_completed", large, 3 * MIB);
    const bool small_first = entries[11].bytes == 2 * MIB;
    check_memory(small_first ? 11 : 12, false, small, 2 * MIB);
    check_memory(small_first ? 12 : 11, false, large, 4 * MIB);
    for (size_t i = 0; i < 13; i++) {
        CHECK_EQ(entries[i].stream, (int64_t)(intptr_t)native_of(stream));
        CHECK(entries[i].time_us >= (i > 0 ? entries[i - 1].time_us : before));
        CHECK(entries[i].time_us <= now_us());
        CHECK_STR(entries[i].frames, "");
    }
    /* A snapshot is an event of later ones, of the bytes that are active then. */
    char *const held = allocate(700, 0, stream);
    read_events(0);
    CHECK_EQ(entry_count, 16);
    check_entry(13, "snapshot", NULL, 0);
    check_memory(14, true, held, 2 * MIB);
    check_entry(15, "alloc", held, 700);
    read_events(0);
    CHECK_EQ(entry_count, 17);
    check_entry(16, "snapshot", NULL, 1024);
    CHECK_OK(tcuda_free(held));
    stop();
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void a_block_that_waits_completes_later(void)
{
    tcuda_stream *const stream = create_stream(0), *const other = create_stream(0);
    record(TCUDA_HISTORY_ALL, defaults());
    char *const block = allocate(5000, 0, stream);
    CHECK_OK(tcuda_record_stream(block, other));
    CHECK_OK(tcuda_free(block));
    read_events(0);
    CHECK_EQ(entry_count, 3);
    check_entry(2, "free_requested", block, 5000);
    CHECK_OK(tcuda_memory_empty_cache());
    read_events(0);
    CHECK_EQ(entry_count, 6);
    check_entry(3, "snapshot", NULL, 5120);
    check_entry(4, "free_completed", block, 5000);
    check_memory(5, false, block, 2 * MIB);
    stop();
    CHECK_OK(tcuda_stream_destroy(other));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void the_ring_keeps_the_newest(void)
{
    tcuda_history_options options = defaults();
    options.max_entries = 5;
    record(TCUDA_HISTORY_ALL, options);
    for (size_t i = 1; i <= 10; i++)
        CHECK_OK(tcuda_free(allocate(i, 0, NULL)));
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_OFF, NULL));
    read_events(0);
    CHECK_EQ(entry_count, 5);
    static const char *const actions[] = { "free_requested", "free_completed", "alloc",
        "free_requested", "free_completed" };
    for (size_t i = 0; i < 5; i++) {
        CHECK_STR(entries[i].action, actions[i]);
        CHECK_EQ(entries[i].bytes, i < 2 ? 9 : 10);
    }
    /* Stopped, and what was recorded stayed; with TCUDA_RECORD_CLEAR it goes. */
    CHECK_OK(tcuda_free(allocate(11, 0, NULL)));
    read_events(0);
    CHECK_EQ(entry_count, 5);
    stop();
    read_events(0);
    CHECK_EQ(entry_count, 0);
}

static void actions_can_be_skipped(void)
{
    tcuda_history_options options = defaults();
    options.skip_actions = "snapshot, segment_map,segment_alloc,free_completed";
    record(TCUDA_HISTORY_ALL, options);
    char *const block = allocate(100, 0, NULL);
    CHECK_OK(tcuda_free(block));
    read_events(0);
    CHECK_EQ(entry_count, 2);
    check_entry(0, "alloc", block, 100);
    check_entry(1, "free_requested", block, 100);
    stop();
}

static void an_allocation_that_fails_is_an_event(void)
{
    size_t free_bytes = 0, total = 0;
    void *ptr = NULL;
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total));
    record(TCUDA_HISTORY_ALL, defaults());
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(total + 1, 0, NULL, &ptr));
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total));
    read_events(0);
    CHECK(entry_count >= 1);
    CHECK_STR(entries[entry_count - 1].action, "oom");
    /* On a GPU others may take memory in between. */
    if (on_simulator())
        CHECK_EQ(entries[entry_count - 1].address, free_bytes);
    CHECK_EQ(entries[entry_count - 1].bytes, (total + 1 + 511) / 512 * 512);
    stop();
}

/* ---- Frames ---- */

typedef struct source {
    const char *name;
    int32_t line;
    int32_t calls;
    int32_t destroyed;
    bool comes_back;
} source;

static size_t frames_of(void *user_data, tcuda_frame *frames, size_t capacity)
{
    source *const from = user_data;
    CHECK(capacity >= 2);
    from->calls++;
    if (from->comes_back) {
        /* No lock is held, so that a callback that calls the library does not deadlock. */
        size_t bytes = 0;
        CHECK_OK(tcuda_memory_allocated(0, &bytes));
    }
    frames[0].name = from->name;
    frames[0].filename = "model.c";
    frames[0].line = from->line;
    frames[1].name = "main";
    frames[1].filename = "model.c";
    frames[1].line = 1;
    return 2;
}

static void destroy_source(void *user_data)
{
    ((source *)user_data)->destroyed++;
}

static tcuda_history_options asking(source *from)
{
    tcuda_history_options options = defaults();
    options.frames = frames_of;
    options.user_data = from;
    options.destroy = destroy_source;
    return options;
}

static void frames_come_from_the_host(void)
{
    source from = { .name = "embed", .line = 7, .comes_back = true };
    record(TCUDA_HISTORY_ALL, asking(&from));
    char *const first = allocate(100, 0, NULL);
    from.line = 8;
    char *const second = allocate(200, 0, NULL);
    from.line = 9;
    CHECK_OK(tcuda_free(first));
    CHECK_EQ(from.calls, 3);
    read_events(0);
    CHECK_EQ(entry_count, 5);
    CHECK_STR(entries[0].frames, "embed:7 main:1");
    CHECK_STR(entries[1].frames, "embed:7 main:1");
    CHECK_STR(entries[2].frames, "embed:8 main:1");
    CHECK_STR(entries[3].frames, "embed:9 main:1");
    CHECK_STR(entries[4].frames, "embed:9 main:1");

    /* Frames of allocating only: freeing shows those of the block. */
    tcuda_history_options options = asking(&from);
    options.frames_for = TCUDA_FRAMES_ALLOC;
    record(TCUDA_HISTORY_ALL, options);
    CHECK_EQ(from.destroyed, 1);
    CHECK_OK(tcuda_free(second));
    CHECK_EQ(from.calls, 3);
    read_events(0);
    CHECK_STR(entries[0].frames, "embed:8 main:1");

    options.frames_for = TCUDA_FRAMES_NONE;
    record(TCUDA_HISTORY_ALL, options);
    CHECK_OK(tcuda_free(allocate(1, 0, NULL)));
    CHECK_EQ(from.calls, 3);
    stop();
    CHECK_EQ(from.destroyed, 3);
}

static bool mentions(const char *what)
{
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    char *const text = json_of(snapshot);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    const bool does = strstr(text, what) != NULL;
    free(text);
    return does;
}

static void state_keeps_the_frames_of_live_memory_only(void)
{
    source from = { .name = "weights", .line = 3 };
    record(TCUDA_HISTORY_STATE, asking(&from));
    char *const block = allocate(64 * KIB, 0, NULL);
    read_events(0);
    CHECK_EQ(entry_count, 0);
    CHECK(mentions("{\"name\":\"weights\",\"filename\":\"model.c\",\"line\":3}"));
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(from.calls, 1);
    CHECK(!mentions("weights"));
    /* What takes its place when nothing is recorded has no frames. */
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_OFF, NULL));
    char *const again = allocate(64 * KIB, 0, NULL);
    CHECK(again == block);
    CHECK(!mentions("weights"));
    CHECK_OK(tcuda_free(again));
    stop();
}

static void native_frames_are_named(void)
{
    tcuda_history_options options = defaults();
    options.flags = TCUDA_RECORD_NATIVE_FRAMES;
    record(TCUDA_HISTORY_ALL, options);
    char *const block = allocate(100, 0, NULL);
    CHECK(mentions("\"filename\":\""));
    CHECK_OK(tcuda_free(block));
    stop();
}

/* ---- Metadata and annotations ---- */

static void check_metadata(const char *expected)
{
    char text[64];
    size_t needed = 0;
    memset(text, 'x', sizeof text);
    CHECK_OK(tcuda_memory_metadata_get(text, sizeof text, &needed));
    CHECK_STR(text, expected);
    CHECK_EQ(needed, strlen(expected));
}

static void *allocate_with_another_text(void *block)
{
    check_metadata("");
    CHECK_OK(tcuda_free(allocate(200, 0, NULL)));
    CHECK_OK(tcuda_memory_metadata_set("other thread"));
    CHECK_OK(tcuda_free(block));
    return NULL;
}

static void every_event_of_a_thread_carries_its_text(void)
{
    tcuda_history_options options = defaults();
    options.frames_for = TCUDA_FRAMES_NONE;
    options.skip_actions = "segment_free,segment_unmap";
    CHECK_OK(tcuda_memory_metadata_set("no recording"));
    record(TCUDA_HISTORY_ALL, options);
    check_metadata("no recording");
    char *const first = allocate(100, 0, NULL);
    /* The library has its own copy. */
    char text[] = "step 1";
    CHECK_OK(tcuda_memory_metadata_set(text));
    text[0] = 'x';
    char *const second = allocate(3 * MIB, 0, NULL);
    CHECK_OK(tcuda_free(first));
    join_thread(start_thread(allocate_with_another_text, second));
    check_metadata("step 1");
    read_events(0);
    CHECK_OK(tcuda_memory_metadata_set(""));
    char *const third = allocate(300, 0, NULL);
    CHECK_OK(tcuda_free(third));
    check_metadata("");
    static const char *const actions[] = { "segment", "alloc", "segment", "alloc",
        "free_requested", "free_completed", "alloc", "free_requested", "free_completed",
        "free_requested", "free_completed", "snapshot", "alloc", "free_requested",
        "free_completed" };
    static const char *const texts[] = { "no recording", "no recording", "step 1", "step 1",
        "step 1", "step 1", "", "", "", "other thread", "other thread", "step 1", "", "", "" };
    CHECK_EQ(entry_count, 11);
    read_events(0);
    CHECK_EQ(entry_count, 15);
    for (size_t i = 0; i < 15; i++) {
        CHECK(strncmp(entries[i].action, actions[i], strlen(actions[i])) == 0);
        CHECK_STR(entries[i].metadata, texts[i]);
        CHECK_STR(entries[i].frames, "");
    }
    /* A new recording and the next shutdown leave it. */
    CHECK_OK(tcuda_memory_metadata_set("kept"));
    stop();
    CHECK_OK(tcuda_shutdown(NULL));
    check_metadata("kept");
    record(TCUDA_HISTORY_ALL, options);
    CHECK_OK(tcuda_free(allocate(100, 0, NULL)));
    read_events(0);
    CHECK_EQ(entry_count, 4);
    CHECK_STR(entries[1].action, "alloc");
    CHECK_STR(entries[1].metadata, "kept");
    CHECK_OK(tcuda_memory_metadata_set(NULL));
    check_metadata("");
    stop();
}

static void an_annotation_is_an_event_of_its_own(void)
{
    source from = { .name = "pack", .line = 4 };
    tcuda_stream *const stream = create_stream(0);
    CHECK_OK(tcuda_memory_metadata_set("forward"));
    char *const block = allocate(5000, 0, stream);
    CHECK_OK(tcuda_memory_annotate(block, "not recorded"));
    record(TCUDA_HISTORY_ALL, asking(&from));
    CHECK_OK(tcuda_memory_annotate(block, "weights"));
    from.line = 5;
    CHECK_OK(tcuda_memory_annotate(block, "saved for backward"));
    CHECK_OK(tcuda_memory_annotate(block, ""));
    CHECK_OK(tcuda_free(block));
    read_events(0);
    CHECK_EQ(entry_count, 5);
    static const char *const texts[] = { "weights", "saved for backward", "" };
    for (size_t i = 0; i < 3; i++) {
        check_entry(i, "annotate", block, 5000);
        CHECK_STR(entries[i].metadata, texts[i]);
        CHECK_STR(entries[i].frames, i == 0 ? "pack:4 main:1" : "pack:5 main:1");
        CHECK_EQ(entries[i].stream, (int64_t)(intptr_t)native_of(stream));
    }
    CHECK_STR(entries[3].metadata, "forward");
    CHECK_OK(tcuda_memory_metadata_set(NULL));

    /* They can be skipped, and need a live block and a text. */
    tcuda_history_options options = defaults();
    options.skip_actions = "annotate";
    record(TCUDA_HISTORY_ALL, options);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_memory_annotate(block, "freed"));
    char *const live = allocate(100, 0, stream);
    CHECK_OK(tcuda_memory_annotate(live, "skipped"));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_memory_annotate(live + 512, "inside"));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_annotate(live, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_annotate(NULL, "x"));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_annotate(live, "\xff"));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_metadata_set("a\xff"));
    check_metadata("");
    CHECK_OK(tcuda_free(live));
    read_events(0);
    CHECK(!mentions("annotate"));
    stop();
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_memory_annotate(live, "freed"));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void uncached_blocks_and_long_texts(void)
{
    CHECK_OK(tcuda_memory_caching_enable(false));
    tcuda_history_options options = defaults();
    options.max_entries = 4;
    record(TCUDA_HISTORY_ALL, options);
    CHECK_OK(tcuda_memory_metadata_set("direct"));
    char *const block = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_memory_annotate(block, "uncached"));
    read_events(0);
    CHECK_EQ(entry_count, 3);
    CHECK_STR(entries[1].action, "alloc");
    CHECK_STR(entries[1].metadata, "direct");
    check_entry(2, "annotate", block, entries[1].bytes);
    CHECK_STR(entries[2].metadata, "uncached");
    enum { LENGTH = 100000, TEXTS = 100 };
    char *const text = malloc(LENGTH + 1);
    CHECK(text != NULL);
    memset(text, 'a', LENGTH);
    text[LENGTH] = '\0';
    for (int i = 0; i < TEXTS; i++) {
        char number[8];
        snprintf(number, sizeof number, "%07d", i);
        memcpy(text, number, 7);
        CHECK_OK(tcuda_memory_annotate(block, text));
    }
    CHECK(mentions("\"0000099a"));
    CHECK(!mentions("\"0000090a"));
    free(text);
    CHECK_OK(tcuda_memory_metadata_set(NULL));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_memory_caching_enable(true));
    stop();
}

/* ---- Threads ---- */

static void *allocate_and_free(void *argument)
{
    tcuda_stream *const stream = argument;
    for (size_t i = 0; i < ROUNDS; i++)
        CHECK_OK(tcuda_free(allocate(1 + i % 3000, 0, stream)));
    return NULL;
}

/* On each address the events are alloc, free_requested, free_completed, and again. */
static void events_of_an_address_are_in_order(void)
{
    tcuda_stream *const stream = create_stream(0);
    tcuda_history_options options = defaults();
    options.skip_actions = "segment_map,segment_alloc,snapshot";
    options.max_entries = 2 * 3 * ROUNDS;
    record(TCUDA_HISTORY_ALL, options);
    const pthread_t first = start_thread(allocate_and_free, stream);
    const pthread_t second = start_thread(allocate_and_free, stream);
    join_thread(first);
    join_thread(second);
    read_events(0);
    CHECK_EQ(entry_count, 2 * 3 * ROUNDS);
    static const char *const next[] = { "alloc", "free_requested", "free_completed" };
    for (size_t i = 0; i < entry_count; i++) {
        size_t earlier = 0;
        for (size_t j = 0; j < i; j++)
            earlier += entries[j].address == entries[i].address;
        CHECK_STR(entries[i].action, next[earlier % 3]);
    }
    stop();
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* ---- Errors ---- */

static void wrong_options_are_refused(void)
{
    source from = { .name = "x" };
    tcuda_history_options options = asking(&from);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_record_history(3, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_record_history(-1, &options));
    options.skip_actions = "alloc,malloc";
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
    CHECK(strstr(tcuda_last_error(), "\"malloc\"") != NULL);
    options = asking(&from);
    options.flags = 16;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
    options = asking(&from);
    options.frames_for = 4;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
    options.struct_size = 0;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
    CHECK_EQ(from.destroyed, 0);
    /* Stopping keeps nothing. */
    options = asking(&from);
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_OFF, &options));
    CHECK_EQ(from.destroyed, 1);
}

static void shutdown_ends_it(void)
{
    static source from = { .name = "x" };
    size_t live = 0;
    record(TCUDA_HISTORY_ALL, asking(&from));
    CHECK_OK(tcuda_free(allocate(100, 0, NULL)));
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 0);
    CHECK_EQ(from.destroyed, 1);
    CHECK_OK(tcuda_free(allocate(100, 0, NULL)));
    read_events(0);
    CHECK_EQ(entry_count, 0);
    CHECK_OK(tcuda_memory_empty_cache());
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    wrong_options_are_refused();
    every_event_is_recorded_with_its_sizes();
    a_block_that_waits_completes_later();
    the_ring_keeps_the_newest();
    actions_can_be_skipped();
    an_allocation_that_fails_is_an_event();
    frames_come_from_the_host();
    state_keeps_the_frames_of_live_memory_only();
    native_frames_are_named();
    every_event_of_a_thread_carries_its_text();
    an_annotation_is_an_event_of_its_own();
    uncached_blocks_and_long_texts();
    events_of_an_address_are_in_order();
    shutdown_ends_it();
    return finish();
}
