/* Idle memory of one stream serves another, in place: a missing wait between them shows as wrong
 * bytes, where work runs late. */
#include "support.h"

enum { MIB = 1 << 20, STREAMS = 4, STEPS = 60, BLOCKS = 6 };

static tcuda_stream *streams[STREAMS];

static tcuda_memory_statistics statistics(void)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    CHECK_OK(tcuda_memory_stats(0, &stats));
    return stats;
}

static void fill(char *block, int value, size_t bytes, tcuda_stream *stream)
{
    const unsigned char byte = (unsigned char)value;
    CHECK_OK(tcuda_fill(block, &byte, 1, bytes, stream));
}

/* The first and the last byte of a block, as `stream` finds them. */
static void has(char *block, int value, size_t bytes, tcuda_stream *stream)
{
    unsigned char ends[2] = { 0, 0 };
    CHECK_OK(tcuda_copy(&ends[0], block, 1, stream));
    CHECK_OK(tcuda_copy(&ends[1], block + bytes - 1, 1, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(ends[0], value & 0xff);
    CHECK_EQ(ends[1], value & 0xff);
}

/* What is used for the first time while a gate is closed may wait for the device. */
static void use_everything_once(void)
{
    gate held;
    for (int i = 0; i < STREAMS; i++) {
        char *const block = allocate(MIB, 0, streams[i]);
        gate_close(&held, streams[i]);
        gate_open(&held);
        fill(block, 1, MIB, streams[i]);
        has(block, 1, MIB, streams[i]);
        CHECK_OK(tcuda_free(block));
    }
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* A block is written by its stream, held back, and freed; the next stream has the same memory, and
 * its write comes after the first. */
static void hand_over(char *block, size_t bytes, int from, int to)
{
    gate held;
    gate_close(&held, streams[from]);
    fill(block, 10 + from, bytes, streams[from]);
    CHECK_OK(tcuda_free(block));
    char *const same = allocate(bytes, 0, streams[to]);
    CHECK(same == block);
    fill(same, 20 + to, bytes, streams[to]);
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(streams[from]));
    has(same, 20 + to, bytes, streams[to]);
}

static void a_write_comes_after_those_before_it(void)
{
    const size_t bytes = 24 * MIB;
    const uint64_t reserved = statistics().reserved_bytes.all.current;
    char *const block = allocate(bytes, 0, streams[0]);
    /* To a guest, from guest to guest, and home again. */
    hand_over(block, bytes, 0, 1);
    hand_over(block, bytes, 1, 2);
    hand_over(block, bytes, 2, 0);
    hand_over(block, bytes, 0, 3);
    CHECK_EQ(statistics().reserved_bytes.all.current - reserved, bytes);
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(statistics().active.all.current, statistics().allocation.all.current);
    CHECK_OK(tcuda_memory_empty_cache());
}

/* What is wanted is free in the orders of three streams, each of which is held back. */
static void a_block_of_many_pieces_comes_after_them_all(void)
{
    gate held[3];
    const size_t part = 10 * MIB;
    char *const block = allocate(3 * part, 0, streams[0]);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_synchronize(streams[0]));
    char *parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = allocate(part, 0, streams[i]);
        CHECK(parts[i] == block + part * (size_t)i);
    }
    for (int i = 0; i < 3; i++) {
        gate_close(&held[i], streams[i]);
        fill(parts[i], i + 1, part, streams[i]);
        CHECK_OK(tcuda_free(parts[i]));
    }
    char *const whole = allocate(3 * part, 0, streams[3]);
    CHECK(whole == block);
    fill(whole, 9, 3 * part, streams[3]);
    for (int i = 0; i < 3; i++)
        gate_open(&held[i]);
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_stream_synchronize(streams[i]));
    for (int i = 0; i < 3; i++)
        has(parts[i], 9, part, streams[3]);
    CHECK_OK(tcuda_free(whole));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* A stream that came after another does not come after what that one was given since. */
