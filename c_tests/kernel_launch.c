/* What a launch asks of the driver besides its geometry: clusters, cooperative and programmatic
 * launches, priorities; and the limits of kernels. */
#include "support.h"

enum { WORDS = 1 << 16, THREADS = 32, ROUNDS = 3, STEPS = 20 };
static uint32_t *words;
static uint32_t host[WORDS];
static tcuda_device_info device;
static bool has_clusters;

/* Without clusters the registers and instructions are left out, so that all of it compiles. */
static const char source[] =
    "#define READ(name, from) __device__ unsigned name()\\\n"
    "{\\\n"
    "    unsigned value;\\\n"
    "    asm volatile(\"mov.u32 %0, %%\" from \";\" : \"=r\"(value));\\\n"
    "    return value;\\\n"
    "}\n"
    "#if __CUDA_ARCH__ >= 900\n"
    "READ(cluster_x, \"clusterid.x\") READ(cluster_y, \"clusterid.y\")\n"
    "READ(cluster_z, \"clusterid.z\") READ(clusters, \"nclusterid.x\")\n"
    "READ(x_in_cluster, \"cluster_ctaid.x\") READ(y_in_cluster, \"cluster_ctaid.y\")\n"
    "READ(rank, \"cluster_ctarank\") READ(size, \"cluster_nctarank\")\n"
    "__device__ void meet()\n"
    "{ asm volatile(\"barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\" ::: "
    "\"memory\"); }\n"
    "extern \"C\" __global__ void where(unsigned *out)\n"
    "{\n"
    "    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);\n"
    "    if (threadIdx.x > 0) return;\n"
    "    const unsigned all[8] = { cluster_x(), cluster_y(), cluster_z(), clusters(),\n"
    "        x_in_cluster(), y_in_cluster(), rank(), size() };\n"
    "    for (int i = 0; i < 8; i++) out[8 * block + i] = all[i];\n"
    "}\n"
    "extern \"C\" __global__ void neighbours(unsigned *out)\n"
    "{\n"
    "    __shared__ unsigned mine;\n"
    "    if (threadIdx.x == 0) mine = 100 + blockIdx.x;\n"
    "    meet();\n"
    "    const unsigned own = (unsigned)__cvta_generic_to_shared(&mine);\n"
    "    unsigned there, value;\n"
    "    asm volatile(\"mapa.shared::cluster.u32 %0, %1, %2;\"\n"
    "        : \"=r\"(there) : \"r\"(own), \"r\"((rank() + 1) % size()));\n"
    "    asm volatile(\"ld.shared::cluster.u32 %0, [%1];\" : \"=r\"(value) : \"r\"(there)\n"
    "        : \"memory\");\n"
    "    if (threadIdx.x == 0) out[blockIdx.x] = value;\n"
    "    meet();\n"
    "}\n"
    "extern \"C\" __global__ void __cluster_dims__(2, 1, 1) pairs(unsigned *out)\n"
    "{ if (threadIdx.x == 0) out[blockIdx.x] = size(); }\n"
    "#endif\n"
    "__device__ void arrive(unsigned *count, unsigned expected)\n"
    "{\n"
    "    __threadfence();\n"
    "    atomicAdd(count, 1);\n"
    "    while (atomicAdd(count, 0) < expected) {}\n"
    "    __threadfence();\n"
    "}\n"
    "extern \"C\" __global__ void rounds(unsigned *count, volatile unsigned *values,\n"
    "    unsigned *out, int number)\n"
    "{\n"
    "    if (threadIdx.x > 0) return;\n"
    "    const unsigned all = gridDim.x, me = blockIdx.x;\n"
    "    unsigned sum = 0;\n"
    "    for (int i = 0; i < number; i++) {\n"
    "        values[me] = 100000 * i + me;\n"
    "        arrive(count, (2 * i + 1) * all);\n"
    "        sum += values[(me + 1) % all];\n"
    "        arrive(count, (2 * i + 2) * all);\n"
    "    }\n"
    "    out[me] = sum;\n"
    "}\n"
    "extern \"C\" __global__ void step(unsigned *values, unsigned number)\n"
    "{\n"
    "#if __CUDA_ARCH__ >= 900\n"
    "    asm volatile(\"griddepcontrol.launch_dependents;\");\n"
    "    asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"
    "#endif\n"
    "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    values[i] = 3 * values[i] + number;\n"
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(96) bounded(unsigned *out, int at)\n"
    "{\n"
    "    __shared__ unsigned room[512];\n"
    "    unsigned local[64];\n"
    "    for (int i = 0; i < 64; i++) local[i] = out[i];\n"
    "    for (int i = 0; i < 64; i++) local[(local[at] + i) % 64] += i;\n"
    "    room[threadIdx.x] = local[at] + local[(at + threadIdx.x) % 64];\n"
    "    __syncthreads();\n"
    "    out[threadIdx.x] = room[(threadIdx.x + 1) % blockDim.x];\n"
    "}\n";

