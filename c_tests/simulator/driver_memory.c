/* Memory of devices and of the host, its attributes, handles and pools. */
#include "driver.h"

/* CUmemLocation, CUmemAllocationProp, CUmemAccessDesc, CUmemPoolProps */
struct location {
    int type, id;
};
struct properties {
    int type, handles;
    struct location location;
    void *windows;
    unsigned char compression, rdma, usage[2], reserved[4];
};
struct access {
    struct location location;
    int flags;
};
struct pool_properties {
    int type, handles;
    struct location location;
    void *windows;
    size_t most;
    unsigned char reserved[56];
};

#define FUNCTIONS(F) \
    F(init, "cuInit", (unsigned int flags)) \
    F(retain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
    F(release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    F(set_current, "cuCtxSetCurrent", (void *context)) \
    F(synchronize, "cuCtxSynchronize", (void)) \
    F(allocate, "cuMemAlloc_v2", (address *ptr, size_t bytes)) \
    F(allocate_rows, "cuMemAllocPitch_v2", \
        (address *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)) \
    F(free_memory, "cuMemFree_v2", (address ptr)) \
    F(range_of, "cuMemGetAddressRange_v2", (address *start, size_t *bytes, address ptr)) \
    F(allocate_host, "cuMemAllocHost_v2", (void **ptr, size_t bytes)) \
    F(allocate_host_as, "cuMemHostAlloc", (void **ptr, size_t bytes, unsigned int flags)) \
    F(free_host, "cuMemFreeHost", (void *ptr)) \
    F(pin, "cuMemHostRegister_v2", (void *ptr, size_t bytes, unsigned int flags)) \
    F(unpin, "cuMemHostUnregister", (void *ptr)) \
    F(device_pointer, "cuMemHostGetDevicePointer_v2", \
        (address *ptr, void *host, unsigned int flags)) \
    F(host_flags, "cuMemHostGetFlags", (unsigned int *flags, void *ptr)) \
    F(attribute, "cuPointerGetAttribute", (void *data, int attribute, address ptr)) \
    F(attributes, "cuPointerGetAttributes", \
        (unsigned int count, int *attributes, void **data, address ptr)) \
    F(set_attribute, "cuPointerSetAttribute", \
        (const void *value, int attribute, address ptr)) \
    F(reserve, "cuMemAddressReserve", \
        (address *ptr, size_t bytes, size_t alignment, address hint, uint64_t flags)) \
    F(unreserve, "cuMemAddressFree", (address ptr, size_t bytes)) \
    F(create, "cuMemCreate", \
        (uint64_t *handle, size_t bytes, const struct properties *properties, uint64_t flags)) \
    F(release_handle, "cuMemRelease", (uint64_t handle)) \
    F(map, "cuMemMap", \
        (address ptr, size_t bytes, size_t offset, uint64_t handle, uint64_t flags)) \
    F(unmap, "cuMemUnmap", (address ptr, size_t bytes)) \
    F(set_access, "cuMemSetAccess", \
        (address ptr, size_t bytes, const struct access *access, size_t count)) \
    F(retain_handle, "cuMemRetainAllocationHandle", (uint64_t *handle, void *ptr)) \
    F(properties_of, "cuMemGetAllocationPropertiesFromHandle", \
        (struct properties *properties, uint64_t handle)) \
    F(default_pool, "cuDeviceGetDefaultMemPool", (void **pool, int device)) \
    F(current_pool, "cuDeviceGetMemPool", (void **pool, int device)) \
    F(set_pool, "cuDeviceSetMemPool", (int device, void *pool)) \
    F(create_pool, "cuMemPoolCreate", (void **pool, const struct pool_properties *properties)) \
    F(destroy_pool, "cuMemPoolDestroy", (void *pool)) \
    F(pool_access, "cuMemPoolGetAccess", (int *flags, void *pool, struct location *location)) \
    F(allocate_async, "cuMemAllocAsync", (address *ptr, size_t bytes, void *stream)) \
    F(free_async, "cuMemFreeAsync", (address ptr, void *stream)) \
    F(fill, "cuMemsetD8_v2", (address ptr, unsigned char value, size_t count))

FUNCTIONS(DECLARE)

/* CU_POINTER_ATTRIBUTE_... */
enum {
    CONTEXT = 1,
    MEMORY_TYPE = 2,
    DEVICE_POINTER = 3,
    HOST_POINTER = 4,
    SYNC_MEMOPS = 6,
    BUFFER_ID = 7,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    RANGE_START = 11,
    RANGE_SIZE = 12,
    MEMPOOL_HANDLE = 17
};

static void *context;

static void rows(void)
{
    address ptr = 0, start = 0;
    size_t pitch = 0, bytes = 0;
    CHECK_EQ(allocate_rows(&ptr, &pitch, 100, 7, 4), SUCCESS);
    CHECK(pitch >= 100);
    CHECK_EQ(pitch % 16, 0);
    CHECK_EQ(range_of(&start, &bytes, ptr + 10), SUCCESS);
    CHECK(start == ptr);
    CHECK_EQ(bytes, 7 * pitch);
    CHECK_EQ(fill(ptr, 1, bytes), SUCCESS);
    CHECK_EQ(free_memory(ptr), SUCCESS);
    CHECK_EQ(allocate_rows(&ptr, &pitch, 100, 7, 5), INVALID_VALUE);
    CHECK_EQ(allocate_rows(&ptr, &pitch, 0, 7, 4), INVALID_VALUE);
    CHECK_EQ(allocate_rows(&ptr, &pitch, 100, 0, 4), INVALID_VALUE);
    CHECK_EQ(allocate_rows(NULL, &pitch, 100, 7, 4), INVALID_VALUE);
}

static void ranges(void)
{
    address ptr = 0, start = 0;
    size_t bytes = 0;
    CHECK_EQ(allocate(&ptr, 5000), SUCCESS);
    CHECK_EQ(range_of(&start, &bytes, ptr + 4999), SUCCESS);
    CHECK(start == ptr);
    CHECK_EQ(bytes, 5000);
    CHECK_EQ(range_of(NULL, &bytes, ptr), SUCCESS);
    CHECK_EQ(range_of(&start, NULL, ptr), SUCCESS);
    CHECK_EQ(free_memory(ptr), SUCCESS);
    CHECK(range_of(&start, &bytes, 0) != SUCCESS);
}

static void pinned_memory(void)
{
    static unsigned char own[1 << 14];
    void *host = NULL;
    address device = 0;
    unsigned int flags = 0;
    CHECK_EQ(allocate_host(&host, 1000), SUCCESS);
    CHECK_EQ(device_pointer(&device, (char *)host + 10, 0), SUCCESS);
    CHECK(device == (address)(uintptr_t)host + 10);
    CHECK_EQ(fill(device, 7, 5), SUCCESS);
    CHECK_EQ(((unsigned char *)host)[14], 7);
    CHECK_EQ(device_pointer(&device, host, 1), INVALID_VALUE);
    CHECK_EQ(device_pointer(NULL, host, 0), INVALID_VALUE);
    CHECK_EQ(host_flags(&flags, host), SUCCESS);
    CHECK_EQ(host_flags(NULL, host), INVALID_VALUE);
    CHECK_EQ(free_host(host), SUCCESS);
    CHECK_EQ(allocate_host_as(&host, 1000, 4 | 2), SUCCESS);
    CHECK_EQ(host_flags(&flags, host), SUCCESS);
    CHECK_EQ(flags & 6, 6);
    CHECK_EQ(free_host(host), SUCCESS);
    CHECK_EQ(device_pointer(&device, own, 0), INVALID_VALUE);
    CHECK_EQ(host_flags(&flags, own), INVALID_VALUE);
    CHECK_EQ(pin(own, sizeof own, 2), SUCCESS);
    CHECK_EQ(device_pointer(&device, own + 5, 0), SUCCESS);
    CHECK(device == (address)(uintptr_t)own + 5);
    CHECK_EQ(unpin(own), SUCCESS);
}

static void many_attributes(void)
{
    int names[] = {CONTEXT, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, DEVICE_ORDINAL, RANGE_START,
        RANGE_SIZE, BUFFER_ID, SYNC_MEMOPS};
    enum { COUNT = sizeof names / sizeof *names };
    uint64_t values[COUNT];
    void *data[COUNT];
    address ptr = 0;
    unsigned int set = 1;
    int wrong = 1000;
    for (int i = 0; i < COUNT; i++)
        data[i] = &values[i];
    CHECK_EQ(allocate(&ptr, 5000), SUCCESS);
    memset(values, 0, sizeof values);
    CHECK_EQ(attributes(COUNT, names, data, ptr + 100), SUCCESS);
    CHECK(values[0] == (uint64_t)(uintptr_t)context);
    CHECK_EQ((int)values[1], 2);
    CHECK(values[2] == ptr + 100);
    CHECK_EQ(values[3], 0); /* it has no address of the host */
    CHECK_EQ((int)values[4], 0);
    CHECK(values[5] == ptr);
    CHECK_EQ(values[6], 5000);
    CHECK(values[7] != 0);
    CHECK_EQ((int)values[8] & 1, 0);
    CHECK_EQ(attribute(&values[0], HOST_POINTER, ptr), INVALID_VALUE);
    /* Synchronous operations */
    CHECK_EQ(set_attribute(&set, SYNC_MEMOPS, ptr), SUCCESS);
    CHECK_EQ(attributes(1, &names[8], &data[8], ptr), SUCCESS);
    CHECK_EQ((int)values[8] & 1, 1);
    CHECK_EQ(fill(ptr, 1, 5000), SUCCESS);
    CHECK_EQ(set_attribute(&set, MEMORY_TYPE, ptr), INVALID_VALUE);
    CHECK_EQ(set_attribute(NULL, SYNC_MEMOPS, ptr), INVALID_VALUE);
    CHECK_EQ(attributes(0, names, data, ptr), INVALID_VALUE);
    CHECK_EQ(attributes(1, NULL, data, ptr), INVALID_VALUE);
    CHECK_EQ(attributes(1, names, NULL, ptr), INVALID_VALUE);
    CHECK_EQ(attributes(1, &wrong, data, ptr), INVALID_VALUE);
    CHECK_EQ(attribute(&values[0], wrong, ptr), INVALID_VALUE);
    CHECK_EQ(free_memory(ptr), SUCCESS);
    /* Memory that CUDA does not know has no attributes, which is no error here. */
    memset(values, 0xff, sizeof values);
    CHECK_EQ(attributes(8, names, data, (address)(uintptr_t)&ptr), SUCCESS);
    CHECK_EQ(values[0], 0);
    CHECK_EQ((int)values[1], 0);
    CHECK_EQ(values[2], 0);
    CHECK_EQ(values[5], -1);
    CHECK_EQ(values[6], -1);
    CHECK_EQ(attribute(&values[0], MEMORY_TYPE, (address)(uintptr_t)&ptr), INVALID_VALUE);
}

static void handles(void)
{
    const size_t bytes = 2 << 20;
    const struct properties wanted = {.type = 1, .handles = 1, .location = {1, 0}};
    const struct access access = {{1, 0}, 3};
    struct properties found;
    uint64_t handle = 0, retained = 0;
    address ptr = 0;
    if (reserve(&ptr, bytes, 0, 0, 0) == NOT_SUPPORTED)
        return;
    CHECK_EQ(create(&handle, bytes, &wanted, 0), SUCCESS);
    memset(&found, 0xff, sizeof found);
    CHECK_EQ(properties_of(&found, handle), SUCCESS);
    CHECK_EQ(found.type, 1);
    CHECK_EQ(found.handles, 1);
    CHECK_EQ(found.location.type, 1);
    CHECK_EQ(found.location.id, 0);
    CHECK_EQ(properties_of(NULL, handle), INVALID_VALUE);
    CHECK(retain_handle(&retained, (void *)(uintptr_t)ptr) != SUCCESS);
    CHECK_EQ(map(ptr, bytes, 0, handle, 0), SUCCESS);
    CHECK_EQ(set_access(ptr, bytes, &access, 1), SUCCESS);
    CHECK_EQ(retain_handle(&retained, (void *)(uintptr_t)(ptr + 4096)), SUCCESS);
    CHECK(retained == handle);
    CHECK_EQ(retain_handle(NULL, (void *)(uintptr_t)ptr), INVALID_VALUE);
    /* Both references keep it. */
    CHECK_EQ(release_handle(handle), SUCCESS);
    CHECK_EQ(properties_of(&found, handle), SUCCESS);
    CHECK_EQ(release_handle(retained), SUCCESS);
    CHECK_EQ(fill(ptr, 1, bytes), SUCCESS);
    CHECK_EQ(synchronize(), SUCCESS);
    CHECK_EQ(unmap(ptr, bytes), SUCCESS);
    CHECK_EQ(unreserve(ptr, bytes), SUCCESS);
}

static void pools(void)
{
    const struct pool_properties wanted = {.type = 1, .location = {1, 0}};
    struct location here = {1, 0}, wrong = {1, 1000};
    void *first = NULL, *pool = NULL, *now = NULL, *of = NULL;
    address ptr = 0;
    int flags = 0;
    CHECK_EQ(default_pool(&first, 0), SUCCESS);
    CHECK_EQ(current_pool(&now, 0), SUCCESS);
    CHECK(now == first);
    CHECK_EQ(create_pool(&pool, &wanted), SUCCESS);
    CHECK_EQ(pool_access(&flags, pool, &here), SUCCESS);
    CHECK_EQ(flags, 3);
    CHECK(pool_access(&flags, pool, &wrong) != SUCCESS);
    CHECK_EQ(pool_access(NULL, pool, &here), INVALID_VALUE);
    CHECK_EQ(set_pool(0, pool), SUCCESS);
    CHECK_EQ(current_pool(&now, 0), SUCCESS);
    CHECK(now == pool);
    CHECK_EQ(allocate_async(&ptr, 1000, NULL), SUCCESS);
    CHECK_EQ(attribute(&of, MEMPOOL_HANDLE, ptr), SUCCESS);
    CHECK(of == pool);
    CHECK_EQ(free_async(ptr, NULL), SUCCESS);
    CHECK_EQ(synchronize(), SUCCESS);
    /* A destroyed pool is not the current one. */
    CHECK_EQ(destroy_pool(pool), SUCCESS);
    CHECK_EQ(current_pool(&now, 0), SUCCESS);
    CHECK(now == first);
    CHECK_EQ(set_pool(1000, first), INVALID_VALUE);
    CHECK_EQ(current_pool(&now, -1), INVALID_VALUE);
    CHECK_EQ(set_pool(0, NULL), INVALID_VALUE);
}

/* Numbers that no enumeration of CUDA has, in the fields of structures. */
static void unknown_numbers(void)
{
    enum { UNKNOWN = 77 };
    const struct properties plain = { .type = 1, .location = { .type = 1 } };
    const struct pool_properties of_pool = { .type = 1, .location = { .type = 1 } };
    uint64_t handle = 0, made = 7;
    address ptr = 0;
    void *pool = &ptr;
    int flags = 7;
    struct properties properties = plain;
    properties.type = UNKNOWN;
    CHECK_EQ(create(&made, 2 << 20, &properties, 0), INVALID_VALUE);
    properties = plain;
    properties.location.type = UNKNOWN;
    CHECK_EQ(create(&made, 2 << 20, &properties, 0), INVALID_VALUE);
    CHECK_EQ(made, 7);
    struct pool_properties wrong = of_pool;
    wrong.type = UNKNOWN;
    CHECK_EQ(create_pool(&pool, &wrong), INVALID_VALUE);
    wrong = of_pool;
    wrong.location.type = UNKNOWN;
    CHECK_EQ(create_pool(&pool, &wrong), INVALID_VALUE);
    CHECK(pool == &ptr);
    CHECK_EQ(create_pool(&pool, &of_pool), SUCCESS);
    struct location nowhere = { .type = UNKNOWN };
    CHECK_EQ(pool_access(&flags, pool, &nowhere), INVALID_VALUE);
    CHECK_EQ(destroy_pool(pool), SUCCESS);
    CHECK_EQ(create(&handle, 2 << 20, &plain, 0), SUCCESS);
    CHECK_EQ(reserve(&ptr, 2 << 20, 0, 0, 0), SUCCESS);
    CHECK_EQ(map(ptr, 2 << 20, 0, handle, 0), SUCCESS);
    for (int i = 0; i < 3; i++) {
        const struct access odd[] = { { { 1, 0 }, 2 }, { { 1, 0 }, UNKNOWN },
            { { UNKNOWN, 0 }, 3 } };
        CHECK_EQ(set_access(ptr, 2 << 20, &odd[i], 1), INVALID_VALUE);
    }
    CHECK_EQ(unmap(ptr, 2 << 20), SUCCESS);
    CHECK_EQ(unreserve(ptr, 2 << 20), SUCCESS);
    CHECK_EQ(release_handle(handle), SUCCESS);
}

int main(void)
{
    address ptr = 0;
    size_t pitch = 0;
    open_the_driver();
    FUNCTIONS(LOAD)
    CHECK_EQ(allocate_rows(&ptr, &pitch, 1, 1, 4), NOT_INITIALIZED);
    CHECK_EQ(init(0), SUCCESS);
    CHECK_EQ(allocate_rows(&ptr, &pitch, 1, 1, 4), INVALID_CONTEXT);
    CHECK_EQ(retain(&context, 0), SUCCESS);
    CHECK_EQ(set_current(context), SUCCESS);
    rows();
    ranges();
    pinned_memory();
    many_attributes();
    handles();
    pools();
    unknown_numbers();
    CHECK_EQ(set_current(NULL), SUCCESS);
    CHECK_EQ(release(0), SUCCESS);
    return EXIT_SUCCESS;
}
