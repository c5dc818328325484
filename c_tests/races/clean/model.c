/* See model.h. Each buffer knows which streams used it since it was last written, and has an event
 * behind each use; the next use waits for those, in one of the ways that tcuda offers. */
#include "model.h"

#include <pthread.h>

enum { STREAMS = 8, DEVICE_BUFFERS = 8, PINNED_BUFFERS = 3, WINDOW = 1024 };
enum { BUFFERS = DEVICE_BUFFERS + PINNED_BUFFERS, LEFT = 4 };

typedef struct buffer {
    unsigned char *bytes; /* a window of the block */
    void *block;
    int owner;            /* stream of the allocation; -1: one that is gone, or none */
    int writer;           /* last one; -1: none that must be waited for */
    bool in_use[STREAMS]; /* since it was last written */
    bool was_used[STREAMS];
    tcuda_event *used[STREAMS]; /* the end of each stream's last use */
    unsigned char expected[WINDOW];
    bool is_pinned;
} buffer;

typedef struct model {
    const workload *plan;
    uint64_t random;
    tcuda_stream *streams[STREAMS];
    buffer buffers[BUFFERS];
    bool right;
} model;

/* Blocks that another thread is to free. */
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;
static void *left[LEFT];
static size_t num_left;

static uint64_t next_random(model *m)
{
    m->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t mixed = m->random;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static int below(model *m, int limit)
{
    return (int)(next_random(m) % (uint64_t)limit);
}

static int32_t device_of(const model *m, int stream)
{
    return m->plan->default_streams && stream < 2 ? 0 : stream % m->plan->devices;
}

/* ---- Waits ---- */

static bool wait_for_each_other_anyway(const model *m, int a, int b)
{
    return a == b || (m->plan->default_streams && a < 2 && b < 2);
}

static void wait_on_stream(model *m, int stream, const buffer *b, int other)
{
    tcuda_stream *const waits = m->streams[stream];
    if (wait_for_each_other_anyway(m, stream, other) && below(m, 4) != 0)
        return;
    switch (below(m, 16)) {
    case 0:
        DO(tcuda_event_synchronize(b->used[other]));
        break;
    case 1:
        DO(tcuda_stream_synchronize(m->streams[other]));
        break;
    case 2:
    case 3:
    case 4:
    case 5:
        DO(tcuda_stream_wait_stream(waits, m->streams[other]));
        break;
    case 6:
    case 7:
        DO(tcuda_event_wait(b->used[other], waits));
        break;
    default:
        DO(tcuda_stream_wait_event(waits, b->used[other]));
    }
}

static void wait_on_host(model *m, const buffer *b, int other)
{
    bool done = false;
    switch (below(m, 4)) {
    case 0:
        DO(tcuda_stream_synchronize(m->streams[other]));
        break;
    case 1:
        DO(tcuda_device_synchronize(device_of(m, other)));
        break;
    case 2:
        DO(tcuda_event_query(b->used[other], &done));
        if (done)
            break;
        /* fallthrough */
    default:
        DO(tcuda_event_synchronize(b->used[other]));
    }
}

static void begin(model *m, const buffer *b, int stream, bool writes)
{
    for (int other = 0; other < m->plan->streams; other++)
        if (other != stream && (writes ? b->in_use[other] : b->writer == other))
            wait_on_stream(m, stream, b, other);
}

static void note(buffer *b, int stream, bool writes)
{
    if (writes) {
        memset(b->in_use, 0, sizeof b->in_use);
        b->writer = stream;
    }
    b->in_use[stream] = b->was_used[stream] = true;
}

static void end(model *m, buffer *b, int stream, bool writes)
{
    note(b, stream, writes);
    DO(tcuda_event_record(b->used[stream], m->streams[stream]));
}

static void begin_on_host(model *m, buffer *b, bool writes)
{
    for (int other = 0; other < m->plan->streams; other++)
        if (writes ? b->in_use[other] : b->writer == other)
            wait_on_host(m, b, other);
    if (writes) {
        memset(b->in_use, 0, sizeof b->in_use);
        b->writer = -1;
    }
}

static void expect(model *m, const unsigned char *bytes, const buffer *b)
{
    if (memcmp(bytes, b->expected, WINDOW) != 0)
        m->right = false;
}

/* ---- Operations ---- */

static buffer *any_buffer(model *m)
{
    return &m->buffers[below(m, BUFFERS)];
}

static buffer *device_buffer(model *m)
{
    return &m->buffers[below(m, DEVICE_BUFFERS)];
}

static buffer *pinned_buffer(model *m)
{
    return &m->buffers[DEVICE_BUFFERS + below(m, PINNED_BUFFERS)];
}

static void do_fill(model *m, buffer *b, int stream, size_t start, size_t end_byte)
{
    unsigned char value[16];
    const size_t size = below(m, 2) == 0 ? 1 : 1 + (size_t)below(m, 16);
    const size_t count = (end_byte - start) / size;
    for (size_t i = 0; i < size; i++)
        value[i] = (unsigned char)next_random(m);
    begin(m, b, stream, true);
    DO(tcuda_fill(b->bytes + start, value, size, count, m->streams[stream]));
    for (size_t i = 0; i < count * size; i++)
        b->expected[start + i] = value[i % size];
    end(m, b, stream, true);
}

static void fill_somewhere(model *m)
{
    const size_t start = (size_t)below(m, WINDOW);
    const size_t rest = (size_t)below(m, (int)(WINDOW - start)) + 1;
    do_fill(m, device_buffer(m), below(m, m->plan->streams), start, start + rest);
}

static void copy_somewhere(model *m)
{
    buffer *const to = any_buffer(m), *const from = any_buffer(m);
    const int stream = below(m, m->plan->streams);
    const size_t bytes = (size_t)below(m, WINDOW) + 1;
    const size_t at = (size_t)below(m, (int)(WINDOW - bytes) + 1);
    const size_t of = (size_t)below(m, (int)(WINDOW - bytes) + 1);
    if (to == from)
        return;
    begin(m, from, stream, false);
    begin(m, to, stream, true);
    copy(to->bytes + at, from->bytes + of, bytes, m->streams[stream]);
    memcpy(to->expected + at, from->expected + of, bytes);
    end(m, from, stream, false);
    end(m, to, stream, true);
}

static void copy_rows(model *m)
{
    buffer *const to = any_buffer(m), *const from = any_buffer(m);
    const int stream = below(m, m->plan->streams);
    const size_t width = (size_t)below(m, 40) + 1, rows = (size_t)below(m, 16) + 1;
    const size_t to_pitch = width + (size_t)below(m, 24), from_pitch = width + (size_t)below(m, 24);
    if (to == from)
        return;
    begin(m, from, stream, false);
    begin(m, to, stream, true);
    DO(tcuda_copy_2d(to->bytes, to_pitch, from->bytes, from_pitch, width, rows,
        m->streams[stream]));
    for (size_t row = 0; row < rows; row++)
        memcpy(to->expected + row * to_pitch, from->expected + row * from_pitch, width);
    end(m, from, stream, false);
    end(m, to, stream, true);
}

/* From and to pageable memory: it may be overwritten at once, and read once the stream is idle. */
static void through_pageable_memory(model *m)
{
    unsigned char host[WINDOW];
    buffer *const b = device_buffer(m);
    const int stream = below(m, m->plan->streams);
    const bool writes = below(m, 2) == 0;
    begin(m, b, stream, writes);
    if (writes) {
        for (size_t i = 0; i < WINDOW; i++)
            host[i] = b->expected[i] = (unsigned char)next_random(m);
        copy(b->bytes, host, WINDOW, m->streams[stream]);
        memset(host, 0, WINDOW);
    } else {
        copy(host, b->bytes, WINDOW, m->streams[stream]);
        DO(tcuda_stream_synchronize(m->streams[stream]));
        expect(m, host, b);
    }
    end(m, b, stream, writes);
}

static void change(unsigned char *bytes)
{
    for (size_t i = 0; i < WINDOW; i++)
        bytes[i] = (unsigned char)(bytes[i] * 3 + 1);
}

static void change_in_callback(void *user_data)
{
    change(*(unsigned char **)user_data);
}

static void call_host(model *m)
{
    buffer *const b = pinned_buffer(m);
    const int stream = below(m, m->plan->streams);
    unsigned char **const box = malloc(sizeof *box);
    CHECK(box != NULL);
    *box = b->bytes;
    begin(m, b, stream, true);
    DO(tcuda_stream_add_callback(m->streams[stream], change_in_callback, box, free));
    change(b->expected);
    end(m, b, stream, true);
}

static void use_on_host(model *m)
{
    buffer *const b = pinned_buffer(m);
    const bool writes = below(m, 2) == 0;
    begin_on_host(m, b, writes);
    expect(m, b->bytes, b);
    if (writes) {
        change(b->bytes);
        change(b->expected);
    }
}

/* ---- Blocks and streams ---- */

static void allocate(model *m, buffer *b)
{
    const int stream = below(m, m->plan->streams);
    const size_t largest = below(m, 4) == 0 ? m->plan->largest : 8 * WINDOW;
    const size_t bytes = WINDOW + (size_t)(next_random(m) % (largest - WINDOW + 1));
    b->block = NULL;
    DO(tcuda_malloc(bytes, TCUDA_CURRENT_DEVICE, m->streams[stream], &b->block));
    if (b->block == NULL) {
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)race_seed, tcuda_last_error());
        exit(EXIT_FAILURE);
    }
    b->bytes = (unsigned char *)b->block + next_random(m) % (bytes - WINDOW + 1);
    b->owner = stream;
    memset(b->was_used, 0, sizeof b->was_used);
    end(m, b, stream, true);
    do_fill(m, b, below(m, m->plan->streams), 0, WINDOW);
    do_fill(m, b, b->writer, WINDOW - 16, WINDOW);
    unsigned char host[WINDOW]; /* fills of several bytes may leave the last ones as they are */
    for (size_t i = 0; i < WINDOW; i++)
        host[i] = b->expected[i];
    copy(b->bytes, host, WINDOW, m->streams[b->writer]);
    end(m, b, b->writer, true);
}

