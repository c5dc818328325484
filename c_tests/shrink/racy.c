/* For the test of scripts/ci/shrink.py: forty operations, of which one copy lacks the wait for the
 * fill of another stream. With the argument "right" the wait is there. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

#define BYTES 4096

int main(int argc, char **argv)
{
    const bool is_right = argc > 1 && strcmp(argv[1], "right") == 0;
    tcuda_stream *first = create_stream(0), *second = create_stream(0);
    tcuda_event *filled = create_event(0);
    unsigned char *input = allocate(BYTES, 0, first), *output = allocate(BYTES, 0, second);
    void *own = allocate(BYTES, 0, second);

    fill_bytes(input, 1, BYTES, first);
    CHECK_OK(tcuda_stream_synchronize(first));
    for (int i = 0; i < 18; i++) {
        fill_bytes(own, i, BYTES, second);
        if (i == 9) {
            fill_bytes(input, 2, BYTES, first);
            CHECK_OK(tcuda_event_record(filled, first));
        }
    }
    if (is_right)
        CHECK_OK(tcuda_stream_wait_event(second, filled));
    CHECK_OK(tcuda_copy(output, input, BYTES, second));
    for (int i = 0; i < 18; i++)
        fill_bytes(own, i, BYTES, second);
    CHECK_EQ(count_other_bytes(output, 2, BYTES, second), 0);

    CHECK_OK(tcuda_free(own));
    CHECK_OK(tcuda_free(output));
    CHECK_OK(tcuda_free(input));
    CHECK_OK(tcuda_event_destroy(filled));
    CHECK_OK(tcuda_stream_destroy(second));
    CHECK_OK(tcuda_stream_destroy(first));
    return finish();
}
