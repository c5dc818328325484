/* Streams of the pools take no notice of the default stream, nor it of them. */
#include "race.h"

RACE("default stream", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    tcuda_stream *legacy = NULL;
    DO(tcuda_stream_default(0, &legacy));
    unsigned char *const from = make_memory(BYTES, legacy), *const to = make_memory(BYTES, stream);

    fill(from, 1, BYTES, legacy);
    WAIT(tcuda_stream_wait_stream(stream, legacy));
    copy(to, from, BYTES, stream);
    return memory_is(to, 1, BYTES);
}
