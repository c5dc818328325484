/* Managed memory: the host, copies and kernels access it at the same address. */
#include "driver_graph.h"

/* CUmemAttach_flags */
enum { GLOBAL = 1, ATTACH_HOST = 2, SINGLE = 4 };

/* CUmem_advise */
enum {
    SET_READ_MOSTLY = 1,
    UNSET_READ_MOSTLY,
    SET_PREFERRED,
    UNSET_PREFERRED,
    SET_ACCESSED_BY,
    UNSET_ACCESSED_BY
};

/* CUmem_range_attribute */
enum {
    READ_MOSTLY = 1,
    PREFERRED,
    ACCESSED_BY,
    LAST_PREFETCH,
    PREFERRED_TYPE,
    PREFERRED_ID,
    LAST_PREFETCH_TYPE,
    LAST_PREFETCH_ID
};

/* CU_DEVICE_CPU and CU_DEVICE_INVALID */
enum { CPU = -1, NONE = -2 };

/* CUmemLocation */
struct location {
    int type, id;
};

/* CUpointer_attribute */
enum {
    CONTEXT = 1,
    MEMORY_TYPE = 2,
    DEVICE_POINTER = 3,
    HOST_POINTER = 4,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    RANGE_START = 11,
    RANGE_SIZE = 12
};

enum { PAGE = 4096, PAGES = 64 };

static int (*allocate_managed)(address *pointer, size_t bytes, unsigned int flags);

static address allocate(size_t bytes)
{
    address memory = 0;
    CHECK_EQ(allocate_managed(&memory, bytes, GLOBAL), SUCCESS);
    CHECK(memory != 0);
    return memory;
}

static unsigned int *host(address memory)
{
    return (unsigned int *)(uintptr_t)memory;
}

static void launch_put(address memory, unsigned int at, unsigned int value)
{
    CALL(cuLaunchKernel,
        (void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
            unsigned int block_x, unsigned int block_y, unsigned int block_z,
            unsigned int shared_bytes, void *stream, void **parameters, void **extra));
    struct values values;
    const struct kernel kernel = put_kernel(&values, memory, at, value);
    CHECK_EQ(
        cuLaunchKernel(put, 1, 1, 1, 1, 1, 1, 0, stream, kernel.parameters, NULL), SUCCESS);
}

static void everything_reads_and_writes_it(void)
{
    const address memory = allocate(PAGES * PAGE);
    unsigned int *const numbers = host(memory);
    unsigned int copied[4] = { 0 };
    /* The host, also in the last byte. */
    for (int i = 0; i < PAGES * PAGE / 4; i++)
        numbers[i] = (unsigned int)i;
    CHECK_EQ(read_number(memory, 1000), 1000);
    CHECK_EQ(read_number(memory, PAGES * PAGE / 4 - 1), PAGES * PAGE / 4 - 1);
    /* Kernels, fills and copies. */
    launch_put(memory, 5, 55);
    CHECK_EQ(driver.fill(memory + 4096, 1, 8, stream), SUCCESS);
    CHECK_EQ(driver.copy(memory + 8192, memory, 24, stream), SUCCESS);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(numbers[5], 55);
    CHECK_EQ(numbers[4], 4);
    CHECK_EQ(numbers[1024], 0x01010101);
    CHECK_EQ(numbers[1026], 1026);
    CHECK_EQ(numbers[2048 + 5], 55);
    /* In turns. */
    for (unsigned int round = 0; round < 20; round++) {
        numbers[0] = round;
        launch_put(memory, round + 1, round * 3);
        CHECK_EQ(driver.copy(memory + PAGE, memory, 4, stream), SUCCESS);
        CHECK_EQ(driver.synchronize(stream), SUCCESS);
        CHECK_EQ(numbers[round + 1], round * 3);
        CHECK_EQ(numbers[PAGE / 4], round);
    }
    CHECK_EQ(driver.copy((address)(uintptr_t)copied, memory + 4, 16, stream), SUCCESS);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK(memcmp(copied, numbers + 1, 16) == 0);
    /* A graph. */
    struct values values;
    const struct kernel kernel = put_kernel(&values, memory, 100, 7);
    const struct copy copy = line(MEMORY_DEVICE, memory + 400, MEMORY_DEVICE, memory + 404, 4);
    graph_handle graph = NULL;
    node_handle nodes[2];
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_kernel(&nodes[0], graph, NULL, 0, &kernel), SUCCESS);
    CHECK_EQ(driver.add_copy(&nodes[1], graph, nodes, 1, &copy, context), SUCCESS);
    run(graph);
    CHECK_EQ(numbers[101], 7);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
    CHECK_EQ(driver.free(memory), SUCCESS);
}

