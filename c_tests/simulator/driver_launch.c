/* Launches with attributes: clusters, cooperative kernels, events and captures; and occupancy. */
#include "driver_modules.h"

/* CUlaunchAttributeID */
enum {
    LAUNCH_IGNORE = 0,
    LAUNCH_COOPERATIVE = 2,
    LAUNCH_CLUSTER_DIMENSION = 4,
    LAUNCH_STREAM_SERIALIZATION = 6,
    LAUNCH_PROGRAMMATIC_EVENT = 7,
    LAUNCH_PRIORITY = 8,
    LAUNCH_MEM_SYNC_DOMAIN = 10,
    LAUNCH_COMPLETION_EVENT = 12,
    LAUNCH_UPDATABLE_NODE = 13,
    LAUNCH_SHARED_CARVEOUT = 14
};

/* CUlaunchAttribute */
struct attribute {
    unsigned int id;
    char pad[4];
    union {
        char bytes[64];
        int number;
        unsigned int sizes[3];
        struct {
            handle event;
            int flags, at_start;
        } record;
    } value;
};

/* CUlaunchConfig */
struct config {
    unsigned int grid[3], block[3], shared_bytes;
    handle stream;
    struct attribute *attributes;
    unsigned int count;
};

/* all_meet(counter, to): each block adds one to *counter, waits until all have, and adds the
 * counter to *to. */
