/* Streams that wait for values in memory and write values. */
#define _POSIX_C_SOURCE 200809L

#include "driver_value.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define FUNCTIONS(F) \
    F(init, "cuInit", (unsigned int flags)) \
    F(retain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
    F(release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    F(set_current, "cuCtxSetCurrent", (void *context)) \
    F(synchronize_all, "cuCtxSynchronize", (void)) \
    F(create_context, "cuCtxCreate_v2", (void **context, unsigned int flags, int device)) \
    F(destroy_context, "cuCtxDestroy_v2", (void *context)) \
    F(attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device)) \
    F(allocate, "cuMemAlloc_v2", (address *ptr, size_t bytes)) \
    F(free_memory, "cuMemFree_v2", (address ptr)) \
    F(allocate_host, "cuMemHostAlloc", (void **ptr, size_t bytes, unsigned int flags)) \
    F(free_host, "cuMemFreeHost", (void *ptr)) \
    F(register_host, "cuMemHostRegister_v2", (void *ptr, size_t bytes, unsigned int flags)) \
    F(unregister_host, "cuMemHostUnregister", (void *ptr)) \
    F(allocate_managed, "cuMemAllocManaged", (address *ptr, size_t bytes, unsigned int flags)) \
    F(fill, "cuMemsetD32Async", (address ptr, unsigned int value, size_t count, void *stream)) \
    F(copy, "cuMemcpyAsync", (address dst, address src, size_t bytes, void *stream)) \
    F(create, "cuStreamCreate", (void **stream, unsigned int flags)) \
    F(destroy, "cuStreamDestroy_v2", (void *stream)) \
    F(query, "cuStreamQuery", (void *stream)) \
    F(synchronize, "cuStreamSynchronize", (void *stream)) \
    F(create_event, "cuEventCreate", (void **event, unsigned int flags)) \
    F(destroy_event, "cuEventDestroy_v2", (void *event)) \
    F(query_event, "cuEventQuery", (void *event)) \
    F(record, "cuEventRecord", (void *event, void *stream)) \
    F(await_event, "cuStreamWaitEvent", (void *stream, void *event, unsigned int flags)) \
    F(record_all, "cuCtxRecordEvent", (void *context, void *event)) \
    F(wait_all, "cuCtxWaitEvent", (void *context, void *event)) \
    F(await_value, "cuStreamWaitValue32_v2", \
        (void *stream, address ptr, uint32_t value, unsigned int flags)) \
    F(write_value, "cuStreamWriteValue32_v2", \
        (void *stream, address ptr, uint32_t value, unsigned int flags)) \
    F(await_wide, "cuStreamWaitValue64_v2", \
        (void *stream, address ptr, uint64_t value, unsigned int flags)) \
    F(write_wide, "cuStreamWriteValue64_v2", \
        (void *stream, address ptr, uint64_t value, unsigned int flags)) \
    F(batch, "cuStreamBatchMemOp_v2", \
        (void *stream, unsigned int count, struct operation *operations, unsigned int flags))

FUNCTIONS(DECLARE)

enum { BYTES = 4096, MOST = 255 };

static void *context;
static address memory;
static volatile uint32_t *words;

static void pause_for(int milliseconds)
{
    const struct timespec time = { 0, milliseconds * 1000000L };
    nanosleep(&time, NULL);
}

static void stays_busy(void *stream)
{
    for (int i = 0; i < 6; i++) {
        CHECK_EQ(query(stream), NOT_READY);
        pause_for(1);
    }
}

static void statuses(void)
{
    static struct {
        char before[BYTES], page[BYTES], after[BYTES];
    } host;
    char *const page = host.before + (BYTES - (uintptr_t)host.before % BYTES);
    void *stream = NULL;
    address managed = 0;
    int value = 0;
    /* CAN_USE_64_BIT_STREAM_MEM_OPS, CAN_USE_STREAM_WAIT_VALUE_NOR */
    CHECK_EQ(attribute(&value, 122, 0), SUCCESS);
    CHECK_EQ(value, 1);
    CHECK_EQ(attribute(&value, 123, 0), SUCCESS);
    CHECK_EQ(value, 1);
    CHECK_EQ(create(&stream, 1), SUCCESS);
    CHECK_EQ(allocate_managed(&managed, BYTES, 1), SUCCESS);
    words[0] = 0;
    const address bad[] = { 0, of(words) + 2, of(words) + 1, of(words) + BYTES, of(page),
        memory + 2, memory + BYTES, managed };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(await_value(stream, bad[i], 0, 0), INVALID_VALUE);
        CHECK_EQ(write_value(stream, bad[i], 0, 0), INVALID_VALUE);
    }
    CHECK_EQ(register_host(page, BYTES, 0), SUCCESS);
    CHECK_EQ(write_value(stream, of(page), 5, 0), SUCCESS);
    CHECK_EQ(await_value(stream, of(page), 5, EQUAL), SUCCESS);
    CHECK_EQ(await_value(stream, of(page) + BYTES, 5, EQUAL), INVALID_VALUE);
    CHECK_EQ(await_value(stream, memory, 0, 4), INVALID_VALUE);
    CHECK_EQ(await_value(stream, memory, 0, 1U << 31), INVALID_VALUE);
    int flushes = 0;
    CHECK_EQ(attribute(&flushes, 98, 0), SUCCESS);
    if (!flushes) {
        CHECK_EQ(await_value(stream, of(words), 0, FLUSH), NOT_SUPPORTED);
        struct operation flush = operation(FLUSH_REMOTE, 0, 0, 0);
        CHECK_EQ(batch(stream, 1, &flush, 0), NOT_SUPPORTED);
    }
    CHECK_EQ(write_value(stream, of(words), 7, 1), INVALID_VALUE);
    CHECK_EQ(write_value(stream, of(words), 7, 2), INVALID_VALUE);
    CHECK_EQ(await_wide(stream, of(words) + 4, 0, 0), INVALID_VALUE);
    CHECK_EQ(write_wide(stream, of(words) + 4, 0, 0), INVALID_VALUE);
    CHECK_EQ(await_wide(stream, of(words) + BYTES - 4, 0, 0), INVALID_VALUE);
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(words[0], 0);
    CHECK_EQ(*(uint32_t *)page, 5);
    CHECK_EQ(unregister_host(page), SUCCESS);
    CHECK_EQ(free_memory(managed), SUCCESS);
    CHECK_EQ(destroy(stream), SUCCESS);
}

