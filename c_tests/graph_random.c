/* Graphs that draw random numbers: so many replays give, bit by bit, what as many runs without a
 * graph give, of the default generator and of others, whose numbers then go on. */
#include "support.h"

enum { COUNT = 5000, ROUNDS = 4 };

static tcuda_tensor floats_at(void *data, int64_t *shape)
{
    tcuda_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.data = data;
    tensor.device.device_type = TCUDA_DEVICE_CUDA;
    tensor.ndim = 1;
    tensor.dtype.code = TCUDA_DTYPE_FLOAT;
    tensor.dtype.bits = 32;
    tensor.dtype.lanes = 1;
    tensor.shape = shape;
    return tensor;
}

struct work {
    float *first, *second, *third;
    tcuda_generator *own;
};

/* Numbers of the default generator, of another, and of the default one again. */
static void draw(const struct work *work, tcuda_stream *stream)
{
    int64_t shape[1] = {COUNT};
    const tcuda_tensor first = floats_at(work->first, shape);
    const tcuda_tensor second = floats_at(work->second, shape);
    const tcuda_tensor third = floats_at(work->third, shape);
    CHECK_OK(tcuda_random_uniform(&first, 0, 1, NULL, stream));
    CHECK_OK(tcuda_random_normal(&second, 0, 1, work->own, stream));
    CHECK_OK(tcuda_random_uniform(&third, -1, 1, NULL, stream));
}

static void fetch(const struct work *work, float *numbers, tcuda_stream *stream)
{
    const float *from[] = {work->first, work->second, work->third};
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_copy(numbers + i * COUNT, from[i], COUNT * sizeof(float), stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
}

static void seed(const struct work *work)
{
    CHECK_OK(tcuda_random_manual_seed(TCUDA_CURRENT_DEVICE, 1234));
    CHECK_OK(tcuda_generator_seed_set(work->own, 99));
}

static uint64_t offset_of(tcuda_generator *generator)
{
    uint64_t offset = 1;
    CHECK_OK(tcuda_generator_offset_get(generator, &offset));
    return offset;
}

static void replays_draw_what_runs_draw(void)
{
    static float expected[ROUNDS][3 * COUNT], actual[3 * COUNT];
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *other = create_stream(TCUDA_CURRENT_DEVICE);
    struct work work = {.own = NULL};
    work.first = allocate(COUNT * sizeof(float), TCUDA_CURRENT_DEVICE, stream);
    work.second = allocate(COUNT * sizeof(float), TCUDA_CURRENT_DEVICE, stream);
    work.third = allocate(COUNT * sizeof(float), TCUDA_CURRENT_DEVICE, stream);
    CHECK_OK(tcuda_generator_create(TCUDA_CURRENT_DEVICE, &work.own));
    seed(&work);
    for (int round = 0; round < ROUNDS; round++) {
        draw(&work, stream);
        fetch(&work, expected[round], stream);
    }
    const uint64_t end = offset_of(NULL), own_end = offset_of(work.own);

    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_register_generator(graph, work.own));
    CHECK_OK(tcuda_graph_register_generator(graph, work.own));
    CHECK_OK(tcuda_graph_register_generator(graph, NULL));
    seed(&work);
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_register_generator(graph, work.own));
    draw(&work, stream);
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_EQ(offset_of(NULL), 0);
    for (int round = 0; round < ROUNDS; round++) {
        tcuda_stream *on = round % 2 == 0 ? stream : other;
        CHECK_OK(tcuda_graph_replay(graph, on));
        fetch(&work, actual, on);
        CHECK_EQ(memcmp(actual, expected[round], sizeof actual), 0);
    }
    CHECK_EQ(offset_of(NULL), end);
    CHECK_EQ(offset_of(work.own), own_end);
    /* Seeds are read at each replay. */
    seed(&work);
    CHECK_OK(tcuda_graph_replay(graph, stream));
    fetch(&work, actual, stream);
    CHECK_EQ(memcmp(actual, expected[0], sizeof actual), 0);
    /* A run goes on where the replay has ended, and the other way round. */
    draw(&work, stream);
    fetch(&work, actual, stream);
    CHECK_EQ(memcmp(actual, expected[1], sizeof actual), 0);
    CHECK_OK(tcuda_generator_destroy(work.own));
    CHECK_OK(tcuda_graph_replay(graph, stream));
    fetch(&work, actual, stream);
    CHECK_EQ(memcmp(actual, expected[2], sizeof actual), 0);

    /* What a graph does not know it does not draw from. */
    CHECK_OK(tcuda_graph_reset(graph));
    CHECK_OK(tcuda_generator_create(TCUDA_CURRENT_DEVICE, &work.own));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    int64_t shape[1] = {COUNT};
    const tcuda_tensor tensor = floats_at(work.first, shape);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_random_uniform(&tensor, 0, 1, work.own, stream));
    CHECK_OK(tcuda_random_uniform(&tensor, 0, 1, NULL, stream));
    CHECK_OK(tcuda_graph_capture_abort(graph));
    CHECK_OK(tcuda_random_uniform(&tensor, 0, 1, work.own, stream));
    CHECK_OK(tcuda_generator_destroy(work.own));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(work.first));
    CHECK_OK(tcuda_free(work.second));
    CHECK_OK(tcuda_free(work.third));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* Their words on the device are a graph's own. */
static void graphs_with_numbers_are_not_updated(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *graphs[2];
    int64_t shape[1] = {COUNT};
    float *data = allocate(COUNT * sizeof(float), TCUDA_CURRENT_DEVICE, stream);
    const tcuda_tensor tensor = floats_at(data, shape);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tcuda_graph_create(1, &graphs[i]));
        CHECK_OK(tcuda_graph_capture_begin(graphs[i], stream, NULL, TCUDA_CAPTURE_GLOBAL));
        CHECK_OK(tcuda_random_uniform(&tensor, 0, 1, NULL, stream));
        CHECK_OK(tcuda_graph_capture_end(graphs[i]));
        CHECK_OK(tcuda_graph_instantiate(graphs[i]));
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_update(graphs[0], graphs[1]));
    for (int i = 0; i < 2; i++)
        CHECK_OK(tcuda_graph_destroy(graphs[i]));
    CHECK_OK(tcuda_free(data));
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    replays_draw_what_runs_draw();
    graphs_with_numbers_are_not_updated();
    return finish();
}
