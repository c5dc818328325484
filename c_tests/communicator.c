/* Communicators: what each verb gives, on which types, in groups of one thread, by a thread for
 * each rank, and in graphs. */
#include "communicator.h"

enum { COUNT = 1000 };

static tcuda_communicator *ranks[MOST];
static int n;

static void what_each_rank_has(float *values, int rank)
{
    for (int i = 0; i < COUNT * MOST; i++)
        values[i] = (float)(i % 97 + 10 * rank);
}

static struct {
    void *in[MOST], *out[MOST];
} memory;

static void begin(void)
{
    static float values[COUNT * MOST];
    for (int rank = 0; rank < n; rank++) {
        what_each_rank_has(values, rank);
        memory.in[rank] = put(values, sizeof values, rank, default_of(rank));
        memory.out[rank] = allocate(sizeof values, rank, default_of(rank));
        fill_bytes(memory.out[rank], 0xee, sizeof values, default_of(rank));
    }
}

static void end(void)
{
    for (int rank = 0; rank < n; rank++) {
        CHECK_OK(tcuda_free(memory.in[rank]));
        CHECK_OK(tcuda_free(memory.out[rank]));
    }
}

static float value_of(int rank, int i)
{
    return (float)(i % 97 + 10 * rank);
}

/* The first `count` floats of a rank's output. */
static const float *output_of(int rank, size_t count)
{
    static float values[COUNT * MOST];
    CHECK_OK(tcuda_copy(values, memory.out[rank], count * sizeof(float), default_of(rank)));
    CHECK_OK(tcuda_stream_synchronize(default_of(rank)));
    return values;
}

static tcuda_tensor floats(void *data, int rank, int64_t *shape)
{
    return tensor_of(data, rank, TCUDA_DTYPE_FLOAT, 32, shape);
}

static void reductions_are_of_all_ranks(void)
{
    begin();
    for (int op = TCUDA_REDUCE_SUM; op <= TCUDA_REDUCE_MIN; op++) {
        int64_t shape[] = { COUNT };
        CHECK_OK(tcuda_communicator_group_begin());
        for (int rank = 0; rank < n; rank++) {
            const tcuda_tensor in = floats(memory.in[rank], rank, shape);
            const tcuda_tensor out = floats(memory.out[rank], rank, shape);
            CHECK_OK(tcuda_communicator_all_reduce(ranks[rank], &in, &out, op, NULL));
        }
        CHECK_OK(tcuda_communicator_group_end());
        for (int rank = 0; rank < n; rank++) {
            const float *found = output_of(rank, COUNT);
            for (int i = 0; i < COUNT; i++) {
                float expected = value_of(0, i);
                for (int other = 1; other < n; other++) {
                    const float one = value_of(other, i);
                    if (op == TCUDA_REDUCE_SUM) expected += one;
                    if (op == TCUDA_REDUCE_PROD) expected *= one;
                    if (op == TCUDA_REDUCE_MAX && one > expected) expected = one;
                    if (op == TCUDA_REDUCE_MIN && one < expected) expected = one;
                }
                CHECK_EQ(found[i], expected);
            }
        }
    }
    end();
}

static void one_rank_gives_or_gets(void)
{
    begin();
    for (int root = 0; root < n; root++) {
        int64_t shape[] = { COUNT };
        CHECK_OK(tcuda_communicator_group_begin());
        for (int rank = 0; rank < n; rank++) {
            const tcuda_tensor in = floats(memory.in[rank], rank, shape);
            const tcuda_tensor out = floats(memory.out[rank], rank, shape);
            const tcuda_tensor *read = rank == root ? &in : NULL;
            CHECK_OK(tcuda_communicator_broadcast(ranks[rank], read, &out, root, NULL));
        }
        CHECK_OK(tcuda_communicator_group_end());
        for (int rank = 0; rank < n; rank++) {
            const float *found = output_of(rank, COUNT);
            for (int i = 0; i < COUNT; i++)
                CHECK_EQ(found[i], value_of(root, i));
        }
        for (int rank = 0; rank < n; rank++)
            fill_bytes(memory.out[rank], 0xee, COUNT * sizeof(float), default_of(rank));
        CHECK_OK(tcuda_communicator_group_begin());
        for (int rank = 0; rank < n; rank++) {
            const tcuda_tensor in = floats(memory.in[rank], rank, shape);
            const tcuda_tensor out = floats(memory.out[rank], rank, shape);
            const tcuda_tensor *written = rank == root ? &out : NULL;
            CHECK_OK(tcuda_communicator_reduce(ranks[rank], &in, written, TCUDA_REDUCE_SUM, root,
                NULL));
        }
        CHECK_OK(tcuda_communicator_group_end());
        const float *found = output_of(root, COUNT);
        for (int i = 0; i < COUNT; i++)
            CHECK_EQ(found[i], n * (i % 97) + 5 * n * (n - 1));
        for (int rank = 0; rank < n; rank++) {
            const size_t others = rank == root ? 0 : count_other_bytes(memory.out[rank], 0xee,
                COUNT * sizeof(float), default_of(rank));
            CHECK_EQ(others, 0);
        }
    }
    end();
}

