/* Operations on single values in memory, as CUDA describes them. */
#ifndef TCUDA_TEST_DRIVER_VALUE_H
#define TCUDA_TEST_DRIVER_VALUE_H

#include "driver.h"

/* CUstreamBatchMemOpType */
enum { WAIT_32 = 1, WRITE_32 = 2, FLUSH_REMOTE = 3, WAIT_64 = 4, WRITE_64 = 5, BARRIER = 6 };

/* CUstreamWaitValue_flags */
enum { AT_LEAST = 0, EQUAL = 1, COMMON_BIT = 2, MISSING_BIT = 3, FLUSH = 1 << 30 };

/* CUstreamBatchMemOpParams */
struct operation {
    int type;
    unsigned int flags_of_barrier;
    address place;
    uint64_t value;
    unsigned int flags, unused;
    address alias, padding;
};

static inline struct operation operation(
    int type, address place, uint64_t value, unsigned int flags)
{
    const struct operation made = { type, 0, place, value, flags, 0, 0, 0 };
    return made;
}

/* The address of memory of the host. */
static inline address of(volatile void *memory)
{
    return (address)(uintptr_t)memory;
}

#endif