static void pointers_have_attributes(void)
{
    CALL(cuPointerGetAttribute, (void *data, int attribute, address pointer));
    const address memory = allocate(1000);
    unsigned int number = 9;
    address pointer = 0, plain = 0;
    size_t bytes = 0;
    void *owner = NULL;
    CHECK_EQ(cuPointerGetAttribute(&number, IS_MANAGED, memory + 999), SUCCESS);
    CHECK_EQ(number, 1);
    CHECK_EQ(cuPointerGetAttribute(&number, MEMORY_TYPE, memory), SUCCESS);
    CHECK_EQ(number, MEMORY_DEVICE);
    CHECK_EQ(cuPointerGetAttribute(&number, DEVICE_ORDINAL, memory), SUCCESS);
    CHECK_EQ(number, 0);
    CHECK_EQ(cuPointerGetAttribute(&owner, CONTEXT, memory), SUCCESS);
    CHECK(owner == context);
    CHECK_EQ(cuPointerGetAttribute(&pointer, DEVICE_POINTER, memory + 8), SUCCESS);
    CHECK_EQ(pointer, memory + 8);
    CHECK_EQ(cuPointerGetAttribute(&pointer, HOST_POINTER, memory + 8), SUCCESS);
    CHECK_EQ(pointer, memory + 8);
    CHECK_EQ(cuPointerGetAttribute(&pointer, RANGE_START, memory + 8), SUCCESS);
    CHECK_EQ(pointer, memory);
    CHECK_EQ(cuPointerGetAttribute(&bytes, RANGE_SIZE, memory + 8), SUCCESS);
    CHECK_EQ(bytes, 1000);
    CHECK_EQ(driver.free(memory), SUCCESS);
    CHECK_EQ(driver.allocate(&plain, 64), SUCCESS);
    CHECK_EQ(cuPointerGetAttribute(&number, IS_MANAGED, plain), SUCCESS);
    CHECK_EQ(number, 0);
    CHECK_EQ(driver.free(plain), SUCCESS);
}

static int (*attribute_of)(
    void *data, size_t size, int attribute, address pointer, size_t bytes);

static int attribute(int which, address pointer, size_t bytes)
{
    int value = 77;
    CHECK_EQ(attribute_of(&value, sizeof value, which, pointer, bytes), SUCCESS);
    return value;
}