/* Records the streams that use the block, or makes its owner wait for them. */
static void let_go(model *m, const buffer *b)
{
    for (int other = 0; other < m->plan->streams; other++) {
        if (!b->was_used[other] || other == b->owner)
            continue;
        if (b->owner >= 0 && below(m, 3) == 0)
            wait_on_stream(m, b->owner, b, other);
        else
            DO(tcuda_record_stream(b->block, m->streams[other]));
    }
}

static void free_or_leave(model *m, void *block)
{
    pthread_mutex_lock(&left_lock);
    if (num_left < LEFT && below(m, 4) == 0) {
        left[num_left++] = block;
        block = num_left > 1 && below(m, 2) == 0 ? left[0] : NULL;
        if (block != NULL)
            left[0] = left[--num_left];
    }
    pthread_mutex_unlock(&left_lock);
    DO(tcuda_free(block));
}

static void replace_block(model *m)
{
    buffer *const b = device_buffer(m);
    let_go(m, b);
    free_or_leave(m, b->block);
    allocate(m, b);
}

/* The stream goes back to its pool with work in it; its successor follows that work. */
static void replace_stream(model *m)
{
    const int stream = below(m, m->plan->streams);
    tcuda_stream *fresh = NULL;
    if (m->plan->default_streams && stream < 2)
        return;
    DO(tcuda_stream_create(device_of(m, stream), 0, &fresh));
    DO(tcuda_stream_wait_stream(fresh, m->streams[stream]));
    DO(tcuda_stream_destroy(m->streams[stream]));
    m->streams[stream] = fresh;
    for (int i = 0; i < DEVICE_BUFFERS; i++)
        if (m->buffers[i].owner == stream)
            m->buffers[i].owner = -1;
}

