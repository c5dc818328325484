/* Collectives: copies on several devices, in values, which outputs are the inputs themselves, what
 * is freed, the order of streams, and what is refused. With one device some of it is left out. */
#define _POSIX_C_SOURCE 200809L

#include "comm.h"

/* ---- Broadcast ---- */

static void copies_go_to_all_devices(void)
{
    const int64_t shape[] = { 3, 5 };
    int32_t devices[MOST_DEVICES + 2];
    tcuda_tensor outs[MOST_DEVICES + 2];
    owned src;
    make_numbers(&src, 0, 100, 2, shape);
    const size_t before = allocated(other);
    for (int32_t i = 0; i < all_devices; i++)
        devices[i] = i;
    devices[all_devices] = other;
    devices[all_devices + 1] = HOST;
    const size_t count = (size_t)all_devices + 2;
    CHECK_OK(tcuda_comm_broadcast(&src.view, devices, count, outs));
    /* The host has its copy already. */
    const tcuda_tensor *const host = &outs[count - 1];
    CHECK_EQ(host->device.device_type, TCUDA_DEVICE_CUDA_HOST);
    for (int32_t i = 0; i < 15; i++)
        CHECK_EQ(((const int32_t *)host->data)[i], 100 + i);
    synchronize_all();
    for (size_t i = 0; i < count; i++) {
        check_same(&outs[i], &src.view, 0);
        CHECK_EQ(outs[i].dtype.bits, 32);
        CHECK(is_compact(&outs[i]));
        const bool is_own = devices[i] == 0;
        CHECK((outs[i].data == src.view.data) == is_own);
        CHECK(outs[i].shape != src.shape);
        if (devices[i] != HOST)
            CHECK_EQ(outs[i].device.device_id, devices[i]);
    }
    /* Two copies on one device are two. */
    CHECK(other == 0 || outs[other].data != outs[all_devices].data);
    release_all(outs, count);
    CHECK_EQ(allocated(other), before);
    drop(&src);
}

static void the_host_sends_too(void)
{
    const int64_t shape[] = { 2, 3 };
    const int32_t devices[] = { HOST, 0, other };
    tcuda_tensor outs[3];
    for (int pinned = 0; pinned < 2; pinned++) {
        owned src;
        make(&src, HOST, pinned, int32, 6);
        shape_of(&src, 2, shape, (const int64_t[]) { 1, 2 });
        set_memory(&src, (const int32_t[]) { 1, 2, 3, 4, 5, 6 }, 24);
        CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 3, outs));
        CHECK(outs[0].data == src.memory && outs[0].strides[1] == 2);
        synchronize_all();
        for (int i = 0; i < 3; i++)
            check_same(&outs[i], &src.view, 0);
        CHECK(is_compact(&outs[1]) && is_compact(&outs[2]));
        release_all(outs, 3);
        drop(&src);
    }
}

static void outputs_have_any_layout(void)
{
    const int64_t shape[] = { 2, 3, 4 };
    owned src, outs[7];
    tcuda_tensor views[7];
    make_numbers(&src, 0, -7, 3, shape);
    const struct { int32_t device; bool pinned; int64_t strides[3]; size_t offset; } layouts[] = {
        { other, false, { 12, 4, 1 }, 0 },
        { other, false, { 1, 2, 6 }, 0 },          /* turned around */
        { 0, false, { 40, 10, 2 }, 0 },            /* with holes */
        { HOST, false, { -12, -4, -1 }, 23 },      /* from the other end */
        { HOST, true, { 12, 4, 1 }, 0 },
        { HOST, true, { 1, 2, 6 }, 3 },
        { HOST, false, { 30, 7, 1 }, 1 },
    };
    unsigned char marks[320];
    memset(marks, 0x5A, sizeof marks);
    for (int i = 0; i < 7; i++) {
        make(&outs[i], layouts[i].device, layouts[i].pinned, int32, 80);
        shape_of(&outs[i], 3, shape, layouts[i].strides);
        outs[i].view.byte_offset = layouts[i].offset * 4;
        set_memory(&outs[i], marks, sizeof marks);
        views[i] = outs[i].view;
    }
    CHECK_OK(tcuda_comm_broadcast_into(&src.view, views, 7));
    /* Pageable memory has it when the call returns, pinned memory when the stream gets there. */
    check_same(&views[3], &src.view, 0);
    check_same(&views[6], &src.view, 0);
    synchronize_all();
    for (int i = 0; i < 7; i++)
        check_same(&views[i], &src.view, 0);
    /* What lies between the elements is as it was: 4 * 24 bytes are written. */
    for (int i = 2; i < 7; i++) {
        unsigned char bytes[320];
        CHECK_OK(tcuda_copy(bytes, outs[i].memory, sizeof bytes, NULL));
        synchronize_all();
        int kept = 0;
        for (size_t at = 0; at < sizeof bytes; at += 4)
            kept += memcmp(bytes + at, marks, 4) == 0;
        CHECK_EQ(kept, 80 - 24);
    }
    /* Into itself: nothing. */
    CHECK_OK(tcuda_comm_broadcast_into(&src.view, &src.view, 1));
    for (int i = 0; i < 7; i++)
        drop(&outs[i]);
    drop(&src);
}

