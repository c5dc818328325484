/* Between tcuda and CUDA's driver: how long the driver takes to get memory, map it and give it
 * back.
 *
 * peers.py has tcuda load it in place of libcuda (TCUDA_CUDA_DRIVER_PATH) while it plays traces.
 * A caller that asks it for a function of the driver gets the driver's, except for the ones below:
 * they call the driver's between two readings of the clock. */

#define _GNU_SOURCE /* RTLD_NEXT */

#include <cuda.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

static atomic_uint_fast64_t spent_ns;

/* What the driver has taken so far. */
uint64_t driver_clock_ns(void)
{
    return atomic_load_explicit(&spent_ns, memory_order_relaxed);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* name(parameters), which passes its arguments on. */
#define TIMED(name, parameters, arguments)                                                         \
    static CUresult(*real_##name) parameters;                                                      \
    static CUresult timed_##name parameters                                                        \
    {                                                                                              \
        const uint64_t start = now_ns();                                                           \
        const CUresult result = real_##name arguments;                                             \
        atomic_fetch_add_explicit(&spent_ns, now_ns() - start, memory_order_relaxed);              \
        return result;                                                                             \
    }

TIMED(cuMemCreate,
      (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,
       unsigned long long flags),
      (handle, size, prop, flags))
TIMED(cuMemMap,
      (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
       unsigned long long flags),
      (ptr, size, offset, handle, flags))
TIMED(cuMemSetAccess,
      (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *access, size_t count),
      (ptr, size, access, count))
TIMED(cuMemUnmap, (CUdeviceptr ptr, size_t size), (ptr, size))
TIMED(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
TIMED(cuMemAddressReserve,
      (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr addr,
       unsigned long long flags),
      (ptr, size, alignment, addr, flags))

static const struct {
    const char *name;
    void *real; /* where the driver's address is kept */
    void *timed;
} TIMED_FUNCTIONS[] = {
#define ROW(name) {#name, &real_##name, (void *)timed_##name}
    ROW(cuMemCreate), ROW(cuMemMap),     ROW(cuMemSetAccess),
    ROW(cuMemUnmap),  ROW(cuMemRelease), ROW(cuMemAddressReserve),
};

typedef CUresult lookup(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    lookup *const look = (lookup *)dlsym(RTLD_NEXT, "cuGetProcAddress_v2");
    if (look == NULL)
        return CUDA_ERROR_NOT_FOUND;
    const CUresult result = look(symbol, function, version, flags, status);
    for (size_t i = 0;
        result == CUDA_SUCCESS && i < sizeof TIMED_FUNCTIONS / sizeof *TIMED_FUNCTIONS; i++) {
        if (*function != NULL && strcmp(symbol, TIMED_FUNCTIONS[i].name) == 0) {
            memcpy(TIMED_FUNCTIONS[i].real, function, sizeof *function);
            *function = TIMED_FUNCTIONS[i].timed;
        }
    }
    return result;
}