static const char meeting[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry all_meet(.param .u64 counter, .param .u64 to)\n"
    "{\n"
    ".reg .b64 %a<2>;\n.reg .b32 %r<6>;\n.reg .pred %p<2>;\n"
    "ld.param.u64 %a0, [counter];\ncvta.to.global.u64 %a0, %a0;\n"
    "ld.param.u64 %a1, [to];\ncvta.to.global.u64 %a1, %a1;\n"
    "mov.u32 %r0, %tid.x;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra $end;\n"
    "mov.u32 %r1, %nctaid.x;\natom.global.add.u32 %r2, [%a0], 1;\n"
    "$again:\nld.volatile.global.u32 %r3, [%a0];\nsetp.lt.u32 %p1, %r3, %r1;\n@%p1 bra $again;\n"
    "atom.global.add.u32 %r4, [%a1], %r3;\n"
    "$end:\nret;\n"
    "}\n";

/* size_of(to): *to = blocks of the cluster. */
static const char clustered[] =
    ".version 7.8\n.target sm_90\n.address_size 64\n"
    ".visible .entry size_of(.param .u64 to)\n"
    "{\n"
    ".reg .b64 %a;\n.reg .b32 %r;\n"
    "ld.param.u64 %a, [to];\ncvta.to.global.u64 %a, %a;\n"
    "mov.u32 %r, %cluster_nctarank;\nst.global.u32 [%a], %r;\nret;\n"
    "}\n"
    ".visible .entry pairs(.param .u64 to)\n.reqnctapercluster 2, 1, 1\n"
    "{\n"
    ".reg .b64 %a;\n.reg .b32 %r;\n"
    "ld.param.u64 %a, [to];\ncvta.to.global.u64 %a, %a;\n"
    "mov.u32 %r, %cluster_nctarank;\nst.global.u32 [%a], %r;\nret;\n"
    "}\n";

static int (*launch)(const struct config *config, handle function, void **parameters, void **extra);
static int (*launch_cooperative)(handle function, unsigned int grid_x, unsigned int grid_y,
    unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
    unsigned int shared_bytes, handle stream, void **parameters);
static int (*most_blocks)(int *blocks, handle function, int block_size, size_t shared_bytes);
static int (*create_stream)(handle *stream, unsigned int flags, int priority);
static int (*create_event)(handle *event, unsigned int flags);
static int (*synchronize_event)(handle event);
static int (*query_event)(handle event);

static address room;
static int multiprocessors, threads_of_multiprocessor, capability;

static handle function_in(const char *image, const char *name)
{
    int (*load)(handle *module, const void *image);
    int (*function_of)(handle *function, handle module, const char *name);
    FIND(load, "cuModuleLoadData");
    FIND(function_of, "cuModuleGetFunction");
    handle module = NULL, function = NULL;
    CHECK_EQ(load(&module, image), SUCCESS);
    CHECK_EQ(function_of(&function, module, name), SUCCESS);
    return function;
}

static struct config of_blocks(unsigned int blocks, unsigned int threads)
{
    const struct config config = {.grid = {blocks, 1, 1}, .block = {threads, 1, 1}};
    return config;
}

static void check_attributes(void)
{
    const handle store = function_in(kernels, "store");
    address to = room;
    uint32_t value = 5;
    void *parameters[] = {&to, &value};
    struct config config = of_blocks(1, 1);
    CHECK_EQ(launch(&config, store, parameters, NULL), SUCCESS);
    CHECK_EQ(word_at(room), 12);
    CHECK_EQ(launch(NULL, store, parameters, NULL), INVALID_VALUE);

    struct attribute attributes[5];
    memset(attributes, 0, sizeof attributes);
    attributes[0].id = LAUNCH_IGNORE;
    attributes[1].id = LAUNCH_PRIORITY;
    attributes[2].id = LAUNCH_STREAM_SERIALIZATION;
    attributes[2].value.number = capability >= 90;
    attributes[3].id = LAUNCH_SHARED_CARVEOUT;
    attributes[3].value.number = 50;
    attributes[4].id = LAUNCH_MEM_SYNC_DOMAIN;
    config.attributes = attributes;
    config.count = capability >= 90 ? 5 : 4;
    value = 30;
    CHECK_EQ(launch(&config, store, parameters, NULL), SUCCESS);
    CHECK_EQ(word_at(room), 35);

    config.grid[1] = 0;
    CHECK_EQ(launch(&config, store, parameters, NULL), INVALID_VALUE);
    config.grid[1] = 1;
    CHECK_EQ(launch(&config, NULL, parameters, NULL), INVALID_HANDLE);
    /* Only nodes of graphs can be updated by kernels. */
    config.count = 1;
    attributes[0].id = LAUNCH_UPDATABLE_NODE;
    attributes[0].value.number = 1;
    CHECK(launch(&config, store, parameters, NULL) != SUCCESS);
    CHECK_EQ(cuda_synchronize(), SUCCESS);
}

static void check_cooperative_launches(void)
{
    const handle meet = function_in(meeting, "all_meet");
    address counter = room, to = room + 4;
    void *parameters[] = {&counter, &to};
    int most = 0;
    CHECK_EQ(most_blocks(&most, meet, 32, 0), SUCCESS);
    const unsigned int all = (unsigned int)(most * multiprocessors);
    const unsigned int blocks = all < 300 ? all : 300;
    set_word(room, 0);
    set_word(room + 4, 0);
    CHECK_EQ(launch_cooperative(meet, blocks, 1, 1, 32, 1, 1, 0, NULL, parameters), SUCCESS);
    CHECK_EQ(word_at(room), blocks);
    CHECK_EQ(word_at(room + 4), blocks * blocks);
    CHECK_EQ(launch_cooperative(meet, all + 1, 1, 1, 32, 1, 1, 0, NULL, parameters),
        COOPERATIVE_LAUNCH_TOO_LARGE);

    struct attribute attribute = {.id = LAUNCH_COOPERATIVE, .value = {.number = 1}};
    struct config config = of_blocks(all + 1, 32);
    config.attributes = &attribute;
    config.count = 1;
    CHECK_EQ(launch(&config, meet, parameters, NULL), COOPERATIVE_LAUNCH_TOO_LARGE);
    config.grid[0] = 2;
    set_word(room, 0);
    set_word(room + 4, 0);
    CHECK_EQ(launch(&config, meet, parameters, NULL), SUCCESS);
    CHECK_EQ(word_at(room + 4), 4);
    CHECK_EQ(cuda_synchronize(), SUCCESS);
}

static void check_clusters(void)
{
    int (*most_size)(int *size, handle function, const struct config *config);
    int (*most_clusters)(int *clusters, handle function, const struct config *config);
    FIND(most_size, "cuOccupancyMaxPotentialClusterSize");
    FIND(most_clusters, "cuOccupancyMaxActiveClusters");
    const handle size_of = function_in(clustered, "size_of");
    const handle pairs = function_in(clustered, "pairs");
    address to = room;
    void *parameters[] = {&to};
    struct attribute attribute = {.id = LAUNCH_CLUSTER_DIMENSION, .value = {.sizes = {4, 1, 1}}};
    struct config config = of_blocks(8, 32);
    CHECK_EQ(launch(&config, size_of, parameters, NULL), SUCCESS);
    CHECK_EQ(word_at(room), 1);
    CHECK_EQ(launch(&config, pairs, parameters, NULL), SUCCESS);
    CHECK_EQ(word_at(room), 2);
    config.attributes = &attribute;
    config.count = 1;
    CHECK_EQ(launch(&config, size_of, parameters, NULL), SUCCESS);
    CHECK_EQ(word_at(room), 4);
    int found = 0;
    CHECK_EQ(most_clusters(&found, size_of, &config), SUCCESS);
    CHECK(found > 0 && found <= 8 * multiprocessors);
    /* The grid does not consist of clusters of three blocks, nor has a device those of 32. */
    attribute.value.sizes[0] = 3;
    CHECK_EQ(launch(&config, size_of, parameters, NULL), INVALID_CLUSTER_SIZE);
    config.grid[0] = 32;
    attribute.value.sizes[0] = 32;
    CHECK_EQ(launch(&config, size_of, parameters, NULL), INVALID_CLUSTER_SIZE);
    config.count = 0;
    CHECK_EQ(most_size(&found, size_of, &config), SUCCESS);
    CHECK_EQ(found, 8);
    CHECK_EQ(most_size(&found, pairs, &config), SUCCESS);
    CHECK_EQ(found, 8);
    CHECK_EQ(attribute_of(pairs, REQUIRED_CLUSTER_WIDTH), 2);
    CHECK_EQ(cuda_set_function_attribute(pairs, REQUIRED_CLUSTER_WIDTH, 4), INVALID_VALUE);
    CHECK_EQ(cuda_set_function_attribute(size_of, REQUIRED_CLUSTER_WIDTH, 2), SUCCESS);
    CHECK_EQ(cuda_set_function_attribute(size_of, REQUIRED_CLUSTER_HEIGHT, 1), SUCCESS);
    CHECK_EQ(cuda_set_function_attribute(size_of, REQUIRED_CLUSTER_DEPTH, 1), SUCCESS);
    CHECK_EQ(attribute_of(size_of, REQUIRED_CLUSTER_WIDTH), 2);
    CHECK_EQ(launch(&config, size_of, parameters, NULL), SUCCESS);
    CHECK_EQ(word_at(room), 2);
    CHECK_EQ(cuda_set_function_attribute(size_of, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1), SUCCESS);
    CHECK_EQ(attribute_of(size_of, NON_PORTABLE_CLUSTER_SIZE_ALLOWED), 1);
    CHECK_EQ(cuda_synchronize(), SUCCESS);
}

/* CU_EVENT_DISABLE_TIMING */
enum { WITHOUT_TIMING = 2 };

static void check_events(void)
{
    const handle store = function_in(kernels, "store");
    address to = room;
    uint32_t value = 1;
    void *parameters[] = {&to, &value};
    handle event = NULL, timed = NULL, stream = NULL;
    CHECK_EQ(create_stream(&stream, 1, 0), SUCCESS);
    CHECK_EQ(create_event(&event, WITHOUT_TIMING), SUCCESS);
    CHECK_EQ(create_event(&timed, 0), SUCCESS);
    struct attribute attribute = {.id = LAUNCH_COMPLETION_EVENT};
    attribute.value.record.event = event;
    struct config config = of_blocks(1, 1);
    config.stream = stream;
    config.attributes = &attribute;
    config.count = 1;
    CHECK_EQ(launch(&config, store, parameters, NULL), SUCCESS);
    CHECK_EQ(synchronize_event(event), SUCCESS);
    CHECK_EQ(query_event(event), SUCCESS);
    attribute.value.record.event = timed;
    CHECK_EQ(launch(&config, store, parameters, NULL), NOT_SUPPORTED);
    if (capability >= 90) {
        attribute.id = LAUNCH_PROGRAMMATIC_EVENT;
        attribute.value.record.event = event;
        CHECK_EQ(launch(&config, store, parameters, NULL), SUCCESS);
        CHECK_EQ(synchronize_event(event), SUCCESS);
    }
    CHECK_EQ(cuda_synchronize(), SUCCESS);
}

/* A cooperative launch that is recorded runs with the graph. */
static void check_captures(void)
{
    int (*begin)(handle stream, int mode);
    int (*end)(handle stream, handle *graph);
    int (*instantiate)(handle *exec, handle graph, unsigned long long flags);
    int (*run)(handle exec, handle stream);
    FIND(begin, "cuStreamBeginCapture_v2");
    FIND(end, "cuStreamEndCapture");
    FIND(instantiate, "cuGraphInstantiateWithFlags");
    FIND(run, "cuGraphLaunch");
    const handle meet = function_in(meeting, "all_meet");
    address counter = room, to = room + 4;
    void *parameters[] = {&counter, &to};
    struct attribute attribute = {.id = LAUNCH_COOPERATIVE, .value = {.number = 1}};
    struct config config = of_blocks(3, 32);
    handle graph = NULL, exec = NULL;
    CHECK_EQ(create_stream(&config.stream, 1, 0), SUCCESS);
    config.attributes = &attribute;
    config.count = 1;
    set_word(room, 0);
    set_word(room + 4, 0);
    CHECK_EQ(begin(config.stream, 0), SUCCESS);
    CHECK_EQ(launch(&config, meet, parameters, NULL), SUCCESS);
    CHECK_EQ(end(config.stream, &graph), SUCCESS);
    CHECK_EQ(word_at(room), 0);
    CHECK_EQ(instantiate(&exec, graph, 0), SUCCESS);
    CHECK_EQ(run(exec, config.stream), SUCCESS);
    CHECK_EQ(cuda_synchronize(), SUCCESS);
    CHECK_EQ(word_at(room), 3);
    CHECK_EQ(word_at(room + 4), 9);
}

/* Half a block's threads times 16 bytes. */
static size_t shared_of(int block_size)
{
    return (size_t)block_size * 8;
}

static void check_occupancy(void)
{
    int (*with_flags)(
        int *blocks, handle function, int block_size, size_t shared_bytes, unsigned int flags);
    int (*best)(int *grid_size, int *block_size, handle function, size_t (*shared)(int block_size),
        size_t shared_bytes, int limit);
    int (*best_with_flags)(int *grid_size, int *block_size, handle function,
        size_t (*shared)(int block_size), size_t shared_bytes, int limit, unsigned int flags);
    int (*available)(size_t *bytes, handle function, int blocks, int block_size);
    FIND(with_flags, "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
    FIND(best, "cuOccupancyMaxPotentialBlockSize");
    FIND(best_with_flags, "cuOccupancyMaxPotentialBlockSizeWithFlags");
    FIND(available, "cuOccupancyAvailableDynamicSMemPerBlock");
    const handle store = function_in(kernels, "store"), twice = function_in(kernels, "double_of");
    int blocks = 0, grid_size = 0, block_size = 0;
    size_t bytes = 0;
    for (unsigned int flags = 0; flags < 2; flags++) {
        CHECK_EQ(with_flags(&blocks, store, 256, 0, flags), SUCCESS);
        CHECK_EQ(blocks, threads_of_multiprocessor / 256);
    }
    CHECK_EQ(with_flags(&blocks, store, 0, 0, 0), INVALID_VALUE);
    CHECK_EQ(with_flags(&blocks, store, 32, 0, 2), INVALID_VALUE);
    /* The kernel has a limit of 64 threads, which does not count here. */
    CHECK_EQ(with_flags(&blocks, twice, 65, 0, 0), SUCCESS);
    CHECK_EQ(blocks, threads_of_multiprocessor / 96);

    CHECK_EQ(best(&grid_size, &block_size, store, NULL, 0, 0), SUCCESS);
    CHECK_EQ(with_flags(&blocks, store, block_size, 0, 0), SUCCESS);
    CHECK_EQ(grid_size, blocks * multiprocessors);
    CHECK_EQ(blocks * block_size, threads_of_multiprocessor);
    CHECK_EQ(best(&grid_size, &block_size, store, NULL, 0, 128), SUCCESS);
    CHECK(block_size <= 128);
    CHECK_EQ(best_with_flags(&grid_size, &block_size, store, shared_of, 0, 0, 0), SUCCESS);
    CHECK_EQ(with_flags(&blocks, store, block_size, shared_of(block_size), 0), SUCCESS);
    CHECK_EQ(grid_size, blocks * multiprocessors);
    CHECK_EQ(best(&grid_size, &block_size, twice, NULL, 0, 0), SUCCESS);
    CHECK(block_size > 0 && block_size <= 64);

    CHECK_EQ(available(&bytes, store, 1, 128), SUCCESS);
    CHECK(bytes > 0 && bytes <= (size_t)attribute_of(store, MAX_DYNAMIC_SHARED_SIZE_BYTES));
    CHECK_EQ(with_flags(&blocks, store, 128, bytes, 0), SUCCESS);
    CHECK(blocks >= 1);
    CHECK(available(&bytes, store, 1000, 128) != SUCCESS);
}

int main(void)
{
    start_the_driver();
    start_a_context();
    FIND(launch, "cuLaunchKernelEx");
    FIND(launch_cooperative, "cuLaunchCooperativeKernel");
    FIND(most_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    FIND(create_stream, "cuStreamCreateWithPriority");
    FIND(create_event, "cuEventCreate");
    FIND(synchronize_event, "cuEventSynchronize");
    FIND(query_event, "cuEventQuery");
    int major = 0, minor = 0;
    CHECK_EQ(cuda_device_attribute(&multiprocessors, 16, 0), SUCCESS);
    CHECK_EQ(cuda_device_attribute(&threads_of_multiprocessor, 39, 0), SUCCESS);
    CHECK_EQ(cuda_device_attribute(&major, 75, 0), SUCCESS);
    CHECK_EQ(cuda_device_attribute(&minor, 76, 0), SUCCESS);
    capability = major * 10 + minor;
    CHECK_EQ(cuda_allocate(&room, 64), SUCCESS);
    check_attributes();
    check_cooperative_launches();
    if (capability >= 90)
        check_clusters();
    check_events();
    check_captures();
    check_occupancy();
    return EXIT_SUCCESS;
}
