/* The verifying pass: is every block really the holder's own, from its allocation to its free?
 *
 * The first, the last and one random 512-byte unit of each block get a tag when it is allocated.
 * Before the free, the tagged units are copied away, on the block's own stream, so that the order
 * of the stream alone must keep them valid: the next owner of the memory may overwrite them only
 * after that copy. Waiting after each copy would hide just the faults that are looked for, so the
 * copies gather in one staging block on the device, which comes to the host when it is full. */

#include "replay.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_BYTES = 16, MAX_TAGS = 3, STAGING_UNITS = 4096, STEPS_PER_PROGRESS = 1024 };

typedef struct block {
    void *ptr;
    size_t event; /* the allocation; live when ptr is not NULL */
} block;

/* A tagged unit that waits in the staging block for its comparison. */
typedef struct staged_unit {
    size_t event;
    uint64_t unit;
} staged_unit;

typedef struct checker {
    const replay_trace *trace;
    const replay_run *run;
    replay_result *result;
    block *blocks; /* by slot */
    replay_ranges ranges;
    staged_unit *staged;
    size_t num_staged;
    unsigned char *staging; /* device */
    unsigned char *landing; /* host, as large */
} checker;

/* SplitMix64: every output bit depends on every input bit. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* The tag of one unit of the block that an event allocated; no two are equal. */
static void make_tag(size_t event, uint64_t unit, unsigned char tag[TAG_BYTES])
{
    const uint64_t words[2] = {mix(event), mix(mix(event) ^ unit)};
    memcpy(tag, words, TAG_BYTES);
}

/* The last unit of a block may be short: a block is only used as far as it was requested. */
static size_t unit_length(uint64_t block_bytes, uint64_t unit)
{
    const uint64_t rest = block_bytes - unit * REPLAY_UNIT_BYTES;
    return (size_t)(rest < REPLAY_UNIT_BYTES ? rest : REPLAY_UNIT_BYTES);
}

/* As much of the tag as repeats to exactly `length` bytes: 16, 8, 4, 2 or 1. */
static size_t tag_width(size_t length)
{
    size_t width = TAG_BYTES;
    while (length % width != 0)
        width /= 2;
    return width;
}

static size_t choose_units(size_t event, uint64_t block_bytes, uint64_t units[MAX_TAGS])
{
    const uint64_t count = (block_bytes + REPLAY_UNIT_BYTES - 1) / REPLAY_UNIT_BYTES;
    size_t chosen = 0;
    if (count > 0)
        units[chosen++] = 0;
    if (count > 2)
        units[chosen++] = 1 + mix(~(uint64_t)event) % (count - 2);
    if (count > 1)
        units[chosen++] = count - 1;
    return chosen;
}

/* Prints what is wrong with a block, and which one it is; always false. */
static bool report_block(const checker *c, size_t event, const char *what)
{
    const replay_origin origin = c->trace->origins[event];
    replay_complain("%s: line %" PRIu64 ": block %" PRIu64 " of %" PRIu64 " bytes on stream %u: %s",
        c->trace->name, origin.line, origin.id, c->trace->events[event].bytes,
        (unsigned)c->trace->events[event].stream, what);
    return false;
}

/* ---- Staging ---- */

static bool synchronize_streams(const checker *c)
{
    for (uint32_t i = 0; i < c->trace->num_streams; i++) {
        if (!replay_succeeded(tcuda_stream_synchronize(c->run->streams[i]),
                "tcuda_stream_synchronize"))
            return false;
    }
    return true;
}

static bool compare_unit(checker *c, const staged_unit *staged, const unsigned char *bytes)
{
    const size_t length = unit_length(c->trace->events[staged->event].bytes, staged->unit);
    const size_t width = tag_width(length);
    unsigned char tag[TAG_BYTES];
    make_tag(staged->event, staged->unit, tag);
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] == tag[i % width])
            continue;
        char what[128];
        snprintf(what, sizeof what,
            "byte %" PRIu64 " is 0x%02x before the free, 0x%02x was written",
            staged->unit * REPLAY_UNIT_BYTES + i, bytes[i], tag[i % width]);
        return report_block(c, staged->event, what);
    }
    c->result->verified_units++;
    return true;
}

/* Brings the staged units to the host and compares them. */
static bool flush(checker *c)
{
    if (c->num_staged == 0)
        return true;
    /* Units come from all streams; the copy to the host is on one. */
    bool ok = synchronize_streams(c)
        && replay_succeeded(tcuda_copy(c->landing, c->staging, c->num_staged * REPLAY_UNIT_BYTES,
               c->run->streams[0]), "tcuda_copy")
        && replay_succeeded(tcuda_stream_synchronize(c->run->streams[0]),
               "tcuda_stream_synchronize");
    for (size_t i = 0; ok && i < c->num_staged; i++)
        ok = compare_unit(c, &c->staged[i], c->landing + i * REPLAY_UNIT_BYTES);
    c->num_staged = 0;
    return ok;
}

/* ---- Blocks ---- */

static bool tag_block(const checker *c, const block *b)
{
    const replay_event *event = &c->trace->events[b->event];
    uint64_t units[MAX_TAGS];
    const size_t count = choose_units(b->event, event->bytes, units);
    for (size_t i = 0; i < count; i++) {
        const size_t length = unit_length(event->bytes, units[i]);
        const size_t width = tag_width(length);
        unsigned char tag[TAG_BYTES];
        make_tag(b->event, units[i], tag);
        const tcuda_status status = tcuda_fill((char *)b->ptr + units[i] * REPLAY_UNIT_BYTES, tag,
            width, length / width, c->run->streams[event->stream]);
        if (!replay_event_succeeded(status, "tcuda_fill", c->trace, b->event))
            return false;
    }
    return true;
}