/* A wait for which some values are not enough and the last one is. */
static void waits_until(
    uint32_t value, unsigned int flags, const uint32_t *others, size_t count, uint32_t last)
{
    void *stream = NULL;
    CHECK_EQ(create(&stream, 1), SUCCESS);
    words[0] = others[0];
    CHECK_EQ(await_value(stream, of(words), value, flags), SUCCESS);
    for (size_t i = 0; i < count; i++) {
        words[0] = others[i];
        stays_busy(stream);
    }
    words[0] = last;
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(query(stream), SUCCESS);
    CHECK_EQ(destroy(stream), SUCCESS);
}

static void conditions(void)
{
    static const uint32_t below[] = { 0, 0x80000001 }, different[] = { 0, 2, 0xffffffff },
                          disjoint[] = { 0, 9 }, full[] = { 0xffff, 0xfffff };
    waits_until(1, AT_LEAST, below, 2, 0x80000000);
    waits_until(1, EQUAL, different, 3, 1);
    waits_until(6, COMMON_BIT, disjoint, 2, 12);
    waits_until(0xffff0000, MISSING_BIT, full, 2, 0xfffe);
    void *stream = NULL;
    volatile uint64_t *const wide = (volatile uint64_t *)(words + 2);
    CHECK_EQ(create(&stream, 1), SUCCESS);
    *wide = 1;
    CHECK_EQ(await_wide(stream, of(wide), (uint64_t)1 << 32 | 1, EQUAL), SUCCESS);
    CHECK_EQ(write_wide(stream, of(wide), (uint64_t)5 << 40, 0), SUCCESS);
    stays_busy(stream);
    *wide = (uint64_t)1 << 32 | 1;
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK(*wide == (uint64_t)5 << 40);
    CHECK_EQ(destroy(stream), SUCCESS);
}

