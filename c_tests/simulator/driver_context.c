/* Contexts and their settings. */
#include <pthread.h>

#include "driver.h"

#define FUNCTIONS(F) \
    F(init, "cuInit", (unsigned int flags)) \
    F(retain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
    F(release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    F(set_primary_flags, "cuDevicePrimaryCtxSetFlags_v2", (int device, unsigned int flags)) \
    F(primary_state, "cuDevicePrimaryCtxGetState", \
        (int device, unsigned int *flags, int *active)) \
    F(get_current, "cuCtxGetCurrent", (void **context)) \
    F(set_current, "cuCtxSetCurrent", (void *context)) \
    F(push, "cuCtxPushCurrent_v2", (void *context)) \
    F(pop, "cuCtxPopCurrent_v2", (void **context)) \
    F(create, "cuCtxCreate_v2", (void **context, unsigned int flags, int device)) \
    F(create_part, "cuCtxCreate_v3", \
        (void **context, void *parts, int count, unsigned int flags, int device)) \
    F(destroy, "cuCtxDestroy_v2", (void *context)) \
    F(attach, "cuCtxAttach", (void **context, unsigned int flags)) \
    F(detach, "cuCtxDetach", (void *context)) \
    F(device_of, "cuCtxGetDevice", (int *device)) \
    F(synchronize, "cuCtxSynchronize", (void)) \
    F(allocate, "cuMemAlloc_v2", (address *ptr, size_t bytes)) \
    F(to_host, "cuMemcpyDtoH_v2", (void *dst, address src, size_t bytes)) \
    F(attribute, "cuPointerGetAttribute", (void *data, int attribute, address ptr)) \
    F(create_stream, "cuStreamCreate", (void **stream, unsigned int flags)) \
    F(context_of, "cuStreamGetCtx", (void *stream, void **context)) \
    F(create_event, "cuEventCreate", (void **event, unsigned int flags)) \
    F(record, "cuEventRecord", (void *event, void *stream)) \
    F(load, "cuModuleLoadData", (void **module, const void *image)) \
    F(find_function, "cuModuleGetFunction", \
        (void **function, void *module, const char *name)) \
    F(launch, "cuLaunchKernel", \
        (void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
            unsigned int block_x, unsigned int block_y, unsigned int block_z, \
            unsigned int shared, void *stream, void **parameters, void **extra)) \
    F(api_version, "cuCtxGetApiVersion", (void *context, unsigned int *version)) \
    F(id_of, "cuCtxGetId", (void *context, uint64_t *id)) \
    F(get_flags, "cuCtxGetFlags", (unsigned int *flags)) \
    F(set_flags, "cuCtxSetFlags", (unsigned int flags)) \
    F(get_limit, "cuCtxGetLimit", (size_t *value, int limit)) \
    F(set_limit, "cuCtxSetLimit", (int limit, size_t value)) \
    F(get_cache, "cuCtxGetCacheConfig", (int *config)) \
    F(set_cache, "cuCtxSetCacheConfig", (int config)) \
    F(get_banks, "cuCtxGetSharedMemConfig", (int *config)) \
    F(set_banks, "cuCtxSetSharedMemConfig", (int config)) \
    F(reset_cache, "cuCtxResetPersistingL2Cache", (void)) \
    F(disable_peer, "cuCtxDisablePeerAccess", (void *peer))

FUNCTIONS(DECLARE)

enum { CONTEXT_IS_DESTROYED = 709 };

/* CU_CTX_SCHED_SPIN, CU_CTX_SCHED_BLOCKING_SYNC */
enum { SPIN = 1, BLOCKING = 4 };

static void *context;

static void identity(void)
{
    uint64_t id = 0, again = 0;
    unsigned int version = 0;
    CHECK_EQ(api_version(context, &version), SUCCESS);
    CHECK(version >= 3020);
    CHECK_EQ(api_version(NULL, &version), SUCCESS);
    CHECK_EQ(id_of(context, &id), SUCCESS);
    CHECK_EQ(id_of(NULL, &again), SUCCESS);
    CHECK(id == again);
    CHECK_EQ(id_of(NULL, NULL), INVALID_VALUE);
}

static void flags(void)
{
    unsigned int flags = 99;
    int active = 0;
    CHECK_EQ(get_flags(NULL), INVALID_VALUE);
    CHECK_EQ(set_flags(BLOCKING), SUCCESS);
    CHECK_EQ(get_flags(&flags), SUCCESS);
    CHECK_EQ(flags & 7, BLOCKING);
    CHECK_EQ(set_flags(3), INVALID_VALUE);
    CHECK_EQ(set_flags(1U << 20), INVALID_VALUE);
    CHECK_EQ(set_primary_flags(0, SPIN), SUCCESS);
    CHECK_EQ(primary_state(0, &flags, &active), SUCCESS);
    CHECK_EQ(flags & 7, SPIN);
    CHECK_EQ(active, 1);
    CHECK_EQ(set_primary_flags(0, 3), INVALID_VALUE);
    CHECK_EQ(set_primary_flags(1000, 0), INVALID_DEVICE);
    CHECK_EQ(set_primary_flags(0, 0), SUCCESS);
}

static void limits(void)
{
    /* CU_LIMIT_... */
    enum { STACK, PRINTF, HEAP, DEPTH, PENDING, GRANULARITY, CACHE };
    size_t value = 0;
    CHECK_EQ(get_limit(&value, STACK), SUCCESS);
    CHECK_EQ(value, 1024);
    CHECK_EQ(set_limit(STACK, 4096), SUCCESS);
    CHECK_EQ(get_limit(&value, STACK), SUCCESS);
    CHECK_EQ(value, 4096);
    CHECK_EQ(get_limit(&value, PRINTF), SUCCESS);
    CHECK(value >= 1 << 20);
    CHECK_EQ(set_limit(PRINTF, 16 << 20), SUCCESS);
    CHECK_EQ(get_limit(&value, PRINTF), SUCCESS);
    CHECK(value >= 16 << 20);
    CHECK_EQ(get_limit(&value, HEAP), SUCCESS);
    CHECK_EQ(value, 8 << 20);
    CHECK_EQ(set_limit(HEAP, 32 << 20), SUCCESS);
    CHECK_EQ(get_limit(&value, HEAP), SUCCESS);
    CHECK(value >= 32 << 20);
    CHECK_EQ(get_limit(&value, GRANULARITY), SUCCESS);
    CHECK_EQ(get_limit(&value, CACHE), SUCCESS);
    CHECK_EQ(get_limit(NULL, STACK), INVALID_VALUE);
    CHECK_EQ(get_limit(&value, 1000), INVALID_VALUE);
    CHECK_EQ(set_limit(1000, 1), INVALID_VALUE);
}

static void caches(void)
{
    int config = 9;
    CHECK_EQ(get_cache(&config), SUCCESS);
    CHECK_EQ(config, 0);
    CHECK_EQ(set_cache(2), SUCCESS);
    CHECK_EQ(set_cache(0), SUCCESS);
    CHECK_EQ(set_cache(4), INVALID_VALUE);
    CHECK_EQ(get_banks(&config), SUCCESS);
    CHECK_EQ(config, 1);
    CHECK_EQ(set_banks(1), SUCCESS);
    CHECK_EQ(set_banks(3), INVALID_VALUE);
    CHECK_EQ(get_banks(NULL), INVALID_VALUE);
    CHECK_EQ(reset_cache(), SUCCESS);
}

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                          ".visible .entry put(.param .u64 to) {\n"
                          ".reg .u64 %a<2>; .reg .u32 %r<2>;\n"
                          "ld.param.u64 %a0, [to];\n"
                          "cvta.to.global.u64 %a1, %a0;\n"
                          "mov.u32 %r0, 77;\n"
                          "st.global.u32 [%a1], %r0;\n"
                          "ret;\n}\n";

/* Work in a context beside the primary one. */
static void own_work(void *own)
{
    void *stream = NULL, *event = NULL, *module = NULL, *function = NULL, *found = NULL;
    address ptr = 0;
    void *parameters[] = {&ptr};
    uint32_t word = 0;
    CHECK_EQ(allocate(&ptr, 4), SUCCESS);
    CHECK_EQ(attribute(&found, 1, ptr), SUCCESS);
    CHECK(found == own);
    CHECK_EQ(create_stream(&stream, 0), SUCCESS);
    CHECK_EQ(context_of(stream, &found), SUCCESS);
    CHECK(found == own);
    CHECK_EQ(context_of(NULL, &found), SUCCESS);
    CHECK(found == own);
    CHECK_EQ(load(&module, ptx), SUCCESS);
    CHECK_EQ(find_function(&function, module, "put"), SUCCESS);
    CHECK_EQ(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), SUCCESS);
    CHECK_EQ(create_event(&event, 0), SUCCESS);
    CHECK_EQ(record(event, stream), SUCCESS);
    /* The default stream of a context waits for its streams. */
    CHECK_EQ(to_host(&word, ptr, sizeof word), SUCCESS);
    CHECK_EQ(word, 77);
    CHECK_EQ(synchronize(), SUCCESS);
    /* What is not destroyed ends with the context. */
}

static pthread_barrier_t barrier;

/* The context is destroyed while it is current here. */
static void *other_thread(void *own)
{
    void *now = NULL;
    CHECK_EQ(set_current(own), SUCCESS);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    CHECK_EQ(get_current(&now), SUCCESS);
    CHECK(now == own);
    CHECK_EQ(synchronize(), CONTEXT_IS_DESTROYED);
    return NULL;
}

static void own_contexts(void)
{
    void *own = NULL, *second = NULL, *now = NULL;
    uint64_t id = 0, other = 0;
    unsigned int flags = 0;
    int device = 9;
    pthread_t thread;
    CHECK_EQ(create(&own, BLOCKING, 0), SUCCESS);
    CHECK(own != context);
    CHECK_EQ(get_current(&now), SUCCESS);
    CHECK(now == own);
    CHECK_EQ(get_flags(&flags), SUCCESS);
    CHECK_EQ(flags & 7, BLOCKING);
    CHECK_EQ(device_of(&device), SUCCESS);
    CHECK_EQ(device, 0);
    CHECK_EQ(id_of(own, &id), SUCCESS);
    CHECK_EQ(id_of(context, &other), SUCCESS);
    CHECK(id != other);
    own_work(own);
    /* A second one has its own limits, and leaves the stack when it is destroyed. */
    CHECK_EQ(create_part(&second, NULL, 0, 0, 0), SUCCESS);
    CHECK(second != own);
    limits();
    CHECK_EQ(destroy(second), SUCCESS);
    CHECK_EQ(get_current(&now), SUCCESS);
    CHECK(now == own);
    CHECK_EQ(attach(&now, 0), SUCCESS);
    CHECK(now == own);
    CHECK_EQ(detach(own), SUCCESS);
    CHECK_EQ(synchronize(), SUCCESS);
    CHECK_EQ(pop(&now), SUCCESS);
    CHECK(now == own);
    CHECK_EQ(get_current(&now), SUCCESS);
    CHECK(now == context);
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, 2), 0);
    CHECK_EQ(pthread_create(&thread, NULL, other_thread, own), 0);
    pthread_barrier_wait(&barrier);
    CHECK_EQ(destroy(own), SUCCESS);
    pthread_barrier_wait(&barrier);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(synchronize(), SUCCESS);
    CHECK(destroy(context) != SUCCESS);
    CHECK(destroy(NULL) != SUCCESS);
    CHECK_EQ(create(NULL, 0, 0), INVALID_VALUE);
    CHECK_EQ(create(&own, 3, 0), INVALID_VALUE);
    CHECK_EQ(create(&own, 0, 1000), INVALID_DEVICE);
}

int main(void)
{
    size_t value = 0;
    open_the_driver();
    FUNCTIONS(LOAD)
    CHECK_EQ(get_limit(&value, 0), NOT_INITIALIZED);
    CHECK_EQ(init(0), SUCCESS);
    CHECK_EQ(get_limit(&value, 0), INVALID_CONTEXT);
    CHECK_EQ(retain(&context, 0), SUCCESS);
    CHECK_EQ(set_current(context), SUCCESS);
    identity();
    flags();
    own_contexts();
    limits();
    caches();
    CHECK(disable_peer(context) != SUCCESS);
    CHECK(disable_peer(NULL) != SUCCESS);
    CHECK_EQ(set_current(NULL), SUCCESS);
    CHECK_EQ(release(0), SUCCESS);
    return EXIT_SUCCESS;
}
