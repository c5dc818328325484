/* A callback reads what another stream writes, for which its own stream does not wait. */
#include "race.h"

RACE("callback order", MACHINE);

enum { BYTES = 512 };

typedef struct message {
    const unsigned char *bytes;
    bool right;
} message;

static void look(void *user_data)
{
    message *const seen = user_data;
    seen->right = host_is(seen->bytes, 1, BYTES);
}

static bool run(void)
{
    tcuda_stream *const writer = make_stream(0), *const caller = make_stream(0);
    unsigned char *const block = make_memory(BYTES, writer), *const host = make_pinned(BYTES);
    message seen = { host, false };

    fill(block, 1, BYTES, writer);
    copy(host, block, BYTES, writer);
    WAIT(tcuda_stream_wait_stream(caller, writer));
    DO(tcuda_stream_add_callback(caller, look, &seen, NULL));
    DO(tcuda_device_synchronize(0));
    return seen.right;
}