static void any_source_will_do(void)
{
    const int64_t shape[] = { 4, 3 };
    const int64_t layouts[][2] = { { 1, 4 }, { 8, 2 }, { 0, 1 }, { 3, 0 }, { -3, -1 }, { -3, 1 } };
    const size_t starts[] = { 0, 0, 0, 0, 11, 9 };
    const int32_t places[] = { 0, HOST };
    owned src;
    for (int place = 0; place < 2; place++) {
        for (int i = 0; i < 6; i++) {
            make_numbers(&src, places[place], 50, 1, (const int64_t[]) { 40 });
            shape_of(&src, 2, shape, layouts[i]);
            src.view.byte_offset = starts[i] * 4;
            tcuda_tensor outs[3];
            const int32_t devices[] = { other, HOST, other };
            CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 3, outs));
            synchronize_all();
            for (int out = 0; out < 3; out++)
                check_same(&outs[out], &src.view, 0);
            release_all(outs, 3);
            drop(&src);
        }
    }
}

static void small_types_move_as_bytes(void)
{
    owned src;
    tcuda_tensor outs[2];
    const int32_t devices[] = { other, HOST };
    const tcuda_dtype half_bytes = { TCUDA_DTYPE_FLOAT4_E2M1FN, 4, 1 };
    make(&src, 0, false, uint8, 9);
    shape_of(&src, 2, (const int64_t[]) { 3, 6 }, NULL);
    src.view.dtype = half_bytes;
    set_memory(&src, "abcdefghi", 9);
    CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 2, outs));
    CHECK_EQ(memcmp(outs[1].data, "abcdefghi", 9), 0);
    release_all(outs, 2);
    /* Every other row: three bytes of each six. */
    shape_of(&src, 2, (const int64_t[]) { 2, 6 }, (const int64_t[]) { 12, 1 });
    CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 2, outs));
    CHECK_EQ(memcmp(outs[1].data, "abcghi", 6), 0);
    release_all(outs, 2);
    shape_of(&src, 1, (const int64_t[]) { 3 }, NULL);
    memset(outs, 0xAB, sizeof outs);
    const tcuda_tensor before = outs[0];
    /* One and a half. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_comm_broadcast(&src.view, &devices[1], 1, outs));
    CHECK(memcmp(outs, &before, sizeof before) == 0);
    drop(&src);
}

static void nothing_is_moved_too(void)
{
    const int64_t shape[] = { 0, 4 };
    const int32_t devices[] = { 0, other, HOST };
    tcuda_tensor outs[3];
    owned src, scalar;
    make(&src, 0, false, float32, 1);
    shape_of(&src, 2, shape, NULL);
    CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 3, outs));
    for (int i = 0; i < 3; i++)
        CHECK(outs[i].ndim == 2 && outs[i].shape[0] == 0 && outs[i].shape[1] == 4);
    release_all(outs, 3);
    CHECK_OK(tcuda_comm_broadcast(&src.view, NULL, 0, NULL));
    CHECK_OK(tcuda_comm_broadcast_into(&src.view, NULL, 0));
    drop(&src);
    /* One element, without dimensions. */
    make_numbers(&scalar, 0, 77, 0, NULL);
    CHECK_OK(tcuda_comm_broadcast(&scalar.view, devices, 3, outs));
    synchronize_all();
    for (int i = 0; i < 3; i++)
        check_same(&outs[i], &scalar.view, 0);
    release_all(outs, 3);
    drop(&scalar);
}

