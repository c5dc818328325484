/* Reads allocator traces: "# key value" header lines, then "a ID SIZE STREAM" and "f ID".
 *
 * Everything that can be wrong with a trace is found here, so that the passes need not ask. */

#define _POSIX_C_SOURCE 200809L

#include "replay.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* ---- Which ids are live: open addressing, linear probing, a power of two places ---- */

typedef struct live_id {
    uint64_t id;
    uint32_t slot; /* REPLAY_NO_SLOT: the place is empty */
} live_id;

typedef struct live_ids {
    live_id *places;
    size_t num_places, count;
} live_ids;

static size_t home(const live_ids *ids, uint64_t id)
{
    return (size_t)((id * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & (ids->num_places - 1);
}

/* The place of an id, or the empty one where it would go. */
static live_id *find_place(const live_ids *ids, uint64_t id)
{
    size_t i = home(ids, id);
    while (ids->places[i].slot != REPLAY_NO_SLOT && ids->places[i].id != id)
        i = (i + 1) & (ids->num_places - 1);
    return &ids->places[i];
}

/* Keeps the table at most half full. */
static bool make_room(live_ids *ids)
{
    if (ids->places != NULL && ids->count * 2 < ids->num_places)
        return true;
    live_ids bigger = {.num_places = ids->places ? ids->num_places * 2 : 1024};
    bigger.places = malloc(bigger.num_places * sizeof *bigger.places);
    if (bigger.places == NULL)
        return false;
    for (size_t i = 0; i < bigger.num_places; i++)
        bigger.places[i].slot = REPLAY_NO_SLOT;
    for (size_t i = 0; i < ids->num_places; i++) {
        if (ids->places[i].slot != REPLAY_NO_SLOT)
            *find_place(&bigger, ids->places[i].id) = ids->places[i];
    }
    bigger.count = ids->count;
    free(ids->places);
    *ids = bigger;
    return true;
}

/* Empties a place and moves up what was displaced past it. */
static void empty_place(live_ids *ids, live_id *place)
{
    const size_t mask = ids->num_places - 1;
    size_t hole = (size_t)(place - ids->places);
    for (size_t i = (hole + 1) & mask; ids->places[i].slot != REPLAY_NO_SLOT; i = (i + 1) & mask) {
        const size_t wanted = home(ids, ids->places[i].id);
        if (((i - wanted) & mask) >= ((i - hole) & mask)) {
            ids->places[hole] = ids->places[i];
            hole = i;
        }
    }
    ids->places[hole].slot = REPLAY_NO_SLOT;
    ids->count--;
}

/* ---- The reader ---- */

typedef struct reader {
    const char *path;
    replay_trace *trace;
    live_ids live;
    uint32_t *free_slots; /* a stack, num_slots places */
    size_t num_free_slots, slot_capacity, event_capacity;
    uint64_t line, promised_events;
    bool promises;
} reader;

/* Prints what is wrong with the present line, and the line; always false. */
static bool reject(const reader *r, const char *text, const char *reason)
{
    char shown[72];
    size_t n = 0;
    for (; text[n] != '\0' && n < sizeof shown - 1; n++)
        shown[n] = (char)(isprint((unsigned char)text[n]) ? text[n] : '?');
    shown[n] = '\0';
    replay_complain("%s: line %llu: %s: '%s%s'", r->path, (unsigned long long)r->line, reason,
        shown, text[n] != '\0' ? "..." : "");
    return false;
}

static bool out_of_host_memory(const reader *r)
{
    replay_complain("%s: no host memory for the trace", r->path);
    return false;
}

/* Reads spaces and one decimal number. */
static bool read_number(const char **text, uint64_t *number)
{
    const char *p = *text + strspn(*text, " \t");
    if (*p < '0' || *p > '9')
        return false;
    uint64_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        const uint64_t digit = (uint64_t)(*p - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *text = p;
    *number = value;
    return true;
}

static bool at_end(const char *text)
{
    return text[strspn(text, " \t")] == '\0';
}

/* "# key value"; keys that are not known are comments. */
static bool read_header(reader *r, const char *text)
{
    const char *key = text + 1 + strspn(text + 1, " \t");
    const size_t length = strcspn(key, " \t");
    const char *value = key + length;
    const struct { const char *key; uint64_t *number; } known[] = {
        {"events", &r->promised_events},
        {"peak_allocated", &r->trace->recorded_allocated},
        {"peak_reserved", &r->trace->recorded_reserved},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].key) != length || memcmp(known[i].key, key, length) != 0)
            continue;
        if (!read_number(&value, known[i].number) || !at_end(value))
            return reject(r, text, "a header line without its number");
        r->promises = r->promises || i == 0;
    }
    return true;
}

static bool append(reader *r, replay_event event, uint64_t id)
{
    replay_trace *trace = r->trace;
    if (trace->num_events == r->event_capacity) {
        const size_t capacity = r->event_capacity ? r->event_capacity * 2 : 4096;
        replay_event *events = realloc(trace->events, capacity * sizeof *events);
        if (events == NULL)
            return out_of_host_memory(r);
        trace->events = events;
        replay_origin *origins = realloc(trace->origins, capacity * sizeof *origins);
        if (origins == NULL)
            return out_of_host_memory(r);
        trace->origins = origins;
        r->event_capacity = capacity;
    }
    trace->events[trace->num_events] = event;
    trace->origins[trace->num_events] = (replay_origin){.id = id, .line = r->line};
    trace->num_events++;
    return true;
}

