/* Collectives: sums, pieces of tensors, and tensors that are joined, in values. With one device
 * some of it is left out. */
#define _POSIX_C_SOURCE 200809L

#include "comm.h"

/* ---- Sums ---- */

static void set_numbers(const owned *tensor, int32_t first, int32_t step, size_t count)
{
    int32_t *numbers = malloc(count * sizeof *numbers);
    CHECK(numbers != NULL);
    for (size_t i = 0; i < count; i++)
        numbers[i] = first + step * (int32_t)i;
    set_memory(tensor, numbers, count * sizeof *numbers);
    free(numbers);
}

static void sums_are_those_of_all(void)
{
    const int64_t shape[] = { 6, 7 };
    owned inputs[MOST_DEVICES + 1];
    tcuda_tensor views[MOST_DEVICES + 1], out;
    const size_t count = (size_t)all_devices + 1;
    const int32_t n = (int32_t)count;
    for (int32_t i = 0; i < n; i++) {
        make(&inputs[i], i % all_devices, false, int32, 42);
        shape_of(&inputs[i], 2, shape, NULL);
        set_numbers(&inputs[i], i, 10, 42);
        views[i] = inputs[i].view;
    }
    const int32_t destinations[] = { 0, other, TCUDA_CURRENT_DEVICE, HOST };
    for (int i = 0; i < 4; i++) {
        CHECK_OK(tcuda_comm_reduce_add(views, count, destinations[i], &out));
        if (destinations[i] != HOST)
            synchronize_all();
        CHECK_EQ(out.device.device_type,
            destinations[i] == HOST ? TCUDA_DEVICE_CUDA_HOST : TCUDA_DEVICE_CUDA);
        for (int64_t at = 0; at < 42; at++)
            CHECK_EQ(number_at(&out, (const int64_t[]) { at / 7, at % 7 }),
                n * (n - 1) / 2 + n * 10 * (int32_t)at);
        CHECK_OK(tcuda_tensor_release(&out));
    }
    /* In place, into another layout, and into memory of the host. */
    owned turned, host;
    make(&turned, other, false, int32, 100);
    shape_of(&turned, 2, shape, (const int64_t[]) { 1, 8 });
    make(&host, HOST, false, int32, 42);
    shape_of(&host, 2, shape, NULL);
    CHECK_OK(tcuda_comm_reduce_add_into(views, count, &turned.view));
    CHECK_OK(tcuda_comm_reduce_add_into(views, count, &host.view));
    synchronize_all();
    check_same(&turned.view, &host.view, 0);
    CHECK_OK(tcuda_comm_reduce_add_into(views, count, &views[0]));
    synchronize_all();
    check_same(&views[0], &host.view, 0);
    drop(&turned);
    drop(&host);
    for (size_t i = 0; i < count; i++)
        drop(&inputs[i]);
}

/* 1e8 + 1 is 1e8 in floats, so that the order shows: the one on the destination comes first. */
static void sums_are_rounded_in_order(void)
{
    const float big[] = { 1e8F, -1e8F }, ones[] = { 1, 1 }, back[] = { -1e8F, 1e8F };
    const float *const values[] = { big, ones, back };
    owned inputs[3];
    tcuda_tensor views[3], out;
    for (int i = 0; i < 3; i++) {
        make(&inputs[i], i == 1 ? other : 0, false, float32, 2);
        shape_of(&inputs[i], 1, (const int64_t[]) { 2 }, NULL);
        set_memory(&inputs[i], values[i], 8);
        views[i] = inputs[i].view;
    }
    float result[2];
    CHECK_OK(tcuda_comm_reduce_add(views, 3, other, &out));
    CHECK_OK(tcuda_copy(result, out.data, 8, NULL));
    synchronize_all();
    if (other != 0) {
        /* ones + big rounds the ones away; the last but one is lost too. */
        CHECK(result[0] == 0 && result[1] == 0);
    } else {
        /* The last one first: back, big, ones. */
        CHECK(result[0] == 1 && result[1] == 1);
    }
    CHECK_OK(tcuda_tensor_release(&out));
    /* Of two on the destination the last comes first: back + big is 0, and 1 is kept. */
    CHECK_OK(tcuda_comm_reduce_add(views, 3, 0, &out));
    CHECK_OK(tcuda_copy(result, out.data, 8, NULL));
    synchronize_all();
    CHECK(result[0] == 1 && result[1] == 1);
    CHECK_OK(tcuda_tensor_release(&out));
    for (int i = 0; i < 3; i++)
        drop(&inputs[i]);
}

