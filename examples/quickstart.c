/* The smallest useful program: fill device memory on a stream, copy it back, look at it. */

#include <stdio.h>
#include <stdlib.h>
#include <tcuda.h>

static void check(tcuda_status status)
{
    if (status == TCUDA_STATUS_OK)
        return;
    fprintf(stderr, "%s: %s\n", tcuda_status_name((int32_t)status), tcuda_last_error());
    exit(EXIT_FAILURE);
}

int main(void)
{
    enum { COUNT = 1000 };
    tcuda_stream *stream;
    void *memory;
    float value = 1.5F, host[COUNT];
    size_t allocated, live;

    check(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &stream));
    check(tcuda_malloc(sizeof host, TCUDA_CURRENT_DEVICE, stream, &memory));
    check(tcuda_fill(memory, &value, sizeof value, COUNT, stream));
    check(tcuda_copy(host, memory, sizeof host, stream));
    check(tcuda_stream_synchronize(stream));
    check(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &allocated));
    printf("%g ... %g, %zu bytes allocated\n", host[0], host[COUNT - 1], allocated);

    check(tcuda_free(memory)); /* to the cache, in the order of its stream */
    check(tcuda_stream_destroy(stream));
    check(tcuda_shutdown(&live));
    return live == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
