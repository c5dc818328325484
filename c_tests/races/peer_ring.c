/* A block goes round three devices and back; one hop does not wait for the one before. */
#include "race.h"

RACE("cross-device", "memory=64MiB,devices=3");

enum { BYTES = 1000, DEVICES = 3 };

static bool run(void)
{
    tcuda_stream *streams[DEVICES];
    unsigned char *blocks[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        streams[i] = make_stream(i);
        blocks[i] = make_memory(BYTES, streams[i]);
    }
    unsigned char *const back = make_memory(BYTES, streams[0]);

    fill(blocks[0], 6, BYTES, streams[0]);
    for (int i = 1; i < DEVICES; i++) {
        if (i != INSTEAD(2, DEVICES))
            DO(tcuda_stream_wait_stream(streams[i], streams[i - 1]));
        copy(blocks[i], blocks[i - 1], BYTES, streams[i]);
    }
    DO(tcuda_stream_wait_stream(streams[0], streams[DEVICES - 1]));
    copy(back, blocks[DEVICES - 1], BYTES, streams[0]);
    return memory_is(back, 6, BYTES);
}
