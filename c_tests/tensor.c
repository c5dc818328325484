/* Tensors: DLPack's layout, capsules in both directions, and what is freed, how often and when. */
#define _POSIX_C_SOURCE 200809L

#include <stddef.h>

#include "dl_tensor.h"

#define SAME(member) _Static_assert(offsetof(tcuda_tensor, member) == offsetof(dl_tensor, member) \
    && sizeof ((tcuda_tensor *)0)->member == sizeof ((dl_tensor *)0)->member, #member)
SAME(data);
SAME(device);
SAME(ndim);
SAME(dtype);
SAME(shape);
SAME(strides);
SAME(byte_offset);
_Static_assert(sizeof(tcuda_tensor) == sizeof(dl_tensor), "size");
_Static_assert(offsetof(dl_managed, tensor) == 32 && sizeof(dl_managed) == 80, "as in dlpack.h");

static void a_loan_is_ended_once(void)
{
    static float memory[24];
    int64_t shape[] = { 2, 3, 4 };
    dl_managed managed = lend(memory, 3, shape, NULL);
    managed.tensor.byte_offset = 0;
    tcuda_tensor tensor;
    memset(&tensor, 0xAB, sizeof tensor);
    atomic_store(&deleted, 0);
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
    CHECK(tensor.data == memory && tensor.ndim == 3);
    CHECK(tensor.device.device_type == TCUDA_DEVICE_CPU && tensor.device.device_id == 0);
    CHECK(memcmp(&tensor.dtype, &float32, sizeof float32) == 0);
    /* Its own shape and strides, also where the capsule says nothing of strides. */
    CHECK(tensor.shape != shape && memcmp(tensor.shape, shape, sizeof shape) == 0);
    CHECK(tensor.strides[0] == 12 && tensor.strides[1] == 4 && tensor.strides[2] == 1);
    CHECK_EQ(atomic_load(&deleted), 0);
    /* A copy of the struct is the same tensor: one of the two is released. */
    tcuda_tensor copy = tensor;
    CHECK_OK(tcuda_tensor_release(&tensor));
    CHECK_EQ(atomic_load(&deleted), 1);
    CHECK(is_zero(&tensor));
    CHECK_OK(tcuda_tensor_release(&tensor));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_release(&copy));
    CHECK_EQ(atomic_load(&deleted), 1);
    CHECK_OK(tcuda_tensor_release(NULL));
    /* Without a deleter there is nothing to call. */
    managed = lend(memory, 3, shape, NULL);
    managed.deleter = NULL;
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
    CHECK_OK(tcuda_tensor_release(&tensor));
    CHECK_EQ(atomic_load(&deleted), 1);
}

