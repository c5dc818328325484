/* The host puts the next message into the memory of one that a callback has yet to read. */
#include "race.h"

RACE("callback order", MACHINE);

enum { MESSAGES = 4 };

typedef struct post {
    int message;
    int sum;
} post;

static void deliver(void *user_data)
{
    post *const received = user_data;
    received->sum += received->message;
}

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    post box = { 0, 0 };

    for (int i = 0; i < MESSAGES; i++) {
        box.message = 1 << i;
        DO(tcuda_stream_add_callback(stream, deliver, &box, NULL));
        WAIT(tcuda_stream_synchronize(stream));
    }
    DO(tcuda_stream_synchronize(stream));
    return box.sum == (1 << MESSAGES) - 1;
}