static void replace_event(model *m)
{
    buffer *const b = any_buffer(m);
    const int stream = below(m, m->plan->streams);
    DO(tcuda_event_destroy(b->used[stream]));
    DO(tcuda_event_create(0, &b->used[stream]));
    DO(tcuda_event_record(b->used[stream], m->streams[stream]));
}

static void step(model *m)
{
    if (below(m, 100) < m->plan->frees) {
        replace_block(m);
        return;
    }
    switch (below(m, 24)) {
    case 0:
        replace_stream(m);
        break;
    case 1:
        replace_event(m);
        break;
    case 2:
        if (below(m, 8) == 0)
            DO(tcuda_memory_empty_cache());
        break;
    case 3:
    case 4:
        through_pageable_memory(m);
        break;
    case 5:
    case 6:
        call_host(m);
        break;
    case 7:
    case 8:
        use_on_host(m);
        break;
    case 9:
    case 10:
    case 11:
        copy_rows(m);
        break;
    case 12:
    case 13:
    case 14:
    case 15:
        fill_somewhere(m);
        break;
    default:
        copy_somewhere(m);
    }
}

/* ---- From beginning to end ---- */

static void set_up(model *m)
{
    for (int i = 0; i < m->plan->streams; i++) {
        struct CUstream_st *const per_thread = (struct CUstream_st *)(uintptr_t)2;
        if (m->plan->default_streams && i == 0)
            DO(tcuda_stream_default(0, &m->streams[i]));
        else if (m->plan->default_streams && i == 1)
            DO(tcuda_stream_from_external(0, per_thread, &m->streams[i]));
        else
            DO(tcuda_stream_create(device_of(m, i), 0, &m->streams[i]));
    }
    for (int i = 0; i < BUFFERS; i++) {
        buffer *const b = &m->buffers[i];
        b->is_pinned = i >= DEVICE_BUFFERS;
        b->owner = b->writer = -1;
        for (int stream = 0; stream < m->plan->streams; stream++)
            DO(tcuda_event_create(0, &b->used[stream]));
        if (b->is_pinned) {
            CHECK_OK(tcuda_host_malloc(WINDOW, &b->block));
            b->bytes = b->block;
            memset(b->bytes, 0, WINDOW);
        } else {
            allocate(m, b);
        }
    }
}

