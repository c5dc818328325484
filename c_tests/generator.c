/* Generators: seeds before and after initialisation, torch's states, handles, threads, captures. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

static const uint64_t default_seed = UINT64_C(67280421310721);

static uint64_t seed_of(tcuda_generator *generator)
{
    uint64_t seed = 77;
    CHECK_OK(tcuda_generator_seed_get(generator, &seed));
    return seed;
}

static uint64_t offset_of(tcuda_generator *generator)
{
    uint64_t offset = 77;
    CHECK_OK(tcuda_generator_offset_get(generator, &offset));
    return offset;
}

static uint64_t initial_seed(int32_t device)
{
    uint64_t seed = 77;
    CHECK_OK(tcuda_random_initial_seed(device, &seed));
    return seed;
}

static bool is_initialized(void)
{
    bool is = true;
    CHECK_OK(tcuda_is_initialized(&is));
    return is;
}

static void write_state(uint8_t *state, uint64_t seed, uint64_t offset)
{
    for (int i = 0; i < 8; i++) {
        state[i] = (uint8_t)(seed >> 8 * i);
        state[8 + i] = (uint8_t)(offset >> 8 * i);
    }
}

static void expect_state(int32_t device, uint64_t seed, uint64_t offset)
{
    uint8_t state[TCUDA_RANDOM_STATE_BYTES], expected[TCUDA_RANDOM_STATE_BYTES];
    write_state(expected, seed, offset);
    CHECK_OK(tcuda_random_state_get(device, state));
    CHECK(memcmp(state, expected, sizeof state) == 0);
}

/* ---- Before the library is initialised ---- */

/* Seeds and states take effect in the order of their calls. */
static void what_is_set_before_waits(void)
{
    uint8_t states[2 * TCUDA_RANDOM_STATE_BYTES];
    write_state(states, 7, 8);
    write_state(states + TCUDA_RANDOM_STATE_BYTES, 6, 16);
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_random_seed_all());
    CHECK_OK(tcuda_random_manual_seed_all(1));
    CHECK_OK(tcuda_random_manual_seed(TCUDA_CURRENT_DEVICE, 2));
    CHECK_OK(tcuda_random_manual_seed(TCUDA_CURRENT_DEVICE, 3));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_random_manual_seed(64, 4));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_random_manual_seed(-2, 4));
    CHECK(!is_initialized());
    CHECK_EQ(initial_seed(0), 3);
    CHECK(is_initialized());
    for (int32_t device = 1; device < num_devices(); device++)
        CHECK_EQ(initial_seed(device), 1);

    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_random_manual_seed(0, 1));
    CHECK_OK(tcuda_random_state_set(0, states));
    CHECK(!is_initialized());
    expect_state(0, 7, 8);

    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_random_state_set(0, states));
    CHECK_OK(tcuda_random_manual_seed(0, 1));
    expect_state(0, 1, 0);

    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_random_manual_seed_all(5));
    CHECK_OK(tcuda_random_manual_seed(0, 5));
    CHECK_OK(tcuda_random_seed_all());
    for (int32_t device = 0; device < num_devices(); device++)
        CHECK(initial_seed(device) != 5);

    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_random_manual_seed_all(5));
    CHECK_OK(tcuda_random_seed(0));
    CHECK(initial_seed(0) != 5);
    if (num_devices() > 1)
        CHECK_EQ(initial_seed(1), 5);

    const size_t count = num_devices() > 1 ? 2 : 1;
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_random_seed_all());
    CHECK_OK(tcuda_random_state_set_all(states, count));
    CHECK(!is_initialized());
    expect_state(0, 7, 8);
    if (count > 1)
        expect_state(1, 6, 16);
    CHECK_OK(tcuda_shutdown(NULL));
    /* Once: the next life knows nothing of it. */
    CHECK(initial_seed(0) != 7);
}

/* How many devices there are is not known before: the call that initialises says so, once. */
static void a_seed_of_no_device_is_an_error(void)
{
    const int32_t missing = num_devices();
    char number[32];
    void *block = NULL;
    snprintf(number, sizeof number, "device %d got", (int)missing);
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_random_manual_seed(0, 9));
    CHECK_OK(tcuda_random_manual_seed(missing, 4));
    CHECK_OK(tcuda_random_seed(63));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_malloc(512, 0, NULL, &block));
    CHECK(strstr(tcuda_last_error(), number) != NULL);
    CHECK(!is_initialized() && block == NULL);
    CHECK_EQ(initial_seed(0), 9);
}

/* ---- Default generators ---- */

