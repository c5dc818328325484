/* Streams: torch's pools and ids, current and default ones, foreign ones, order, callbacks. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>

#include "support.h"

enum { PER_PRIORITY = 32, BYTES = 1 << 20 };

static int32_t priority_of(tcuda_stream *stream)
{
    int32_t priority = 77;
    CHECK_OK(tcuda_stream_priority(stream, &priority));
    return priority;
}

static int32_t greatest_priority(int32_t device)
{
    int32_t least = 77, greatest = 77;
    CHECK_OK(tcuda_stream_priority_range(device, &least, &greatest));
    CHECK_EQ(least, 0);
    CHECK(greatest <= 0 && greatest >= -3);
    return greatest;
}

static int64_t current_id(int32_t device)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_current(device, &stream));
    return id_of(stream);
}

static tcuda_stream *default_stream(int32_t device)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_default(device, &stream));
    CHECK(stream != NULL);
    return stream;
}

/* torch: bit 0, then from bit 1 one more than the level of the priority, then from bit 5 the index.
 * Comes first: it counts from the pools' first streams. */
static void pools_hand_out_32_streams_in_turn(int32_t device, int32_t priority)
{
    tcuda_stream *streams[PER_PRIORITY + 1];
    for (int i = 0; i <= PER_PRIORITY; i++) {
        int32_t where = 77;
        CHECK_OK(tcuda_stream_create(device, priority, &streams[i]));
        CHECK_EQ(id_of(streams[i]), 1 + 2 * (1 - priority) + 32 * (i % PER_PRIORITY));
        CHECK_EQ(priority_of(streams[i]), priority);
        CHECK_OK(tcuda_stream_device(streams[i], &where));
        CHECK_EQ(where, device);
        CHECK(native_of(streams[i]) != NULL);
        for (int j = 0; j < i; j++) {
            const bool same = i - j == PER_PRIORITY;
            CHECK(streams[i] != streams[j]);
            CHECK_EQ(native_of(streams[i]) == native_of(streams[j]), same);
        }
    }
    /* The first is given back; the last is the same stream and lives on. */
    CHECK_OK(tcuda_stream_destroy(streams[0]));
    CHECK_OK(tcuda_stream_synchronize(streams[PER_PRIORITY]));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_stream_synchronize(streams[0]));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_stream_destroy(streams[0]));
    for (int i = 1; i <= PER_PRIORITY; i++)
        CHECK_OK(tcuda_stream_destroy(streams[i]));
}

static void first_ids_are_torchs(void)
{
    tcuda_stream *first = create_stream(0), *second = create_stream(0);
    CHECK_EQ(id_of(first), 3);
    CHECK_EQ(id_of(second), 35);
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
    /* Destroyed streams wait for their turn like all others. */
    for (int i = 2; i < PER_PRIORITY; i++) {
        tcuda_stream *stream = create_stream(0);
        CHECK_EQ(id_of(stream), 3 + 32 * i);
        CHECK_OK(tcuda_stream_destroy(stream));
    }
}

static void priorities_are_brought_into_range(int32_t device)
{
    const int32_t greatest = greatest_priority(device);
    const int32_t asked[] = { 1, INT32_MAX, -1, -3, -4, INT32_MIN };
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        tcuda_stream *stream = NULL;
        CHECK_OK(tcuda_stream_create(device, asked[i], &stream));
        const int32_t granted = asked[i] > 0 ? 0 : asked[i] < greatest ? greatest : asked[i];
        CHECK_EQ(priority_of(stream), granted);
        CHECK_EQ(id_of(stream) % 32, 1 + 2 * (1 - granted));
        CHECK_OK(tcuda_stream_destroy(stream));
    }
}

static void default_streams_are_streams_0(int32_t device)
{
    tcuda_stream *stream = default_stream(device);
    bool done = false;
    int32_t where = 77;
    CHECK_EQ(id_of(stream), 0);
    CHECK(native_of(stream) == NULL);
    CHECK_EQ(priority_of(stream), 0);
    CHECK_OK(tcuda_stream_device(stream, &where));
    CHECK_EQ(where, device);
    CHECK_EQ(current_id(device), 0);
    /* Borrowed: it can be destroyed as often as a host likes. */
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(NULL));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_query(stream, &done));
    CHECK(done);
    CHECK_EQ(id_of(stream), 0);
}