static void what_came_later_is_waited_for_anew(void)
{
    gate held;
    const size_t part = 10 * MIB;
    char *const block = allocate(4 * part, 0, streams[0]);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_synchronize(streams[0]));
    char *const first = allocate(part, 0, streams[1]);
    CHECK_OK(tcuda_free(first));
    char *const same = allocate(part, 0, streams[3]);
    CHECK(same == first);
    char *const second = allocate(2 * part, 0, streams[2]);
    char *const rest = allocate(part, 0, streams[0]);
    gate_close(&held, streams[2]);
    fill(second, 5, 2 * part, streams[2]);
    CHECK_OK(tcuda_free(second));
    char *const front = allocate(part, 0, streams[1]);
    CHECK(front == second);
    char *const back = allocate(part, 0, streams[3]);
    CHECK(back == second + part);
    fill(back, 6, part, streams[3]);
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(streams[2]));
    has(back, 6, part, streams[3]);
    CHECK_OK(tcuda_free(same));
    CHECK_OK(tcuda_free(rest));
    CHECK_OK(tcuda_free(front));
    CHECK_OK(tcuda_free(back));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* Steps on one stream after the other, some blocks of which outlive their step: what a block holds
 * at its end is what was written to it. */
static void steps_in_rotation_keep_what_they_write(void)
{
    struct {
        char *ptr;
        size_t bytes;
        int value, stream;
    } kept = { NULL, 0, 0, 0 };
    char *const witness = allocate(MIB, 0, streams[0]);
    static unsigned char found[STEPS * BLOCKS * 2], wanted[STEPS * BLOCKS * 2];
    size_t reads = 0;
    unsigned random = 12345;
    for (int step = 0; step < STEPS; step++) {
        tcuda_stream *const stream = streams[step % STREAMS];
        char *blocks[BLOCKS];
        size_t sizes[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            random = random * 1664525 + 1013904223;
            sizes[i] = (size_t)(1 + (random >> 20) % 6) * 2 * MIB - (i % 2 ? 0 : 512 * 1024);
            blocks[i] = allocate(sizes[i], 0, stream);
            fill(blocks[i], step + i, sizes[i], stream);
        }
        for (int i = 0; i < BLOCKS; i++) {
            if (step % 5 == 0 && i == 3 && kept.ptr == NULL) {
                kept.ptr = blocks[i], kept.bytes = sizes[i];
                kept.value = step + i, kept.stream = step % STREAMS;
                continue;
            }
            wanted[reads] = wanted[reads + 1] = (unsigned char)(step + i);
            CHECK_OK(tcuda_copy(witness + reads++, blocks[i], 1, stream));
            CHECK_OK(tcuda_copy(witness + reads++, blocks[i] + sizes[i] - 1, 1, stream));
            CHECK_OK(tcuda_free(blocks[i]));
        }
        if (kept.ptr != NULL && step % 7 == 6) {
            has(kept.ptr, kept.value, kept.bytes, streams[kept.stream]);
            CHECK_OK(tcuda_free(kept.ptr));
            kept.ptr = NULL;
        }
    }
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_copy(found, witness, reads, streams[0]));
    CHECK_OK(tcuda_stream_synchronize(streams[0]));
    for (size_t i = 0; i < reads; i++)
        CHECK_EQ(found[i], wanted[i]);
    CHECK_OK(tcuda_free(kept.ptr));
    CHECK_OK(tcuda_free(witness));
    const tcuda_memory_statistics after = statistics();
    /* Four streams of their own would need four times as much. */
    CHECK(after.reserved_bytes.all.peak <= after.allocated_bytes.all.peak * 2);
    CHECK_EQ(after.num_alloc_retries, 0);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_allocator_config_set("sharing_threshold:0"));
    for (int i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_create(0, 0, &streams[i]));
    use_everything_once();
    a_write_comes_after_those_before_it();
    a_block_of_many_pieces_comes_after_them_all();
    what_came_later_is_waited_for_anew();
    steps_in_rotation_keep_what_they_write();
    for (int i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_destroy(streams[i]));
    return finish();
}
