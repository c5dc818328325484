/* A callback writes a pinned buffer; the stream that copies from it does not wait for the stream of
 * the callback. */
#include "race.h"

RACE("callback order", MACHINE);

enum { BYTES = 1000 };

static void produce(void *user_data)
{
    memset(user_data, 1, BYTES);
}

static bool run(void)
{
    tcuda_stream *const caller = make_stream(0), *const copier = make_stream(0);
    unsigned char *const block = make_memory(BYTES, copier), *const host = make_pinned(BYTES);
    tcuda_event *const produced = make_event();

    DO(tcuda_stream_add_callback(caller, produce, host, NULL));
    DO(tcuda_event_record(produced, caller));
    WAIT(tcuda_event_wait(produced, copier));
    copy(block, host, BYTES, copier);
    return memory_is(block, 1, BYTES);
}