static void devices_have_generators_of_their_own(void)
{
    const int32_t count = num_devices();
    CHECK(initial_seed(0) >> 53 == 0);
    if (count > 1)
        CHECK(initial_seed(0) != initial_seed(1));
    CHECK_OK(tcuda_random_manual_seed_all(42));
    for (int32_t device = 0; device < count; device++)
        expect_state(device, 42, 0);
    CHECK_OK(tcuda_random_manual_seed(count - 1, UINT64_MAX));
    expect_state(count - 1, UINT64_MAX, 0);
    expect_state(0, count > 1 ? 42 : UINT64_MAX, 0);
    CHECK_OK(tcuda_random_seed_all());
    CHECK(initial_seed(0) != UINT64_MAX && initial_seed(0) == initial_seed(count - 1));
    const uint64_t before = initial_seed(0);
    CHECK_OK(tcuda_random_seed(TCUDA_CURRENT_DEVICE));
    CHECK(initial_seed(TCUDA_CURRENT_DEVICE) != before);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_random_manual_seed(count, 1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_random_seed(count));
    uint64_t seed = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_random_initial_seed(count, &seed));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_random_initial_seed(0, NULL));
    CHECK_EQ(seed, 77);
}

static void the_default_is_a_borrowed_handle(void)
{
    tcuda_generator *generator = NULL, *again = NULL;
    CHECK_OK(tcuda_generator_default(TCUDA_CURRENT_DEVICE, &generator));
    CHECK_OK(tcuda_generator_default(current_device(), &again));
    CHECK(generator == again);
    CHECK_OK(tcuda_generator_destroy(generator));
    CHECK_OK(tcuda_generator_seed_set(generator, 11));
    CHECK_EQ(initial_seed(TCUDA_CURRENT_DEVICE), 11);
    CHECK_OK(tcuda_random_manual_seed(TCUDA_CURRENT_DEVICE, 12));
    CHECK_EQ(seed_of(generator), 12);
    /* NULL is the same one. */
    CHECK_EQ(seed_of(NULL), 12);
    CHECK_OK(tcuda_generator_offset_set(NULL, 400));
    expect_state(TCUDA_CURRENT_DEVICE, 12, 400);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_generator_default(num_devices(), &again));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_generator_default(0, NULL));
}

