/* Copies and fills. */
#include "driver.h"

/* CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE */
enum { HOST = 1, DEVICE = 2 };

/* CUDA_MEMCPY2D */
struct copy_2d {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    address src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    address dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
};

/* CUDA_MEMCPY3D and, with contexts in place of the reserved fields, CUDA_MEMCPY3D_PEER */
struct copy_3d {
    size_t src_x, src_y, src_z, src_lod;
    int src_type;
    const void *src_host;
    address src_device;
    void *src_array;
    void *src_context;
    size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_lod;
    int dst_type;
    void *dst_host;
    address dst_device;
    void *dst_array;
    void *dst_context;
    size_t dst_pitch, dst_height;
    size_t width, height, depth;
};

#define FUNCTIONS(F) \
    F(init, "cuInit", (unsigned int flags)) \
    F(retain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
    F(release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    F(set_current, "cuCtxSetCurrent", (void *context)) \
    F(allocate, "cuMemAlloc_v2", (address *ptr, size_t bytes)) \
    F(allocate_host, "cuMemHostAlloc", (void **ptr, size_t bytes, unsigned int flags)) \
    F(free_host, "cuMemFreeHost", (void *ptr)) \
    F(release_memory, "cuMemFree_v2", (address ptr)) \
    F(create, "cuStreamCreateWithPriority", (void **stream, unsigned int flags, int priority)) \
    F(destroy, "cuStreamDestroy_v2", (void *stream)) \
    F(synchronize, "cuStreamSynchronize", (void *stream)) \
    F(begin_capture, "cuStreamBeginCapture_v2", (void *stream, int mode)) \
    F(end_capture, "cuStreamEndCapture", (void *stream, void **graph)) \
    F(instantiate, "cuGraphInstantiateWithFlags", (void **exec, void *graph, uint64_t flags)) \
    F(launch, "cuGraphLaunch", (void *exec, void *stream)) \
    F(destroy_exec, "cuGraphExecDestroy", (void *exec)) \
    F(destroy_graph, "cuGraphDestroy", (void *graph)) \
    F(copy, "cuMemcpy", (address dst, address src, size_t bytes)) \
    F(to_device, "cuMemcpyHtoD_v2", (address dst, const void *src, size_t bytes)) \
    F(to_host, "cuMemcpyDtoH_v2", (void *dst, address src, size_t bytes)) \
    F(between, "cuMemcpyDtoD_v2", (address dst, address src, size_t bytes)) \
    F(peer, "cuMemcpyPeer", (address dst, void *to, address src, void *from, size_t bytes)) \
    F(rows, "cuMemcpy2D_v2", (const struct copy_2d *copy)) \
    F(rows_unaligned, "cuMemcpy2DUnaligned_v2", (const struct copy_2d *copy)) \
    F(planes, "cuMemcpy3D_v2", (const struct copy_3d *copy)) \
    F(planes_peer, "cuMemcpy3DPeer", (const struct copy_3d *copy)) \
    F(copy_async, "cuMemcpyAsync", (address dst, address src, size_t bytes, void *stream)) \
    F(to_device_async, "cuMemcpyHtoDAsync_v2", \
        (address dst, const void *src, size_t bytes, void *stream)) \
    F(to_host_async, "cuMemcpyDtoHAsync_v2", \
        (void *dst, address src, size_t bytes, void *stream)) \
    F(between_async, "cuMemcpyDtoDAsync_v2", \
        (address dst, address src, size_t bytes, void *stream)) \
    F(planes_async, "cuMemcpy3DAsync_v2", (const struct copy_3d *copy, void *stream)) \
    F(fill_8, "cuMemsetD8_v2", (address ptr, unsigned char value, size_t count)) \
    F(fill_16, "cuMemsetD16_v2", (address ptr, unsigned short value, size_t count)) \
    F(fill_32, "cuMemsetD32_v2", (address ptr, unsigned int value, size_t count)) \
    F(fill_rows_8, "cuMemsetD2D8_v2", \
        (address ptr, size_t pitch, unsigned char value, size_t width, size_t height)) \
    F(fill_rows_16, "cuMemsetD2D16_v2", \
        (address ptr, size_t pitch, unsigned short value, size_t width, size_t height)) \
    F(fill_rows_32, "cuMemsetD2D32_v2", \
        (address ptr, size_t pitch, unsigned int value, size_t width, size_t height)) \
    F(fill_rows_8_async, "cuMemsetD2D8Async", \
        (address ptr, size_t pitch, unsigned char value, size_t width, size_t height, \
            void *stream)) \
    F(fill_rows_16_async, "cuMemsetD2D16Async", \
        (address ptr, size_t pitch, unsigned short value, size_t width, size_t height, \
            void *stream)) \
    F(fill_rows_32_async, "cuMemsetD2D32Async", \
        (address ptr, size_t pitch, unsigned int value, size_t width, size_t height, \
            void *stream))

FUNCTIONS(DECLARE)

enum { BYTES = 4096 };

static unsigned char source[BYTES], found[BYTES], expected[BYTES];
static address first, second;
static void *context;

static address of(const void *ptr)
{
    return (address)(uintptr_t)ptr;
}

static void is_expected(address ptr)
{
    memset(found, 0xee, BYTES);
    CHECK_EQ(to_host(found, ptr, BYTES), SUCCESS);
    for (int i = 0; i < BYTES; i++)
        CHECK_EQ(found[i], expected[i]);
}

static void clear(address ptr)
{
    memset(expected, 0, BYTES);
    CHECK_EQ(fill_8(ptr, 0, BYTES), SUCCESS);
}

static void contiguous_bytes(void)
{
    void *pinned = NULL;
    clear(first);
    CHECK_EQ(to_device(first, source, BYTES), SUCCESS);
    memcpy(expected, source, BYTES);
    is_expected(first);
    CHECK_EQ(between(second, first, BYTES), SUCCESS);
    is_expected(second);
    clear(second);
    CHECK_EQ(peer(second, context, first, context, BYTES), SUCCESS);
    memcpy(expected, source, BYTES);
    is_expected(second);
    /* Every direction by the address alone. */
    clear(second);
    CHECK_EQ(copy(second, of(source), BYTES), SUCCESS);
    CHECK_EQ(copy(first, second, BYTES), SUCCESS);
    CHECK_EQ(copy(of(found), first, BYTES), SUCCESS);
    CHECK_EQ(memcmp(found, source, BYTES), 0);
    memset(found, 0, BYTES);
    CHECK_EQ(copy(of(found), of(source), BYTES), SUCCESS);
    CHECK_EQ(memcmp(found, source, BYTES), 0);
    CHECK_EQ(allocate_host(&pinned, BYTES, 0), SUCCESS);
    memset(pinned, 0x5a, BYTES);
    CHECK_EQ(to_device(first, pinned, BYTES), SUCCESS);
    memset(pinned, 0, BYTES);
    memset(expected, 0x5a, BYTES);
    is_expected(first);
    CHECK_EQ(to_host(pinned, first, BYTES), SUCCESS);
    CHECK_EQ(memcmp(pinned, expected, BYTES), 0);
    CHECK_EQ(free_host(pinned), SUCCESS);
    /* Without bytes nothing is checked but the context. */
    CHECK_EQ(to_device(first, source, 0), SUCCESS);
    CHECK_EQ(to_host(found, first, 0), SUCCESS);
    CHECK_EQ(between(second, first, 0), SUCCESS);
    CHECK_EQ(to_device(0, source, 1), INVALID_VALUE);
    CHECK_EQ(to_device(first, NULL, 1), INVALID_VALUE);
    CHECK_EQ(to_host(NULL, first, 1), INVALID_VALUE);
    CHECK_EQ(between(second, 0, 1), INVALID_VALUE);
}

/* A rectangle from one place to another. */
static void rectangles(void)
{
    const struct copy_2d up = {.src_x = 3, .src_y = 2, .src_type = HOST, .src_host = source,
        .src_pitch = 100, .dst_x = 5, .dst_y = 1, .dst_type = DEVICE, .dst_device = first,
        .dst_pitch = 128, .width = 17, .height = 4};
    const struct copy_2d down = {.src_x = 5, .src_y = 1, .src_type = DEVICE, .src_device = first,
        .src_pitch = 128, .dst_type = HOST, .dst_host = found, .dst_pitch = 20, .width = 17,
        .height = 4};
    struct copy_2d wrong = up;
    clear(first);
    CHECK_EQ(rows(&up), SUCCESS);
    for (int y = 0; y < 4; y++)
        memcpy(expected + (y + 1) * 128 + 5, source + (y + 2) * 100 + 3, 17);
    is_expected(first);
    memset(found, 0, BYTES);
    CHECK_EQ(rows_unaligned(&down), SUCCESS);
    for (int y = 0; y < 4; y++)
        CHECK_EQ(memcmp(found + y * 20, source + (y + 2) * 100 + 3, 17), 0);
    CHECK_EQ(found[17], 0);
    /* Rows do not overlap. */
    wrong.dst_pitch = 21;
    CHECK_EQ(rows(&wrong), INVALID_VALUE);
    wrong = up;
    wrong.src_type = 0;
    CHECK_EQ(rows(&wrong), INVALID_VALUE);
    wrong = up;
    wrong.height = 0;
    CHECK_EQ(rows(&wrong), SUCCESS);
    CHECK_EQ(rows(NULL), INVALID_VALUE);
    is_expected(first);
}

/* A box: by the default stream, by a stream, and by the call that names contexts. */
static void boxes(void *stream)
{
    struct copy_3d up = {.src_x = 1, .src_y = 1, .src_z = 1, .src_type = HOST, .src_host = source,
        .src_pitch = 10, .src_height = 12, .dst_x = 2, .dst_z = 1, .dst_type = DEVICE,
        .dst_device = first, .dst_pitch = 16, .dst_height = 8, .width = 7, .height = 5,
        .depth = 3};
    for (int way = 0; way < 3; way++) {
        clear(first);
        if (way == 0)
            CHECK_EQ(planes(&up), SUCCESS);
        if (way == 1) {
            CHECK_EQ(planes_async(&up, stream), SUCCESS);
            CHECK_EQ(synchronize(stream), SUCCESS);
        }
        if (way == 2) {
            up.src_context = up.dst_context = context;
            CHECK_EQ(planes_peer(&up), SUCCESS);
        }
        for (int z = 0; z < 3; z++)
            for (int y = 0; y < 5; y++)
                memcpy(expected + (z + 1) * 128 + y * 16 + 2,
                    source + (z + 1) * 120 + (y + 1) * 10 + 1, 7);
        is_expected(first);
    }
    CHECK_EQ(planes(NULL), INVALID_VALUE);
}

static void fills(void *stream)
{
    const uint32_t words[2] = {0x01020304, 0};
    clear(first);
    CHECK_EQ(fill_8(first + 1, 0xaa, 3), SUCCESS);
    memset(expected + 1, 0xaa, 3);
    CHECK_EQ(fill_16(first + 6, 0x1234, 2), SUCCESS);
    for (int i = 6; i < 10; i += 2)
        memcpy(expected + i, (const unsigned char[]){0x34, 0x12}, 2);
    CHECK_EQ(fill_32(first + 12, words[0], 1), SUCCESS);
    memcpy(expected + 12, words, 4);
    is_expected(first);
    CHECK_EQ(fill_8(first, 1, 0), SUCCESS);
    CHECK_EQ(fill_16(first + 1, 1, 1), INVALID_VALUE);
    CHECK_EQ(fill_32(first + 2, 1, 1), INVALID_VALUE);
    CHECK_EQ(fill_8(0, 1, 1), INVALID_VALUE);
    /* Rows */
    clear(first);
    CHECK_EQ(fill_rows_8(first + 3, 64, 7, 5, 3), SUCCESS);
    CHECK_EQ(fill_rows_16(first + 256, 32, 0x0909, 4, 2), SUCCESS);
    CHECK_EQ(fill_rows_32(first + 512, 48, 0x0b0b0b0b, 3, 2), SUCCESS);
    for (int y = 0; y < 3; y++)
        memset(expected + 3 + 64 * y, 7, 5);
    for (int y = 0; y < 2; y++) {
        memset(expected + 256 + 32 * y, 9, 8);
        memset(expected + 512 + 48 * y, 11, 12);
    }
    is_expected(first);
    clear(first);
    CHECK_EQ(fill_rows_8_async(first + 3, 64, 7, 5, 3, stream), SUCCESS);
    CHECK_EQ(fill_rows_16_async(first + 256, 32, 0x0909, 4, 2, stream), SUCCESS);
    CHECK_EQ(fill_rows_32_async(first + 512, 48, 0x0b0b0b0b, 3, 2, stream), SUCCESS);
    CHECK_EQ(synchronize(stream), SUCCESS);
    for (int y = 0; y < 3; y++)
        memset(expected + 3 + 64 * y, 7, 5);
    for (int y = 0; y < 2; y++) {
        memset(expected + 256 + 32 * y, 9, 8);
        memset(expected + 512 + 48 * y, 11, 12);
    }
    is_expected(first);
    CHECK_EQ(fill_rows_8(first, 64, 1, 0, 3), SUCCESS);
    CHECK_EQ(fill_rows_8(first, 64, 1, 3, 0), SUCCESS);
    CHECK_EQ(fill_rows_16(first, 33, 1, 1, 2), INVALID_VALUE);
    CHECK_EQ(fill_rows_32(first, 34, 1, 1, 2), INVALID_VALUE);
    is_expected(first);
}

static void streams(void *stream)
{
    void *pinned = NULL;
    CHECK_EQ(allocate_host(&pinned, BYTES, 0), SUCCESS);
    clear(first);
    clear(second);
    CHECK_EQ(synchronize(NULL), SUCCESS);
    CHECK_EQ(to_device_async(first, source, BYTES, stream), SUCCESS);
    CHECK_EQ(between_async(second, first, BYTES, stream), SUCCESS);
    CHECK_EQ(to_host_async(pinned, second, BYTES, stream), SUCCESS);
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(memcmp(pinned, source, BYTES), 0);
    CHECK_EQ(to_device_async(0, source, 1, stream), INVALID_VALUE);
    CHECK_EQ(between_async(second, 0, 1, stream), INVALID_VALUE);
    CHECK_EQ(to_host_async(NULL, second, 1, stream), INVALID_VALUE);
    CHECK_EQ(free_host(pinned), SUCCESS);
}

static void graphs(void *stream)
{
    void *graph = NULL, *exec = NULL;
    clear(first);
    clear(second);
    CHECK_EQ(synchronize(NULL), SUCCESS);
    CHECK_EQ(begin_capture(stream, 0), SUCCESS);
    CHECK_EQ(fill_rows_32_async(first + 4, 64, 0x03030303, 2, 3, stream), SUCCESS);
    CHECK_EQ(between_async(second, first, BYTES, stream), SUCCESS);
    CHECK_EQ(end_capture(stream, &graph), SUCCESS);
    is_expected(second);
    CHECK_EQ(instantiate(&exec, graph, 0), SUCCESS);
    CHECK_EQ(launch(exec, stream), SUCCESS);
    CHECK_EQ(synchronize(stream), SUCCESS);
    for (int y = 0; y < 3; y++)
        memset(expected + 4 + 64 * y, 3, 8);
    is_expected(second);
    CHECK_EQ(destroy_exec(exec), SUCCESS);
    CHECK_EQ(destroy_graph(graph), SUCCESS);
    /* A copy on the default stream cannot be recorded, and ends the capture. */
    CHECK_EQ(begin_capture(stream, 0), SUCCESS);
    CHECK(to_device(first, source, BYTES) != SUCCESS);
    CHECK(end_capture(stream, &graph) != SUCCESS);
    CHECK(graph == NULL);
}

int main(void)
{
    void *stream = NULL;
    open_the_driver();
    FUNCTIONS(LOAD)
    CHECK_EQ(to_device(0, source, 1), NOT_INITIALIZED);
    CHECK_EQ(init(0), SUCCESS);
    CHECK_EQ(to_device(0, source, 1), INVALID_CONTEXT);
    CHECK_EQ(fill_8(0, 0, 1), INVALID_CONTEXT);
    CHECK_EQ(retain(&context, 0), SUCCESS);
    CHECK_EQ(set_current(context), SUCCESS);
    CHECK_EQ(allocate(&first, BYTES), SUCCESS);
    CHECK_EQ(allocate(&second, BYTES), SUCCESS);
    for (int i = 0; i < BYTES; i++)
        source[i] = (unsigned char)(i * 7 + i / 251);
    CHECK_EQ(create(&stream, 0, 0), SUCCESS);
    contiguous_bytes();
    rectangles();
    boxes(stream);
    fills(stream);
    streams(stream);
    graphs(stream);
    CHECK_EQ(destroy(stream), SUCCESS);
    CHECK_EQ(create(&stream, 1, 0), SUCCESS);
    streams(stream);
    CHECK_EQ(destroy(stream), SUCCESS);
    CHECK_EQ(release_memory(first), SUCCESS);
    CHECK_EQ(release_memory(second), SUCCESS);
    CHECK_EQ(set_current(NULL), SUCCESS);
    CHECK_EQ(release(0), SUCCESS);
    return EXIT_SUCCESS;
}