static void parts_are_gathered_and_scattered(void)
{
    begin();
    int64_t part[] = { COUNT }, all[] = { (int64_t)COUNT * n };
    CHECK_OK(tcuda_communicator_group_begin());
    for (int rank = 0; rank < n; rank++) {
        const tcuda_tensor in = floats(memory.in[rank], rank, part);
        const tcuda_tensor out = floats(memory.out[rank], rank, all);
        CHECK_OK(tcuda_communicator_all_gather(ranks[rank], &in, &out, NULL));
    }
    CHECK_OK(tcuda_communicator_group_end());
    for (int rank = 0; rank < n; rank++) {
        const float *found = output_of(rank, (size_t)COUNT * (size_t)n);
        for (int i = 0; i < COUNT * n; i++)
            CHECK_EQ(found[i], value_of(i / COUNT, i % COUNT));
    }
    CHECK_OK(tcuda_communicator_group_begin());
    for (int rank = 0; rank < n; rank++) {
        const tcuda_tensor in = floats(memory.in[rank], rank, all);
        const tcuda_tensor out = floats(memory.out[rank], rank, part);
        CHECK_OK(tcuda_communicator_reduce_scatter(ranks[rank], &in, &out, TCUDA_REDUCE_MAX, NULL));
    }
    CHECK_OK(tcuda_communicator_group_end());
    for (int rank = 0; rank < n; rank++) {
        const float *found = output_of(rank, COUNT);
        for (int i = 0; i < COUNT; i++)
            CHECK_EQ(found[i], value_of(n - 1, rank * COUNT + i));
    }
    end();
}

/* Round a ring, within one group: to the next, from the one before. */
static void messages_go_round(void)
{
    begin();
    int64_t shape[] = { COUNT };
    CHECK_OK(tcuda_communicator_group_begin());
    for (int rank = 0; rank < n; rank++) {
        const tcuda_tensor in = floats(memory.in[rank], rank, shape);
        const tcuda_tensor out = floats(memory.out[rank], rank, shape);
        CHECK_OK(tcuda_communicator_send(ranks[rank], &in, (rank + 1) % n, NULL));
        CHECK_OK(tcuda_communicator_recv(ranks[rank], &out, (rank + n - 1) % n, NULL));
    }
    CHECK_OK(tcuda_communicator_group_end());
    for (int rank = 0; rank < n; rank++) {
        const float *found = output_of(rank, COUNT);
        for (int i = 0; i < COUNT; i++)
            CHECK_EQ(found[i], value_of((rank + n - 1) % n, i));
    }
    end();
}

/* In place: an output may be the input, or hold it as the rank's own part. */
static void outputs_may_be_inputs(void)
{
    begin();
    int64_t part[] = { COUNT }, all[] = { (int64_t)COUNT * n };
    CHECK_OK(tcuda_communicator_group_begin());
    for (int rank = 0; rank < n; rank++) {
        float *own = (float *)memory.out[rank] + rank * COUNT;
        CHECK_OK(tcuda_copy(own, memory.in[rank], COUNT * sizeof(float), default_of(rank)));
        const tcuda_tensor in = floats(own, rank, part), out = floats(memory.out[rank], rank, all);
        CHECK_OK(tcuda_communicator_all_gather(ranks[rank], &in, &out, NULL));
    }
    CHECK_OK(tcuda_communicator_group_end());
    for (int rank = 0; rank < n; rank++) {
        const float *found = output_of(rank, (size_t)COUNT * (size_t)n);
        for (int i = 0; i < COUNT * n; i++)
            CHECK_EQ(found[i], value_of(i / COUNT, i % COUNT));
    }
    CHECK_OK(tcuda_communicator_group_begin());
    for (int rank = 0; rank < n; rank++) {
        const tcuda_tensor both = floats(memory.out[rank], rank, part);
        CHECK_OK(tcuda_communicator_all_reduce(ranks[rank], &both, &both, TCUDA_REDUCE_SUM, NULL));
    }
    CHECK_OK(tcuda_communicator_group_end());
    for (int rank = 0; rank < n; rank++)
        CHECK_EQ(output_of(rank, COUNT)[7], 7 * n);
    end();
}


