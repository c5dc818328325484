/* Copies and fills of addresses that are not mapped: each is a status. A driver crashes the process
 * for some of them, so that this runs on the simulated machine. */
#define _GNU_SOURCE

#include <sys/mman.h>

#include "support.h"

enum { BYTES = 3 << 20 };

static char bytes[BYTES];

static void are_refused(void *unmapped, void *block)
{
    const int zero = 0;
    for (size_t length = 1; length <= BYTES; length *= 1024) {
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_copy(block, unmapped, length, NULL));
        CHECK_EQ(tcuda_last_error_native(), 1);
        CHECK(strstr(tcuda_last_error(), "not memory") != NULL);
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_copy(unmapped, block, length, NULL));
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_copy(unmapped, bytes, length, NULL));
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_copy(bytes, unmapped, length, NULL));
    }
    CHECK(tcuda_fill(unmapped, &zero, 1, 64, NULL) != TCUDA_STATUS_OK);
    CHECK(tcuda_copy_2d(block, 64, unmapped, 64, 16, 2, NULL) != TCUDA_STATUS_OK);
    /* Nothing is broken. */
    CHECK_OK(tcuda_copy(block, bytes, BYTES, NULL));
    CHECK_OK(tcuda_copy(bytes, block, BYTES, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
}

static void *device_block(void)
{
    void *block = NULL;
    CHECK_OK(tcuda_malloc(BYTES, 0, NULL, &block));
    return block;
}

static void small_addresses(void)
{
    void *const block = device_block();
    are_refused((void *)0x10, block);
    are_refused((void *)0x1000, block);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_shutdown(NULL));
}

static void the_second_half_is_gone(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *const block = device_block();
    char *const range = mmap(NULL, 64 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
        -1, 0);
    CHECK(range != MAP_FAILED);
    CHECK_EQ(munmap(range + 40 * page, 24 * page), 0);
    CHECK_OK(tcuda_copy(block, range, 40 * page, NULL));
    CHECK_OK(tcuda_copy(block, range + 100, 40 * page - 100, NULL));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_copy(block, range, 40 * page + 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_copy(range, block, 64 * page, NULL));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR,
        tcuda_copy_2d(block, page, range, page, 16, 41, NULL));
    CHECK_EQ(munmap(range, 40 * page), 0);
    are_refused(range, block);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_shutdown(NULL));
}

/* Addresses of the life before, also those of streams of which nothing is left. */
static void addresses_of_before_a_shutdown(void)
{
    void *old[8], *pinned = NULL;
    for (int i = 0; i < 8; i++)
        CHECK_OK(tcuda_malloc((size_t)1 << (10 + 2 * i), 0, NULL, &old[i]));
    CHECK_OK(tcuda_host_malloc(BYTES, &pinned));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_init());
    for (int i = 0; i < 8; i++) {
        CHECK(tcuda_copy(bytes, old[i], 64, NULL) != TCUDA_STATUS_OK);
        CHECK(tcuda_copy(old[i], bytes, 64, NULL) != TCUDA_STATUS_OK);
    }
    CHECK(tcuda_copy(pinned, bytes, BYTES, NULL) != TCUDA_STATUS_OK);
    CHECK_OK(tcuda_shutdown(NULL));
    /* Nothing is initialised: the first call finds no memory at these addresses. */
    for (int i = 0; i < 8; i++)
        CHECK(tcuda_copy(bytes, old[i], 64, NULL) != TCUDA_STATUS_OK);
    CHECK_OK(tcuda_shutdown(NULL));
}

/* A graph reads at each launch. */
static void graphs_copy_what_is_gone(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *const block = device_block();
    char *const range = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
        -1, 0);
    tcuda_stream *stream = NULL;
    tcuda_graph *graph = NULL;
    CHECK(range != MAP_FAILED);
    CHECK_OK(tcuda_stream_create(0, 0, &stream));
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_RELAXED));
    CHECK_OK(tcuda_copy(block, range, page, stream));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_replay(graph, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(munmap(range, page), 0);
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_graph_replay(graph, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_shutdown(NULL));
}

int main(void)
{
    if (!on_simulator()) {
        printf("skipped: a driver crashes\n");
        return CHECK_SKIPPED;
    }
    RUNS(small_addresses);
    RUNS(the_second_half_is_gone);
    RUNS(addresses_of_before_a_shutdown);
    RUNS(graphs_copy_what_is_gone);
    return finish_cases();
}