static void batches(void)
{
    static struct operation many[MOST + 1];
    void *stream = NULL;
    CHECK_EQ(create(&stream, 1), SUCCESS);
    for (unsigned int i = 0; i <= MOST; i++)
        many[i] = operation(WRITE_32, of(words), i + 1, 0);
    words[0] = 0;
    CHECK_EQ(batch(stream, 0, NULL, 0), SUCCESS);
    CHECK_EQ(batch(stream, 1, many, 1), INVALID_VALUE);
    CHECK_EQ(batch(stream, MOST + 1, many, 0), INVALID_VALUE);
    /* All or nothing. */
    many[1].place = 0;
    CHECK_EQ(batch(stream, 2, many, 0), INVALID_VALUE);
    many[1].place = many[0].place;
    many[1].type = 7;
    CHECK_EQ(batch(stream, 2, many, 0), INVALID_VALUE);
    many[1].type = WRITE_32;
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(words[0], 0);
    CHECK_EQ(batch(stream, MOST, many, 0), SUCCESS);
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(words[0], MOST);
    /* In order. The upper half of a narrow value and the alias do not count. */
    many[0] = operation(WRITE_32, of(words), (uint64_t)1 << 40 | 5, 0);
    many[0].alias = 3;
    many[1] = operation(WAIT_32, of(words), 0x80000006, AT_LEAST);
    many[2] = operation(BARRIER, 0, 0, 0);
    many[3] = operation(WRITE_64, of(words + 2), 9, 0);
    many[4] = operation(WAIT_32, of(words + 1), 1, EQUAL);
    many[5] = operation(WRITE_32, of(words), 6, 0);
    words[1] = words[2] = 0;
    CHECK_EQ(batch(stream, 6, many, 0), SUCCESS);
    stays_busy(stream);
    words[1] = 1;
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(words[0], 6);
    CHECK_EQ(words[2], 9);
    many[0].type = BARRIER;
    for (unsigned int flags = 0; flags < 3; flags++) {
        many[0].flags_of_barrier = flags;
        CHECK_EQ(batch(stream, 1, many, 0), flags < 2 ? SUCCESS : INVALID_VALUE);
    }
    CHECK_EQ(destroy(stream), SUCCESS);
}

/* What a stream does after a wait comes after it, on that stream and on those that wait for it. */
static void order(void)
{
    void *first = NULL, *second = NULL, *event = NULL;
    uint32_t source[4] = { 7, 7, 7, 7 };
    CHECK_EQ(create(&first, 1), SUCCESS);
    CHECK_EQ(create(&second, 1), SUCCESS);
    CHECK_EQ(create_event(&event, 0), SUCCESS);
    for (int round = 0; round < 3; round++) {
        CHECK_EQ(fill(memory, 0, 16, first), SUCCESS);
        CHECK_EQ(synchronize(first), SUCCESS);
        words[4] = words[5] = words[6] = 1;
        CHECK_EQ(await_value(first, memory, 3, EQUAL), SUCCESS);
        /* Pageable memory is read now. */
        source[0] = 7;
        CHECK_EQ(copy(memory + 16, of(source), sizeof source, first), SUCCESS);
        source[0] = 8;
        CHECK_EQ(record(event, first), SUCCESS);
        CHECK_EQ(await_event(second, event, 0), SUCCESS);
        CHECK_EQ(copy(of(words + 4), memory + 16, 4, second), SUCCESS);
        CHECK_EQ(query_event(event), NOT_READY);
        stays_busy(second);
        CHECK_EQ(words[4], 1);
        /* Another stream writes the value. */
        void *third = NULL;
        CHECK_EQ(create(&third, 1), SUCCESS);
        CHECK_EQ(write_value(third, memory, 3, 0), SUCCESS);
        CHECK_EQ(synchronize(second), SUCCESS);
        CHECK_EQ(words[4], 7);
        CHECK_EQ(query_event(event), SUCCESS);
        CHECK_EQ(destroy(third), SUCCESS);
    }
    CHECK_EQ(destroy_event(event), SUCCESS);
    CHECK_EQ(destroy(first), SUCCESS);
    CHECK_EQ(destroy(second), SUCCESS);
}

static void default_streams(void)
{
    void *blocking = NULL, *free_stream = NULL;
    CHECK_EQ(create(&blocking, 0), SUCCESS);
    CHECK_EQ(create(&free_stream, 1), SUCCESS);
    words[0] = words[1] = 0;
    CHECK_EQ(await_value(NULL, of(words), 1, AT_LEAST), SUCCESS);
    CHECK_EQ(write_value(blocking, of(words + 1), 1, 0), SUCCESS);
    CHECK_EQ(write_value(free_stream, of(words + 2), 2, 0), SUCCESS);
    CHECK_EQ(synchronize(free_stream), SUCCESS);
    CHECK_EQ(words[2], 2);
    stays_busy(blocking);
    CHECK_EQ(words[1], 0);
    words[0] = 1;
    CHECK_EQ(synchronize(blocking), SUCCESS);
    CHECK_EQ(words[1], 1);
    CHECK_EQ(destroy(blocking), SUCCESS);
    CHECK_EQ(destroy(free_stream), SUCCESS);
}

