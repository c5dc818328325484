/* Copies and fills: every direction, size, offset and value; nothing beside the range changes. */
#define _POSIX_C_SOURCE 200809L

#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

enum { BYTES = 1 << 18, CANARY = 0xC5 };

/* Numbers that repeat after no power of two, so that shifted or swapped bytes are seen. */
static unsigned char pattern(size_t at, unsigned seed)
{
    return (unsigned char)((at * 7 + at / 251 + seed) % 251);
}

static unsigned char *host_block(int value)
{
    unsigned char *block = malloc(BYTES);
    CHECK(block != NULL);
    memset(block, value, BYTES);
    return block;
}

static void put(void *to, const void *from, size_t bytes)
{
    CHECK_OK(tcuda_copy(to, from, bytes, NULL));
}

/* Copies without a stream run on that of their memory's device: of whichever. */
static void synchronize_all(void)
{
    for (int32_t device = 0; device < num_devices(); device++)
        CHECK_OK(tcuda_device_synchronize(device));
}

/* ---- Copies ---- */

/* Where a test's bytes are: memory of the host, or of a device. */
typedef struct place {
    unsigned char *start;
    int32_t device; /* TCUDA_CPU_DEVICE: host memory */
} place;

static place make_place(int32_t device)
{
    if (device == TCUDA_CPU_DEVICE)
        return (place){ host_block(0), device };
    return (place){ allocate(BYTES, device, NULL), device };
}

static void drop_place(place place)
{
    if (place.device == TCUDA_CPU_DEVICE)
        free(place.start);
    else
        CHECK_OK(tcuda_free(place.start));
}

static void copies_exactly(place to, size_t to_offset, place from, size_t from_offset, size_t bytes,
    unsigned seed, tcuda_stream *stream)
{
    static unsigned char source[BYTES], result[BYTES];
    const size_t whole = bytes + to_offset + 64;
    memset(source, CANARY, whole);
    CHECK_OK(tcuda_copy(to.start, source, whole, stream));
    for (size_t i = 0; i < bytes + from_offset; i++)
        source[i] = pattern(i, seed);
    CHECK_OK(tcuda_copy(from.start, source, bytes + from_offset, stream));
    synchronize_all();
    CHECK_OK(tcuda_copy(to.start + to_offset, from.start + from_offset, bytes, stream));
    synchronize_all();
    CHECK_OK(tcuda_copy(result, to.start, whole, stream));
    synchronize_all();
    for (size_t i = 0; i < whole; i++) {
        const bool inside = i >= to_offset && i - to_offset < bytes;
        CHECK_EQ(result[i], inside ? pattern(i - to_offset + from_offset, seed) : CANARY);
    }
}

static void copies_from_to(int32_t from_device, int32_t to_device)
{
    static const size_t sizes[] = { 0, 1, 2, 3, 7, 13, 64, 255, 513, 4099, 65537, 200001 };
    static const size_t offsets[] = { 0, 1, 3, 8, 517 };
    const place from = make_place(from_device), to = make_place(to_device);
    tcuda_stream *stream = create_stream(to_device >= 0 ? to_device
        : from_device >= 0 ? from_device : 0);
    unsigned seed = 0;
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++)
        for (size_t i = 0; i < 5; i++)
            copies_exactly(to, offsets[i], from, offsets[(i + size) % 5], sizes[size], seed++,
                i % 2 == 0 ? stream : NULL);
    drop_place(from);
    drop_place(to);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void pageable_sources_are_read_at_once(void)
{
    void *block = allocate(BYTES, 0, NULL);
    unsigned char *host = host_block(1);
    put(block, host, BYTES);
    memset(host, 2, BYTES);
    CHECK_EQ(count_other_bytes(block, 1, BYTES, NULL), 0);
    free(host);
    CHECK_OK(tcuda_free(block));
}