/* The sum of tensors of which none is on its destination: the first is added first. */
static void sums_go_to_other_places(void)
{
    const int32_t devices[] = { other, all_devices / 2, HOST };
    const float values[] = { 1e8F, 1, -1e8F };
    for (int home = 0; home < 3; home++) {
        if (devices[home] == 0)
            continue;
        owned inputs[3], into;
        tcuda_tensor views[3], outs[3];
        for (int i = 0; i < 3; i++) {
            make(&inputs[i], i == 1 ? devices[home] : other == 0 ? HOST : other, false, float32, 1);
            shape_of(&inputs[i], 1, (const int64_t[]) { 1 }, NULL);
            set_memory(&inputs[i], &values[i], 4);
            views[i] = inputs[i].view;
        }
        make(&into, 0, false, float32, 1);
        shape_of(&into, 1, (const int64_t[]) { 1 }, NULL);
        CHECK_OK(tcuda_comm_reduce_add(views, 3, 0, &outs[0]));
        CHECK_OK(tcuda_comm_reduce_add_coalesced(views, 3, 1, 0, 0, &outs[1]));
        CHECK_OK(tcuda_comm_reduce_add_into(views, 3, &into.view));
        /* Of one tensor it is a copy. */
        CHECK_OK(tcuda_comm_reduce_add(views, 1, 0, &outs[2]));
        float sums[4];
        const void *const from[] = { outs[0].data, outs[1].data, into.view.data, outs[2].data };
        for (int i = 0; i < 4; i++)
            CHECK_OK(tcuda_copy(&sums[i], from[i], 4, NULL));
        synchronize_all();
        for (int i = 0; i < 3; i++) {
            CHECK(sums[i] == 0);
            CHECK_EQ(outs[i].device.device_type, TCUDA_DEVICE_CUDA);
            CHECK_EQ(outs[i].device.device_id, 0);
        }
        CHECK(sums[3] == 1e8F && outs[2].data != views[0].data);
        release_all(outs, 3);
        drop(&into);
        for (int i = 0; i < 3; i++)
            drop(&inputs[i]);
    }
}

static void one_tensor_is_its_own_sum(void)
{
    owned input;
    tcuda_tensor out;
    make_numbers(&input, other, 3, 1, (const int64_t[]) { 11 });
    CHECK_OK(tcuda_comm_reduce_add(&input.view, 1, other, &out));
    CHECK(out.data == input.memory);
    CHECK_OK(tcuda_tensor_release(&out));
    CHECK_OK(tcuda_comm_reduce_add(&input.view, 1, HOST, &out));
    check_same(&out, &input.view, 0);
    CHECK_OK(tcuda_tensor_release(&out));
    drop(&input);
}

static void bools_and_bytes_are_added(void)
{
    const unsigned char first[] = { 0, 1, 0, 1, 200 }, second[] = { 0, 0, 1, 1, 100 };
    const unsigned char bools[] = { 0, 1, 1, 1, 1 }, bytes[] = { 0, 1, 1, 2, 44 };
    owned inputs[2];
    tcuda_tensor views[2], out;
    for (int is_bool = 0; is_bool < 2; is_bool++) {
        for (int i = 0; i < 2; i++) {
            make(&inputs[i], i == 0 ? 0 : other, false, uint8, 5);
            shape_of(&inputs[i], 1, (const int64_t[]) { is_bool ? 4 : 5 }, NULL);
            set_memory(&inputs[i], i == 0 ? first : second, 5);
            views[i] = inputs[i].view;
            views[i].dtype.code = is_bool ? TCUDA_DTYPE_BOOL : TCUDA_DTYPE_UINT;
        }
        CHECK_OK(tcuda_comm_reduce_add(views, 2, HOST, &out));
        CHECK_EQ(memcmp(out.data, is_bool ? bools : bytes, is_bool ? 4 : 5), 0);
        CHECK_OK(tcuda_tensor_release(&out));
        views[0].dtype.code = views[1].dtype.code = TCUDA_DTYPE_FLOAT8_E5M2;
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_comm_reduce_add(views, 2, 0, &out));
        CHECK(strstr(tcuda_last_error(), "cannot be added") != NULL);
        drop(&inputs[0]);
        drop(&inputs[1]);
    }
}

