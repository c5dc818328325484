/* What the tests of communicators share. On GPUs they use NCCL, and are skipped where there is
 * none; on the simulated machine a library that stands in for it (tests/fake_nccl.c). */
#ifndef COMMUNICATOR_H
#define COMMUNICATOR_H

#include "support.h"

enum { MOST = 4 };

/* Uses no CUDA. */
static inline void skip_without_nccl(void)
{
    if (getenv("TCUDA_BACKEND") != NULL && strcmp(getenv("TCUDA_BACKEND"), "sim") == 0
        && getenv("TCUDA_NCCL_PATH") == NULL) {
        printf("skipped: TCUDA_NCCL_PATH names nothing that stands in for NCCL\n");
        exit(CHECK_SKIPPED);
    }
    int32_t major = 0, minor = 0, patch = 0;
    const tcuda_status status = tcuda_nccl_version(&major, &minor, &patch);
    if (status == TCUDA_STATUS_NO_LIBRARY) {
        printf("skipped: %s\n", tcuda_last_error());
        exit(CHECK_SKIPPED);
    }
    CHECK_EQ(status, TCUDA_STATUS_OK);
    CHECK(major == 2 && minor >= 10 && patch >= 0);
}

static inline int num_ranks(void)
{
    const int32_t count = num_devices();
    return count < MOST ? count : MOST;
}

/* A tensor of one dimension; `shape` is the caller's. */
static inline tcuda_tensor tensor_of(void *data, int32_t device, uint8_t code, uint8_t bits,
    int64_t *shape)
{
    return (tcuda_tensor){ .data = data, .device = { TCUDA_DEVICE_CUDA, device }, .ndim = 1,
        .dtype = { code, bits, 1 }, .shape = shape };
}

/* Memory of a device with some bytes in it. */
static inline void *put(const void *bytes, size_t size, int32_t device, tcuda_stream *stream)
{
    void *data = allocate(size, device, stream);
    CHECK_OK(tcuda_copy(data, bytes, size, stream));
    return data;
}

static inline tcuda_stream *default_of(int32_t device)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_default(device, &stream));
    return stream;
}

static inline void join_all(int ranks, tcuda_communicator **communicators)
{
    const int32_t devices[] = { 0, 1, 2, 3 };
    CHECK_OK(tcuda_communicator_init_all(devices, (size_t)ranks, communicators));
}

static inline void destroy_all(int ranks, tcuda_communicator **communicators)
{
    for (int rank = 0; rank < ranks; rank++)
        CHECK_OK(tcuda_communicator_destroy(communicators[rank]));
}

#endif /* COMMUNICATOR_H */