static void a_copy_onto_itself_changes_nothing(void)
{
    unsigned char *block = allocate(4096, TCUDA_CURRENT_DEVICE, NULL);
    fill_bytes(block, 7, 4096, NULL);
    CHECK_OK(tcuda_copy(block, block, 4096, NULL));
    CHECK_EQ(count_other_bytes(block, 7, 4096, NULL), 0);
    CHECK_OK(tcuda_free(block));
}

static void bad_copies_are_refused(void)
{
    char host[16] = "text";
    void *block = allocate(16, 0, NULL);
    CHECK_OK(tcuda_copy(NULL, NULL, 0, NULL));
    CHECK_OK(tcuda_copy(block, NULL, 0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_copy(NULL, host, 1, NULL));
    CHECK(strstr(tcuda_last_error(), "dst") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_copy(block, NULL, 1, NULL));
    CHECK(strstr(tcuda_last_error(), "src") != NULL);
    tcuda_stream *stale = create_stream(0);
    CHECK_OK(tcuda_stream_destroy(stale));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_copy(block, host, 1, stale));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_copy(NULL, NULL, 0, stale));
    CHECK_OK(tcuda_free(block));
}

/* ---- Rows ---- */

static void copies_rows(place to, size_t to_pitch, place from, size_t from_pitch, size_t width,
    size_t rows)
{
    static unsigned char source[BYTES], result[BYTES];
    const size_t whole = rows * to_pitch + 64;
    memset(result, CANARY, whole);
    put(to.start, result, whole);
    for (size_t i = 0; i < rows * from_pitch; i++)
        source[i] = pattern(i, (unsigned)(width + rows));
    put(from.start, source, rows * from_pitch);
    synchronize_all();
    CHECK_OK(tcuda_copy_2d(to.start + 5, to_pitch, from.start + 3, from_pitch, width, rows, NULL));
    synchronize_all();
    CHECK_OK(tcuda_copy(result, to.start, whole, NULL));
    synchronize_all();
    for (size_t i = 0; i < whole; i++) {
        const size_t row = (i - 5) / to_pitch, column = (i - 5) % to_pitch;
        const bool inside = i >= 5 && row < rows && column < width;
        CHECK_EQ(result[i], inside
            ? pattern(3 + row * from_pitch + column, (unsigned)(width + rows)) : CANARY);
    }
}

static void copies_rows_from_to(int32_t from_device, int32_t to_device)
{
    const place from = make_place(from_device), to = make_place(to_device);
    copies_rows(to, 128, from, 64, 33, 17);
    copies_rows(to, 61, from, 127, 54, 100);
    copies_rows(to, 100, from, 100, 90, 3);
    copies_rows(to, 4096, from, 515, 511, 9);
    copies_rows(to, 16, from, 8, 1, 1);
    drop_place(from);
    drop_place(to);
}