static void many_sums_at_once(int32_t destination, size_t buffer_bytes)
{
    owned tensors[2][MANY];
    tcuda_tensor views[2 * MANY], outs[MANY];
    make_many(tensors[0], views, 0, 1);
    make_many(tensors[1], views + MANY, other, 100000);
    CHECK_OK(tcuda_comm_reduce_add_coalesced(views, 2, MANY, destination, buffer_bytes, outs));
    synchronize_all();
    for (int i = 0; i < MANY; i++) {
        /* The two inputs differ by the same everywhere. */
        int64_t zeros[MOST_DIMS] = { 0 }, last[MOST_DIMS] = { 0 };
        CHECK(is_compact(&outs[i]));
        if (count_of(&outs[i]) == 0)
            continue;
        for (int32_t dim = 0; dim < outs[i].ndim; dim++)
            last[dim] = outs[i].shape[dim] - 1;
        CHECK_EQ(number_at(&outs[i], zeros),
            number_at(&views[i], zeros) + number_at(&views[MANY + i], zeros));
        CHECK_EQ(number_at(&outs[i], last),
            number_at(&views[i], last) + number_at(&views[MANY + i], last));
    }
    release_all(outs, MANY);
    /* Of one list the sums are the tensors. */
    CHECK_OK(tcuda_comm_reduce_add_coalesced(views, 1, MANY, 0, buffer_bytes, outs));
    for (int i = 0; i < MANY; i++)
        CHECK(outs[i].data == views[i].data);
    release_all(outs, MANY);
    for (int i = 0; i < MANY; i++) {
        drop(&tensors[0][i]);
        drop(&tensors[1][i]);
    }
}

/* Of one list, what is at its destination stays, and takes no memory; the others are copied. */
static void sums_of_one_list_take_no_more_memory(void)
{
    const int64_t shape[] = { 17, 5 }, nothing[] = { 0, 5 };
    owned there, elsewhere;
    tcuda_tensor outs[2];
    for (int is_empty = 0; is_empty < 2; is_empty++) {
        make_numbers(&there, 0, 1, 2, shape);
        make_numbers(&elsewhere, HOST, 1000, 2, is_empty ? nothing : shape);
        const tcuda_tensor views[] = { there.view, elsewhere.view };
        const size_t before = allocated(0);
        CHECK_OK(tcuda_comm_reduce_add_coalesced(views, 1, 2, 0, 1, outs));
        CHECK_EQ(allocated(0) - before, is_empty ? 0 : 512);
        CHECK(outs[0].data == there.view.data);
        check_same(&outs[1], &views[1], 0);
        release_all(outs, 2);
        CHECK_EQ(allocated(0), before);
        drop(&there);
        drop(&elsewhere);
    }
}

/* ---- Pieces ---- */

/* The part of a tensor from `start` on along a dimension, in `shape`. */
static tcuda_tensor part_of(const tcuda_tensor *tensor, int32_t dim, int64_t start, int64_t size,
    int64_t *shape)
{
    tcuda_tensor part = *tensor;
    for (int32_t i = 0; i < tensor->ndim; i++)
        shape[i] = i == dim ? size : tensor->shape[i];
    part.shape = shape;
    part.byte_offset += (uint64_t)(start * tensor->strides[dim] * 4);
    return part;
}

