/* What a handle of the stand-in for cuBLAS and cuSOLVER knows. */
#ifndef CUBLAS_H
#define CUBLAS_H

#include <stdatomic.h>
#include <stddef.h>

struct cublasContext {
    atomic_int is_alive;
    void *stream, *workspace;
    size_t workspace_bytes;
    int math_mode, pointer_mode, atomics_mode;
};

struct cusolverDnContext {
    atomic_int is_alive;
    void *stream;
    int determinism;
};

typedef int (*stand_in_count_fn)(void);
typedef void (*stand_in_fail_fn)(int times, int code);

#endif /* CUBLAS_H */
