/* A soak test: for each kind of thing that a host makes, it is made and ended many times, one after the
 * other, and what the process holds is compared early and late. */
#ifndef SOAK_H
#define SOAK_H

#include "support.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

/* A kind of thing. Each runs in a process of its own. */
typedef struct kind {
    const char *name;
    void (*round)(int64_t number); /* makes one, uses it, and ends it */
    int64_t share;                 /* one round of so many that were asked for; 0 is 1 */
    void (*begin)(void);           /* before the first; false from may_run leaves the kind out */
    void (*end)(void);
    int64_t heap_kib;   /* what its heap may grow by besides: where what is over goes from time to time */
} kind;

/* Leaves a kind out, where the machine lacks something: ends its process. */
_Noreturn void leave_out(const char *why);

/* The driver's functions for streams of a host's own. */
struct CUstream_st *make_native_stream(void);
void end_native_stream(struct CUstream_st *native);

extern const kind work_kinds[], memory_kinds[], object_kinds[], process_kinds[];

/* A tensor of one dimension on device 0. */
static inline tcuda_tensor tensor_of(void *data, uint8_t code, uint8_t bits, int64_t *shape)
{
    return (tcuda_tensor){ .data = data, .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 1,
        .dtype = { code, bits, 1 }, .shape = shape };
}

#endif /* SOAK_H */