/* Queues copies of a block's tagged units; to be called before the block is freed. */
static bool stage_block(checker *c, const block *b)
{
    const replay_event *event = &c->trace->events[b->event];
    uint64_t units[MAX_TAGS];
    const size_t count = choose_units(b->event, event->bytes, units);
    if (c->num_staged + count > STAGING_UNITS && !flush(c))
        return false;
    for (size_t i = 0; i < count; i++) {
        const tcuda_status status = tcuda_copy(c->staging + c->num_staged * REPLAY_UNIT_BYTES,
            (char *)b->ptr + units[i] * REPLAY_UNIT_BYTES, unit_length(event->bytes, units[i]),
            c->run->streams[event->stream]);
        if (!replay_event_succeeded(status, "tcuda_copy", c->trace, b->event))
            return false;
        c->staged[c->num_staged++] = (staged_unit){.event = b->event, .unit = units[i]};
    }
    return true;
}

/* Is the new range aligned, and disjoint from all live ones? */
static bool check_range(checker *c, uint32_t slot, const block *b)
{
    const uint64_t bytes = c->trace->events[b->event].bytes;
    const uintptr_t begin = (uintptr_t)b->ptr;
    if (begin % REPLAY_UNIT_BYTES != 0)
        return report_block(c, b->event, "its address is not a multiple of 512");
    if (bytes > UINTPTR_MAX - begin)
        return report_block(c, b->event, "it ends beyond the address space");
    const uint32_t other = replay_ranges_add(&c->ranges, slot, begin, begin + (uintptr_t)bytes);
    if (other == REPLAY_NO_SLOT)
        return true;
    const replay_origin origin = c->trace->origins[c->blocks[other].event];
    char what[128];
    snprintf(what, sizeof what, "it overlaps the live block %" PRIu64 " of line %" PRIu64,
        origin.id, origin.line);
    return report_block(c, b->event, what);
}

static bool allocate(checker *c, size_t index)
{
    const replay_event *event = &c->trace->events[index];
    void *ptr = NULL;
    const tcuda_status status = tcuda_malloc(event->bytes, c->run->device,
        c->run->streams[event->stream], &ptr);
    if (!replay_event_succeeded(status, "tcuda_malloc", c->trace, index))
        return false;
    if ((ptr == NULL) != (event->bytes == 0)) {
        (void)tcuda_free(ptr);
        return report_block(c, index, ptr ? "0 bytes got an address" : "its address is NULL");
    }
    if (ptr == NULL)
        return true;
    const block b = {.ptr = ptr, .event = index};
    /* On an overlap the pointer is another block's: that one's slot frees it. */
    if (!check_range(c, event->slot, &b))
        return false;
    c->blocks[event->slot] = b;
    c->result->verified_blocks++;
    return tag_block(c, &b);
}

static bool release(checker *c, uint32_t slot)
{
    block *b = &c->blocks[slot];
    if (b->ptr == NULL)
        return true;
    const bool ok = stage_block(c, b);
    replay_ranges_remove(&c->ranges, slot);
    const tcuda_status status = tcuda_free(b->ptr);
    b->ptr = NULL;
    return replay_event_succeeded(status, "tcuda_free", c->trace, b->event) && ok;
}

static bool play(checker *c)
{
    const replay_trace *trace = c->trace;
    const uint64_t timed = ((uint64_t)c->run->repeat + 1) * trace->num_events;
    bool ok = true;
    for (size_t i = 0; ok && i < trace->num_events; i++) {
        if (i % STEPS_PER_PROGRESS == 0)
            replay_progress(trace->name, timed + i, timed + trace->num_events);
        const replay_event *event = &trace->events[i];
        ok = event->is_alloc ? allocate(c, i) : release(c, event->slot);
    }
    for (uint32_t slot = 0; ok && slot < trace->num_slots; slot++)
        ok = release(c, slot);
    return ok && flush(c);
}

/* After a failure: gives back what is live, without looking at it. */
static bool abandon(checker *c)
{
    bool ok = true;
    for (uint32_t slot = 0; c->blocks != NULL && slot < c->trace->num_slots; slot++) {
        if (c->blocks[slot].ptr != NULL)
            ok = replay_succeeded(tcuda_free(c->blocks[slot].ptr), "tcuda_free") && ok;
    }
    return ok;
}

static bool prepare(checker *c)
{
    const size_t bytes = (size_t)STAGING_UNITS * REPLAY_UNIT_BYTES;
    c->blocks = calloc(c->trace->num_slots, sizeof *c->blocks);
    c->staged = malloc(STAGING_UNITS * sizeof *c->staged);
    c->landing = malloc(bytes);
    if (c->blocks == NULL || c->staged == NULL || c->landing == NULL
        || !replay_ranges_init(&c->ranges, c->trace->num_slots)) {
        replay_complain("%s: no host memory for the verifying pass", c->trace->name);
        return false;
    }
    void *staging = NULL;
    if (!replay_succeeded(tcuda_malloc(bytes, c->run->device, c->run->streams[0], &staging),
            "tcuda_malloc"))
        return false;
    c->staging = staging;
    /* Allocated on stream 0 and written by all of them. */
    return synchronize_streams(c);
}

bool replay_check(const replay_trace *trace, const replay_run *run, replay_result *result)
{
    checker c = {.trace = trace, .run = run, .result = result};
    bool ok = prepare(&c) && play(&c);
    if (!ok)
        (void)abandon(&c);
    /* Other streams may still write to the staging block, which belongs to stream 0. */
    ok = synchronize_streams(&c) && ok;
    ok = replay_succeeded(tcuda_free(c.staging), "tcuda_free") && ok;
    free(c.blocks);
    free(c.staged);
    free(c.landing);
    replay_ranges_free(&c.ranges);
    return ok;
}