static void refuses(dl_managed managed, tcuda_status status, const char *sentence)
{
    tcuda_tensor tensor;
    memset(&tensor, 0xAB, sizeof tensor);
    const tcuda_tensor before = tensor;
    const int deletes = atomic_load(&deleted);
    CHECK_STATUS(status, tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
    if (strstr(tcuda_last_error(), sentence) == NULL)
        check_failed(__FILE__, __LINE__, sentence, tcuda_last_error());
    CHECK(memcmp(&tensor, &before, sizeof tensor) == 0);
    CHECK_EQ(atomic_load(&deleted), deletes);
}

static void what_is_no_tensor_is_refused(void)
{
    static float memory[24];
    const tcuda_status invalid = TCUDA_STATUS_INVALID_ARGUMENT;
    int64_t shape[] = { 2, 3, 4 }, bad_shape[] = { 2, -3, 4 };
    int64_t huge[] = { INT64_C(1) << 62, 3, 4 }, far[] = { INT64_MAX, 4, 1 };
    const dl_managed good = lend(memory, 3, shape, NULL);
    dl_managed bad = good;
    bad.version.major = 2;
    refuses(bad, invalid, "version");
    bad = good, bad.tensor.ndim = -1;
    refuses(bad, invalid, "ndim is -1");
    bad = good, bad.tensor.ndim = 65;
    refuses(bad, invalid, "ndim is 65");
    bad = good, bad.tensor.shape = NULL;
    refuses(bad, invalid, "shape is NULL");
    bad = good, bad.tensor.shape = bad_shape;
    refuses(bad, invalid, "shape is -3");
    bad = good, bad.tensor.shape = huge;
    refuses(bad, invalid, "addresses");
    bad = good, bad.tensor.strides = far;
    refuses(bad, invalid, "addresses");
    bad = good, bad.tensor.data = NULL;
    refuses(bad, invalid, "data is NULL");
    bad = good, bad.tensor.byte_offset = UINT64_MAX;
    refuses(bad, invalid, "addresses");
    bad = good, bad.tensor.device.device_type = 7;
    refuses(bad, invalid, "device_type is 7");
    bad = good, bad.tensor.device.device_id = -1;
    refuses(bad, invalid, "device_id is -1");
    bad = good, bad.tensor.dtype.code = 18;
    refuses(bad, invalid, "code is 18");
    bad = good, bad.tensor.dtype.bits = 24;
    refuses(bad, invalid, "bits is 24");
    bad = good, bad.tensor.dtype.lanes = 0;
    refuses(bad, invalid, "lanes is 0");
    bad = good, bad.tensor.dtype.code = 17, bad.tensor.dtype.bits = 4, bad.flags = PADDED;
    refuses(bad, TCUDA_STATUS_NOT_SUPPORTED, "padded");
    tcuda_tensor tensor;
    dl_managed managed = good;
    CHECK_STATUS(invalid, tcuda_tensor_from_dlpack(NULL, &tensor));
    CHECK_STATUS(invalid, tcuda_tensor_from_dlpack(capsule(&managed), NULL));
}

static void all_types_of_dlpack_are_accepted(void)
{
    static double memory[4];
    static const struct { uint8_t code, bits; uint16_t lanes; } types[] = {
        { 0, 8, 1 }, { 0, 64, 1 }, { 1, 8, 1 }, { 1, 16, 1 }, { 2, 16, 1 }, { 2, 64, 1 },
        { 4, 16, 1 }, { 5, 32, 1 }, { 5, 64, 1 }, { 5, 128, 1 }, { 6, 8, 1 }, { 7, 8, 1 },
        { 10, 8, 1 }, { 12, 8, 1 }, { 14, 8, 1 }, { 15, 6, 1 }, { 17, 4, 1 }, { 17, 4, 2 },
        { 2, 32, 4 }, { 1, 4, 1 },
    };
    int64_t shape[] = { 2 };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        dl_managed managed = lend(memory, 1, shape, NULL);
        managed.tensor.dtype.code = types[i].code;
        managed.tensor.dtype.bits = types[i].bits;
        managed.tensor.dtype.lanes = types[i].lanes;
        managed.version.minor = 99;
        managed.flags = COPIED | (types[i].bits == 8 ? PADDED : 0);
        tcuda_tensor tensor;
        CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
        CHECK(tensor.dtype.code == types[i].code && tensor.dtype.lanes == types[i].lanes);
        CHECK_OK(tcuda_tensor_release(&tensor));
    }
}

static void scalars_and_nothing_are_tensors(void)
{
    static float memory[1];
    dl_managed managed = lend(memory, 0, NULL, NULL);
    tcuda_tensor tensor;
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
    CHECK(tensor.ndim == 0 && tensor.shape != NULL);
    CHECK_OK(tcuda_tensor_release(&tensor));
    int64_t shape[] = { 3, 0, INT64_MAX }, strides[] = { INT64_MIN, 0, INT64_MAX };
    managed = lend(NULL, 3, shape, strides);
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
    CHECK(tensor.data == NULL && tensor.shape[2] == INT64_MAX && tensor.strides[0] == INT64_MIN);
    CHECK_OK(tcuda_tensor_release(&tensor));
    /* At the other end, going down. */
    static float row[4];
    int64_t four[] = { 4 }, down[] = { -1 };
    managed = lend(row, 1, four, down);
    managed.tensor.byte_offset = 12;
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
    CHECK(tensor.byte_offset == 12 && tensor.strides[0] == -1);
    CHECK_OK(tcuda_tensor_release(&tensor));
}