static void *a_new_thread_has_the_default_stream(void *unused)
{
    tcuda_stream *stream = create_stream(0);
    (void)unused;
    CHECK_EQ(current_id(0), 0);
    CHECK_OK(tcuda_stream_set_current(stream));
    CHECK_EQ(current_id(0), id_of(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    return NULL;
}

static void current_streams_are_the_threads(void)
{
    tcuda_stream *stream = create_stream(0), *other = create_stream(0), *previous = NULL;
    tcuda_stream *borrowed = NULL;
    int32_t previous_device = 77;
    const int64_t id = id_of(stream);
    CHECK_OK(tcuda_stream_set_current(stream));
    CHECK_EQ(current_id(0), id);
    CHECK_EQ(current_id(TCUDA_CURRENT_DEVICE), id);
    CHECK_EQ(id_of(NULL), id);
    CHECK_OK(tcuda_stream_set_current(NULL));
    CHECK_EQ(current_id(0), id);
    run_on_thread(a_new_thread_has_the_default_stream, NULL);
    CHECK_EQ(current_id(0), id);

    CHECK_OK(tcuda_stream_exchange(other, &previous, &previous_device));
    CHECK_EQ(id_of(previous), id);
    CHECK_EQ(previous_device, 0);
    CHECK_EQ(current_id(0), id_of(other));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_stream_exchange(stream, NULL,
        &previous_device));
    CHECK_EQ(current_id(0), id_of(other));
    CHECK_OK(tcuda_stream_set_current(previous));
    CHECK_EQ(current_id(0), id);

    /* What is borrowed outlives the handle that the caller had. */
    CHECK_OK(tcuda_stream_current(0, &borrowed));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_stream_set_current(stream));
    CHECK_EQ(id_of(borrowed), id);
    CHECK_EQ(id_of(previous), id);
    CHECK_OK(tcuda_stream_destroy(borrowed));
    CHECK_OK(tcuda_stream_synchronize(borrowed));
    CHECK_EQ(current_id(0), id);
    CHECK_OK(tcuda_stream_set_current(default_stream(0)));
    CHECK_EQ(current_id(0), 0);
    CHECK_OK(tcuda_stream_destroy(other));
}

static tcuda_stream *wrap(int32_t device, struct CUstream_st *native)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_from_external(device, native, &stream));
    CHECK(stream != NULL);
    return stream;
}

static void native_streams_can_be_wrapped(int32_t device)
{
    struct CUstream_st *const per_thread = (struct CUstream_st *)(uintptr_t)2;
    tcuda_stream *pooled = create_stream(device);
    tcuda_stream *same = wrap(device, native_of(pooled)), *null = wrap(device, NULL);
    tcuda_stream *legacy = wrap(device, (struct CUstream_st *)(uintptr_t)1);
    tcuda_stream *first = wrap(device, per_thread), *second = wrap(device, per_thread);
    CHECK(same != pooled);
    CHECK_EQ(id_of(same), id_of(pooled));
    CHECK(native_of(same) == native_of(pooled));
    CHECK_EQ(id_of(null), 0);
    CHECK(native_of(null) == NULL);
    CHECK_EQ(id_of(legacy), 0);
    /* torch: the id of a foreign stream is its native handle. */
    CHECK(first != second);
    CHECK_EQ(id_of(first), 2);
    CHECK_EQ(id_of(second), 2);
    CHECK(native_of(first) == per_thread);
    CHECK_OK(tcuda_stream_synchronize(first));

    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_stream_synchronize(first));
    CHECK_EQ(id_of(second), 2);
    CHECK_OK(tcuda_stream_destroy(second));
    CHECK_OK(tcuda_stream_destroy(null));
    CHECK_OK(tcuda_stream_destroy(legacy));
    CHECK_OK(tcuda_stream_destroy(same));
    CHECK_OK(tcuda_stream_synchronize(pooled));
    if (on_simulator()) {
        tcuda_stream *none = NULL;
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_stream_from_external(device,
            (struct CUstream_st *)(uintptr_t)0x123456, &none));
        CHECK(none == NULL);
    }
    if (device > 0) {
        tcuda_stream *none = NULL;
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_stream_from_external(0, native_of(pooled), &none));
        CHECK(none == NULL);
    }
    CHECK_OK(tcuda_stream_destroy(pooled));
}