static void states_go_round(void)
{
    uint8_t states[64 * TCUDA_RANDOM_STATE_BYTES], again[sizeof states];
    const size_t count = (size_t)num_devices();
    size_t needed = 99;
    CHECK_OK(tcuda_random_state_get_all(NULL, 0, &needed));
    CHECK_EQ(needed, count);
    for (size_t i = 0; i < count; i++)
        write_state(states + i * TCUDA_RANDOM_STATE_BYTES, 100 + i, 4 * i);
    CHECK_OK(tcuda_random_state_set_all(states, count));
    memset(again, 0xEE, sizeof again);
    CHECK_OK(tcuda_random_state_get_all(again, 64, &needed));
    CHECK_EQ(needed, count);
    CHECK(memcmp(states, again, count * TCUDA_RANDOM_STATE_BYTES) == 0);
    CHECK(again[count * TCUDA_RANDOM_STATE_BYTES] == 0xEE);
    memset(again, 0xEE, sizeof again);
    CHECK_OK(tcuda_random_state_get_all(again, 1, &needed));
    CHECK_EQ(needed, count);
    CHECK(memcmp(states, again, TCUDA_RANDOM_STATE_BYTES) == 0);
    CHECK(again[TCUDA_RANDOM_STATE_BYTES] == 0xEE);
    /* All or none. */
    write_state(again, 7, 0);
    write_state(again + TCUDA_RANDOM_STATE_BYTES, 8, 2);
    const tcuda_status two =
        count > 1 ? TCUDA_STATUS_INVALID_ARGUMENT : TCUDA_STATUS_INVALID_DEVICE;
    CHECK_STATUS(two, tcuda_random_state_set_all(again, 2));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_random_state_set_all(states, count + 1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_random_state_set_all(states, SIZE_MAX));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_random_state_set_all(NULL, 1));
    CHECK_OK(tcuda_random_state_set_all(NULL, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_random_state_get_all(NULL, 1, &needed));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_random_state_get_all(again, 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_random_state_set(0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_random_state_get(0, NULL));
    expect_state(0, 100, 0);
}

/* ---- Generators of the host's own ---- */

static void a_generator_counts_by_itself(int32_t device)
{
    tcuda_generator *generator = NULL, *other = NULL;
    uint8_t state[TCUDA_RANDOM_STATE_BYTES], expected[TCUDA_RANDOM_STATE_BYTES];
    CHECK_OK(tcuda_generator_create(device, &generator));
    CHECK_OK(tcuda_generator_create(device, &other));
    CHECK(seed_of(generator) == default_seed && offset_of(generator) == 0);
    static const struct { uint64_t increment, offset; } taken[] = {
        { 4, 0 }, { 1, 4 }, { 10, 8 }, { 0, 20 }, { 8, 20 }, { 1000003, 28 }, { 4, 1000032 },
    };
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        tcuda_philox_state philox;
        memset(&philox, 0xAB, sizeof philox);
        CHECK_OK(tcuda_generator_philox_state(generator, taken[i].increment, &philox));
        CHECK(philox.seed == default_seed && philox.offset == taken[i].offset);
        CHECK(philox.seed_ptr == NULL && philox.offset_ptr == NULL);
    }
    CHECK_EQ(offset_of(generator), 1000036);
    CHECK_EQ(offset_of(other), 0);
    write_state(expected, default_seed, 1000036);
    CHECK_OK(tcuda_generator_state_get(generator, state));
    CHECK(memcmp(state, expected, sizeof state) == 0);
    CHECK_OK(tcuda_generator_state_set(other, state));
    CHECK_EQ(offset_of(other), 1000036);
    /* A seed begins anew; an offset alone keeps the seed. */
    CHECK_OK(tcuda_generator_seed_set(other, 0));
    CHECK(seed_of(other) == 0 && offset_of(other) == 0);
    CHECK_OK(tcuda_generator_offset_set(other, UINT64_C(1) << 40));
    CHECK(seed_of(other) == 0 && offset_of(other) == UINT64_C(1) << 40);
    /* What is wrong changes nothing. */
    const tcuda_status invalid = TCUDA_STATUS_INVALID_ARGUMENT;
    CHECK_STATUS(invalid, tcuda_generator_offset_set(other, 6));
    CHECK(strstr(tcuda_last_error(), "multiple of 4") != NULL);
    write_state(state, 9, 1);
    CHECK_STATUS(invalid, tcuda_generator_state_set(other, state));
    CHECK_STATUS(invalid, tcuda_random_state_set(device, state));
    tcuda_philox_state philox;
    CHECK_STATUS(invalid, tcuda_generator_philox_state(other, UINT64_MAX - 2, &philox));
    CHECK_STATUS(invalid, tcuda_generator_philox_state(other, 4, NULL));
    CHECK_STATUS(invalid, tcuda_generator_state_get(other, NULL));
    CHECK_STATUS(invalid, tcuda_generator_state_set(other, NULL));
    CHECK_STATUS(invalid, tcuda_generator_seed_get(other, NULL));
    CHECK_STATUS(invalid, tcuda_generator_offset_get(other, NULL));
    CHECK(seed_of(other) == 0 && offset_of(other) == UINT64_C(1) << 40);
    CHECK_OK(tcuda_generator_destroy(generator));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_generator_destroy(generator));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_generator_seed_set(generator, 1));
    CHECK_OK(tcuda_generator_destroy(NULL));
    CHECK_OK(tcuda_generator_destroy(other));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_generator_create(num_devices(), &other));
    CHECK_STATUS(invalid, tcuda_generator_create(device, NULL));
}

/* ---- Threads ---- */

enum { THREADS = 4, ROUNDS = 500 };

static uint64_t seen[THREADS * ROUNDS];