static void events_of_a_context(void)
{
    void *stream = NULL, *other = NULL, *event = NULL;
    CHECK_EQ(create(&stream, 1), SUCCESS);
    CHECK_EQ(create_event(&event, 0), SUCCESS);
    words[0] = words[1] = 0;
    CHECK_EQ(await_value(stream, of(words), 1, EQUAL), SUCCESS);
    CHECK_EQ(record_all(context, event), SUCCESS);
    CHECK_EQ(query_event(event), NOT_READY);
    CHECK_EQ(wait_all(context, event), SUCCESS);
    /* Streams that are created later wait, too. */
    CHECK_EQ(create(&other, 1), SUCCESS);
    CHECK_EQ(query(other), SUCCESS);
    CHECK_EQ(write_value(other, of(words + 1), 1, 0), SUCCESS);
    stays_busy(other);
    CHECK_EQ(words[1], 0);
    words[0] = 1;
    CHECK_EQ(synchronize(other), SUCCESS);
    CHECK_EQ(words[1], 1);
    CHECK_EQ(query_event(event), SUCCESS);
    CHECK_EQ(destroy_event(event), SUCCESS);
    CHECK_EQ(destroy(stream), SUCCESS);
    CHECK_EQ(destroy(other), SUCCESS);
}

static void *store_later(void *unused)
{
    pause_for(100);
    words[0] = 1;
    return unused;
}

/* While a host waits, another thread stores the value. */
static void another_thread_stores(void)
{
    for (int kind = 0; kind < 3; kind++) {
        void *own = NULL, *stream = NULL;
        pthread_t thread;
        CHECK_EQ(create_context(&own, 0, 0), SUCCESS);
        CHECK_EQ(create(&stream, kind != 0), SUCCESS);
        words[0] = words[1] = 0;
        CHECK_EQ(await_value(stream, of(words), 1, EQUAL), SUCCESS);
        CHECK_EQ(write_value(stream, of(words + 1), 1, 0), SUCCESS);
        CHECK_EQ(pthread_create(&thread, NULL, store_later, NULL), 0);
        if (kind == 0)
            CHECK_EQ(synchronize(stream), SUCCESS);
        if (kind == 1) {
            CHECK_EQ(destroy(stream), SUCCESS);
            CHECK_EQ(synchronize_all(), SUCCESS);
        }
        /* The end of a context waits. */
        CHECK_EQ(destroy_context(own), SUCCESS);
        CHECK_EQ(words[1], 1);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(set_current(context), SUCCESS);
    }
}

static void start(void)
{
    void *pinned = NULL;
    CHECK_EQ(init(0), SUCCESS);
    CHECK_EQ(retain(&context, 0), SUCCESS);
    CHECK_EQ(set_current(context), SUCCESS);
    CHECK_EQ(allocate(&memory, BYTES), SUCCESS);
    CHECK_EQ(allocate_host(&pinned, BYTES, 1), SUCCESS);
    words = pinned;
}

/* A process can end while a stream waits. */
static void a_process_ends(void)
{
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *stream = NULL;
        alarm(10);
        start();
        CHECK_EQ(create(&stream, 1), SUCCESS);
        words[0] = 0;
        CHECK_EQ(await_value(stream, of(words), 1, EQUAL), SUCCESS);
        CHECK_EQ(fill(memory, 1, 4, stream), SUCCESS);
        CHECK_EQ(query(stream), NOT_READY);
        exit(EXIT_SUCCESS);
    }
    int ended = 0;
    CHECK_EQ(waitpid(child, &ended, 0), child);
    CHECK_EQ(ended, 0);
}

int main(void)
{
    alarm(20);
    open_the_driver();
    FUNCTIONS(LOAD)
    a_process_ends();
    CHECK_EQ(await_value(NULL, 0, 0, 0), NOT_INITIALIZED);
    CHECK_EQ(batch(NULL, 0, NULL, 0), NOT_INITIALIZED);
    CHECK_EQ(init(0), SUCCESS);
    CHECK_EQ(await_value(NULL, 0, 0, 0), INVALID_CONTEXT);
    start();
    statuses();
    conditions();
    batches();
    order();
    default_streams();
    events_of_a_context();
    another_thread_stores();
    CHECK_EQ(free_host((void *)words), SUCCESS);
    CHECK_EQ(free_memory(memory), SUCCESS);
    CHECK_EQ(set_current(NULL), SUCCESS);
    CHECK_EQ(release(0), SUCCESS);
    return EXIT_SUCCESS;
}