static tcuda_kernel *compile(const char *name)
{
    tcuda_kernel *kernel = NULL;
    CHECK_OK(tcuda_kernel_compile(source, name, NULL, &kernel));
    return kernel;
}

static tcuda_launch_options shape(uint32_t grid, uint32_t block)
{
    tcuda_launch_options options = TCUDA_INIT(tcuda_launch_options);
    options.grid[0] = grid;
    options.block[0] = block;
    return options;
}

static void clear(tcuda_stream *stream)
{
    const uint32_t zero = 0;
    CHECK_OK(tcuda_fill(words, &zero, sizeof zero, WORDS, stream));
}

static void fetch(tcuda_stream *stream)
{
    CHECK_OK(tcuda_copy(host, words, sizeof host, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
}

static tcuda_status launch(tcuda_kernel *kernel, const tcuda_launch_options *options)
{
    void *const args[] = { &words };
    return tcuda_kernel_launch(kernel, options, args, 1, NULL);
}

static tcuda_kernel_info properties(tcuda_kernel *kernel, const tcuda_launch_options *options,
    tcuda_stream *stream)
{
    tcuda_kernel_info info = TCUDA_INIT(tcuda_kernel_info);
    CHECK_OK(tcuda_kernel_properties(kernel, options, stream, &info));
    return info;
}

#define REFUSED(expected, part, call) \
    do { \
        CHECK_STATUS(expected, call); \
        CHECK(strstr(tcuda_last_error(), part) != NULL); \
    } while (false)

/* ---- Clusters ---- */

static void blocks_know_their_cluster(tcuda_kernel *where)
{
    tcuda_launch_options options = shape(8, THREADS);
    options.grid[1] = 4;
    options.grid[2] = 2;
    options.cluster[0] = 4;
    options.cluster[1] = 2; /* and 0 in z: 1 */
    clear(NULL);
    CHECK_OK(launch(where, &options));
    fetch(NULL);
    for (uint32_t block = 0; block < 8 * 4 * 2; block++) {
        const uint32_t x = block % 8, y = block / 8 % 4, z = block / 32;
        const uint32_t *const found = host + 8 * block;
        const uint32_t expected[] = { x / 4, y / 2, z, 2, x % 4, y % 2, x % 4 + 4 * (y % 2), 8 };
        for (int i = 0; i < 8; i++)
            CHECK_EQ(found[i], expected[i]);
    }
    /* Without a cluster each block is one. */
    options = shape(6, THREADS);
    CHECK_OK(launch(where, &options));
    fetch(NULL);
    CHECK_EQ(host[8 * 5], 5);
    CHECK_EQ(host[8 * 5 + 7], 1);
}

static void blocks_of_a_cluster_share_memory(void)
{
    tcuda_kernel *const kernel = compile("neighbours");
    const uint32_t sizes[] = { 1, 2, 4, 8, 16 };
    for (int k = 0; k < 5; k++) {
        const uint32_t size = sizes[k], blocks = 3 * size;
        tcuda_launch_options options = shape(blocks, THREADS);
        options.cluster[0] = size;
        if (size > properties(kernel, &options, NULL).max_cluster_blocks) {
            CHECK(size > 8);
            CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, launch(kernel, &options));
            continue;
        }
        clear(NULL);
        CHECK_OK(launch(kernel, &options));
        fetch(NULL);
        for (uint32_t i = 0; i < blocks; i++)
            CHECK_EQ(host[i], 100 + i / size * size + (i + 1) % size);
    }
    CHECK_OK(tcuda_kernel_destroy(kernel));
}

static void wrong_clusters_are_refused(tcuda_kernel *where)
{
    char expected[64];
    tcuda_launch_options options = shape(4, THREADS);
    options.cluster[0] = 3;
    REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, "cluster is 3 x 1 x 1, which does not divide the grid "
        "of 4 x 1 x 1", launch(where, &options));
    options.cluster[0] = 0;
    options.cluster[1] = 2;
    REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, "cluster is 1 x 2 x 1", launch(where, &options));
    options = shape(64, THREADS);
    options.cluster[0] = 64;
    const uint32_t most = properties(where, &options, NULL).max_cluster_blocks;
    CHECK(most >= 8 && most < 64);
    snprintf(expected, sizeof expected, "cluster has 64 blocks, and at most %u", most);
    REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, expected, launch(where, &options));
    options.cluster[0] = UINT32_MAX;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, launch(where, &options));
    /* The largest that there is, by that answer. */
    options = shape(2 * most, THREADS);
    options.cluster[0] = most;
    CHECK(properties(where, &options, NULL).max_active_clusters >= 1);
    CHECK_OK(launch(where, &options));
    fetch(NULL);
    CHECK_EQ(host[8 * most + 7], most);
}

