/* The wait is there, but makes the wrong stream wait. */
#include "race.h"

RACE("stream", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(0);
    tcuda_stream *const bystander = make_stream(0);
    unsigned char *const from = make_memory(BYTES, producer);
    unsigned char *const to = make_memory(BYTES, consumer);
    unsigned char *const other = make_memory(BYTES, bystander);

    fill(from, 5, BYTES, producer);
    DO(tcuda_stream_wait_stream(INSTEAD(bystander, consumer), producer));
    fill(other, 6, BYTES, bystander);
    copy(to, from, BYTES, consumer);
    return memory_is(to, 5, BYTES) && memory_is(other, 6, BYTES);
}
