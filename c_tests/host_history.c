/* Recording pinned memory: the events of a known program by value, read from the JSON of a
 * snapshot. */
#include "support.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MOST = 64 };

typedef struct entry {
    char action[24];
    int64_t address, bytes, stream, time_us;
    char frame[32]; /* of the innermost, "name:line" */
} entry;

static entry entries[MOST];
static size_t entry_count;

/* Reads the events of pinned memory into `entries`; none are no list. */
static void read_events(void)
{
    tcuda_memory_snapshot *snapshot = NULL;
    size_t needed = 0;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_json(snapshot, NULL, 0, &needed));
    char *const text = calloc(needed + 1, 1);
    CHECK(text != NULL);
    CHECK_OK(tcuda_memory_snapshot_json(snapshot, text, needed + 1, &needed));
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    const char *at = strstr(text, "\"host_traces\":[");
    const char *const end = at == NULL ? NULL : strstr(at, "\"allocator_settings\"");
    entry_count = 0;
    while (at != NULL && (at = strstr(at, "{\"action\":")) != NULL && at < end
        && entry_count < MOST) {
        entry *const to = &entries[entry_count++];
        long long address = 0, bytes = 0, stream = 0, time_us = 0;
        char name[20] = "";
        int line = 0;
        CHECK_EQ(sscanf(at, "{\"action\":\"%23[^\"]\",\"addr\":%lld,\"size\":%lld,\"stream\":%lld,"
            "\"time_us\":%lld", to->action, &address, &bytes, &stream, &time_us), 5);
        to->address = address;
        to->bytes = bytes;
        to->stream = stream;
        to->time_us = time_us;
        at = strstr(at, "\"frames\":[");
        CHECK(at != NULL);
        to->frame[0] = '\0';
        if (sscanf(at, "\"frames\":[{\"name\":\"%19[^\"]\",\"filename\":\"file\",\"line\":%d",
                name, &line) == 2)
            snprintf(to->frame, sizeof to->frame, "%s:%d", name, line);
    }
    free(text);
}

static void is_event(size_t index, const char *action, const void *address, int64_t bytes,
    const char *frame)
{
    CHECK(index < entry_count);
    CHECK_STR(entries[index].action, action);
    CHECK_EQ(entries[index].address, (int64_t)(intptr_t)address);
    CHECK_EQ(entries[index].bytes, bytes);
    CHECK_EQ(entries[index].stream, 0);
    CHECK_STR(entries[index].frame, frame);
    CHECK(index == 0 || entries[index].time_us >= entries[index - 1].time_us);
}

/* Says what was put into the user's data. */
static size_t frame_of(void *user_data, tcuda_frame *frames, size_t capacity)
{
    if (capacity == 0)
        return 0;
    frames[0] = (tcuda_frame){ .name = "place", .filename = "file", .line = *(int *)user_data };
    return 1;
}

static void record(tcuda_history_mode mode, uint32_t flags, int *line)
{
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    options.flags = flags;
    options.skip_actions = "snapshot";
    if (line != NULL) {
        options.frames = frame_of;
        options.user_data = line;
    }
    CHECK_OK(tcuda_memory_record_history(mode, &options));
}

static unsigned char *pinned(size_t bytes)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_host_malloc(bytes, &ptr));
    CHECK(ptr != NULL);
    return ptr;
}

static void events_have_rounded_sizes_and_frames(void)
{
    int line = 1;
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_HOST | TCUDA_RECORD_CLEAR, &line);
    unsigned char *const small = pinned(100);
    line = 2;
    unsigned char *const large = pinned(100 * KIB + 1);
    line = 3;
    CHECK_OK(tcuda_host_free(small));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_free(small));
    line = 4;
    CHECK_OK(tcuda_host_free(large));
    line = 5;
    CHECK_OK(tcuda_host_memory_empty_cache());
    read_events();
    CHECK_EQ(entry_count, 10);
    is_event(0, "segment_alloc", small, 2 * MIB, "place:1");
    is_event(1, "alloc", small, 128, "place:1");
    is_event(2, "segment_alloc", large, 2 * MIB, "place:2");
    is_event(3, "alloc", large, 100 * KIB + 512, "place:2");
    is_event(4, "free_requested", small, 128, "place:3");
    is_event(5, "free_completed", small, 128, "place:3");
    is_event(6, "free_requested", large, 100 * KIB + 512, "place:4");
    is_event(7, "free_completed", large, 100 * KIB + 512, "place:4");
    is_event(8, "segment_free", small, 2 * MIB, "place:5");
    is_event(9, "segment_free", large, 2 * MIB, "place:5");
}

static void a_block_that_waits_completes_later(void)
{
    int line = 1;
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_HOST | TCUDA_RECORD_CLEAR, &line);
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const block = pinned(5000);
    gate held;
    gate_close(&held, stream);
    CHECK_OK(tcuda_host_record(block, stream));
    line = 2;
    CHECK_OK(tcuda_host_free(block));
    line = 3;
    read_events();
    CHECK_EQ(entry_count, 3);
    is_event(1, "alloc", block, 5056, "place:1");
    is_event(2, "free_requested", block, 5056, "place:2");
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_host_memory_empty_cache());
    read_events();
    CHECK_EQ(entry_count, 5);
    is_event(3, "free_completed", block, 5056, "place:1");
    is_event(4, "segment_free", block, 2 * MIB, "place:3");
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* The driver refuses what was to go: it came back. */
static void a_segment_that_stays_is_told(void)
{
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_HOST | TCUDA_RECORD_CLEAR, NULL);
    CHECK_OK(tcuda_backend_faults("cuMemFreeHost@1=999"));
    unsigned char *const block = pinned(1);
    CHECK_OK(tcuda_host_free(block));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_host_memory_empty_cache());
    read_events();
    CHECK_EQ(entry_count, 6);
    is_event(4, "segment_free", block, 2 * MIB, "");
    is_event(5, "segment_alloc", block, 2 * MIB, "");
    CHECK_OK(tcuda_host_memory_empty_cache());
}

static void it_is_recorded_only_when_asked(void)
{
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_CLEAR, NULL);
    CHECK_OK(tcuda_host_free(pinned(100)));
    read_events();
    CHECK_EQ(entry_count, 0);
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_HOST | TCUDA_RECORD_NO_DEVICE, NULL);
    CHECK_OK(tcuda_host_free(pinned(100)));
    read_events();
    CHECK_EQ(entry_count, 3);
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR, NULL);
    CHECK_OK(tcuda_host_free(pinned(100)));
    read_events();
    CHECK_EQ(entry_count, 0);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    events_have_rounded_sizes_and_frames();
    a_block_that_waits_completes_later();
    a_segment_that_stays_is_told();
    it_is_recorded_only_when_asked();
    return finish();
}