static void code_may_name_the_cluster(void)
{
    tcuda_kernel *const pairs = compile("pairs");
    tcuda_launch_options options = shape(6, THREADS);
    const tcuda_kernel_info info = properties(pairs, &options, NULL);
    CHECK(info.required_cluster[0] == 2 && info.required_cluster[1] == 1
        && info.required_cluster[2] == 1);
    CHECK(info.max_active_clusters > 0);
    CHECK_OK(launch(pairs, &options));
    fetch(NULL);
    CHECK_EQ(host[5], 2);
    options.cluster[0] = 2;
    CHECK_OK(launch(pairs, &options));
    options.cluster[0] = 3;
    REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, "the kernel's code has 2 x 1 x 1",
        launch(pairs, &options));
    options = shape(5, THREADS);
    REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, "__cluster_dims__", launch(pairs, &options));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_OK(tcuda_kernel_destroy(pairs));
}

static void clusters(void)
{
    if (!has_clusters) {
        tcuda_kernel *const step = compile("step");
        tcuda_launch_options options = shape(2, THREADS);
        options.cluster[0] = 2;
        uint32_t number = 1;
        void *const args[] = { &words, &number };
        tcuda_kernel_info info = TCUDA_INIT(tcuda_kernel_info);
        CHECK_EQ(properties(step, NULL, NULL).max_cluster_blocks, 0);
        REFUSED(TCUDA_STATUS_NOT_SUPPORTED, "9.0",
            tcuda_kernel_launch(step, &options, args, 2, NULL));
        CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED,
            tcuda_kernel_properties(step, &options, NULL, &info));
        CHECK_OK(tcuda_kernel_destroy(step));
        return;
    }
    tcuda_kernel *const where = compile("where");
    blocks_know_their_cluster(where);
    wrong_clusters_are_refused(where);
    CHECK_OK(tcuda_kernel_destroy(where));
    blocks_of_a_cluster_share_memory();
    code_may_name_the_cluster();
}

/* ---- Cooperative launches ---- */