static void ranges_have_advice(void)
{
    CALL(cuMemAdvise, (address pointer, size_t bytes, int advice, int device));
    CALL(cuMemAdvise_v2, (address pointer, size_t bytes, int advice, struct location location));
    CALL(cuMemRangeGetAttributes,
        (void **data, size_t *sizes, int *attributes, size_t count, address pointer,
            size_t bytes));
    const address memory = allocate(PAGES * PAGE), all = PAGES * PAGE;
    const address last = memory + all - PAGE;
    int list[3] = { 7, 7, 7 };
    CHECK_EQ(attribute(READ_MOSTLY, memory, all), 0);
    CHECK_EQ(attribute(PREFERRED, memory, all), NONE);
    CHECK_EQ(attribute(LAST_PREFETCH, memory, all), NONE);
    CHECK_EQ(cuMemAdvise(memory, all, SET_READ_MOSTLY, 0), SUCCESS);
    CHECK_EQ(attribute(READ_MOSTLY, memory, all), 1);
    CHECK_EQ(cuMemAdvise(last, PAGE, UNSET_READ_MOSTLY, 0), SUCCESS);
    CHECK_EQ(attribute(READ_MOSTLY, memory, all), 0);
    CHECK_EQ(attribute(READ_MOSTLY, memory, all - PAGE), 1);

    CHECK_EQ(cuMemAdvise(memory, all, SET_PREFERRED, 0), SUCCESS);
    CHECK_EQ(attribute(PREFERRED, memory, all), 0);
    CHECK_EQ(cuMemAdvise(last, PAGE, SET_PREFERRED, CPU), SUCCESS);
    CHECK_EQ(attribute(PREFERRED, memory, all), NONE);
    CHECK_EQ(attribute(PREFERRED, last, PAGE), CPU);
    CHECK_EQ(cuMemAdvise(memory, all, UNSET_PREFERRED, 0), SUCCESS);
    CHECK_EQ(attribute(PREFERRED, last, PAGE), NONE);
    const struct location device = { 1, 0 }, cpu = { 2, 0 };
    CHECK_EQ(cuMemAdvise_v2(memory, all, SET_PREFERRED, device), SUCCESS);
    CHECK_EQ(attribute(PREFERRED_TYPE, memory, all), 1);
    CHECK_EQ(attribute(PREFERRED_ID, memory, all), 0);
    CHECK_EQ(cuMemAdvise_v2(memory, all, SET_PREFERRED, cpu), SUCCESS);
    CHECK_EQ(attribute(PREFERRED_TYPE, memory, all), 2);
    CHECK_EQ(attribute(PREFERRED, memory, all), CPU);

    CHECK_EQ(cuMemAdvise(memory, all, SET_ACCESSED_BY, 0), SUCCESS);
    CHECK_EQ(attribute_of(list, sizeof list, ACCESSED_BY, memory, all), SUCCESS);
    CHECK(list[0] == 0 && list[1] == NONE && list[2] == NONE);
    CHECK_EQ(cuMemAdvise(memory, PAGE, UNSET_ACCESSED_BY, 0), SUCCESS);
    int *data[2] = { &list[0], &list[1] };
    size_t sizes[2] = { 4, 4 };
    int which[2] = { ACCESSED_BY, PREFERRED };
    CHECK_EQ(cuMemRangeGetAttributes((void **)data, sizes, which, 2, memory, all), SUCCESS);
    CHECK(list[0] == NONE && list[1] == CPU);
    /* Sizes, ranges, kinds of memory and devices. */
    CHECK_EQ(attribute_of(list, 8, READ_MOSTLY, memory, all), INVALID_VALUE);
    CHECK_EQ(attribute_of(list, 6, ACCESSED_BY, memory, all), INVALID_VALUE);
    CHECK_EQ(attribute_of(list, 4, READ_MOSTLY, memory, 0), INVALID_VALUE);
    CHECK_EQ(cuMemAdvise(memory, all, 99, 0), INVALID_VALUE);
    CHECK_EQ(cuMemAdvise(memory, all, SET_PREFERRED, 1000), INVALID_DEVICE);
    address plain = 0;
    CHECK_EQ(driver.allocate(&plain, PAGE), SUCCESS);
    CHECK_EQ(cuMemAdvise(plain, PAGE, SET_READ_MOSTLY, 0), INVALID_VALUE);
    CHECK_EQ(driver.free(plain), SUCCESS);
    CHECK_EQ(driver.free(memory), SUCCESS);
}

