/* Copies to the device and work there overlap over two buffers; the copier does not wait until a
 * buffer was worked off. */
#include "race.h"

RACE("event", MACHINE);

enum { BYTES = 1024, TILES = 6 };

static bool run(void)
{
    tcuda_stream *const copier = make_stream(0), *const worker = make_stream(0);
    unsigned char *const input = make_pinned(TILES * BYTES);
    unsigned char *const output = make_memory(TILES * BYTES, worker);
    unsigned char *const buffers[2] = { make_memory(BYTES, copier), make_memory(BYTES, copier) };
    tcuda_event *const filled[2] = { make_event(), make_event() };
    tcuda_event *const emptied[2] = { make_event(), make_event() };
    bool right = true;

    for (int tile = 0; tile < TILES; tile++)
        memset(input + tile * BYTES, tile + 1, BYTES);
    for (int tile = 0; tile < TILES; tile++) {
        const int which = tile % 2;
        WAIT(tcuda_stream_wait_event(copier, emptied[which]));
        copy(buffers[which], input + tile * BYTES, BYTES, copier);
        DO(tcuda_event_record(filled[which], copier));
        DO(tcuda_stream_wait_event(worker, filled[which]));
        copy(output + tile * BYTES, buffers[which], BYTES, worker);
        DO(tcuda_event_record(emptied[which], worker));
    }
    for (int tile = 0; tile < TILES; tile++)
        right = memory_is(output + tile * BYTES, tile + 1, BYTES) && right;
    return right;
}