/* One block of a multiprocessor: the grids are as small as the device allows. */
static tcuda_launch_options large_blocks(tcuda_kernel *kernel)
{
    tcuda_launch_options options = shape(1, THREADS);
    options.cooperative = 1;
    options.shared_bytes = (uint32_t)properties(kernel, NULL, NULL).max_dynamic_shared_bytes;
    return options;
}

static tcuda_status meet_in(tcuda_kernel *rounds, const tcuda_launch_options *options,
    tcuda_stream *stream)
{
    uint32_t *values = words + 64, *out = words + WORDS / 2;
    int32_t number = ROUNDS;
    void *const args[] = { &words, &values, &out, &number };
    return tcuda_kernel_launch(rounds, options, args, 4, stream);
}

static void check_rounds(uint32_t blocks)
{
    CHECK_EQ(host[0], 2 * ROUNDS * blocks);
    for (uint32_t i = 0; i < blocks; i++)
        CHECK_EQ(host[WORDS / 2 + i],
            ROUNDS * ((i + 1) % blocks) + 100000 * ROUNDS * (ROUNDS - 1) / 2);
}

static void all_blocks_meet(tcuda_kernel *rounds, tcuda_stream *stream, uint32_t multiprocessors)
{
    char expected[96];
    tcuda_launch_options options = large_blocks(rounds);
    const tcuda_kernel_info info = properties(rounds, &options, stream);
    const uint32_t most = (uint32_t)info.max_cooperative_blocks;
    CHECK_EQ(info.max_blocks_per_multiprocessor, 1);
    CHECK_EQ(most, multiprocessors);
    options.grid[0] = most;
    clear(stream);
    CHECK_OK(meet_in(rounds, &options, stream));
    fetch(stream);
    check_rounds(most);
    options.grid[0] = most + 1;
    snprintf(expected, sizeof expected, "grid has %u blocks, and at most %u", most + 1, most);
    REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, expected, meet_in(rounds, &options, stream));
    options.grid[1] = options.grid[2] = UINT32_MAX;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, meet_in(rounds, &options, stream));
    fetch(stream);
    CHECK_EQ(host[0], 2 * ROUNDS * most);
}

static void all_clusters_meet(tcuda_kernel *rounds)
{
    tcuda_launch_options options = large_blocks(rounds);
    options.cluster[0] = 2;
    const tcuda_kernel_info info = properties(rounds, &options, NULL);
    const uint32_t most = (uint32_t)info.max_cooperative_blocks;
    CHECK(most > 0 && most <= (uint32_t)device.multi_processor_count);
    CHECK_EQ(most, 2 * info.max_active_clusters);
    options.grid[0] = most;
    clear(NULL);
    CHECK_OK(meet_in(rounds, &options, NULL));
    fetch(NULL);
    check_rounds(most);
    options.grid[0] = most + 2;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, meet_in(rounds, &options, NULL));
}

/* A green context has fewer multiprocessors, and so has a stream of it that another library passes.
 */
static void green_contexts_hold_fewer(tcuda_kernel *rounds)
{
    tcuda_green_context *green = NULL;
    tcuda_stream *stream = NULL, *external = NULL;
    struct CUstream_st *native = NULL;
    tcuda_sm_partition_info info = TCUDA_INIT(tcuda_sm_partition_info);
    tcuda_green_context_options options = TCUDA_INIT(tcuda_green_context_options);
    options.sm_count = 16;
    const tcuda_status status = tcuda_green_context_create(0, NULL, &options, &green);
    if (status == TCUDA_STATUS_NOT_SUPPORTED)
        return;
    CHECK_EQ(status, TCUDA_STATUS_OK);
    CHECK_OK(tcuda_green_context_properties(green, &info));
    CHECK_OK(tcuda_green_context_stream_create(green, &stream));
    CHECK_OK(tcuda_stream_wait_stream(stream, NULL));
    all_blocks_meet(rounds, stream, info.sm_count);
    CHECK_OK(tcuda_stream_native(stream, &native));
    CHECK_OK(tcuda_stream_from_external(0, native, &external));
    const tcuda_launch_options launch = large_blocks(rounds);
    CHECK_EQ(properties(rounds, &launch, external).max_cooperative_blocks, info.sm_count);
    CHECK_OK(tcuda_stream_destroy(external));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_green_context_destroy(green));
}