/* A stream of the CUDA driver that tcuda did not make; only real drivers can be asked for one. */
static void streams_of_others_can_be_used(void)
{
    int (*create)(struct CUstream_st **, unsigned) = NULL;
    int (*destroy)(struct CUstream_st *) = NULL;
    struct CUstream_st *native = NULL;
    if (on_simulator())
        return;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != NULL);
    void *symbols[] = { dlsym(driver, "cuStreamCreate"), dlsym(driver, "cuStreamDestroy_v2") };
    memcpy(&create, &symbols[0], sizeof create);
    memcpy(&destroy, &symbols[1], sizeof destroy);
    CHECK_OK(tcuda_device_set(0));
    CHECK_EQ(create(&native, 1), 0);
    tcuda_stream *first = wrap(0, native), *second = wrap(0, native);
    CHECK_EQ(id_of(first), (intptr_t)native);
    CHECK_EQ(id_of(second), id_of(first));
    void *block = allocate(BYTES, 0, first);
    fill_bytes(block, 9, BYTES, first);
    CHECK_EQ(count_other_bytes(block, 9, BYTES, second), 0);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_EQ(destroy(native), 0);
}

static void query_tells_of_queued_work(int32_t device)
{
    tcuda_stream *stream = create_stream(device), *other = create_stream(device);
    gate held;
    bool done = false;
    CHECK_OK(tcuda_stream_query(stream, &done));
    CHECK(done);
    gate_close(&held, stream);
    if (runs_late()) {
        CHECK_OK(tcuda_stream_query(stream, &done));
        CHECK(!done);
        CHECK_OK(tcuda_stream_query(other, &done));
        CHECK(done);
    }
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_query(stream, &done));
    CHECK(done);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* A chain through two streams, perhaps of two devices, of which the first is held back. */