static void look_at_everything(model *m)
{
    for (int i = 0; i < BUFFERS; i++) {
        unsigned char host[WINDOW];
        buffer *const b = &m->buffers[i];
        begin_on_host(m, b, false);
        if (b->is_pinned) {
            expect(m, b->bytes, b);
            continue;
        }
        copy(host, b->bytes, WINDOW, m->streams[0]);
        DO(tcuda_stream_synchronize(m->streams[0]));
        b->was_used[0] = true;
        expect(m, host, b);
    }
}

static void tear_down(model *m)
{
    for (int i = 0; i < BUFFERS; i++) {
        buffer *const b = &m->buffers[i];
        if (b->is_pinned) {
            begin_on_host(m, b, true);
            DO(tcuda_host_free(b->block));
        } else {
            for (int stream = 0; stream < m->plan->streams; stream++)
                if (b->was_used[stream])
                    DO(tcuda_record_stream(b->block, m->streams[stream]));
            DO(tcuda_free(b->block));
        }
        for (int stream = 0; stream < m->plan->streams; stream++)
            DO(tcuda_event_destroy(b->used[stream]));
    }
    for (int i = 0; i < m->plan->streams; i++)
        DO(tcuda_stream_destroy(m->streams[i]));
    pthread_mutex_lock(&left_lock);
    while (num_left > 0)
        DO(tcuda_free(left[--num_left]));
    pthread_mutex_unlock(&left_lock);
}

bool model_run(const workload *plan, uint64_t seed)
{
    model *const m = calloc(1, sizeof *m);
    CHECK(m != NULL && plan->streams <= STREAMS);
    m->plan = plan;
    m->random = seed;
    m->right = true;
    set_up(m);
    for (int i = 0; i < plan->operations; i++)
        step(m);
    look_at_everything(m);
    tear_down(m);
    const bool right = m->right;
    free(m);
    return right;
}