/* ---- In captures ---- */

/* What is refused harms no capture; what is recorded is replayed with its options. */
static void captures_record_options(tcuda_kernel *rounds, tcuda_kernel *step)
{
    tcuda_stream *stream = NULL;
    tcuda_graph *graph = NULL;
    tcuda_launch_options cooperative = large_blocks(rounds), pair = shape(2, THREADS);
    const uint32_t blocks = (uint32_t)properties(rounds, &cooperative, NULL).max_cooperative_blocks;
    uint32_t *values = words + 32, number = 5;
    void *const args[] = { &values, &number };
    pair.programmatic = 1;
    pair.priority = 0;
    if (has_clusters)
        pair.cluster[0] = 2;
    CHECK_OK(tcuda_stream_create(0, 0, &stream));
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    clear(stream);
    cooperative.grid[0] = blocks;
    CHECK_OK(meet_in(rounds, &cooperative, stream));
    cooperative.grid[0] = blocks + 1;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, meet_in(rounds, &cooperative, stream));
    CHECK_EQ(properties(rounds, &cooperative, stream).max_cooperative_blocks, blocks);
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_kernel_launch(step, &pair, args, 2, stream));
    pair.grid[0] = 3;
    pair.cluster[0] = 2;
    CHECK_STATUS(has_clusters ? TCUDA_STATUS_INVALID_ARGUMENT : TCUDA_STATUS_NOT_SUPPORTED,
        tcuda_kernel_launch(step, &pair, args, 2, stream));
    CHECK_OK(tcuda_graph_capture_end(graph));
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_graph_replay(graph, stream));
    fetch(stream);
    /* The steps are behind the rounds, in words that these use, too. */
    CHECK_EQ(host[0], 2 * ROUNDS * blocks);
    for (uint32_t i = 0; i < 32; i++)
        CHECK_EQ(host[32 + i], 5 * (1 + 3 + 9));
    check_rounds(blocks);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* ---- Programmatic launches, priorities, carve-outs ---- */

static void steps_come_one_after_another(tcuda_kernel *step)
{
    tcuda_launch_options options = shape(WORDS / 256, 256);
    uint32_t expected = 0;
    options.programmatic = 1;
    clear(NULL);
    for (uint32_t i = 0; i < STEPS; i++) {
        void *const args[] = { &words, &i };
        CHECK_OK(tcuda_kernel_launch(step, &options, args, 2, NULL));
        expected = 3 * expected + i;
    }
    fetch(NULL);
    for (int i = 0; i < WORDS; i++)
        CHECK_EQ(host[i], expected);
}

static void other_options_are_checked(tcuda_kernel *step)
{
    int32_t least = 0, greatest = 0;
    uint32_t number = 1;
    void *const args[] = { &words, &number };
    CHECK_OK(tcuda_stream_priority_range(0, &least, &greatest));
    clear(NULL);
    tcuda_launch_options options = shape(1, THREADS);
    const int32_t right[] = { least, greatest };
    for (int i = 0; i < 2; i++) {
        options.priority = right[i];
        CHECK_OK(tcuda_kernel_launch(step, &options, args, 2, NULL));
    }
    const int32_t wrong[] = { 1, greatest - 1, INT32_MIN, INT32_MAX };
    for (int i = 0; i < 4; i++) {
        options.priority = wrong[i];
        REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, "priority is",
            tcuda_kernel_launch(step, &options, args, 2, NULL));
    }
    options = shape(1, THREADS);
    for (int32_t percent = 1; percent <= 100; percent += 33) {
        options.shared_carveout_percent = percent;
        const tcuda_status status = tcuda_kernel_launch(step, &options, args, 2, NULL);
        CHECK(status == TCUDA_STATUS_OK || device.driver_version < 12050);
    }
    for (int32_t percent = -1; percent <= 101; percent += 102) {
        options.shared_carveout_percent = percent;
        REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, "shared_carveout_percent is",
            tcuda_kernel_launch(step, &options, args, 2, NULL));
    }
    tcuda_kernel_info info = TCUDA_INIT(tcuda_kernel_info);
    const tcuda_kernel_info before = info;
    for (int32_t flag = -1; flag <= 2; flag += 3) {
        options = shape(1, THREADS);
        options.cooperative = flag;
        REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, "cooperative is",
            tcuda_kernel_launch(step, &options, args, 2, NULL));
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_kernel_properties(step, &options, NULL, &info));
        options.cooperative = 0;
        options.programmatic = flag;
        REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, "programmatic is",
            tcuda_kernel_launch(step, &options, args, 2, NULL));
    }
    options = shape(1, THREADS);
    options.shared_bytes = UINT32_MAX;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_kernel_properties(step, &options, NULL, &info));
    CHECK_EQ(memcmp(&info, &before, sizeof info), 0);
    fetch(NULL);
    /* Two by priority, four by share. */
    if (device.driver_version >= 12050)
        CHECK_EQ(host[0], 1 + 3 + 9 + 27 + 81 + 243);
}

