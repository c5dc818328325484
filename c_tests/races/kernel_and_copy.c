/* A kernel of another stream writes the pattern that a copy reads without waiting. */
#include "race.h"

RACE("event", MACHINE);

enum { COUNT = 300, BYTES = 16 * COUNT };

static bool run(void)
{
    static const char pattern[] = "sixteen bytes...";
    tcuda_stream *const writer = make_stream(0), *const reader = make_stream(0);
    unsigned char *const from = make_memory(BYTES, writer), *const to = make_pinned(BYTES);
    tcuda_event *const written = make_event();
    bool right = true;

    DO(tcuda_fill(from, pattern, 16, COUNT, writer));
    DO(tcuda_event_record(written, writer));
    WAIT(tcuda_event_wait(written, reader));
    copy(to, from, BYTES, reader);
    DO(tcuda_device_synchronize(0));
    for (int i = 0; i < COUNT; i++)
        right = right && memcmp(to + i * 16, pattern, 16) == 0;
    return right;
}
