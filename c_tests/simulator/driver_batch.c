/* Batches of copies: what is refused and blamed, and when sources are read. */
#include "driver.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* CUmemLocation, CUmemcpyAttributes, CUmemcpy3DOperand with a pointer, CUDA_MEMCPY3D_BATCH_OP */
struct location {
    int type, id;
};
struct attributes {
    int order;
    struct location src, dst;
    unsigned int flags;
};
struct operand {
    int type;
    address ptr;
    size_t row, layer;
    struct location hint;
};
struct operation {
    struct operand src, dst;
    size_t width, height, depth;
    int order;
    unsigned int flags;
};

/* CUmemcpySrcAccessOrder */
enum { IN_STREAM = 1, DURING_CALL = 2, ANY = 3 };

#define FUNCTIONS(F) \
    F(init, "cuInit", (unsigned int flags)) \
    F(retain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
    F(release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    F(set_current, "cuCtxSetCurrent", (void *context)) \
    F(create_stream, "cuStreamCreate", (void **stream, unsigned int flags)) \
    F(destroy_stream, "cuStreamDestroy_v2", (void *stream)) \
    F(synchronize, "cuStreamSynchronize", (void *stream)) \
    F(synchronize_all, "cuCtxSynchronize", (void)) \
    F(begin, "cuStreamBeginCapture_v2", (void *stream, int mode)) \
    F(end, "cuStreamEndCapture", (void *stream, void **graph)) \
    F(destroy_graph, "cuGraphDestroy", (void *graph)) \
    F(launch_function, "cuLaunchHostFunc", \
        (void *stream, void (*function)(void *data), void *data)) \
    F(allocate, "cuMemAlloc_v2", (address *ptr, size_t bytes)) \
    F(free_memory, "cuMemFree_v2", (address ptr)) \
    F(allocate_host, "cuMemAllocHost_v2", (void **ptr, size_t bytes)) \
    F(free_host, "cuMemFreeHost", (void *ptr)) \
    F(fill, "cuMemsetD8_v2", (address ptr, unsigned char value, size_t count)) \
    F(read_back, "cuMemcpyDtoH_v2", (void *dst, address src, size_t bytes)) \
    F(copy_batch, "cuMemcpyBatchAsync", \
        (address *dsts, address *srcs, size_t *sizes, size_t count, \
            struct attributes *attributes, size_t *starts, size_t num_attributes, \
            size_t *refused, void *stream)) \
    F(copy_batch_of_thread, "cuMemcpyBatchAsync_ptsz", \
        (address *dsts, address *srcs, size_t *sizes, size_t count, \
            struct attributes *attributes, size_t *starts, size_t num_attributes, \
            size_t *refused, void *stream)) \
    F(copy_3d_batch, "cuMemcpy3DBatchAsync", \
        (size_t count, struct operation *operations, size_t *refused, uint64_t flags, \
            void *stream))

FUNCTIONS(DECLARE)

enum { STREAM_CAPTURE_UNSUPPORTED = 900 };

enum { UNTOUCHED = 777, BYTES = 4096, MOST = 3, UNKNOWN = 77 };
static const size_t none = SIZE_MAX;

static void *stream;
static address from, to;
static unsigned char *pinned, pageable[BYTES];

/* One batch of copies from `from` to `to`, and what it gives. */
struct batch {
    size_t sizes[MOST];
    size_t count;
    struct attributes attributes[MOST];
    size_t starts[MOST];
    size_t num_attributes;
};

static struct batch plain(size_t count)
{
    struct batch batch = { .count = count, .num_attributes = 1 };
    for (size_t i = 0; i < MOST; i++) {
        batch.sizes[i] = 64;
        batch.attributes[i].order = IN_STREAM;
        batch.starts[i] = i;
    }
    return batch;
}

static int run(struct batch *batch, size_t *refused, void *on)
{
    address dsts[MOST] = { to, to + 64, to + 128 }, srcs[MOST] = { from, from, from };
    *refused = UNTOUCHED;
    return copy_batch(dsts, srcs, batch->sizes, batch->count, batch->attributes, batch->starts,
        batch->num_attributes, refused, on);
}

#define REFUSED(batch, index) \
    do { \
        size_t refused_ = 0; \
        CHECK_EQ(run(&(batch), &refused_, stream), INVALID_VALUE); \
        CHECK_EQ(refused_, index); \
    } while (0)

#define ACCEPTED(batch) \
    do { \
        size_t refused_ = 0; \
        CHECK_EQ(run(&(batch), &refused_, stream), SUCCESS); \
        CHECK_EQ(refused_, none); \
    } while (0)

static void streams(void)
{
    struct batch batch = plain(1);
    size_t refused = 0;
    void *blocking = NULL;
    /* A stream must be named, and the legacy one cannot be. */
    CHECK_EQ(run(&batch, &refused, NULL), INVALID_VALUE);
    CHECK_EQ(refused, UNTOUCHED);
    CHECK_EQ(run(&batch, &refused, (void *)1), INVALID_VALUE);
    CHECK_EQ(refused, none);
    CHECK_EQ(run(&batch, &refused, (void *)2), SUCCESS);
    CHECK_EQ(create_stream(&blocking, 0), SUCCESS);
    CHECK_EQ(run(&batch, &refused, blocking), SUCCESS);
    CHECK_EQ(refused, none);
    CHECK_EQ(synchronize(blocking), SUCCESS);
    CHECK_EQ(destroy_stream(blocking), SUCCESS);
    address dst = to, src = from;
    CHECK_EQ(copy_batch_of_thread(&dst, &src, batch.sizes, 1, batch.attributes, batch.starts, 1,
                 &refused, NULL),
        SUCCESS);
    CHECK_EQ(copy_batch_of_thread(&dst, &src, batch.sizes, 1, batch.attributes, batch.starts, 1,
                 NULL, (void *)1),
        INVALID_VALUE);
    CHECK_EQ(synchronize((void *)2), SUCCESS);
}

static void attributes(void)
{
    for (int order = -1; order <= 5; order++) {
        struct batch batch = plain(1);
        batch.attributes[0].order = order;
        if (order >= IN_STREAM && order <= ANY)
            ACCEPTED(batch);
        else
            REFUSED(batch, none);
    }
    for (unsigned int flags = 0; flags <= 3; flags++) {
        struct batch batch = plain(1);
        batch.attributes[0].flags = flags;
        if (flags <= 1)
            ACCEPTED(batch);
        else
            REFUSED(batch, none);
    }
    static const struct location good[] = { { 1, 0 }, { 2, 0 }, { 3, 0 }, { 4, 0 } };
    static const struct location bad[] = { { UNKNOWN, 0 }, { 1, 1000 }, { 1, -1 } };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct batch batch = plain(1);
        batch.attributes[0].src = good[i];
        ACCEPTED(batch);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct batch batch = plain(1);
        batch.attributes[0].dst = bad[i];
        REFUSED(batch, none);
    }
    /* Which copies they apply to: from 0 on, rising, within the batch. */
    struct batch batch = plain(3);
    batch.num_attributes = 3;
    ACCEPTED(batch);
    batch.starts[0] = 1;
    REFUSED(batch, none);
    batch.starts[0] = 0;
    batch.starts[1] = 0;
    REFUSED(batch, none);
    batch.starts[1] = 2;
    batch.starts[2] = 1;
    REFUSED(batch, none);
    batch.starts[2] = 3;
    REFUSED(batch, none);
    batch = plain(1);
    batch.num_attributes = 2;
    REFUSED(batch, none);
    batch.num_attributes = 0;
    REFUSED(batch, none);
    batch = plain(0);
    REFUSED(batch, none);
}

/* The copies before a refused one are made. */
static void refused_copies(void)
{
    unsigned char found[192];
    struct batch batch = plain(3);
    batch.sizes[1] = 0;
    REFUSED(batch, 1);
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(fill(to, 1, sizeof found), SUCCESS);
    CHECK_EQ(fill(from, 7, sizeof found), SUCCESS);
    CHECK_EQ(synchronize_all(), SUCCESS);
    batch = plain(3);
    batch.sizes[2] = (size_t)1 << 30;
    REFUSED(batch, 2);
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(read_back(found, to, sizeof found), SUCCESS);
    CHECK(found[0] == 7 && found[127] == 7 && found[128] == 1 && found[191] == 1);
    address ptr = to;
    size_t size = 8, refused = UNTOUCHED;
    CHECK_EQ(copy_batch(NULL, &ptr, &size, 1, batch.attributes, batch.starts, 1, &refused, stream),
        INVALID_VALUE);
    CHECK_EQ(refused, none);
    CHECK_EQ(copy_batch(&ptr, &ptr, &size, 1, NULL, batch.starts, 1, NULL, stream), INVALID_VALUE);
    CHECK_EQ(copy_batch(&ptr, &ptr, &size, 1, batch.attributes, NULL, 1, NULL, stream),
        INVALID_VALUE);
}

/* A capture refuses batches, and goes on. */
static void captures(void)
{
    struct batch batch = plain(1);
    struct operation operation = { .src = { 1, from, 0, 0, { 0, 0 } },
        .dst = { 1, to, 0, 0, { 0, 0 } }, .width = 8, .height = 1, .depth = 1, .order = IN_STREAM };
    size_t refused = 0;
    void *graph = NULL;
    CHECK_EQ(begin(stream, 0), SUCCESS);
    CHECK_EQ(run(&batch, &refused, stream), STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(refused, none);
    refused = UNTOUCHED;
    CHECK_EQ(copy_3d_batch(1, &operation, &refused, 0, stream), STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(refused, UNTOUCHED);
    CHECK_EQ(end(stream, &graph), SUCCESS);
    CHECK_EQ(destroy_graph(graph), SUCCESS);
}

static void store_nine(void *memory)
{
    const struct timespec a_while = { .tv_nsec = 20000000 };
    nanosleep(&a_while, NULL);
    memset(memory, 9, 64);
}

/* A function in the stream changes the source: which value is copied, and does the call wait? */
static void when_sources_are_read(void)
{
    static const struct {
        bool is_pinned;
        int order;
        int value;
    } cases[] = { { false, IN_STREAM, 9 }, { false, DURING_CALL, 5 }, { false, ANY, 5 },
        { true, IN_STREAM, 9 }, { true, DURING_CALL, 9 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char found[64], *const source = cases[i].is_pinned ? pinned : pageable;
        address src = (address)(uintptr_t)source, dst = to;
        struct attributes own = { .order = cases[i].order };
        size_t size = 64, start = 0, refused = UNTOUCHED;
        memset(source, 5, 64);
        CHECK_EQ(launch_function(stream, store_nine, source), SUCCESS);
        CHECK_EQ(copy_batch(&dst, &src, &size, 1, &own, &start, 1, &refused, stream), SUCCESS);
        CHECK_EQ(refused, none);
        if (cases[i].order == DURING_CALL)
            memset(source, 3, 64);
        CHECK_EQ(synchronize(stream), SUCCESS);
        CHECK_EQ(read_back(found, to, sizeof found), SUCCESS);
        /* A machine that runs work at once has called the function before. */
        CHECK(found[0] == cases[i].value || (!cases[i].is_pinned && found[0] == 9));
    }
}

static struct operation block(size_t width, size_t height, size_t depth)
{
    const struct operation made = { .src = { 1, from, 0, 0, { 0, 0 } },
        .dst = { 1, to, 0, 0, { 0, 0 } }, .width = width, .height = height, .depth = depth,
        .order = IN_STREAM };
    return made;
}

static void expect_3d(struct operation second, int status, size_t index)
{
    struct operation both[] = { block(8, 1, 1), second };
    size_t refused = UNTOUCHED;
    CHECK_EQ(copy_3d_batch(2, both, &refused, 0, stream), status);
    CHECK_EQ(refused, index);
}

static void three_dimensions(void)
{
    struct operation odd = block(64, 4, 2);
    size_t refused = UNTOUCHED;
    CHECK_EQ(copy_3d_batch(1, &odd, &refused, 0, NULL), INVALID_VALUE);
    CHECK_EQ(refused, UNTOUCHED);
    CHECK_EQ(copy_3d_batch(0, NULL, &refused, 0, stream), INVALID_VALUE);
    CHECK_EQ(refused, none);
    CHECK_EQ(copy_3d_batch(1, &odd, &refused, 1, stream), INVALID_VALUE);
    CHECK_EQ(copy_3d_batch(1, &odd, NULL, 0, stream), SUCCESS);
    expect_3d(odd, SUCCESS, none);
    expect_3d(block(0, 4, 2), INVALID_VALUE, 1);
    expect_3d(block(64, 0, 2), INVALID_VALUE, 1);
    expect_3d(block(64, 4, 0), INVALID_VALUE, 1);
    odd.dst.row = 32;
    expect_3d(odd, INVALID_VALUE, 1);
    odd.dst.row = 64;
    odd.dst.layer = 2;
    expect_3d(odd, INVALID_VALUE, 1);
    odd = block(64, 4, 2);
    odd.flags = 1;
    expect_3d(odd, SUCCESS, none);
    odd.flags = 2;
    expect_3d(odd, INVALID_VALUE, 1);
    odd = block(64, 4, 2);
    odd.order = UNKNOWN;
    expect_3d(odd, INVALID_VALUE, 1);
    odd = block(64, 4, 2);
    odd.src.type = UNKNOWN;
    expect_3d(odd, INVALID_VALUE, 1);
    odd.src.type = 0;
    expect_3d(odd, INVALID_VALUE, 1);
    /* Hints may be anything. */
    odd = block(64, 4, 2);
    odd.src.hint.type = UNKNOWN;
    odd.dst.hint = (struct location){ 1, 1000 };
    expect_3d(odd, SUCCESS, none);
    /* No copy is blamed for its addresses. */
    expect_3d(block((size_t)1 << 30, 4, 2), INVALID_VALUE, none);
    CHECK_EQ(synchronize(stream), SUCCESS);
}

/* Rows and layers lie as far apart as each side says. */
static void layout(void)
{
    unsigned char found[BYTES];
    for (int i = 0; i < BYTES; i++)
        pinned[i] = (unsigned char)(i % 251);
    struct operation operation = block(10, 3, 2);
    operation.src = (struct operand){ 1, (address)(uintptr_t)pinned, 16, 4, { 0, 0 } };
    operation.dst = (struct operand){ 1, to, 20, 5, { 0, 0 } };
    CHECK_EQ(fill(to, 255, BYTES), SUCCESS);
    CHECK_EQ(synchronize_all(), SUCCESS);
    CHECK_EQ(copy_3d_batch(1, &operation, NULL, 0, stream), SUCCESS);
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(read_back(found, to, BYTES), SUCCESS);
    for (int i = 0; i < BYTES; i++) {
        const int z = i / 100, y = i % 100 / 20, x = i % 20;
        const bool is_copied = z < 2 && y < 3 && x < 10;
        CHECK_EQ(found[i], is_copied ? (z * 64 + y * 16 + x) % 251 : 255);
    }
}

int main(void)
{
    void *context = NULL, *host = NULL;
    alarm(60);
    open_the_driver();
    FUNCTIONS(LOAD)
    CHECK_EQ(init(0), SUCCESS);
    CHECK_EQ(retain(&context, 0), SUCCESS);
    CHECK_EQ(set_current(context), SUCCESS);
    CHECK_EQ(create_stream(&stream, 1), SUCCESS);
    CHECK_EQ(allocate(&from, BYTES), SUCCESS);
    CHECK_EQ(allocate(&to, BYTES), SUCCESS);
    CHECK_EQ(allocate_host(&host, BYTES), SUCCESS);
    pinned = host;
    streams();
    attributes();
    refused_copies();
    captures();
    when_sources_are_read();
    three_dimensions();
    layout();
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(set_current(NULL), SUCCESS);
    struct batch batch = plain(1);
    size_t refused = 0;
    CHECK_EQ(run(&batch, &refused, stream), INVALID_VALUE);
    CHECK_EQ(refused, none);
    CHECK_EQ(set_current(context), SUCCESS);
    CHECK_EQ(free_host(host), SUCCESS);
    CHECK_EQ(free_memory(to), SUCCESS);
    CHECK_EQ(free_memory(from), SUCCESS);
    CHECK_EQ(destroy_stream(stream), SUCCESS);
    CHECK_EQ(release(0), SUCCESS);
    return EXIT_SUCCESS;
}