static void reduce_of(uint8_t code, uint8_t bits, tcuda_reduce_op op, const void *each,
    const void *expected)
{
    const size_t bytes = bits / 8u * 5;
    unsigned char values[80], found[80];
    int64_t shape[] = { 5 };
    void *data[MOST];
    for (size_t i = 0; i < bytes; i++)
        values[i] = ((const unsigned char *)each)[i % (bits / 8u)];
    for (int rank = 0; rank < n; rank++)
        data[rank] = put(values, bytes, rank, default_of(rank));
    CHECK_OK(tcuda_communicator_group_begin());
    for (int rank = 0; rank < n; rank++) {
        const tcuda_tensor both = tensor_of(data[rank], rank, code, bits, shape);
        CHECK_OK(tcuda_communicator_all_reduce(ranks[rank], &both, &both, op, NULL));
    }
    CHECK_OK(tcuda_communicator_group_end());
    for (int rank = 0; rank < n; rank++) {
        CHECK_OK(tcuda_copy(found, data[rank], bytes, default_of(rank)));
        CHECK_OK(tcuda_stream_synchronize(default_of(rank)));
        for (size_t i = 0; i < bytes; i++)
            CHECK_EQ(found[i], ((const unsigned char *)expected)[i % (bits / 8u)]);
        CHECK_OK(tcuda_free(data[rank]));
    }
}

static void every_type_has_its_sum(void)
{
    const float f = 3, all_f = 3.0f * (float)n, pair[] = { 3, -1 };
    const float all_pair[] = { 3.0f * (float)n, -(float)n };
    const double d = 3, all_d = 3.0 * n;
    const int8_t c = -3, all_c = (int8_t)(-3 * n);
    const uint8_t u = 3, all_u = (uint8_t)(3 * n), truth = 1;
    const int32_t i = -3, all_i = -3 * n;
    const uint64_t l = 3, all_l = 3 * (uint64_t)n;
    /* 1 as a half and a bfloat16, and 1 to 4. */
    const uint16_t half = 0x3c00, halves[] = { 0x3c00, 0x4000, 0x4200, 0x4400 };
    const uint16_t bfloat = 0x3f80, bfloats[] = { 0x3f80, 0x4000, 0x4040, 0x4080 };
    reduce_of(TCUDA_DTYPE_FLOAT, 32, TCUDA_REDUCE_SUM, &f, &all_f);
    reduce_of(TCUDA_DTYPE_FLOAT, 64, TCUDA_REDUCE_SUM, &d, &all_d);
    reduce_of(TCUDA_DTYPE_FLOAT, 16, TCUDA_REDUCE_SUM, &half, &halves[n - 1]);
    reduce_of(TCUDA_DTYPE_BFLOAT, 16, TCUDA_REDUCE_SUM, &bfloat, &bfloats[n - 1]);
    reduce_of(TCUDA_DTYPE_COMPLEX, 64, TCUDA_REDUCE_SUM, pair, all_pair);
    reduce_of(TCUDA_DTYPE_INT, 8, TCUDA_REDUCE_SUM, &c, &all_c);
    reduce_of(TCUDA_DTYPE_UINT, 8, TCUDA_REDUCE_SUM, &u, &all_u);
    reduce_of(TCUDA_DTYPE_INT, 32, TCUDA_REDUCE_SUM, &i, &all_i);
    reduce_of(TCUDA_DTYPE_UINT, 64, TCUDA_REDUCE_SUM, &l, &all_l);
    reduce_of(TCUDA_DTYPE_BOOL, 8, TCUDA_REDUCE_SUM, &truth, &truth);
    reduce_of(TCUDA_DTYPE_BOOL, 8, TCUDA_REDUCE_PROD, &truth, &truth);
}

/* ---- A thread for each rank ---- */

static tcuda_unique_id name;

static void *one_rank(void *argument)
{
    const int rank = (int)(intptr_t)argument;
    tcuda_communicator *own = NULL;
    int64_t shape[] = { COUNT };
    CHECK_OK(tcuda_communicator_init_rank(&name, n, rank, rank, &own));
    CHECK_OK(tcuda_communicator_query(own));
    tcuda_stream *stream = create_stream(rank);
    CHECK_OK(tcuda_stream_wait_stream(stream, default_of(rank)));
    const tcuda_tensor in = floats(memory.in[rank], rank, shape);
    const tcuda_tensor out = floats(memory.out[rank], rank, shape);
    for (int round = 0; round < 5; round++) {
        CHECK_OK(tcuda_communicator_all_reduce(own, &in, &out, TCUDA_REDUCE_SUM, stream));
        CHECK_OK(tcuda_communicator_broadcast(own, &in, &out, round % n,
            round & 1 ? NULL : stream));
        CHECK_OK(tcuda_stream_wait_stream(stream, default_of(rank)));
        CHECK_OK(tcuda_stream_wait_stream(default_of(rank), stream));
    }
    CHECK_OK(tcuda_communicator_destroy(own));
    CHECK_OK(tcuda_stream_destroy(stream));
    return NULL;
}