static void ranges_are_prefetched(void)
{
    CALL(cuMemPrefetchAsync, (address pointer, size_t bytes, int device, void *stream));
    CALL(cuMemPrefetchAsync_v2,
        (address pointer, size_t bytes, struct location location, unsigned int flags,
            void *stream));
    const address memory = allocate(PAGES * PAGE), all = PAGES * PAGE;
    const struct location device = { 1, 0 }, cpu = { 2, 0 };
    host(memory)[1] = 12;
    CHECK_EQ(cuMemPrefetchAsync(memory, all, 0, stream), SUCCESS);
    CHECK_EQ(attribute(LAST_PREFETCH, memory, all), 0);
    launch_put(memory, 0, 13);
    CHECK_EQ(cuMemPrefetchAsync(memory, PAGE, CPU, stream), SUCCESS);
    CHECK_EQ(attribute(LAST_PREFETCH, memory, all), NONE);
    CHECK_EQ(attribute(LAST_PREFETCH, memory, PAGE), CPU);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(host(memory)[0], 13);
    CHECK_EQ(host(memory)[1], 12);
    CHECK_EQ(cuMemPrefetchAsync_v2(memory, all, device, 0, stream), SUCCESS);
    CHECK_EQ(attribute(LAST_PREFETCH_TYPE, memory, all), 1);
    CHECK_EQ(attribute(LAST_PREFETCH_ID, memory, all), 0);
    CHECK_EQ(cuMemPrefetchAsync_v2(memory, all, cpu, 0, stream), SUCCESS);
    CHECK_EQ(attribute(LAST_PREFETCH_TYPE, memory, all), 2);
    CHECK_EQ(cuMemPrefetchAsync_v2(memory, all, device, 1, stream), INVALID_VALUE);
    CHECK_EQ(cuMemPrefetchAsync(memory, all, 1000, stream), INVALID_DEVICE);
    CHECK_EQ(cuMemPrefetchAsync(memory, 0, 0, stream), INVALID_VALUE);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(host(memory)[0], 13);
    CHECK_EQ(driver.free(memory), SUCCESS);
}

static void memory_is_attached_to_streams(void)
{
    CALL(cuStreamAttachMemAsync,
        (void *stream, address pointer, size_t bytes, unsigned int flags));
    address memory = 0;
    CHECK_EQ(allocate_managed(&memory, PAGE, ATTACH_HOST), SUCCESS);
    host(memory)[0] = 1;
    CHECK_EQ(cuStreamAttachMemAsync(stream, memory, 0, SINGLE), SUCCESS);
    launch_put(memory, 0, 2);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(host(memory)[0], 2);
    CHECK_EQ(cuStreamAttachMemAsync(stream, memory, PAGE, GLOBAL), SUCCESS);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK(cuStreamAttachMemAsync(NULL, memory, 0, SINGLE) != SUCCESS);
    CHECK_EQ(cuStreamAttachMemAsync(stream, memory, 0, 3), INVALID_VALUE);
    CHECK_EQ(driver.free(memory), SUCCESS);
}