static void what_the_host_changed_is_noticed(void)
{
    static float memory[24];
    int64_t shape[] = { 24 };
    dl_managed managed = lend(memory, 1, shape, NULL);
    tcuda_tensor tensor;
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
    tensor.data = memory + 1;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_release(&tensor));
    CHECK(strstr(tcuda_last_error(), "byte_offset") != NULL);
    tensor.data = memory;
    /* A view of a part is the host's own business. */
    tensor.byte_offset = 4;
    tensor.shape[0] = 12;
    CHECK_OK(tcuda_tensor_release(&tensor));
    tcuda_tensor own = { .data = memory, .device = { TCUDA_DEVICE_CPU, 0 }, .ndim = 1,
        .dtype = float32, .shape = shape };
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_release(&own));
    CHECK(strstr(tcuda_last_error(), "host's own") != NULL);
}

static void a_loan_goes_back_as_it_came(void)
{
    static float memory[24];
    int64_t shape[] = { 24 };
    dl_managed managed = lend(memory, 1, shape, NULL);
    struct DLManagedTensorVersioned *back = NULL;
    tcuda_tensor tensor;
    atomic_store(&deleted, 0);
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
    CHECK_OK(tcuda_tensor_to_dlpack(&tensor, &back));
    CHECK(back == capsule(&managed) && is_zero(&tensor));
    CHECK_EQ(atomic_load(&deleted), 0);
    managed.deleter(&managed);
    CHECK_EQ(atomic_load(&deleted), 1);
}

/* What the host has changed of it, or what begins beyond its data, leaves as it is now. */
static void a_slice_of_a_loan_begins_at_its_data(void)
{
    static float memory[24];
    for (int changed = 0; changed < 3; changed++) {
        int64_t shape[] = { 12 };
        dl_managed managed = lend(memory, 1, shape, NULL), *out = NULL;
        managed.tensor.byte_offset = changed == 0 ? 16 : 0;
        managed.flags = READ_ONLY;
        tcuda_tensor tensor;
        atomic_store(&deleted, 0);
        CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
        if (changed == 1)
            tensor.byte_offset = 16;
        tensor.shape[0] = changed == 2 ? 5 : 12;
        CHECK_OK(tcuda_tensor_to_dlpack(&tensor, (struct DLManagedTensorVersioned **)(void *)&out));
        CHECK(out != &managed && is_zero(&tensor));
        CHECK((float *)out->tensor.data == memory + (changed < 2 ? 4 : 0));
        CHECK_EQ(out->tensor.byte_offset, 0);
        CHECK_EQ(out->tensor.shape[0], changed == 2 ? 5 : 12);
        CHECK_EQ(out->flags, READ_ONLY);
        CHECK_EQ(atomic_load(&deleted), 0);
        out->deleter(out);
        CHECK_EQ(atomic_load(&deleted), 1);
    }
}

/* ---- Memory of ours ---- */

static uint64_t allocated(int32_t device)
{
    size_t bytes = 0;
    CHECK_OK(tcuda_memory_allocated(device, &bytes));
    return bytes;
}

static tcuda_tensor on_device(void *data, int32_t device, int32_t ndim, int64_t *shape)
{
    const tcuda_tensor tensor = { .data = data, .device = { TCUDA_DEVICE_CUDA, device },
        .ndim = ndim, .dtype = float32, .shape = shape };
    return tensor;
}

static void *consume(void *argument)
{
    dl_managed *managed = argument;
    managed->deleter(managed);
    return NULL;
}

