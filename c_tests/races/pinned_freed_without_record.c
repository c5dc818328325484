/* Pinned memory is freed while a copy of the driver's own reads it, which was not recorded. */
#include "race.h"

RACE("pinned buffer", MACHINE);

enum { BYTES = 4096 };

typedef int copy_function(uint64_t dst, uint64_t src, size_t bytes, struct CUstream_st *stream);

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    unsigned char *const block = make_memory(BYTES, stream);
    struct CUstream_st *native = NULL;
    void *host = NULL, *next = NULL, *address = NULL;
    copy_function *copy_it = NULL;

    DO(tcuda_backend_function("cuMemcpyAsync", &address));
    memcpy(&copy_it, &address, sizeof copy_it);
    DO(tcuda_stream_native(stream, &native));
    DO(tcuda_host_malloc(BYTES, &host));
    memset(host, 1, BYTES);
    copy_it((uintptr_t)block, (uintptr_t)host, BYTES, native);
    WAIT(tcuda_host_record(host, stream));
    DO(tcuda_host_free(host));
    DO(tcuda_host_malloc(BYTES, &next)); /* the same block, if it may be */
    memset(next, 2, BYTES);
    const bool is_right = memory_is(block, 1, BYTES);
    DO(tcuda_host_free(next));
    return is_right;
}
