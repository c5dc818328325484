/* A soak test: for each kind of thing that a host makes, it is made and ended many times, one after
 * the other, and what the process holds is compared early and late. */
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
    int64_t heap_kib;    /* allowed growth of its heap: surplus is freed from time to time */
    bool is_comparison;  /* of the driver alone: runs only where its name is given */
} kind;

/* What the process holds. */
typedef struct holdings {
    int64_t resident_kib, heap_bytes, maps, descriptors, objects;
} holdings;

/* Looks what the process holds, once early and once late. */
holdings look(bool is_late);
/* Prints to stderr of what there is more late than early, by name. */
void print_growth(const char *kind);

double time_of(clockid_t clock);
/* The steps of a round, of which the early and the late times are printed: each begins where the
 * one before it ends. For rounds that take long: it takes half a microsecond. */
void begin_part(int64_t number);
void begin_steps(void);
void end_step(const char *name);
void print_steps(const char *kind);

/* Leaves a kind out, where the machine lacks something: ends its process. */
_Noreturn void leave_out(const char *why);

/* The driver's functions for streams of a host's own. */
struct CUstream_st *make_native_stream(void);
void end_native_stream(struct CUstream_st *native);

extern const kind work_kinds[], memory_kinds[], object_kinds[], process_kinds[], driver_kinds[];

/* A tensor of one dimension on device 0. */
static inline tcuda_tensor tensor_of(void *data, uint8_t code, uint8_t bits, int64_t *shape)
{
    return (tcuda_tensor){ .data = data, .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 1,
        .dtype = { code, bits, 1 }, .shape = shape };
}

#endif /* SOAK_H */