/* add(value): managed += value, and plain = managed. */
static const char VARIABLES[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .attribute(.managed) .align 4 .u32 managed = 7;\n"
    ".visible .global .align 4 .u32 plain = 1;\n"
    ".visible .entry add(.param .u32 value)\n{\n    .reg .u32 %r<4>;\n"
    "    ld.param.u32 %r1, [value];\n    ld.global.u32 %r2, [managed];\n"
    "    add.u32 %r3, %r1, %r2;\n    st.global.u32 [managed], %r3;\n"
    "    st.global.u32 [plain], %r3;\n    ret;\n}\n";

static void variables_can_be_managed(void)
{
    CALL(cuModuleGetGlobal_v2, (address *pointer, size_t *bytes, void *module, const char *name));
    CALL(cuPointerGetAttribute, (void *data, int attribute, address pointer));
    CALL(cuLaunchKernel,
        (void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
            unsigned int block_x, unsigned int block_y, unsigned int block_z,
            unsigned int shared_bytes, void *stream, void **parameters, void **extra));
    CALL(cuLibraryLoadData,
        (void **library, const void *image, void *options, void *values, unsigned int count,
            void *library_options, void *library_values, unsigned int library_count));
    CALL(cuLibraryGetManaged,
        (address *pointer, size_t *bytes, void *library, const char *name));
    CALL(cuLibraryUnload, (void *library));
    void *own = NULL, *add = NULL, *of_library = NULL;
    address managed = 0, plain = 0;
    size_t bytes = 0;
    unsigned int value = 5, is_managed = 9;
    void *parameters[] = { &value };
    CHECK_EQ(driver.load(&own, VARIABLES), SUCCESS);
    CHECK_EQ(driver.function(&add, own, "add"), SUCCESS);
    CHECK_EQ(cuModuleGetGlobal_v2(&managed, &bytes, own, "managed"), SUCCESS);
    CHECK_EQ(bytes, 4);
    CHECK_EQ(cuModuleGetGlobal_v2(&plain, NULL, own, "plain"), SUCCESS);
    CHECK_EQ(cuPointerGetAttribute(&is_managed, IS_MANAGED, managed), SUCCESS);
    CHECK_EQ(is_managed, 1);
    CHECK_EQ(cuPointerGetAttribute(&is_managed, IS_MANAGED, plain), SUCCESS);
    CHECK_EQ(is_managed, 0);
    CHECK_EQ(host(managed)[0], 7);
    host(managed)[0] = 100;
    for (unsigned int round = 1; round <= 3; round++) {
        CHECK_EQ(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), SUCCESS);
        CHECK_EQ(driver.synchronize(stream), SUCCESS);
        CHECK_EQ(host(managed)[0], 100 + 5 * round);
        CHECK_EQ(read_number(plain, 0), 100 + 5 * round);
    }
    CHECK_EQ(driver.unload(own), SUCCESS);
    CHECK_EQ(cuLibraryLoadData(&of_library, VARIABLES, NULL, NULL, 0, NULL, NULL, 0), SUCCESS);
    CHECK_EQ(cuLibraryGetManaged(&managed, &bytes, of_library, "managed"), SUCCESS);
    CHECK_EQ(bytes, 4);
    CHECK_EQ(host(managed)[0], 7);
    CHECK_EQ(cuLibraryGetManaged(&managed, &bytes, of_library, "plain"), NOT_FOUND);
    CHECK_EQ(cuLibraryUnload(of_library), SUCCESS);
}

static void calls_are_checked(void)
{
    CALL(cuMemFree_v2, (address pointer));
    CALL(cuMemGetInfo_v2, (size_t *unused, size_t *total));
    address memory = 0, many[100];
    size_t unused = 0, total = 0;
    CHECK_EQ(allocate_managed(&memory, 0, GLOBAL), INVALID_VALUE);
    CHECK_EQ(allocate_managed(NULL, 64, GLOBAL), INVALID_VALUE);
    CHECK_EQ(allocate_managed(&memory, 64, 0), INVALID_VALUE);
    CHECK_EQ(allocate_managed(&memory, 64, SINGLE), INVALID_VALUE);
    CHECK_EQ(memory, 0);
    for (unsigned int i = 0; i < 100; i++) {
        many[i] = allocate(100);
        host(many[i])[24] = i;
    }
    for (unsigned int i = 0; i < 100; i++)
        CHECK_EQ(host(many[i])[24], i);
    CHECK_EQ(cuMemFree_v2(many[0] + 4), INVALID_VALUE);
    for (unsigned int i = 0; i < 100; i++)
        CHECK_EQ(driver.free(many[i]), SUCCESS);
    CHECK_EQ(cuMemFree_v2(many[0]), INVALID_VALUE);
    /* More than the device has. */
    CHECK_EQ(cuMemGetInfo_v2(&unused, &total), SUCCESS);
    memory = allocate(total + (64 << 20));
    host(memory)[total / 4] = 3;
    CHECK_EQ(read_number(memory, total / 4), 3);
    CHECK_EQ(driver.free(memory), SUCCESS);
}

int main(void)
{
    begin();
    FIND(allocate_managed, "cuMemAllocManaged");
    FIND(attribute_of, "cuMemRangeGetAttribute");
    everything_reads_and_writes_it();
    pointers_have_attributes();
    ranges_have_advice();
    ranges_are_prefetched();
    memory_is_attached_to_streams();
    variables_can_be_managed();
    calls_are_checked();
    end();
    return EXIT_SUCCESS;
}