/* A slot that no live block has: the last one given back, for it is warm in the cache. */
static bool take_slot(reader *r, uint32_t *slot)
{
    if (r->num_free_slots > 0) {
        *slot = r->free_slots[--r->num_free_slots];
        return true;
    }
    replay_trace *trace = r->trace;
    if (trace->num_slots == REPLAY_NO_SLOT)
        return out_of_host_memory(r);
    if (trace->num_slots == r->slot_capacity) {
        const size_t capacity = r->slot_capacity ? r->slot_capacity * 2 : 1024;
        uint32_t *slots = realloc(r->free_slots, capacity * sizeof *slots);
        if (slots == NULL)
            return out_of_host_memory(r);
        r->free_slots = slots;
        r->slot_capacity = capacity;
    }
    *slot = trace->num_slots++;
    return true;
}

static bool read_alloc(reader *r, const char *text)
{
    const char *rest = text + 1;
    uint64_t id, bytes, stream;
    if (!read_number(&rest, &id) || !read_number(&rest, &bytes) || !read_number(&rest, &stream)
        || !at_end(rest))
        return reject(r, text, "malformed, expected 'a ID SIZE STREAM'");
    if (bytes > SIZE_MAX)
        return reject(r, text, "a size that is too large");
    if (stream >= REPLAY_MAX_STREAMS)
        return reject(r, text, "a stream number above 1023");
    if (!make_room(&r->live))
        return out_of_host_memory(r);
    live_id *place = find_place(&r->live, id);
    if (place->slot != REPLAY_NO_SLOT)
        return reject(r, text, "allocates an id that is still live");
    uint32_t slot;
    if (!take_slot(r, &slot))
        return false;
    *place = (live_id){.id = id, .slot = slot};
    r->live.count++;
    r->trace->num_allocs++;
    if (stream >= r->trace->num_streams)
        r->trace->num_streams = (uint32_t)stream + 1;
    return append(r, (replay_event){.bytes = bytes, .slot = slot, .stream = (uint16_t)stream,
        .is_alloc = 1}, id);
}

static bool read_free(reader *r, const char *text)
{
    const char *rest = text + 1;
    uint64_t id;
    if (!read_number(&rest, &id) || !at_end(rest))
        return reject(r, text, "malformed, expected 'f ID'");
    live_id *place = r->live.count > 0 ? find_place(&r->live, id) : NULL;
    if (place == NULL || place->slot == REPLAY_NO_SLOT)
        return reject(r, text, "frees an unknown id");
    const uint32_t slot = place->slot;
    empty_place(&r->live, place);
    r->free_slots[r->num_free_slots++] = slot;
    return append(r, (replay_event){.slot = slot}, id);
}

static bool read_line(reader *r, char *text, size_t length)
{
    if (memchr(text, '\0', length) != NULL || strncmp(text, "\xFD" "7zXZ", 5) == 0)
        return reject(r, text, r->line == 1 && text[0] == '\xFD'
            ? "packed, unpack it with 'xz -d'" : "not text");
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r'))
        text[--length] = '\0';
    if (text[0] == '#')
        return read_header(r, text);
    if (at_end(text))
        return true;
    if (text[0] == 'a' && (text[1] == ' ' || text[1] == '\t'))
        return read_alloc(r, text);
    if (text[0] == 'f' && (text[1] == ' ' || text[1] == '\t'))
        return read_free(r, text);
    return reject(r, text, "malformed, expected 'a ID SIZE STREAM' or 'f ID'");
}

static bool read_lines(reader *r, FILE *file)
{
    char *text = NULL;
    size_t capacity = 0;
    bool ok = true;
    ssize_t length;
    errno = 0;
    while (ok && (length = getline(&text, &capacity, file)) >= 0) {
        r->line++;
        ok = read_line(r, text, (size_t)length);
    }
    const int error = errno;
    free(text);
    if (!ok)
        return false;
    if (ferror(file) || !feof(file)) {
        replay_complain("%s: cannot be read: %s", r->path, strerror(error));
        return false;
    }
    if (r->promises && r->promised_events != r->trace->num_events) {
        replay_complain("%s: %s: its header promises %llu events, it has %zu", r->path,
            r->promised_events > r->trace->num_events ? "truncated" : "does not fit its header",
            (unsigned long long)r->promised_events, r->trace->num_events);
        return false;
    }
    if (r->trace->num_events == 0) {
        replay_complain("%s: no events", r->path);
        return false;
    }
    return true;
}

static char *copy_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    return strdup(strcmp(path, "-") == 0 ? "standard input" : name);
}

bool replay_trace_read(const char *path, replay_trace *trace)
{
    const bool from_stdin = strcmp(path, "-") == 0;
    *trace = (replay_trace){0};
    reader r = {.path = from_stdin ? "standard input" : path, .trace = trace};
    FILE *file = from_stdin ? stdin : fopen(path, "r");
    if (file == NULL) {
        replay_complain("%s: cannot be opened: %s", path, strerror(errno));
        return false;
    }
    trace->name = copy_name(path);
    bool ok = trace->name != NULL ? read_lines(&r, file) : out_of_host_memory(&r);
    if (!from_stdin)
        fclose(file);
    free(r.live.places);
    free(r.free_slots);
    if (!ok)
        replay_trace_free(trace);
    return ok;
}

void replay_trace_free(replay_trace *trace)
{
    free(trace->name);
    free(trace->events);
    free(trace->origins);
    *trace = (replay_trace){0};
}