static void pitches_are_checked(void)
{
    char host[64] = "";
    unsigned char *block = allocate(64, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_copy_2d(block, 15, host, 16, 16, 2, NULL));
    CHECK(strstr(tcuda_last_error(), "dst_pitch_bytes is 15") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_copy_2d(block, 16, host, 13, 16, 2, NULL));
    CHECK(strstr(tcuda_last_error(), "src_pitch_bytes is 13") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_copy_2d(block, 0, host, 16, 16, 2, NULL));
    /* One row has no distance to the next. */
    memset(host, 7, sizeof host);
    CHECK_OK(tcuda_copy_2d(block, 0, host, 1, 16, 1, NULL));
    CHECK_EQ(count_other_bytes(block, 7, 16, NULL), 0);
    /* Rows without a gap are allowed. */
    memset(host, 8, sizeof host);
    CHECK_OK(tcuda_copy_2d(block, 16, host, 16, 16, 4, NULL));
    CHECK_EQ(count_other_bytes(block, 8, 64, NULL), 0);
    CHECK_OK(tcuda_copy_2d(NULL, 16, NULL, 16, 0, 4, NULL));
    CHECK_OK(tcuda_copy_2d(NULL, 16, NULL, 16, 16, 0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_copy_2d(NULL, 16, host, 16, 16, 2, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_copy_2d(block, 16, NULL, 16, 16, 2, NULL));
    CHECK_OK(tcuda_free(block));
}

/* ---- Fills ---- */

static void fills_exactly(unsigned char *block, size_t offset, size_t value_bytes, size_t count,
    tcuda_stream *stream)
{
    static unsigned char result[BYTES];
    unsigned char value[16];
    const size_t whole = offset + value_bytes * count + 64;
    for (size_t i = 0; i < sizeof value; i++)
        value[i] = (unsigned char)(0x11 * (i + 1) + offset);
    fill_bytes(block, CANARY, whole, stream);
    CHECK_OK(tcuda_fill(block + offset, value, value_bytes, count, stream));
    memset(value, 0, sizeof value); /* it was read before the call returned */
    CHECK_OK(tcuda_copy(result, block, whole, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (size_t i = 0; i < whole; i++) {
        const bool inside = i >= offset && i - offset < value_bytes * count;
        const size_t at = (i - offset) % value_bytes;
        CHECK_EQ(result[i], inside ? (unsigned char)(0x11 * (at + 1) + offset) : CANARY);
    }
}

static void fills_have_every_size_and_alignment(int32_t device)
{
    static const size_t counts[] = { 0, 1, 2, 3, 5, 16, 17, 100, 1021 };
    tcuda_stream *stream = create_stream(device);
    unsigned char *block = allocate(BYTES, device, stream);
    for (size_t value_bytes = 1; value_bytes <= 16; value_bytes++) {
        for (size_t offset = 0; offset <= 17; offset++)
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
                fills_exactly(block, offset, value_bytes, counts[i], stream);
        fills_exactly(block, 7, value_bytes, (BYTES - 100) / value_bytes, stream);
    }
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Values that repeat themselves may be written in other ways. */
static void fills_with_repeating_values(void)
{
    static const char *const values[] = { "aaaa", "abab", "abcabc", "aaaaaaab", "abababababababab",
        "aabaabaabaab", "abcdeabcdeabcde" };
    unsigned char *block = allocate(4096, 0, NULL), result[4096];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const size_t length = strlen(values[i]), total = length * (4000 / length);
        for (size_t offset = 0; offset < 5; offset++) {
            CHECK_OK(tcuda_fill(block + offset, values[i], length, 4000 / length, NULL));
            CHECK_OK(tcuda_copy(result, block + offset, total, NULL));
            CHECK_OK(tcuda_stream_synchronize(NULL));
            for (size_t at = 0; at < total; at++)
                CHECK_EQ(result[at], values[i][at % length]);
        }
    }
    CHECK_OK(tcuda_free(block));
}

static void bad_fills_are_refused(void)
{
    char value[32] = "value";
    void *block = allocate(64, 0, NULL);
    fill_bytes(block, CANARY, 64, NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_fill(block, value, 0, 4, NULL));
    CHECK(strstr(tcuda_last_error(), "value_bytes is 0") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_fill(block, value, 17, 1, NULL));
    CHECK(strstr(tcuda_last_error(), "value_bytes is 17") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_fill(block, value, SIZE_MAX, 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_fill(block, value, 17, 0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_fill(block, NULL, 4, 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_fill(NULL, value, 4, 1, NULL));
    CHECK(strstr(tcuda_last_error(), "ptr") != NULL);
    /* The number of bytes overflows, or their end does. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_fill(block, value, 16, SIZE_MAX / 8, NULL));
    CHECK(strstr(tcuda_last_error(), "count") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_fill(block, value, 1, SIZE_MAX, NULL));
    CHECK_OK(tcuda_fill(NULL, value, 4, 0, NULL));
    CHECK_OK(tcuda_fill(block, value, 4, 0, NULL));
    CHECK_EQ(count_other_bytes(block, CANARY, 64, NULL), 0);
    if (on_simulator())
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_fill(value, value, 1, 4, NULL));
    CHECK_OK(tcuda_free(block));
}

/* ---- Streams ---- */

/* Without a stream: the current one of dst's device, else of src's; not of the current device. */
static void the_stream_is_that_of_the_memory(void)
{
    tcuda_stream *stream = create_stream(1), *before = NULL;
    int32_t device = 77;
    gate held;
    unsigned char *block = allocate(BYTES, 1, stream), *other = allocate(BYTES, 1, stream);
    fill_bytes(block, 1, BYTES, stream);
    fill_bytes(other, 2, BYTES, stream);
    CHECK_OK(tcuda_copy(other, block, BYTES, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_exchange(stream, &before, &device));
    CHECK_OK(tcuda_device_set(0));
    gate_close(&held, stream);
    fill_bytes(block, 3, BYTES, NULL);
    CHECK_OK(tcuda_copy(other, block, BYTES, NULL));
    bool done = true;
    CHECK_OK(tcuda_stream_query(stream, &done));
    CHECK_EQ(done, !runs_late());
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(count_other_bytes(other, 3, BYTES, stream), 0);
    CHECK_OK(tcuda_stream_set_current(before));
    CHECK_OK(tcuda_device_set(device));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* ---- A lost device ---- */

static atomic_int ran, freed;

static void count_run(void *unused)
{
    (void)unused;
    ran++;
}

static void count_freed(void *unused)
{
    (void)unused;
    freed++;
}

/* Far behind everything that is mapped, and inside what the library reserves. */
static int lose_the_device(void)
{
    unsigned char *block = NULL;
    tcuda_stream *stream = NULL;
    bool done = true;
    gate held;
    CHECK_OK(tcuda_stream_create(0, 0, &stream));
    block = allocate(4096, 0, stream);
    gate_close(&held, stream);
    const tcuda_status status = tcuda_copy(block, block + (UINT64_C(1) << 30), 4096, stream);
    CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_DEVICE_LOST);
    const tcuda_status added = tcuda_stream_add_callback(stream, count_run, NULL, count_freed);
    CHECK(added == TCUDA_STATUS_OK || added == TCUDA_STATUS_DEVICE_LOST);
    CHECK_EQ(added == TCUDA_STATUS_OK, runs_late());
    gate_open(&held);
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_stream_synchronize(stream));
    CHECK_EQ(tcuda_last_error_native(), 700);
    CHECK(strstr(tcuda_last_error(), "CUDA_ERROR_ILLEGAL_ADDRESS") != NULL);
    /* For ever. */
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_stream_synchronize(stream));
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_stream_query(stream, &done));
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_fill(block, "", 1, 4096, stream));
    CHECK_STATUS(TCUDA_STATUS_DEVICE_LOST, tcuda_device_synchronize(0));
    /* What the library alone does still works. */
    CHECK_EQ(id_of(stream), 3);
    CHECK_OK(tcuda_stream_destroy(stream));
    const int result = finish();
    CHECK_EQ(ran, 0);
    CHECK_EQ(freed, added == TCUDA_STATUS_OK);
    return result;
}

/* In a process of its own, because nothing brings the device back. */
static void a_wild_address_loses_the_device_not_the_host(void)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(lose_the_device());
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(child_status(status), EXIT_SUCCESS);
}

int main(void)
{
    /* First: a fork of a process that uses CUDA cannot use it. */
    if (on_simulator())
        a_wild_address_loses_the_device_not_the_host();
    SKIP_WITHOUT_GPU();
    for (int32_t from = TCUDA_CPU_DEVICE; from < num_devices(); from++) {
        for (int32_t to = TCUDA_CPU_DEVICE; to < num_devices(); to++) {
            if (from == TCUDA_CURRENT_DEVICE || to == TCUDA_CURRENT_DEVICE)
                continue;
            copies_from_to(from, to);
            copies_rows_from_to(from, to);
        }
    }
    pageable_sources_are_read_at_once();
    a_copy_onto_itself_changes_nothing();
    bad_copies_are_refused();
    pitches_are_checked();
    for (int32_t device = 0; device < num_devices(); device++)
        fills_have_every_size_and_alignment(device);
    fills_with_repeating_values();
    bad_fills_are_refused();
    if (num_devices() >= 2)
        the_stream_is_that_of_the_memory();
    return finish();
}