/* A program that was built before there were these options, and one that uses none of them. */
static void plain_launches_stay_plain(tcuda_kernel *step)
{
    uint32_t number = 7;
    void *const args[] = { &words, &number };
    tcuda_launch_options options;
    memset(&options, 0x55, sizeof options);
    memset(&options, 0, offsetof(tcuda_launch_options, cluster));
    options.struct_size = offsetof(tcuda_launch_options, cluster);
    const uint64_t plain = calls_of("cuLaunchKernel"), extended = calls_of("cuLaunchKernelEx");
    clear(NULL);
    CHECK_OK(tcuda_kernel_launch(step, &options, args, 2, NULL));
    CHECK_OK(tcuda_kernel_launch(step, NULL, args, 2, NULL));
    CHECK_EQ(calls_of("cuLaunchKernelEx"), extended);
    options = shape(1, 1);
    options.programmatic = 1;
    CHECK_OK(tcuda_kernel_launch(step, &options, args, 2, NULL));
    CHECK_EQ(calls_of("cuLaunchKernelEx"), extended + 1);
    CHECK(calls_of("cuLaunchKernel") >= plain + 2);
    fetch(NULL);
    CHECK_EQ(host[0], 7 * (1 + 3 + 9));
    CHECK_EQ(host[1], 0);
}

/* ---- Limits ---- */

