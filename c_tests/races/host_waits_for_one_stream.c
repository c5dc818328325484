/* The host waits for one of two streams where it needs both. */
#include "race.h"

RACE("host", MACHINE);

enum { BYTES = 1500 };

static bool run(void)
{
    tcuda_stream *const left = make_stream(0), *const right = make_stream(0);
    unsigned char *const a = make_memory(BYTES, left), *const b = make_memory(BYTES, right);
    unsigned char *const host = make_pinned(2 * BYTES);

    fill(a, 8, BYTES, left);
    copy(host, a, BYTES, left);
    fill(b, 8, BYTES, right);
    copy(host + BYTES, b, BYTES, right);
    DO(tcuda_stream_synchronize(left));
    WAIT(tcuda_device_synchronize(0));
    return host_is(host, 8, 2 * BYTES);
}