/* ---- Many at once ---- */

static void refuse(tcuda_status status, const char *sentence)
{
    CHECK_EQ(status, TCUDA_STATUS_INVALID_ARGUMENT);
    if (strstr(tcuda_last_error(), sentence) == NULL)
        check_failed(__FILE__, __LINE__, sentence, tcuda_last_error());
}

/* Copies of tensors of one place on several; those on that place are the tensors themselves. */
static void many_share_blocks(int32_t home, const int32_t *devices, size_t buffer_bytes)
{
    owned tensors[MANY];
    tcuda_tensor views[MANY], outs[3 * MANY];
    make_many(tensors, views, home, 5);
    const int32_t target = home == other ? 0 : other;
    const size_t before = allocated(target);
    CHECK_OK(tcuda_comm_broadcast_coalesced(views, MANY, devices, 3, buffer_bytes, outs));
    synchronize_all();
    for (int i = 0; i < 3 * MANY; i++) {
        const tcuda_tensor *const from = &views[i % MANY];
        const int32_t device = devices[i / MANY];
        const bool is_own = device == home;
        CHECK_EQ(outs[i].device.device_type == TCUDA_DEVICE_CUDA, device != HOST);
        CHECK(device == HOST || outs[i].device.device_id == device);
        check_same(&outs[i], from, 0);
        CHECK(is_own ? outs[i].data == from->data : is_compact(&outs[i]));
        if (!is_own && count_of(from) > 0)
            CHECK_EQ((uintptr_t)outs[i].data % 64, 0);
    }
    /* Blocks go with the last that lies in them, in whatever order. */
    CHECK(other == 0 || allocated(target) > before);
    for (int i = 0; i < 3 * MANY; i += 2)
        CHECK_OK(tcuda_tensor_release(&outs[i]));
    for (int i = 1; i < 3 * MANY; i += 2)
        check_same(&outs[i], &views[i % MANY], 0);
    for (int i = 3 * MANY - 1; i > 0; i -= 2)
        CHECK_OK(tcuda_tensor_release(&outs[i]));
    CHECK_EQ(allocated(target), before);
    for (int i = 0; i < MANY; i++)
        drop(&tensors[i]);
    CHECK_OK(tcuda_comm_broadcast_coalesced(NULL, 0, devices, 3, 0, NULL));
}

static void many_come_from_any_place(void)
{
    const int32_t with_host[] = { 0, other, HOST }, reversed[] = { HOST, other, 0 };
    const int32_t all[] = { 0, all_devices / 2, other };
    many_share_blocks(0, with_host, 0);
    many_share_blocks(0, with_host, 1500);
    many_share_blocks(0, reversed, 1500);
    many_share_blocks(other, all, 1500);
    many_share_blocks(HOST, with_host, 1500);
    many_share_blocks(HOST, all, 0);
    /* The first need not be the first device, but all are on one. */
    owned tensors[2];
    make_numbers(&tensors[0], HOST, 1, 1, (const int64_t[]) { 3 });
    make_numbers(&tensors[1], other, 1, 1, (const int64_t[]) { 3 });
    const tcuda_tensor views[] = { tensors[0].view, tensors[1].view };
    tcuda_tensor outs[6];
    refuse(tcuda_comm_broadcast_coalesced(views, 2, all, 3, 0, outs), "and the host was expected");
    drop(&tensors[0]);
    drop(&tensors[1]);
}

/* DLPack's capsule, as far as a consumer needs it. */
struct capsule {
    uint32_t version[2];
    void *manager;
    void (*deleter)(struct capsule *self);
    uint64_t flags;
    tcuda_tensor tensor;
};

