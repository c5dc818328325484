/* A libcuda.so.1 without a GPU, to drive the real loader. What it lacks is chosen when it is
 * compiled (WITHOUT_...), what it answers by its environment:
 *   FAKE_CUDA_VERSION  what cuDriverGetVersion says; 12090
 *   FAKE_CUDA_INIT     what cuInit returns; 0
 *   FAKE_CUDA_COUNT    what cuDeviceGetCount returns; 0
 * cuMemMap exists nowhere in it. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { INVALID_VALUE = 1, STUB_LIBRARY = 34 };

#ifdef STUB /* What toolkits ship to link against: every call says so, the version's too. */

API int cuInit(unsigned flags) { (void)flags; return STUB_LIBRARY; }
API int cuDriverGetVersion(int *version) { (void)version; return STUB_LIBRARY; }
API int cuDeviceGetCount(int *count) { (void)count; return STUB_LIBRARY; }
API int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
    int *status)
{
    (void)name, (void)address, (void)version, (void)flags, (void)status;
    return STUB_LIBRARY;
}

#else

static int setting(const char *name, int otherwise)
{
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

API int cuInit(unsigned flags) { return flags ? INVALID_VALUE : setting("FAKE_CUDA_INIT", 0); }
API int cuDriverGetVersion(int *version)
{
    *version = setting("FAKE_CUDA_VERSION", 12090);
    return 0;
}
API int cuDeviceGetCount(int *count)
{
    *count = 1;
    return setting("FAKE_CUDA_COUNT", 0);
}

/* The first generation had 32-bit sizes: the loader must never end up with it. */
API int cuMemGetInfo(uint32_t *free, uint32_t *total) { return *free = *total = 0, 901; }
API int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = 2, 0; }

/* The same call in two generations; level 12.9 would give the newer, with other parameters. */
API int cuStreamGetCaptureInfo(void *stream, int *status, uint64_t *id)
{
    (void)stream, (void)status, (void)id;
    return 901;
}
API int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph,
                                  const void **dependencies, size_t *count)
{
    (void)stream, (void)status, (void)graph, (void)dependencies, (void)count;
    return *id = 2, 0;
}
API int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph,
                                  const void **dependencies, const void **edges, size_t *count)
{
    (void)stream, (void)status, (void)id, (void)graph, (void)dependencies, (void)edges, (void)count;
    return 903;
}

API int cuGraphGetEdges(void *graph, void **from, void **to, size_t *count)
{
    (void)graph, (void)from, (void)to;
    return *count = 1, 0;
}
API int cuGraphGetEdges_v2(void *graph, void **from, void **to, void *data, size_t *count)
{
    (void)graph, (void)from, (void)to, (void)data, (void)count;
    return 902;
}

/* Reached by the lookup only. */
static int context_synchronize(void) { return 0; }

/* Reached by dlsym only. */
API int cuStreamQuery(void *stream) { return stream ? 600 : 0; }

/* As the real one: the newest signature that is not newer than asked for; above its own version,
 * nothing. */
__attribute__((unused)) static int lookup(const char *name, void **address, int version)
{
    static const struct { const char *name; int since; void *address; } known[] = {
        {"cuStreamGetCaptureInfo", 12030, (void *)cuStreamGetCaptureInfo_v3},
        {"cuStreamGetCaptureInfo", 11030, (void *)cuStreamGetCaptureInfo_v2},
        {"cuStreamGetCaptureInfo", 10000, (void *)cuStreamGetCaptureInfo},
        {"cuGraphGetEdges", 12030, (void *)cuGraphGetEdges_v2},
        {"cuGraphGetEdges", 10000, (void *)cuGraphGetEdges},
        {"cuMemGetInfo", 3020, (void *)cuMemGetInfo_v2},
        {"cuMemGetInfo", 2000, (void *)cuMemGetInfo},
        {"cuCtxSynchronize", 2000, (void *)context_synchronize},
        {"cuInit", 2000, (void *)cuInit},
        {"cuDeviceGetCount", 2000, (void *)cuDeviceGetCount},
    };
    *address = NULL;
    if (version > setting("FAKE_CUDA_VERSION", 12090))
        return INVALID_VALUE;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0 && known[i].since <= version) {
            *address = known[i].address;
            break;
        }
    return 0;
}

#ifndef WITHOUT_LOOKUP
/* The first generation has no status. */
API int cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
    return flags ? INVALID_VALUE : lookup(name, address, version);
}
#ifndef WITHOUT_LOOKUP_V2
API int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
    int *status)
{
    int code = flags ? INVALID_VALUE : lookup(name, address, version);
    *status = *address ? 0 : 1;
    return code;
}
#endif
#endif

#endif