static void ranks_may_be_threads(void)
{
    pthread_t threads[MOST];
    begin();
    CHECK_OK(tcuda_communicator_unique_id(&name));
    for (int rank = 0; rank < n; rank++)
        threads[rank] = start_thread(one_rank, (void *)(intptr_t)rank);
    for (int rank = 0; rank < n; rank++)
        join_thread(threads[rank]);
    for (int rank = 0; rank < n; rank++)
        CHECK_EQ(output_of(rank, COUNT)[5], value_of(4 % n, 5));
    end();
}

/* ---- Graphs, and memory ---- */

static void collectives_are_captured(void)
{
    tcuda_graph *graph = NULL;
    tcuda_stream *streams[MOST];
    int64_t shape[] = { COUNT };
    begin();
    for (int rank = 0; rank < n; rank++) {
        streams[rank] = create_stream(rank);
        CHECK_OK(tcuda_device_synchronize(rank));
    }
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, streams[0], NULL, TCUDA_CAPTURE_THREAD_LOCAL));
    for (int rank = 1; rank < n; rank++)
        CHECK_OK(tcuda_stream_wait_stream(streams[rank], streams[0]));
    CHECK_OK(tcuda_communicator_group_begin());
    for (int rank = 0; rank < n; rank++) {
        const tcuda_tensor both = floats(memory.in[rank], rank, shape);
        CHECK_OK(tcuda_communicator_all_reduce(ranks[rank], &both, &both, TCUDA_REDUCE_SUM,
            streams[rank]));
    }
    CHECK_OK(tcuda_communicator_group_end());
    for (int rank = 1; rank < n; rank++)
        CHECK_OK(tcuda_stream_wait_stream(streams[0], streams[rank]));
    CHECK_OK(tcuda_graph_capture_end(graph));
    for (int replay = 0; replay < 3; replay++)
        CHECK_OK(tcuda_graph_replay(graph, streams[0]));
    CHECK_OK(tcuda_stream_synchronize(streams[0]));
    for (int rank = 0; rank < n; rank++) {
        /* 0 + 10 + ..., n times as much with each further replay. */
        float found = 0;
        CHECK_OK(tcuda_copy(&found, memory.in[rank], sizeof found, default_of(rank)));
        CHECK_OK(tcuda_stream_synchronize(default_of(rank)));
        CHECK_EQ(found, 5 * n * (n - 1) * n * n);
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    for (int rank = 0; rank < n; rank++)
        CHECK_OK(tcuda_stream_destroy(streams[rank]));
    end();
}

/* A block that a collective uses on another stream is not reused before that is done. */
static void blocks_wait_for_the_collective(void)
{
    tcuda_stream *other = create_stream(0);
    tcuda_communicator *alone = NULL;
    int64_t shape[] = { COUNT };
    gate held;
    CHECK_OK(tcuda_communicator_unique_id(&name));
    CHECK_OK(tcuda_communicator_init_rank(&name, 1, 0, 0, &alone));
    void *block = allocate(COUNT * sizeof(float), 0, default_of(0));
    CHECK_OK(tcuda_device_synchronize(0));
    gate_close(&held, other);
    const tcuda_tensor both = floats(block, 0, shape);
    if (on_simulator()) CHECK_OK(tcuda_communicator_all_reduce(alone, &both, &both, 0, other));
    CHECK_OK(tcuda_free(block));
    void *next = allocate(COUNT * sizeof(float), 0, default_of(0));
    CHECK(!on_simulator() || !runs_late() || next != block);
    gate_open(&held);
    CHECK_OK(tcuda_free(next));
    CHECK_OK(tcuda_communicator_destroy(alone));
    CHECK_OK(tcuda_stream_destroy(other));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_nccl();
    n = num_ranks();
    join_all(n, ranks);
    reductions_are_of_all_ranks();
    one_rank_gives_or_gets();
    parts_are_gathered_and_scattered();
    messages_go_round();
    outputs_may_be_inputs();
    every_type_has_its_sum();
    collectives_are_captured();
    destroy_all(n, ranks);
    ranks_may_be_threads();
    blocks_wait_for_the_collective();
    return finish();
}
