/* Contexts and their settings. */
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
    CHECK_EQ(value, 0);
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
    limits();
    caches();
    CHECK(disable_peer(context) != SUCCESS);
    CHECK(disable_peer(NULL) != SUCCESS);
    CHECK_EQ(set_current(NULL), SUCCESS);
    CHECK_EQ(release(0), SUCCESS);
    return EXIT_SUCCESS;
}