static void limits_are_those_of_the_code(void)
{
    tcuda_kernel *const bounded = compile("bounded"), *const step = compile("step");
    const uint64_t declared = 512 * sizeof(uint32_t);
    const uint64_t optin = device.shared_memory_per_block_optin_bytes;
    const int32_t capability = 10 * device.major + device.minor;
    tcuda_launch_options options = shape(1, 96);
    tcuda_kernel_info info = properties(bounded, &options, NULL);
    CHECK_EQ(info.static_shared_bytes, declared);
    CHECK_EQ(info.max_dynamic_shared_bytes, optin - declared);
    CHECK_EQ(info.max_threads_per_block, 96);
    CHECK(info.local_bytes >= 64 * sizeof(uint32_t) && info.local_bytes < 4096);
    CHECK(info.registers > 0 && info.registers <= 255);
    CHECK_EQ(info.binary_version, capability);
    CHECK(info.ptx_version >= 50 && info.ptx_version <= capability);
    CHECK(info.required_cluster[0] == 0 && info.max_active_clusters == 0);
    CHECK(has_clusters ? info.max_cluster_blocks >= 8 : info.max_cluster_blocks == 0);
    CHECK(info.suggested_block_threads > 0 && info.suggested_block_threads <= 96);
    /* By the threads of a multiprocessor. */
    const uint32_t multiprocessors = (uint32_t)device.multi_processor_count;
    const uint32_t threads = (uint32_t)device.max_threads_per_multi_processor;
    options.block[0] = 1024;
    info = properties(step, &options, NULL);
    CHECK_EQ(info.static_shared_bytes, 0);
    CHECK_EQ(info.max_threads_per_block, 1024);
    CHECK_EQ(info.max_blocks_per_multiprocessor, threads / 1024);
    CHECK_EQ(info.max_cooperative_blocks, (uint64_t)(threads / 1024) * multiprocessors);
    CHECK_EQ(info.suggested_grid_blocks * info.suggested_block_threads,
        threads / info.suggested_block_threads * info.suggested_block_threads * multiprocessors);
    /* By its shared memory, of which each block has a kibibyte besides. */
    options.block[0] = THREADS;
    options.shared_bytes = 60 << 10;
    const uint64_t room = device.shared_memory_per_multiprocessor_bytes;
    CHECK_EQ(properties(step, &options, NULL).max_blocks_per_multiprocessor,
        room / (options.shared_bytes + (device.major >= 8 ? 1024 : 0)));
    /* Blocks that are too large. */
    options.block[0] = 2048;
    CHECK_EQ(properties(step, &options, NULL).max_blocks_per_multiprocessor, 0);
    /* A struct of an older program. */
    memset(&info, 0x55, sizeof info);
    info.struct_size = offsetof(tcuda_kernel_info, ptx_version);
    CHECK_OK(tcuda_kernel_properties(bounded, NULL, NULL, &info));
    CHECK_EQ(info.static_shared_bytes, declared);
    CHECK_EQ(info.ptx_version, 0x55555555);
    CHECK_OK(tcuda_kernel_destroy(bounded));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_kernel_properties(bounded, NULL, NULL, &info));
    CHECK_OK(tcuda_kernel_destroy(step));
}

/* ---- Tools ---- */

static void the_sanitizer_sees_these_launches(tcuda_kernel *step)
{
    tcuda_stream *streams[2] = { NULL, NULL };
    const int32_t accesses[] = { TCUDA_ACCESS_READ_WRITE, TCUDA_ACCESS_NONE };
    tcuda_launch_options options = shape(2, THREADS);
    size_t reports = 0;
    uint32_t number = 1;
    void *const args[] = { &words, &number };
    options.accesses = accesses;
    options.programmatic = 1;
    if (has_clusters)
        options.cluster[0] = 2;
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_OK(tcuda_sanitizer_enable(NULL));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tcuda_stream_create(0, 0, &streams[i]));
        CHECK_OK(tcuda_kernel_launch(step, &options, args, 2, streams[i]));
        CHECK_OK(tcuda_sanitizer_report_count(&reports));
        CHECK_EQ(reports, i);
    }
    CHECK_OK(tcuda_sanitizer_disable());
    CHECK_OK(tcuda_device_synchronize(0));
    for (int i = 0; i < 2; i++)
        CHECK_OK(tcuda_stream_destroy(streams[i]));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    setenv("TCUDA_KERNEL_CACHE", "0", 1);
    device.struct_size = sizeof device;
    CHECK_OK(tcuda_device_properties(0, &device));
    has_clusters = device.major >= 9;
    CHECK_OK(tcuda_malloc(sizeof host, 0, NULL, (void **)&words));
    tcuda_kernel *const rounds = compile("rounds"), *const step = compile("step");
    clusters();
    all_blocks_meet(rounds, NULL, (uint32_t)device.multi_processor_count);
    if (has_clusters)
        all_clusters_meet(rounds);
    green_contexts_hold_fewer(rounds);
    captures_record_options(rounds, step);
    steps_come_one_after_another(step);
    other_options_are_checked(step);
    plain_launches_stay_plain(step);
    limits_are_those_of_the_code();
    the_sanitizer_sees_these_launches(step);
    CHECK_OK(tcuda_kernel_destroy(rounds));
    CHECK_OK(tcuda_kernel_destroy(step));
    CHECK_OK(tcuda_free(words));
    return finish();
}
