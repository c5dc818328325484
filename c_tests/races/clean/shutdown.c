/* tcuda_shutdown waits for the work of all devices before it takes any memory away: a device may be
 * about to use the memory of another one, and what it does may end with a callback. */
#include "model.h"

RACE("workload", "memory=64MiB,devices=3");

enum { BYTES = 4096 };

static void count(void *user_data)
{
    ++*(int *)user_data;
}

static bool run(void)
{
    int32_t devices = 0;
    int calls = 0;
    DO(tcuda_device_count(&devices));
    for (int32_t device = 0; device < devices; device++) {
        const int32_t other = (device + 1) % devices;
        tcuda_stream *stream = NULL;
        void *own = NULL, *others = NULL;
        DO(tcuda_stream_create(device, 0, &stream));
        DO(tcuda_malloc(BYTES, device, NULL, &own));
        DO(tcuda_malloc(BYTES, other, NULL, &others));
        DO(tcuda_copy(own, others, BYTES, stream));
        DO(tcuda_copy(others, own, BYTES, stream));
        /* Runs only if the device was not lost before. */
        DO(tcuda_stream_add_callback(stream, count, &calls, NULL));
        DO(tcuda_stream_destroy(stream));
    }
    DO(tcuda_shutdown(NULL));
    return calls == devices;
}