static void *take_numbers(void *argument)
{
    uint64_t *own = argument;
    for (int i = 0; i < ROUNDS; i++) {
        tcuda_philox_state philox;
        CHECK_OK(tcuda_generator_philox_state(NULL, 3, &philox));
        own[i] = philox.offset;
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void threads_get_numbers_of_their_own(void)
{
    pthread_t threads[THREADS];
    CHECK_OK(tcuda_device_set(0));
    CHECK_OK(tcuda_random_manual_seed(0, 1));
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(take_numbers, seen + i * ROUNDS);
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    qsort(seen, THREADS * ROUNDS, sizeof seen[0], compare);
    for (int i = 0; i < THREADS * ROUNDS; i++)
        CHECK_EQ(seen[i], 4 * i);
}

/* ---- Captures by the driver, which no graph of the library knows ---- */

static struct {
    int (*begin)(struct CUstream_st *stream, int mode);
    int (*end)(struct CUstream_st *stream, struct CUgraph_st **graph);
    int (*destroy)(struct CUgraph_st *graph);
} driver;

/* As dlsym, it gives an object pointer, and C has no cast from one to a function. */
static void find(const char *name, void *function)
{
    void *address = NULL;
    CHECK_OK(tcuda_backend_function(name, &address));
    memcpy(function, &address, sizeof address);
}

static void refuses(const char *function, tcuda_status status)
{
    CHECK_EQ(status, TCUDA_STATUS_CAPTURING);
    if (strstr(tcuda_last_error(), function) == NULL)
        check_failed(__FILE__, __LINE__, function, tcuda_last_error());
}

static void a_capture_leaves_the_position_alone(void)
{
    find("cuStreamBeginCapture", &driver.begin);
    find("cuStreamEndCapture", &driver.end);
    find("cuGraphDestroy", &driver.destroy);
    uint8_t state[TCUDA_RANDOM_STATE_BYTES];
    write_state(state, 1, 0);
    tcuda_generator *generator = NULL;
    tcuda_philox_state philox;
    uint64_t value = 0;
    CHECK_OK(tcuda_device_set(0));
    CHECK_OK(tcuda_random_manual_seed(0, 5));
    CHECK_OK(tcuda_generator_offset_set(NULL, 12));
    CHECK_OK(tcuda_generator_create(0, &generator));
    for (int mode = 0; mode < 3; mode++) {
        tcuda_stream *stream = create_stream(0), *before = NULL;
        struct CUstream_st *const native = native_of(stream);
        struct CUgraph_st *graph = NULL;
        int32_t device;
        CHECK_EQ(driver.begin(native, mode), 0);
        /* Of another stream than the current one. */
        CHECK_OK(tcuda_generator_philox_state(generator, 4, &philox));
        CHECK_OK(tcuda_stream_exchange(stream, &before, &device));
        refuses("tcuda_generator_philox_state", tcuda_generator_philox_state(NULL, 4, &philox));
        refuses("tcuda_generator_philox_state",
            tcuda_generator_philox_state(generator, 4, &philox));
        CHECK(strstr(tcuda_last_error(), "register") != NULL);
        refuses("tcuda_generator_offset_get", tcuda_generator_offset_get(NULL, &value));
        refuses("tcuda_generator_offset_set", tcuda_generator_offset_set(NULL, 4));
        refuses("tcuda_generator_seed_set", tcuda_generator_seed_set(NULL, 6));
        refuses("tcuda_generator_state_get", tcuda_generator_state_get(NULL, state));
        refuses("tcuda_generator_state_set", tcuda_generator_state_set(NULL, state));
        refuses("tcuda_random_state_get", tcuda_random_state_get(0, state));
        refuses("tcuda_random_state_set", tcuda_random_state_set(0, state));
        refuses("tcuda_random_state_set_all", tcuda_random_state_set_all(state, 1));
        refuses("tcuda_random_state_get_all", tcuda_random_state_get_all(NULL, 0, &(size_t){ 0 }));
        refuses("tcuda_random_seed", tcuda_random_seed(0));
        refuses("tcuda_random_seed_all", tcuda_random_seed_all());
        refuses("tcuda_random_manual_seed", tcuda_random_manual_seed(0, 6));
        refuses("tcuda_random_manual_seed_all", tcuda_random_manual_seed_all(6));
        /* The seed can be read, and set to what it is. */
        CHECK_EQ(seed_of(NULL), 5);
        CHECK_OK(tcuda_generator_seed_set(NULL, 5));
        CHECK_OK(tcuda_random_manual_seed(0, 5));
        CHECK_OK(tcuda_stream_set_current(before));
        CHECK_EQ(driver.end(native, &graph), 0);
        CHECK_EQ(driver.destroy(graph), 0);
        CHECK_OK(tcuda_stream_destroy(stream));
        CHECK(seed_of(NULL) == 5 && offset_of(NULL) == 12);
        CHECK_EQ(offset_of(generator), 4 * (mode + 1));
    }
    CHECK_OK(tcuda_generator_destroy(generator));
}

/* ---- The end ---- */

static void handles_end_with_the_library(void)
{
    tcuda_generator *own = NULL, *borrowed = NULL;
    size_t live = 99;
    CHECK_OK(tcuda_generator_create(0, &own));
    CHECK_OK(tcuda_generator_default(0, &borrowed));
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_generator_seed_set(own, 1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_generator_seed_set(borrowed, 1));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    what_is_set_before_waits();
    a_seed_of_no_device_is_an_error();
    devices_have_generators_of_their_own();
    the_default_is_a_borrowed_handle();
    states_go_round();
    for (int32_t device = 0; device < num_devices(); device++)
        a_generator_counts_by_itself(device);
    threads_get_numbers_of_their_own();
    a_capture_leaves_the_position_alone();
    handles_end_with_the_library();
    return finish();
}