static void pieces_go_to_devices(int32_t dim, bool turned, const int64_t *sizes)
{
    const int64_t shape[] = { 7, 8, 9 };
    const int32_t devices[] = { other, 0, HOST };
    tcuda_tensor outs[3];
    owned whole;
    make_numbers(&whole, 0, 0, 3, shape);
    if (turned)
        shape_of(&whole, 3, shape, (const int64_t[]) { 1, 63, 7 });
    const int32_t positive = dim < 0 ? dim + 3 : dim;
    CHECK_OK(tcuda_comm_scatter(&whole.view, devices, sizes, 3, dim, NULL, outs));
    int64_t start = 0;
    synchronize_all();
    for (int i = 0; i < 3; i++) {
        int64_t part_shape[3];
        const int64_t size = outs[i].shape[positive];
        const int64_t expected = (shape[positive] + 2) / 3;
        CHECK_EQ(size, sizes != NULL ? sizes[i]
            : i < 2 ? expected : shape[positive] - 2 * expected);
        const tcuda_tensor part = part_of(&whole.view, positive, start, size, part_shape);
        check_same(&outs[i], &part, 0);
        start += size;
        const bool is_own = devices[i] == 0;
        CHECK((outs[i].data == whole.view.data) == is_own || count_of(&outs[i]) == 0);
        /* In the tensor's order of strides. */
        CHECK(is_own || size == 0 || outs[i].strides[turned ? 0 : 2] == 1);
    }
    CHECK_EQ(start, shape[positive]);
    /* And together again, in another place. */
    tcuda_tensor joined;
    CHECK_OK(tcuda_comm_gather(outs, 3, dim, other, &joined));
    synchronize_all();
    check_same(&joined, &whole.view, 0);
    CHECK(is_compact(&joined) && joined.device.device_id == other);
    owned back;
    make(&back, HOST, false, int32, 504);
    shape_of(&back, 3, shape, (const int64_t[]) { 8, 1, 56 });
    CHECK_OK(tcuda_comm_gather_into(outs, 3, dim, &back.view));
    check_same(&back.view, &whole.view, 0);
    /* Into outputs: their sizes say how. */
    owned into[3];
    tcuda_tensor views[3];
    for (int i = 0; i < 3; i++) {
        make(&into[i], devices[2 - i], false, int32, 600);
        shape_of(&into[i], 3, outs[i].shape, NULL);
        views[i] = into[i].view;
    }
    CHECK_OK(tcuda_comm_scatter_into(&whole.view, views, 3, dim, NULL));
    synchronize_all();
    for (int i = 0; i < 3; i++) {
        check_same(&views[i], &outs[i], 0);
        drop(&into[i]);
    }
    drop(&back);
    CHECK_OK(tcuda_tensor_release(&joined));
    release_all(outs, 3);
    drop(&whole);
}

static void left_over_outputs_are_zero(void)
{
    const int32_t devices[] = { 0, other, 0, other };
    tcuda_tensor outs[4];
    owned whole;
    make_numbers(&whole, 0, 0, 1, (const int64_t[]) { 5 });
    memset(outs, 0xAB, sizeof outs);
    CHECK_OK(tcuda_comm_scatter(&whole.view, devices, NULL, 4, 0, NULL, outs));
    CHECK(outs[0].shape[0] == 2 && outs[1].shape[0] == 2 && outs[2].shape[0] == 1);
    CHECK(is_zero(&outs[3]));
    synchronize_all();
    CHECK_EQ(number_at(&outs[2], (const int64_t[]) { 0 }), 4);
    release_all(outs, 4);
    drop(&whole);
}

