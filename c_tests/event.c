/* Events: flags, before the first record, binding to a device, time, recycling, order. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { BYTES = 1 << 20, ROUNDS = 1000 };

static int32_t device_of_event(tcuda_event *event)
{
    int32_t device = 77;
    CHECK_OK(tcuda_event_device(event, &device));
    return device;
}

static struct CUevent_st *native_event(tcuda_event *event)
{
    struct CUevent_st *native = (struct CUevent_st *)(void *)&native;
    CHECK_OK(tcuda_event_native(event, &native));
    return native;
}

static void flags_are_checked(void)
{
    for (uint32_t flags = 0; flags < 16; flags++) {
        tcuda_event *event = NULL;
        if ((flags & TCUDA_EVENT_INTERPROCESS) && (flags & TCUDA_EVENT_TIMING)) {
            CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_create(flags, &event));
            CHECK(strstr(tcuda_last_error(), "TCUDA_EVENT_INTERPROCESS") != NULL);
            CHECK(event == NULL);
            continue;
        }
        /* Each kind does what every event does; outside captures EXTERNAL changes nothing. */
        CHECK_OK(tcuda_event_create(flags, &event));
        CHECK_OK(tcuda_event_record(event, NULL));
        CHECK_OK(tcuda_event_wait(event, NULL));
        CHECK_OK(tcuda_event_synchronize(event));
        CHECK(is_reached(event));
        CHECK_OK(tcuda_event_destroy(event));
    }
    const uint32_t bad[] = { 16, 17, UINT32_C(1) << 31, UINT32_MAX };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tcuda_event *event = NULL;
        char number[16];
        snprintf(number, sizeof number, "%u", (unsigned)bad[i]);
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_create(bad[i], &event));
        CHECK(strstr(tcuda_last_error(), number) != NULL);
        CHECK(event == NULL);
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_create(0, NULL));
}

/* torch's record_event without an event: one is made, recorded and given. */
static void events_are_made_and_recorded_at_once(void)
{
    gate held;
    tcuda_stream *const stream = create_stream(0);
    tcuda_event *event = NULL, *second = NULL;
    gate_close(&held, stream);
    CHECK_OK(tcuda_stream_record_new_event(stream, 0, &event));
    CHECK_EQ(device_of_event(event), 0);
    CHECK(native_event(event) != NULL);
    CHECK(!runs_late() || !is_reached(event));
    gate_open(&held);
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK(is_reached(event));
    /* The current stream, and an event that times. */
    float elapsed = -1;
    CHECK_OK(tcuda_stream_record_new_event(NULL, TCUDA_EVENT_TIMING, &second));
    CHECK_OK(tcuda_event_synchronize(second));
    CHECK_OK(tcuda_event_elapsed_ms(second, second, &elapsed));
    CHECK(elapsed >= 0);
    CHECK_OK(tcuda_event_destroy(second));
    /* What fails makes none. */
    second = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_stream_record_new_event(NULL, 16, &second));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_stream_record_new_event(NULL, 0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE,
        tcuda_stream_record_new_event((tcuda_stream *)(void *)event, 0, &second));
    CHECK(second == NULL);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void before_the_first_record_nothing_is_waited_for(void)
{
    tcuda_event *event = create_event(TCUDA_EVENT_TIMING);
    tcuda_stream *stream = create_stream(0);
    bool done = false;
    CHECK(is_reached(event));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_event_wait(event, stream));
    CHECK_OK(tcuda_event_wait(event, NULL));
    CHECK_OK(tcuda_stream_wait_event(stream, event));
    CHECK_OK(tcuda_stream_query(stream, &done));
    CHECK(done);
    CHECK_EQ(device_of_event(event), -1);
    CHECK(native_event(event) == NULL);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_event_destroy(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void the_first_record_binds(int32_t device)
{
    tcuda_event *event = create_event(0);
    tcuda_stream *stream = create_stream(device), *other = create_stream(device);
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_EQ(device_of_event(event), device);
    struct CUevent_st *const native = native_event(event);
    CHECK(native != NULL);
    CHECK_OK(tcuda_stream_record_event(other, event));
    CHECK(native_event(event) == native);
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK(is_reached(event));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
    CHECK(is_reached(event));
    CHECK_OK(tcuda_event_destroy(event));
}

static void a_query_tells_whether_the_point_is_reached(int32_t device)
{
    tcuda_event *event = create_event(TCUDA_EVENT_BLOCKING);
    tcuda_stream *stream = create_stream(device), *idle = create_stream(device);
    gate held;
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    gate_close(&held, stream);
    /* The mark is still in front of the gate. */
    CHECK(is_reached(event));
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_EQ(is_reached(event), !runs_late());
    /* It moves to a stream that has nothing to do, and back. */
    CHECK_OK(tcuda_event_record(event, idle));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK(is_reached(event));
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_EQ(is_reached(event), !runs_late());
    gate_open(&held);
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK(is_reached(event));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(idle));
    CHECK_OK(tcuda_event_destroy(event));
}

