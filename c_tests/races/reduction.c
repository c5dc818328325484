/* Partial results of eight streams are added up without waiting for one of them. */
#include "race.h"

RACE("stream", MACHINE);

enum { PARTS = 8, BYTES = 64 };

typedef struct sum {
    const unsigned char *parts;
    int result;
} sum;

static void add_up(void *user_data)
{
    sum *const all = user_data;
    for (int i = 0; i < PARTS * BYTES; i++)
        all->result += all->parts[i];
}

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    unsigned char *const gathered = make_memory((size_t)PARTS * BYTES, stream);
    unsigned char *const parts = make_pinned((size_t)PARTS * BYTES);
    sum all = { parts, 0 };

    for (int i = 0; i < PARTS; i++) {
        tcuda_stream *const worker = make_stream(0);
        unsigned char *const part = make_memory(BYTES, worker);
        fill(part, i + 1, BYTES, worker);
        copy(gathered + i * BYTES, part, BYTES, worker);
        if (i != INSTEAD(PARTS / 2, -1))
            DO(tcuda_stream_wait_stream(stream, worker));
    }
    copy(parts, gathered, (size_t)PARTS * BYTES, stream);
    DO(tcuda_stream_add_callback(stream, add_up, &all, NULL));
    DO(tcuda_stream_synchronize(stream));
    return all.result == BYTES * PARTS * (PARTS + 1) / 2;
}
