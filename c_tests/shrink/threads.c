/* For the test of scripts/ci/shrink.py: four threads of the host, each with a stream and forty
 * operations of its own. One also fills a buffer, on yet another stream, and records an event;
 * another copies from the buffer, and lacks the wait for the event. With the argument "right" the
 * wait is there. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

#include <semaphore.h>

enum { THREADS = 4, BYTES = 4096, FILLS = 20 };

static bool is_right;
static tcuda_stream *streams[THREADS], *producer;
static unsigned char *own[THREADS], *input, *output;
static tcuda_event *filled;
static sem_t recorded;

static void *work(void *argument)
{
    const int index = *(const int *)argument;
    for (int i = 0; i < 2 * FILLS; i++) {
        fill_bytes(own[index], i, BYTES, streams[index]);
        if (index == 0 && i == FILLS) {
            fill_bytes(input, 2, BYTES, producer);
            CHECK_OK(tcuda_event_record(filled, producer));
            CHECK_EQ(sem_post(&recorded), 0);
        }
        if (index == 1 && i == FILLS) {
            while (sem_wait(&recorded) != 0)
                continue;
            if (is_right)
                CHECK_OK(tcuda_stream_wait_event(streams[1], filled));
            CHECK_OK(tcuda_copy(output, input, BYTES, streams[1]));
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    is_right = argc > 1 && strcmp(argv[1], "right") == 0;
    pthread_t threads[THREADS];
    int indices[THREADS];
    for (int i = 0; i < THREADS; i++) {
        streams[i] = create_stream(0);
        own[i] = allocate(BYTES, 0, streams[i]);
        indices[i] = i;
    }
    producer = create_stream(0);
    input = allocate(BYTES, 0, producer);
    output = allocate(BYTES, 0, streams[1]);
    filled = create_event(0);
    CHECK_EQ(sem_init(&recorded, 0, 0), 0);
    fill_bytes(input, 1, BYTES, producer);
    CHECK_OK(tcuda_stream_synchronize(producer));

    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(work, &indices[i]);
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    CHECK_EQ(count_other_bytes(output, 2, BYTES, streams[1]), 0);

    CHECK_EQ(sem_destroy(&recorded), 0);
    CHECK_OK(tcuda_event_destroy(filled));
    CHECK_OK(tcuda_free(output));
    CHECK_OK(tcuda_free(input));
    for (int i = 0; i < THREADS; i++) {
        CHECK_OK(tcuda_free(own[i]));
        CHECK_OK(tcuda_stream_destroy(streams[i]));
    }
    CHECK_OK(tcuda_stream_destroy(producer));
    return finish();
}
