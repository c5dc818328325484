/* Every second column is copied on one stream, the others are filled on another, which does not
 * wait for the fill of the whole that came before. */
#include "race.h"

RACE("stream", MACHINE);

enum { PITCH = 64, WIDTH = 32, ROWS = 40, BYTES = PITCH * ROWS };

static bool run(void)
{
    tcuda_stream *const filler = make_stream(0), *const copier = make_stream(0);
    unsigned char *const image = make_memory(BYTES, filler);
    unsigned char *const tile = make_memory((size_t)WIDTH * ROWS, copier);
    unsigned char host[BYTES];
    bool right = true;

    fill(tile, 2, (size_t)WIDTH * ROWS, copier);
    fill(image, 1, BYTES, filler);
    WAIT(tcuda_stream_wait_stream(copier, filler));
    DO(tcuda_copy_2d(image + WIDTH, PITCH, tile, WIDTH, WIDTH, ROWS, copier));
    DO(tcuda_device_synchronize(0));
    copy(host, image, BYTES, NULL);
    for (int row = 0; row < ROWS; row++)
        right = right && host_is(host + row * PITCH, 1, WIDTH)
            && host_is(host + row * PITCH + WIDTH, 2, WIDTH);
    return right;
}