static void a_part_of_a_block_becomes_a_capsule(void)
{
    owned tensors[2];
    tcuda_tensor views[2], outs[4];
    const int32_t devices[] = { 0, other };
    for (int i = 0; i < 2; i++) {
        make_numbers(&tensors[i], 0, 10 * i, 1, (const int64_t[]) { 9 });
        views[i] = tensors[i].view;
    }
    const size_t before = allocated(other);
    CHECK_OK(tcuda_comm_broadcast_coalesced(views, 2, devices, 2, 0, outs));
    struct DLManagedTensorVersioned *managed = NULL;
    tcuda_tensor copy = outs[3];
    CHECK_OK(tcuda_tensor_to_dlpack(&outs[3], &managed));
    struct capsule *const capsule = (struct capsule *)(void *)managed;
    CHECK(is_zero(&outs[3]));
    /* The copy of the struct is no tensor any more. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_release(&copy));
    CHECK_OK(tcuda_tensor_release(&outs[2]));
    synchronize_all();
    check_same(&capsule->tensor, &views[1], 0);
    CHECK(other == 0 || allocated(other) > before);
    capsule->deleter(capsule);
    CHECK_EQ(allocated(other), before);
    release_all(outs, 2);
    for (int i = 0; i < 2; i++)
        drop(&tensors[i]);
}

/* ---- Order ---- */

/* Sources are written late on their streams, and written over as soon as the call returns. */
static void calls_are_in_order_with_streams(void)
{
    const int64_t shape[] = { 1 << 18 };
    const size_t bytes = 4U << 18;
    owned src, out;
    make(&src, 0, false, int32, 1 << 18);
    make(&out, other, false, int32, 1 << 18);
    shape_of(&src, 1, shape, NULL);
    shape_of(&out, 1, shape, NULL);
    /* On one device it is the same stream. */
    tcuda_stream *const from = create_stream(0);
    tcuda_stream *const to = other == 0 ? from : create_stream(other);
    synchronize_all();
    CHECK_OK(tcuda_stream_set_current(from));
    CHECK_OK(tcuda_stream_set_current(to));
    for (int round = 1; round < 4; round++) {
        fill_bytes(src.memory, round, bytes, from);
        fill_bytes(out.memory, 0x70, bytes, to);
        CHECK_OK(tcuda_comm_broadcast_into(&src.view, &out.view, 1));
        fill_bytes(src.memory, 0x60, bytes, from);
        CHECK_EQ(count_other_bytes(out.memory, round, bytes, to), 0);
        /* Memory that a call has allocated is the stream's at once. */
        tcuda_tensor copy;
        const int32_t host_too[] = { other };
        fill_bytes(src.memory, 0x10 + round, bytes, from);
        CHECK_OK(tcuda_comm_broadcast(&src.view, host_too, 1, &copy));
        fill_bytes(src.memory, 0x61, other == 0 ? 1 : bytes, from);
        if (other != 0)
            CHECK_EQ(count_other_bytes(copy.data, 0x10 + round, bytes, to), 0);
        CHECK_OK(tcuda_tensor_release(&copy));
    }
    /* A block of another stream that is freed after the call is not reused before it is read. */
    tcuda_stream *const owner = create_stream(0);
    void *const block = allocate(bytes, 0, owner);
    fill_bytes(block, 0x33, bytes, owner);
    CHECK_OK(tcuda_stream_wait_stream(from, owner));
    tcuda_tensor view = src.view;
    view.data = block;
    CHECK_OK(tcuda_comm_broadcast_into(&view, &out.view, 1));
    CHECK_OK(tcuda_free(block));
    void *const next = allocate(bytes, 0, owner);
    fill_bytes(next, 0x44, bytes, owner);
    CHECK_EQ(count_other_bytes(out.memory, 0x33, bytes, to), 0);
    CHECK_OK(tcuda_stream_synchronize(owner));
    CHECK_OK(tcuda_free(next));
    tcuda_stream *standard = NULL;
    for (int32_t device = other; device >= 0; device -= other > 0 ? other : 1) {
        CHECK_OK(tcuda_stream_default(device, &standard));
        CHECK_OK(tcuda_stream_set_current(standard));
    }
    CHECK_OK(tcuda_stream_synchronize(from));
    CHECK_OK(tcuda_stream_synchronize(to));
    CHECK_OK(tcuda_stream_destroy(owner));
    CHECK_OK(tcuda_stream_destroy(from));
    if (to != from)
        CHECK_OK(tcuda_stream_destroy(to));
    drop(&src);
    drop(&out);
}

/* ---- What is refused ---- */

static void what_does_not_fit_is_refused(void)
{
    const int64_t shape[] = { 2, 3 };
    owned src, wide, bytes;
    make_numbers(&src, 0, 0, 2, shape);
    make_numbers(&wide, other, 0, 2, (const int64_t[]) { 2, 4 });
    make(&bytes, 0, false, uint8, 6);
    shape_of(&bytes, 2, shape, NULL);
    tcuda_tensor outs[4];
    memset(outs, 0xAB, sizeof outs);
    const tcuda_tensor before = outs[0];
    const tcuda_tensor wrong_shape[] = { src.view, wide.view };
    const tcuda_tensor wrong_type[] = { src.view, bytes.view };
    refuse(tcuda_comm_broadcast_into(&src.view, wrong_shape, 2),
        "outs[1] has shape [2, 4], and [2, 3]");
    refuse(tcuda_comm_broadcast_into(&src.view, wrong_type, 2),
        "outs[1] has type uint8, and int32");
    refuse(tcuda_comm_reduce_add(wrong_shape, 2, 0, outs), "tensors[1] has shape [2, 4]");
    refuse(tcuda_comm_reduce_add(NULL, 0, 0, outs), "count is 0");
    refuse(tcuda_comm_gather(NULL, 0, 0, 0, outs), "count is 0");
    refuse(tcuda_comm_gather(wrong_shape, 2, 0, 0, outs), "tensors[1] has shape [2, 4]");
    refuse(tcuda_comm_gather(wrong_type, 2, 1, 0, outs), "tensors[1] has type uint8");
    refuse(tcuda_comm_gather(wrong_shape, 2, 2, 0, outs), "dim is 2");
    refuse(tcuda_comm_gather_into(wrong_shape, 2, 1, &src.view),
        "out has shape [2, 3], and [2, 7]");
    const int32_t devices[] = { 0, other };
    const int64_t few[] = { 1, 1 }, negative[] = { 4, -1 };
    refuse(tcuda_comm_scatter(&src.view, devices, few, 2, 1, NULL, outs), "2 together along dim");
    refuse(tcuda_comm_scatter(&src.view, devices, negative, 2, 1, NULL, outs), "is -1");
    refuse(tcuda_comm_scatter(&src.view, devices, NULL, 2, -3, NULL, outs), "dim is -3");
    refuse(tcuda_comm_scatter_into(&src.view, wrong_shape, 2, 0, NULL), "outs[1] has shape [2, 4]");
    refuse(tcuda_comm_scatter_into(&src.view, &wide.view, 1, 1, NULL), "4 together along dim");
    owned scalar;
    make_numbers(&scalar, 0, 0, 0, NULL);
    refuse(tcuda_comm_scatter(&scalar.view, devices, NULL, 2, 0, NULL, outs), "without dimensions");
    drop(&scalar);
    /* Elements that share an address cannot be written apart. */
    owned folded;
    make(&folded, 0, false, int32, 6);
    shape_of(&folded, 2, shape, (const int64_t[]) { 0, 1 });
    refuse(tcuda_comm_broadcast_into(&src.view, &folded.view, 1), "keep them apart");
    drop(&folded);
    refuse(tcuda_comm_broadcast_coalesced(&src.view, 1, NULL, 0, 0, NULL), "num_devices is 0");
    if (other != 0) {
        owned far;
        make_numbers(&far, other, 0, 2, shape);
        const tcuda_tensor apart[] = { src.view, far.view };
        refuse(tcuda_comm_broadcast_coalesced(apart, 2, devices, 2, 0, outs),
            "tensors[1] is on device ");
        drop(&far);
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_comm_broadcast(&src.view, (const int32_t[]) { 99 }, 1, outs));
    /* What says that it is the host's, and is a device's. */
    tcuda_tensor pretender = src.view;
    pretender.device.device_type = TCUDA_DEVICE_CPU;
    refuse(tcuda_comm_broadcast(&pretender, devices, 2, outs), "in memory of the host");
    CHECK(memcmp(&outs[0], &before, sizeof before) == 0);
    drop(&src);
    drop(&wide);
    drop(&bytes);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    find_devices();
    copies_go_to_all_devices();
    the_host_sends_too();
    outputs_have_any_layout();
    any_source_will_do();
    small_types_move_as_bytes();
    nothing_is_moved_too();
    many_come_from_any_place();
    a_part_of_a_block_becomes_a_capsule();
    calls_are_in_order_with_streams();
    what_does_not_fit_is_refused();
    return finish();
}
