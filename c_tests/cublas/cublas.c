/* A libcublas and libcusolver without a GPU, for the simulated machine: it keeps what it is
 * given. */
#include "cublas.h"

#define API __attribute__((visibility("default")))

enum { OK = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, MOST = 64 };

static struct cublasContext handles[MOST];
static struct cusolverDnContext solvers[MOST];
static atomic_int alive, failures, failure_code;

#ifndef WITHOUT_MARK
API const int tcuda_cublas_stand_in = 1;
API const int tcuda_cusolver_stand_in = 1;
#endif

/* For the test. */
API int stand_in_alive(void) { return atomic_load(&alive); }
API void stand_in_fail(int times, int code)
{
    atomic_store(&failures, times);
    atomic_store(&failure_code, code);
}

API int cublasGetProperty(int which, int *value)
{
    return *value = which == 0 ? 12 : 0, OK;
}

API int cublasCreate_v2(struct cublasContext **handle)
{
    if (atomic_load(&failures) > 0) {
        atomic_fetch_sub(&failures, 1);
        return atomic_load(&failure_code);
    }
    for (int i = 0; i < MOST; i++) {
        if (atomic_exchange(&handles[i].is_alive, 1))
            continue;
        atomic_fetch_add(&alive, 1);
        handles[i].math_mode = handles[i].pointer_mode = handles[i].atomics_mode = 0;
        return *handle = &handles[i], OK;
    }
    return NOT_INITIALIZED;
}

API int cublasDestroy_v2(struct cublasContext *handle)
{
    if (!atomic_exchange(&handle->is_alive, 0))
        return INVALID_VALUE;
    atomic_fetch_sub(&alive, 1);
    return OK;
}

/* The real one forgets the workspace, too. */
API int cublasSetStream_v2(struct cublasContext *handle, void *stream)
{
    handle->stream = stream;
    handle->workspace = NULL;
    handle->workspace_bytes = 0;
    return handle->is_alive ? OK : INVALID_VALUE;
}

API int cublasSetWorkspace_v2(struct cublasContext *handle, void *workspace, size_t bytes)
{
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return handle->is_alive ? OK : INVALID_VALUE;
}

API int cublasSetMathMode(struct cublasContext *handle, int mode)
{
    return handle->math_mode = mode, OK;
}

API int cublasSetPointerMode_v2(struct cublasContext *handle, int mode)
{
    return handle->pointer_mode = mode, OK;
}

API int cublasSetAtomicsMode(struct cublasContext *handle, int mode)
{
    return handle->atomics_mode = mode, OK;
}

API int cusolverGetProperty(int which, int *value)
{
    return *value = which == 0 ? 11 : 0, OK;
}

API int cusolverDnCreate(struct cusolverDnContext **handle)
{
    for (int i = 0; i < MOST; i++) {
        if (atomic_exchange(&solvers[i].is_alive, 1))
            continue;
        atomic_fetch_add(&alive, 1);
        solvers[i].determinism = 1;
        return *handle = &solvers[i], OK;
    }
    return NOT_INITIALIZED;
}

API int cusolverDnDestroy(struct cusolverDnContext *handle)
{
    if (!atomic_exchange(&handle->is_alive, 0))
        return INVALID_VALUE;
    atomic_fetch_sub(&alive, 1);
    return OK;
}

API int cusolverDnSetStream(struct cusolverDnContext *handle, void *stream)
{
    handle->stream = stream;
    return handle->is_alive ? OK : INVALID_VALUE;
}

API int cusolverDnSetDeterministicMode(struct cusolverDnContext *handle, int mode)
{
    return handle->determinism = mode, OK;
}
