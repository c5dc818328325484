/* The host asks whether an event was reached, and goes on whatever the answer is. */
#include "race.h"

RACE("host", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    unsigned char *const block = make_memory(BYTES, stream), *const host = make_pinned(BYTES);
    tcuda_event *const copied = make_event();
    bool done = false;

    fill(block, 1, BYTES, stream);
    copy(host, block, BYTES, stream);
    DO(tcuda_event_record(copied, stream));
    DO(tcuda_event_query(copied, &done));
    if (!done)
        WAIT(tcuda_event_synchronize(copied));
    return host_is(host, 1, BYTES);
}