/* ---- Time ---- */

static void refuses_time(tcuda_status status, tcuda_event *start, tcuda_event *end,
    const char *sentence)
{
    float elapsed = -77;
    CHECK_STATUS(status, tcuda_event_elapsed_ms(start, end, &elapsed));
    CHECK(strstr(tcuda_last_error(), sentence) == tcuda_last_error());
    CHECK(elapsed == -77);
}

/* In torch's order: made for timing, recorded, completed. */
static void elapsed_time_has_torchs_errors(int32_t device)
{
    static const char *const timing =
        "Both events must be created with argument 'enable_timing=True'.";
    static const char *const recorded =
        "Both events must be recorded before calculating elapsed time.";
    static const char *const completed =
        "Both events must be completed before calculating elapsed time.";
    tcuda_event *plain = create_event(0);
    tcuda_event *start = create_event(TCUDA_EVENT_TIMING), *end = create_event(TCUDA_EVENT_TIMING);
    tcuda_stream *stream = create_stream(device);
    gate held;
    float elapsed = -77;
    refuses_time(TCUDA_STATUS_INVALID_ARGUMENT, plain, end, timing);
    refuses_time(TCUDA_STATUS_INVALID_ARGUMENT, start, plain, timing);
    refuses_time(TCUDA_STATUS_INVALID_ARGUMENT, start, end, recorded);
    CHECK_OK(tcuda_event_record(start, stream));
    refuses_time(TCUDA_STATUS_INVALID_ARGUMENT, start, end, recorded);
    refuses_time(TCUDA_STATUS_INVALID_ARGUMENT, end, start, recorded);
    refuses_time(TCUDA_STATUS_INVALID_ARGUMENT, start, plain, timing);
    CHECK_OK(tcuda_event_synchronize(start));
    gate_close(&held, stream);
    CHECK_OK(tcuda_event_record(end, stream));
    if (runs_late()) {
        refuses_time(TCUDA_STATUS_NOT_READY, start, end, completed);
        refuses_time(TCUDA_STATUS_NOT_READY, end, start, completed);
        refuses_time(TCUDA_STATUS_INVALID_ARGUMENT, plain, end, timing);
    }
    gate_open(&held);
    CHECK_OK(tcuda_event_synchronize(end));
    CHECK_OK(tcuda_event_elapsed_ms(start, end, &elapsed));
    CHECK(elapsed >= 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_elapsed_ms(start, end, NULL));
    CHECK_OK(tcuda_event_destroy(plain));
    CHECK_OK(tcuda_event_destroy(start));
    CHECK_OK(tcuda_event_destroy(end));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void pause_10_ms(void *unused)
{
    (void)unused;
    sleep_ms(10);
}

static void elapsed_time_is_that_of_the_work(int32_t device)
{
    tcuda_event *start = create_event(TCUDA_EVENT_TIMING | TCUDA_EVENT_BLOCKING);
    tcuda_event *end = create_event(TCUDA_EVENT_TIMING);
    tcuda_stream *stream = create_stream(device);
    float elapsed = -77, back = -77, none = -77;
    CHECK_OK(tcuda_event_record(start, stream));
    CHECK_OK(tcuda_stream_add_callback(stream, pause_10_ms, NULL, NULL));
    CHECK_OK(tcuda_event_record(end, stream));
    CHECK_OK(tcuda_event_synchronize(end));
    CHECK_OK(tcuda_event_elapsed_ms(start, end, &elapsed));
    CHECK(elapsed >= 9 && elapsed < 60000);
    CHECK_OK(tcuda_event_elapsed_ms(end, start, &back));
    CHECK(back <= -9);
    CHECK_OK(tcuda_event_elapsed_ms(start, start, &none));
    CHECK(none == 0);

    /* Recorded anew: the time is of the last records. */
    CHECK_OK(tcuda_event_record(start, stream));
    CHECK_OK(tcuda_event_synchronize(start));
    CHECK_OK(tcuda_event_elapsed_ms(start, end, &back));
    CHECK(back <= 0);
    CHECK_OK(tcuda_event_destroy(start));
    CHECK_OK(tcuda_event_destroy(end));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* ---- Recycling ---- */

static void events_are_recycled(int32_t device)
{
    tcuda_stream *stream = create_stream(device);
    const uint64_t before = calls_of("cuEventCreate");
    for (int i = 0; i < ROUNDS; i++) {
        tcuda_event *event = create_event(0);
        CHECK(native_event(event) == NULL);
        CHECK_EQ(device_of_event(event), -1);
        CHECK(is_reached(event));
        CHECK_OK(tcuda_event_record(event, stream));
        CHECK_OK(tcuda_event_destroy(event));
    }
    /* Not one each: destroyed events wait in small batches until no thread can see them. */
    CHECK(calls_of("cuEventCreate") - before <= ROUNDS / 4);
    for (int i = 0; i < ROUNDS; i++) {
        tcuda_event *event = create_event(TCUDA_EVENT_TIMING);
        CHECK_OK(tcuda_event_destroy(event));
    }
    CHECK(calls_of("cuEventCreate") - before <= ROUNDS / 4);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* What waits for a destroyed event still does, although others use its CUevent by then. */
static void recycled_events_keep_their_promises(int32_t device)
{
    tcuda_stream *stream = create_stream(device), *waiting = create_stream(device);
    tcuda_stream *idle = create_stream(device);
    void *block = allocate(BYTES, device, stream);
    gate held;
    fill_bytes(block, 1, BYTES, stream);
    CHECK_EQ(count_other_bytes(block, 1, BYTES, stream), 0);
    gate_close(&held, stream);
    fill_bytes(block, 2, BYTES, stream);
    tcuda_event *event = create_event(0);
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_stream_wait_event(waiting, event));
    CHECK_OK(tcuda_event_destroy(event));
    for (int i = 0; i < 200; i++) {
        tcuda_event *other = create_event(0);
        CHECK_OK(tcuda_event_record(other, idle));
        CHECK_OK(tcuda_event_synchronize(other));
        CHECK_OK(tcuda_event_destroy(other));
    }
    fill_bytes(block, 3, BYTES, waiting);
    gate_open(&held);
    CHECK_EQ(count_other_bytes(block, 3, BYTES, waiting), 0);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(count_other_bytes(block, 3, BYTES, stream), 0);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(waiting));
    CHECK_OK(tcuda_stream_destroy(idle));
}

/* ---- Order ---- */

/* A value goes round through a ring of streams; each step waits for the event of the last. */
static void events_order_streams(int32_t first_device, int32_t second_device)
{
    enum { STREAMS = 4, STEPS = 64 };
    tcuda_stream *streams[STREAMS];
    tcuda_event *events[STREAMS];
    void *blocks[STREAMS];
    gate held;
    for (int i = 0; i < STREAMS; i++) {
        const int32_t device = i % 2 == 0 ? first_device : second_device;
        streams[i] = create_stream(device);
        events[i] = create_event(0);
        blocks[i] = allocate(BYTES, device, streams[i]);
        fill_bytes(blocks[i], 0, BYTES, streams[i]);
        CHECK_OK(tcuda_stream_synchronize(streams[i]));
    }
    for (int round = 0; round < 3; round++) {
        if (round > 0)
            gate_close(&held, streams[0]);
        fill_bytes(blocks[0], round + 1, BYTES, streams[0]);
        CHECK_OK(tcuda_event_record(events[0], streams[0]));
        for (int step = 1; step <= STEPS; step++) {
            const int to = step % STREAMS, from = (step - 1) % STREAMS;
            CHECK_OK(step % 3 == 0 ? tcuda_event_wait(events[from], streams[to])
                                   : tcuda_stream_wait_event(streams[to], events[from]));
            CHECK_OK(tcuda_copy(blocks[to], blocks[from], BYTES, streams[to]));
            CHECK_OK(tcuda_event_record(events[to], streams[to]));
            if (step < STEPS) {
                /* The source is spoiled as soon as the copy is done. */
                CHECK_OK(tcuda_event_wait(events[to], streams[from]));
                fill_bytes(blocks[from], 0xEE, BYTES, streams[from]);
                CHECK_OK(tcuda_event_record(events[from], streams[from]));
                CHECK_OK(tcuda_event_wait(events[from], streams[to]));
                CHECK_OK(tcuda_event_record(events[to], streams[to]));
            }
        }
        if (round > 0)
            gate_open(&held);
        const int last = STEPS % STREAMS;
        CHECK_EQ(count_other_bytes(blocks[last], round + 1, BYTES, streams[last]), 0);
    }
    for (int i = 0; i < STREAMS; i++) {
        CHECK_OK(tcuda_stream_synchronize(streams[i]));
        CHECK_OK(tcuda_free(blocks[i]));
        CHECK_OK(tcuda_event_destroy(events[i]));
        CHECK_OK(tcuda_stream_destroy(streams[i]));
    }
}

typedef struct shared_event {
    tcuda_event *event;
    atomic_bool waits;
    atomic_bool has_waited;
} shared_event;

static void *waits_on_the_host(void *argument)
{
    shared_event *shared = argument;
    atomic_store(&shared->waits, true);
    CHECK_OK(tcuda_event_synchronize(shared->event));
    atomic_store(&shared->has_waited, true);
    return NULL;
}

static void any_thread_can_wait(int32_t device)
{
    tcuda_stream *stream = create_stream(device);
    shared_event shared = { create_event(TCUDA_EVENT_BLOCKING), false, false };
    gate held;
    gate_close(&held, stream);
    CHECK_OK(tcuda_event_record(shared.event, stream));
    pthread_t thread = start_thread(waits_on_the_host, &shared);
    while (!atomic_load(&shared.waits))
        sleep_ms(1);
    sleep_ms(5);
    if (runs_late())
        CHECK(!atomic_load(&shared.has_waited));
    gate_open(&held);
    join_thread(thread);
    CHECK(atomic_load(&shared.has_waited));
    CHECK_OK(tcuda_event_destroy(shared.event));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* ---- With several devices ---- */

static void events_stay_on_their_device(void)
{
    tcuda_event *event = create_event(TCUDA_EVENT_TIMING), *far = create_event(TCUDA_EVENT_TIMING);
    tcuda_stream *zero = create_stream(0), *one = create_stream(1);
    float elapsed = -77;
    CHECK_OK(tcuda_event_record(event, zero));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_record(event, one));
    CHECK_STR(tcuda_last_error(), "Event device 0 does not match recording stream's device 1.");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_stream_record_event(one, event));
    CHECK_EQ(device_of_event(event), 0);
    CHECK_OK(tcuda_event_record(far, one));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_record(far, zero));
    CHECK_STR(tcuda_last_error(), "Event device 1 does not match recording stream's device 0.");
    /* Waiting has no such limit, whatever device is current. */
    CHECK_OK(tcuda_event_wait(event, one));
    CHECK_OK(tcuda_event_wait(far, zero));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_event_synchronize(far));
    CHECK(is_reached(far));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_elapsed_ms(event, far, &elapsed));
    CHECK(elapsed == -77);

    /* Without a stream, the current device's. */
    tcuda_event *current = create_event(0);
    CHECK_OK(tcuda_device_set(1));
    CHECK_OK(tcuda_event_record(current, NULL));
    CHECK_EQ(device_of_event(current), 1);
    CHECK_OK(tcuda_device_set(0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_record(current, NULL));
    CHECK_OK(tcuda_event_synchronize(current));
    CHECK_OK(tcuda_event_destroy(current));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_event_destroy(far));
    CHECK_OK(tcuda_stream_destroy(zero));
    CHECK_OK(tcuda_stream_destroy(one));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    flags_are_checked();
    events_are_made_and_recorded_at_once();
    before_the_first_record_nothing_is_waited_for();
    for (int32_t device = 0; device < num_devices(); device++) {
        the_first_record_binds(device);
        a_query_tells_whether_the_point_is_reached(device);
        elapsed_time_has_torchs_errors(device);
        elapsed_time_is_that_of_the_work(device);
        events_are_recycled(device);
        recycled_events_keep_their_promises(device);
        any_thread_can_wait(device);
        events_order_streams(device, device);
    }
    if (num_devices() >= 2) {
        events_stay_on_their_device();
        events_order_streams(0, 1);
    }
    return finish();
}