static void pieces_have_streams_of_their_own(void)
{
    owned whole;
    make_numbers(&whole, 0, 0, 1, (const int64_t[]) { 400000 });
    tcuda_stream *const first = create_stream(other), *const second = create_stream(other);
    tcuda_stream *const streams[] = { first, second, NULL };
    const int32_t devices[] = { other, other, other };
    tcuda_tensor outs[3];
    CHECK_OK(tcuda_comm_scatter(&whole.view, devices, NULL, 3, 0, streams, outs));
    CHECK_OK(tcuda_stream_synchronize(first));
    CHECK_OK(tcuda_stream_synchronize(second));
    synchronize_all();
    const int64_t last[] = { 133333 };
    for (int i = 0; i < 3; i++)
        CHECK_EQ(number_at(&outs[i], (const int64_t[]) { 0 }), i * 133334);
    CHECK_EQ(number_at(&outs[1], last), 133334 + 133333);
    release_all(outs, 3);
    /* Outputs of the own device are copied on the stream that is named. */
    owned into[2];
    tcuda_tensor views[2];
    for (int i = 0; i < 2; i++) {
        make(&into[i], i == 0 ? 0 : other, false, int32, 200000);
        shape_of(&into[i], 1, (const int64_t[]) { 200000 }, NULL);
        views[i] = into[i].view;
    }
    tcuda_stream *const own = create_stream(0);
    tcuda_stream *const named[] = { own, second };
    synchronize_all();
    CHECK_OK(tcuda_comm_scatter_into(&whole.view, views, 2, 0, named));
    CHECK_OK(tcuda_stream_synchronize(own));
    CHECK_OK(tcuda_stream_synchronize(second));
    CHECK_EQ(number_at(&views[0], (const int64_t[]) { 199999 }), 199999);
    CHECK_EQ(number_at(&views[1], (const int64_t[]) { 199999 }), 399999);
    if (other != 0) {
        tcuda_stream *const wrong[] = { second, own };
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_comm_scatter_into(&whole.view, views, 2, 0, wrong));
        CHECK(strstr(tcuda_last_error(), "streams[0]") != NULL);
    }
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
    drop(&into[0]);
    drop(&into[1]);
    drop(&whole);
}

static void channels_may_come_last(void)
{
    const int64_t shape[] = { 2, 3, 4, 5 }, last[] = { 60, 1, 15, 3 };
    owned inputs[2];
    tcuda_tensor views[2], out;
    for (int i = 0; i < 2; i++) {
        make_numbers(&inputs[i], i == 0 ? 0 : other, 200 * i, 4, shape);
        shape_of(&inputs[i], 4, shape, last);
        views[i] = inputs[i].view;
    }
    CHECK_OK(tcuda_comm_gather(views, 2, -1, 0, &out));
    CHECK(out.strides[1] == 1 && out.strides[3] == 3 && out.strides[2] == 30);
    synchronize_all();
    int64_t part_shape[4];
    for (int i = 0; i < 2; i++) {
        const tcuda_tensor part = part_of(&out, 3, 5 * i, 5, part_shape);
        check_same(&part, &views[i], 0);
    }
    CHECK_OK(tcuda_tensor_release(&out));
    /* Unless one of them lies otherwise. */
    shape_of(&inputs[1], 4, shape, NULL);
    CHECK_OK(tcuda_comm_gather(views, 2, 0, other, &out));
    CHECK(is_compact(&out) && out.shape[0] == 4);
    CHECK_OK(tcuda_tensor_release(&out));
    drop(&inputs[0]);
    drop(&inputs[1]);
}

static void single_elements_are_joined(void)
{
    owned inputs[3];
    tcuda_tensor views[3], out;
    for (int i = 0; i < 3; i++) {
        make_numbers(&inputs[i], i == 1 ? other : i == 2 ? HOST : 0, 10 * i, 0, NULL);
        views[i] = inputs[i].view;
    }
    CHECK_OK(tcuda_comm_gather(views, 3, 0, HOST, &out));
    CHECK(out.ndim == 1 && out.shape[0] == 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(((const int32_t *)out.data)[i], 10 * i);
        drop(&inputs[i]);
    }
    CHECK_OK(tcuda_tensor_release(&out));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    find_devices();
    sums_are_those_of_all();
    sums_are_rounded_in_order();
    sums_go_to_other_places();
    one_tensor_is_its_own_sum();
    bools_and_bytes_are_added();
    many_sums_at_once(0, 0);
    many_sums_at_once(other, 1500);
    many_sums_at_once(HOST, 0);
    sums_of_one_list_take_no_more_memory();
    for (int32_t dim = -1; dim < 3; dim++) {
        pieces_go_to_devices(dim, false, NULL);
        pieces_go_to_devices(dim, true, NULL);
    }
    pieces_go_to_devices(1, false, (const int64_t[]) { 0, 7, 1 });
    left_over_outputs_are_zero();
    pieces_have_streams_of_their_own();
    channels_may_come_last();
    single_elements_are_joined();
    return finish();
}