static void wait_stream_orders(int32_t from, int32_t to)
{
    tcuda_stream *first = create_stream(from), *second = create_stream(to);
    void *source = allocate(BYTES, from, first), *target = allocate(BYTES, to, second);
    gate held;
    /* Once without a gate, so that everything is loaded. */
    for (int value = 1; value <= 3; value++) {
        CHECK_OK(tcuda_stream_wait_stream(first, second));
        if (value > 1)
            gate_close(&held, first);
        fill_bytes(source, value, BYTES, first);
        CHECK_OK(tcuda_stream_wait_stream(second, first));
        CHECK_OK(tcuda_copy(target, source, BYTES, second));
        /* Nothing of what comes later in `first` is waited for, and nothing of it comes early. */
        CHECK_OK(tcuda_stream_wait_stream(first, second));
        fill_bytes(source, 0, BYTES, first);
        if (value > 1)
            gate_open(&held);
        CHECK_EQ(count_other_bytes(target, value, BYTES, second), 0);
        CHECK_EQ(count_other_bytes(source, 0, BYTES, first), 0);
    }
    CHECK_OK(tcuda_stream_wait_stream(first, first));
    CHECK_OK(tcuda_stream_wait_stream(NULL, NULL));
    CHECK_OK(tcuda_stream_wait_stream(NULL, first));
    CHECK_OK(tcuda_stream_wait_stream(second, NULL));
    CHECK_OK(tcuda_device_synchronize(from));
    CHECK_OK(tcuda_free(source));
    CHECK_OK(tcuda_free(target));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

/* ---- Callbacks ---- */

enum { CALLBACKS = 100 };

typedef struct history {
    atomic_int length;
    int events[4 * CALLBACKS]; /* written by one stream's callbacks, one at a time */
} history;

typedef struct note {
    history *to;
    int number;
} note;

static void note_down(history *to, int what)
{
    const int at = atomic_load(&to->length);
    to->events[at] = what;
    atomic_store(&to->length, at + 1);
}

static void called(void *user_data)
{
    const note *data = user_data;
    note_down(data->to, data->number);
}

static void destroyed(void *user_data)
{
    const note *data = user_data;
    note_down(data->to, -data->number);
}

static void callbacks_run_once_in_order(int32_t device)
{
    tcuda_stream *stream = create_stream(device);
    static history past;
    note notes[CALLBACKS];
    gate held;
    past.length = 0;
    gate_close(&held, stream);
    for (int i = 0; i < CALLBACKS; i++) {
        notes[i] = (note){ &past, i + 1 };
        CHECK_OK(tcuda_stream_add_callback(stream, called, &notes[i], destroyed));
    }
    CHECK_EQ(past.length, runs_late() ? 0 : 2 * CALLBACKS);
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(past.length, 2 * CALLBACKS);
    for (int i = 0; i < CALLBACKS; i++) {
        CHECK_EQ(past.events[2 * i], i + 1);
        CHECK_EQ(past.events[2 * i + 1], -(i + 1));
    }

    /* Without destroy; on the current stream. */
    note last = { &past, 1000 };
    CHECK_OK(tcuda_stream_add_callback(stream, called, &last, NULL));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(past.length, 2 * CALLBACKS + 1);
    CHECK_OK(tcuda_stream_add_callback(NULL, called, &last, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_EQ(past.length, 2 * CALLBACKS + 2);

    /* A failed registration takes nothing. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_stream_add_callback(stream, NULL, &last, destroyed));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE,
        tcuda_stream_add_callback(stream, called, &last, destroyed));
    CHECK_EQ(past.length, 2 * CALLBACKS + 2);
}

/* Giving a stream back does not stop its work. */
static void destroyed_streams_finish_their_work(int32_t device)
{
    tcuda_stream *stream = create_stream(device);
    static history past;
    note data = { &past, 5 };
    gate held;
    past.length = 0;
    gate_close(&held, stream);
    CHECK_OK(tcuda_stream_add_callback(stream, called, &data, destroyed));
    CHECK_OK(tcuda_stream_destroy(stream));
    gate_open(&held);
    CHECK_OK(tcuda_device_synchronize(device));
    CHECK_EQ(past.length, 2);
}

/* ---- With several devices ---- */

static void each_device_has_its_current_stream(void)
{
    tcuda_stream *zero = create_stream(0), *one = create_stream(1), *previous = NULL;
    int32_t previous_device = 77;
    CHECK_OK(tcuda_device_set(0));
    CHECK_OK(tcuda_stream_set_current(one));
    CHECK_EQ(current_device(), 1);
    CHECK_EQ(current_id(0), 0);
    CHECK_EQ(current_id(1), id_of(one));
    CHECK_OK(tcuda_stream_exchange(zero, &previous, &previous_device));
    CHECK_EQ(current_device(), 0);
    CHECK_EQ(previous_device, 1);
    CHECK_EQ(id_of(previous), 0);
    CHECK_EQ(current_id(0), id_of(zero));
    CHECK_EQ(current_id(1), id_of(one));
    CHECK_OK(tcuda_stream_set_current(previous));
    CHECK_OK(tcuda_device_set(previous_device));
    CHECK_EQ(current_device(), 1);
    CHECK_EQ(current_id(0), 0);
    CHECK_EQ(current_id(TCUDA_CURRENT_DEVICE), id_of(one));
    CHECK_OK(tcuda_stream_set_current(default_stream(1)));
    CHECK_OK(tcuda_device_set(0));
    CHECK_OK(tcuda_stream_destroy(zero));
    CHECK_OK(tcuda_stream_destroy(one));
}

static void bad_devices_are_refused(void)
{
    tcuda_stream *none = NULL;
    int32_t least = 77, greatest = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_stream_create(num_devices(), 0, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_stream_create(-2, 0, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_stream_current(99, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_stream_default(99, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_stream_from_external(99, NULL, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_stream_priority_range(99, &least, &greatest));
    CHECK(none == NULL && least == 77 && greatest == 77);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_stream_create(0, 0, NULL));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    first_ids_are_torchs();
    for (int32_t device = 0; device < num_devices(); device++) {
        for (int32_t priority = greatest_priority(device); priority < 0; priority++)
            pools_hand_out_32_streams_in_turn(device, priority);
        pools_hand_out_32_streams_in_turn(device, 0);
        priorities_are_brought_into_range(device);
        default_streams_are_streams_0(device);
        native_streams_can_be_wrapped(device);
        query_tells_of_queued_work(device);
        wait_stream_orders(device, device);
        callbacks_run_once_in_order(device);
        destroyed_streams_finish_their_work(device);
    }
    current_streams_are_the_threads();
    streams_of_others_can_be_used();
    bad_devices_are_refused();
    if (num_devices() >= 2) {
        wait_stream_orders(0, 1);
        wait_stream_orders(1, 0);
        each_device_has_its_current_stream();
    }
    return finish();
}