static void a_block_becomes_a_capsule(int32_t device)
{
    const uint64_t before = allocated(device);
    int64_t shape[] = { 3, 5 };
    tcuda_tensor tensor = on_device(allocate(64, device, NULL), device, 2, shape);
    tensor.byte_offset = 4;
    char *const data = tensor.data;
    struct DLManagedTensorVersioned *out = NULL;
    CHECK_OK(tcuda_tensor_to_dlpack(&tensor, &out));
    CHECK(is_zero(&tensor));
    dl_managed *const managed = (dl_managed *)(void *)out;
    CHECK_EQ(managed->version.major, 1);
    CHECK_EQ(managed->flags, 0);
    CHECK((char *)managed->tensor.data == data + 4 && managed->tensor.byte_offset == 0);
    CHECK_EQ(managed->tensor.device.device_type, TCUDA_DEVICE_CUDA);
    CHECK_EQ(managed->tensor.device.device_id, device);
    CHECK_EQ(managed->tensor.dtype.bits, 32);
    CHECK(managed->tensor.shape != shape && managed->tensor.shape[1] == 5);
    /* From version 1.2 on of DLPack strides are never NULL. */
    CHECK(managed->tensor.strides[0] == 5 && managed->tensor.strides[1] == 1);
    CHECK(allocated(device) > before);
    /* In again: the tensor is the library's, and its release frees the block. */
    CHECK_OK(tcuda_tensor_from_dlpack(out, &tensor));
    CHECK((char *)tensor.data == data + 4 && tensor.byte_offset == 0 && tensor.shape[0] == 3);
    CHECK(allocated(device) > before);
    CHECK_OK(tcuda_tensor_release(&tensor));
    CHECK_EQ(allocated(device), before);
    /* A consumer frees on a thread of its own. */
    tensor = on_device(allocate(60, device, NULL), device, 2, shape);
    CHECK_OK(tcuda_tensor_to_dlpack(&tensor, &out));
    run_on_thread(consume, out);
    CHECK_EQ(allocated(device), before);
    /* Nothing is a block too. */
    shape[0] = 0;
    tensor = on_device(NULL, device, 2, shape);
    CHECK_OK(tcuda_tensor_to_dlpack(&tensor, &out));
    consume(out);
}

static void cannot_leave(tcuda_tensor tensor, tcuda_status status)
{
    struct DLManagedTensorVersioned *out = (struct DLManagedTensorVersioned *)(void *)&tensor;
    const tcuda_tensor before = tensor;
    CHECK_STATUS(status, tcuda_tensor_to_dlpack(&tensor, &out));
    CHECK(memcmp(&tensor, &before, sizeof tensor) == 0);
    CHECK(out == (struct DLManagedTensorVersioned *)(void *)&tensor);
}

static void what_is_no_block_stays(int32_t device)
{
    int64_t shape[] = { 16 };
    char *const block = allocate(64, device, NULL);
    const tcuda_tensor good = on_device(block, device, 1, shape);
    tcuda_tensor bad = good;
    bad.data = block + 4;
    cannot_leave(bad, TCUDA_STATUS_INVALID_POINTER);
    bad.data = shape;
    cannot_leave(bad, TCUDA_STATUS_INVALID_POINTER);
    /* More than the block has. */
    bad = good, bad.byte_offset = 4;
    cannot_leave(bad, TCUDA_STATUS_INVALID_ARGUMENT);
    int64_t up[] = { 2 }, down[] = { -1 };
    bad = good, bad.strides = up;
    cannot_leave(bad, TCUDA_STATUS_INVALID_ARGUMENT);
    bad = good, bad.strides = down;
    cannot_leave(bad, TCUDA_STATUS_INVALID_ARGUMENT);
    bad = good, bad.device.device_type = TCUDA_DEVICE_CPU;
    cannot_leave(bad, TCUDA_STATUS_INVALID_ARGUMENT);
    bad = good, bad.device.device_id = num_devices();
    cannot_leave(bad, TCUDA_STATUS_INVALID_DEVICE);
    if (num_devices() > 1) {
        bad = good, bad.device.device_id = device == 0;
        cannot_leave(bad, TCUDA_STATUS_INVALID_ARGUMENT);
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_to_dlpack(&bad, NULL));
    CHECK_OK(tcuda_free(block));
    cannot_leave(good, TCUDA_STATUS_INVALID_POINTER);
}

/* ---- Threads, and the end ---- */

enum { THREADS = 4, ROUNDS = 300 };

static void *lend_and_release(void *argument)
{
    static float memory[8];
    int64_t shape[] = { 8 };
    (void)argument;
    for (int i = 0; i < ROUNDS; i++) {
        dl_managed managed = lend(memory, 1, shape, NULL);
        tcuda_tensor tensor;
        CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &tensor));
        CHECK_OK(tcuda_tensor_release(&tensor));
    }
    return NULL;
}

static void threads_lend_at_once(void)
{
    pthread_t threads[THREADS];
    atomic_store(&deleted, 0);
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(lend_and_release, NULL);
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    CHECK_EQ(atomic_load(&deleted), THREADS * ROUNDS);
}

static void what_is_left_at_the_end_can_be_released(void)
{
    static float memory[24];
    int64_t shape[] = { 24 };
    dl_managed managed = lend(memory, 1, shape, NULL);
    tcuda_tensor loan, block = on_device(allocate(96, 0, NULL), 0, 1, shape);
    struct DLManagedTensorVersioned *out = NULL, *late = NULL;
    atomic_store(&deleted, 0);
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &loan));
    CHECK_OK(tcuda_tensor_to_dlpack(&block, &out));
    block = on_device(allocate(96, 0, NULL), 0, 1, shape);
    CHECK_OK(tcuda_tensor_to_dlpack(&block, &late));
    CHECK_OK(tcuda_shutdown(NULL));
    /* The block is gone, the capsule is not. */
    consume(out);
    CHECK_EQ(atomic_load(&deleted), 0);
    CHECK_OK(tcuda_tensor_release(&loan));
    CHECK_EQ(atomic_load(&deleted), 1);
    /* In the next life the address may be another's block. */
    void *const other = allocate(96, 0, NULL);
    const uint64_t before = allocated(0);
    consume(late);
    CHECK_EQ(allocated(0), before);
    CHECK_OK(tcuda_free(other));
}

/* torch.cuda.device_of: what the struct says, and -1 for the host, which changes nothing. */
static void tensors_have_devices(void)
{
    static const int32_t cases[][3] = { { TCUDA_DEVICE_CPU, 0, -1 }, { TCUDA_DEVICE_CUDA, 0, 0 },
        { TCUDA_DEVICE_CUDA, 3, 3 }, { TCUDA_DEVICE_CUDA_HOST, 0, -1 },
        { TCUDA_DEVICE_CUDA_MANAGED, 1, 1 } };
    int32_t device = 77;
    tcuda_tensor tensor = { .data = &device, .dtype = float32 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensor.device = (tcuda_tensor_device) { cases[i][0], cases[i][1] };
        CHECK_OK(tcuda_tensor_device_of(&tensor, &device));
        CHECK_EQ(device, cases[i][2]);
    }
    device = 77;
    tensor.device = (tcuda_tensor_device) { TCUDA_DEVICE_CUDA, -1 };
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_device_of(&tensor, &device));
    tensor.device = (tcuda_tensor_device) { 99, 0 };
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_device_of(&tensor, &device));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_device_of(NULL, &device));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_device_of(&tensor, NULL));
    CHECK_EQ(device, 77);
}

int main(void)
{
    tensors_have_devices();
    a_loan_is_ended_once();
    what_is_no_tensor_is_refused();
    all_types_of_dlpack_are_accepted();
    scalars_and_nothing_are_tensors();
    what_the_host_changed_is_noticed();
    a_loan_goes_back_as_it_came();
    a_slice_of_a_loan_begins_at_its_data();
    threads_lend_at_once();
    SKIP_WITHOUT_GPU();
    for (int32_t device = 0; device < num_devices(); device++) {
        a_block_becomes_a_capsule(device);
        what_is_no_block_stays(device);
    }
    what_is_left_at_the_end_can_be_released();
    return finish();
}
