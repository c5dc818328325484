/* Green contexts: resources of a device and their splits, contexts and streams of a part of its
 * multiprocessors, and where kernels run. */
#include "driver_modules.h"

enum {
    CONTEXT_IS_DESTROYED = 709,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    INVALID_RESOURCE_TYPE = 914,
    INVALID_RESOURCE_CONFIGURATION = 915
};

/* CUdevResourceType, and flags of a split and of its groups */
enum { NOTHING = 0, SM = 1, WORKQUEUE_CONFIG = 1000, WORKQUEUE = 10000 };
enum { IGNORE_COSCHEDULING = 1, LARGEST_CLUSTER = 2 };
enum { BACKFILL = 1, OF_DOMAIN = 2 };

/* CUdevResource */
struct resource {
    int type;
    unsigned char padding[92];
    union {
        struct {
            unsigned int count, least, multiple, flags, domain;
        } sm;
        struct {
            int device;
            unsigned int limit;
            int scope;
        } queue;
        unsigned char bytes[40];
    } of;
    struct resource *next;
};

/* CU_DEV_SM_RESOURCE_GROUP_PARAMS */
struct group {
    unsigned int count, coscheduled, preferred, flags, domain, reserved[11];
};

#define FUNCTIONS(F) \
    F(device_resource, "cuDeviceGetDevResource", (int device, struct resource *of, int type)) \
    F(context_resource, "cuCtxGetDevResource", (handle context, struct resource *of, int type)) \
    F(green_resource, "cuGreenCtxGetDevResource", (handle green, struct resource *of, int type)) \
    F(split_by_count, "cuDevSmResourceSplitByCount", \
        (struct resource *groups, unsigned int *number, const struct resource *input, \
            struct resource *rest, unsigned int flags, unsigned int least)) \
    F(describe, "cuDevResourceGenerateDesc", \
        (handle *description, struct resource *resources, unsigned int number)) \
    F(create_green, "cuGreenCtxCreate", \
        (handle *green, handle description, int device, unsigned int flags)) \
    F(destroy_green, "cuGreenCtxDestroy", (handle green)) \
    F(context_of_green, "cuCtxFromGreenCtx", (handle *context, handle green)) \
    F(record_green, "cuGreenCtxRecordEvent", (handle green, handle event)) \
    F(wait_green, "cuGreenCtxWaitEvent", (handle green, handle event)) \
    F(create_in, "cuGreenCtxStreamCreate", \
        (handle *stream, handle green, unsigned int flags, int priority)) \
    F(green_of, "cuStreamGetGreenCtx", (handle stream, handle *green)) \
    F(context_of, "cuStreamGetCtx", (handle stream, handle *context)) \
    F(both_of, "cuStreamGetCtx_v2", (handle stream, handle *context, handle *green)) \
    F(retain, "cuDevicePrimaryCtxRetain", (handle *context, int device)) \
    F(release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    F(reset, "cuDevicePrimaryCtxReset_v2", (int device)) \
    F(state_of, "cuDevicePrimaryCtxGetState", (int device, unsigned int *flags, int *active)) \
    F(set_current, "cuCtxSetCurrent", (handle context)) \
    F(get_current, "cuCtxGetCurrent", (handle *context)) \
    F(push, "cuCtxPushCurrent_v2", (handle context)) \
    F(pop, "cuCtxPopCurrent_v2", (handle *context)) \
    F(destroy_context, "cuCtxDestroy_v2", (handle context)) \
    F(current_device, "cuCtxGetDevice", (int *device)) \
    F(id_of_context, "cuCtxGetId", (handle context, uint64_t *id)) \
    F(api_version, "cuCtxGetApiVersion", (handle context, unsigned int *version)) \
    F(flags_of_context, "cuCtxGetFlags", (unsigned int *flags)) \
    F(create_stream, "cuStreamCreate", (handle *stream, unsigned int flags)) \
    F(destroy_stream, "cuStreamDestroy_v2", (handle stream)) \
    F(synchronize_stream, "cuStreamSynchronize", (handle stream)) \
    F(query_stream, "cuStreamQuery", (handle stream)) \
    F(flags_of, "cuStreamGetFlags", (handle stream, unsigned int *flags)) \
    F(priority_of, "cuStreamGetPriority", (handle stream, int *priority)) \
    F(id_of, "cuStreamGetId", (handle stream, uint64_t *id)) \
    F(device_of, "cuStreamGetDevice", (handle stream, int *device)) \
    F(copy_attributes, "cuStreamCopyAttributes", (handle to, handle from)) \
    F(capturing, "cuStreamIsCapturing", (handle stream, int *status)) \
    F(begin, "cuStreamBeginCapture_v2", (handle stream, int mode)) \
    F(end, "cuStreamEndCapture", (handle stream, handle *graph)) \
    F(instantiate, "cuGraphInstantiateWithFlags", \
        (handle *exec, handle graph, unsigned long long flags)) \
    F(launch_graph, "cuGraphLaunch", (handle exec, handle stream)) \
    F(destroy_exec, "cuGraphExecDestroy", (handle exec)) \
    F(destroy_graph, "cuGraphDestroy", (handle graph)) \
    F(create_event, "cuEventCreate", (handle *event, unsigned int flags)) \
    F(destroy_event, "cuEventDestroy_v2", (handle event)) \
    F(record, "cuEventRecord", (handle event, handle stream)) \
    F(wait_event, "cuStreamWaitEvent", (handle stream, handle event, unsigned int flags)) \
    F(synchronize_event, "cuEventSynchronize", (handle event)) \
    F(free_memory, "cuMemFree_v2", (address ptr)) \
    F(to_host, "cuMemcpyDtoH_v2", (void *dst, address src, size_t bytes)) \
    F(pointer_attribute, "cuPointerGetAttribute", (void *data, int attribute, address ptr)) \
    F(load, "cuModuleLoadData", (handle *module, const void *image)) \
    F(unload, "cuModuleUnload", (handle module)) \
    F(function_of, "cuModuleGetFunction", (handle *function, handle module, const char *name)) \
    F(launch_together, "cuLaunchCooperativeKernel", \
        (handle function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
            unsigned int block_x, unsigned int block_y, unsigned int block_z, \
            unsigned int shared, handle stream, void **parameters)) \
    F(most_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor", \
        (int *blocks, handle function, int threads, size_t shared)) \
    F(error_name, "cuGetErrorName", (int status, const char **text)) \
    F(error_text, "cuGetErrorString", (int status, const char **text))

FUNCTIONS(DECLARE)

/* Of newer drivers; NULL if there is none. */
static int (*id_of_green)(handle green, uint64_t *id);
static int (*stream_resource)(handle stream, struct resource *of, int type);
static int (*split)(struct resource *groups, unsigned int number, const struct resource *input,
    struct resource *rest, unsigned int flags, struct group *wanted);

/* where(to): to[block] = its multiprocessor. */
static const char where[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry where(.param .u64 to)\n"
                            "{\n"
                            ".reg .b64 %a<2>;\n.reg .b32 %r<2>;\n"
                            "ld.param.u64 %a0, [to];\ncvta.to.global.u64 %a0, %a0;\n"
                            "mov.u32 %r0, %ctaid.x;\nmul.wide.u32 %a1, %r0, 4;\n"
                            "add.s64 %a0, %a0, %a1;\n"
                            "mov.u32 %r1, %smid;\nst.global.u32 [%a0], %r1;\nret;\n"
                            "}\n";

enum { BLOCKS = 1024, MOST = 1024 };

/* A set of multiprocessors. */
struct set {
    unsigned char has[MOST];
};

static handle primary;
static handle function;
static address room;
static struct resource whole;
/* How the device is split: the smallest group and its multiple. */
static unsigned int least, multiple;

static unsigned int rounded_up(unsigned int count)
{
    const unsigned int wanted = count > least ? count : least;
    const unsigned int size = (wanted + multiple - 1) / multiple * multiple;
    return size > whole.of.sm.count ? whole.of.sm.count : size;
}

static int launch_on(handle stream, address to)
{
    void *parameters[] = {&to};
    return cuda_launch(function, BLOCKS, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

/* The multiprocessors that a launch has used. */
static struct set used(address to)
{
    static uint32_t numbers[BLOCKS];
    struct set set;
    memset(&set, 0, sizeof set);
    CHECK_EQ(to_host(numbers, to, sizeof numbers), SUCCESS);
    for (int block = 0; block < BLOCKS; block++) {
        CHECK(numbers[block] < MOST);
        set.has[numbers[block]] = 1;
    }
    return set;
}

static unsigned int count_of(const struct set *set)
{
    unsigned int count = 0;
    for (int number = 0; number < MOST; number++)
        count += set->has[number];
    return count;
}

static unsigned int common(const struct set *one, const struct set *other)
{
    unsigned int count = 0;
    for (int number = 0; number < MOST; number++)
        count += one->has[number] & other->has[number];
    return count;
}

/* Where a kernel on a stream runs. */
static struct set place_of(handle stream)
{
    CHECK_EQ(launch_on(stream, room), SUCCESS);
    CHECK_EQ(synchronize_stream(stream), SUCCESS);
    return used(room);
}

static void resources(void)
{
    const int others[] = {-1, NOTHING, 2, 999, 1001};
    struct resource found;
    int count = 0, active = 1;
    unsigned int flags = 0;
    CHECK_EQ(cuda_device_attribute(&count, 16, 0), SUCCESS);
    CHECK_EQ(device_resource(0, &whole, SM), SUCCESS);
    CHECK_EQ(state_of(0, &flags, &active), SUCCESS);
    CHECK_EQ(active, 0);
    CHECK_EQ(whole.type, SM);
    CHECK_EQ(whole.of.sm.count, (unsigned int)count);
    CHECK(whole.next == NULL);
    least = whole.of.sm.least;
    multiple = whole.of.sm.multiple;
    CHECK(least >= 2 && multiple >= 2);
    CHECK_EQ(device_resource(0, NULL, SM), INVALID_VALUE);
    CHECK_EQ(device_resource(1000, &found, SM), INVALID_DEVICE);
    CHECK_EQ(device_resource(-1, &found, SM), INVALID_DEVICE);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CHECK_EQ(device_resource(0, &found, others[i]), INVALID_RESOURCE_TYPE);

    const char *text = NULL;
    CHECK_EQ(error_name(INVALID_RESOURCE_TYPE, &text), SUCCESS);
    CHECK(strcmp(text, "CUDA_ERROR_INVALID_RESOURCE_TYPE") == 0);
    CHECK_EQ(error_text(INVALID_RESOURCE_CONFIGURATION, &text), SUCCESS);
    CHECK(strstr(text, "resources are insufficient") != NULL);
}

static void counts(void)
{
    const unsigned int all = whole.of.sm.count;
    struct resource groups[64], rest;
    for (unsigned int wanted = 0; wanted <= all; wanted += wanted < 20 ? 1 : 13) {
        unsigned int number = 77, made = 2;
        CHECK_EQ(split_by_count(NULL, &number, &whole, NULL, 0, wanted), SUCCESS);
        /* A GPU may have fewer small groups than fit. */
        CHECK(number >= 1 && number <= all / rounded_up(wanted));
        CHECK_EQ(split_by_count(groups, &made, &whole, &rest, 0, wanted), SUCCESS);
        CHECK_EQ(made, number < 2 ? number : 2);
        for (unsigned int i = 0; i < made; i++) {
            CHECK_EQ(groups[i].type, SM);
            CHECK_EQ(groups[i].of.sm.count, rounded_up(wanted));
        }
        const unsigned int left = all - made * rounded_up(wanted);
        CHECK_EQ(rest.type, left == 0 ? NOTHING : SM);
        CHECK_EQ(rest.of.sm.count, left);
    }
    unsigned int number = 0;
    CHECK_EQ(split_by_count(NULL, &number, &whole, NULL, IGNORE_COSCHEDULING, 1), SUCCESS);
    CHECK_EQ(number, all / 2);
    CHECK_EQ(split_by_count(NULL, &number, &whole, NULL, IGNORE_COSCHEDULING, 3), SUCCESS);
    CHECK_EQ(number, all / 4);
    number = 1;
    CHECK_EQ(split_by_count(groups, &number, &whole, NULL, LARGEST_CLUSTER, 9), SUCCESS);
    CHECK_EQ(groups[0].of.sm.count, rounded_up(9));
    CHECK_EQ(split_by_count(groups, &number, &whole, NULL, 4, 8), SUCCESS);
    CHECK_EQ(number, 1);
}

static void wrong_splits(void)
{
    const unsigned int all = whole.of.sm.count;
    struct resource group, other, rest, changed = whole, nothing;
    unsigned int number = 1;
    memset(&nothing, 0, sizeof nothing);
    CHECK_EQ(split_by_count(&group, NULL, &whole, NULL, 0, 8), INVALID_VALUE);
    CHECK_EQ(split_by_count(&group, &number, NULL, NULL, 0, 8), INVALID_VALUE);
    CHECK_EQ(split_by_count(&group, &number, &whole, NULL, 3, 8), INVALID_VALUE);
    CHECK_EQ(split_by_count(&group, &number, &whole, NULL, 0, all + 1),
        INVALID_RESOURCE_CONFIGURATION);
    CHECK_EQ(split_by_count(&group, &number, &nothing, NULL, 0, 8), INVALID_RESOURCE_TYPE);
    number = 0;
    CHECK_EQ(split_by_count(&group, &number, &whole, NULL, 0, 8), INVALID_VALUE);
    changed.of.sm.count -= 2;
    number = 1;
    CHECK_EQ(split_by_count(&group, &number, &changed, NULL, 0, 8),
        INVALID_RESOURCE_CONFIGURATION);

    /* Groups cannot be split again. */
    CHECK_EQ(split_by_count(&group, &number, &whole, &rest, 0, 16), SUCCESS);
    CHECK_EQ(number, 1);
    CHECK_EQ(split_by_count(&other, &number, &group, NULL, 0, 8), INVALID_RESOURCE_CONFIGURATION);
    CHECK_EQ(split_by_count(NULL, &number, &group, NULL, 0, 8), INVALID_RESOURCE_CONFIGURATION);
    CHECK_EQ(split_by_count(&other, &number, &rest, NULL, 0, 8), INVALID_RESOURCE_CONFIGURATION);
}

static handle described(struct resource *resources, unsigned int number)
{
    handle description = NULL;
    CHECK_EQ(describe(&description, resources, number), SUCCESS);
    CHECK(description != NULL);
    return description;
}

static void descriptions(void)
{
    struct resource parts[2], groups[2], changed, rest;
    handle description = NULL;
    unsigned int number = 2;
    CHECK_EQ(split_by_count(groups, &number, &whole, &rest, 0, 16), SUCCESS);
    described(&whole, 1);
    described(groups, 2);
    /* They may overlap. */
    parts[0] = parts[1] = groups[0];
    described(parts, 2);
    parts[1] = whole;
    described(parts, 2);
    changed = groups[0];
    changed.of.sm.count = 6;
    CHECK_EQ(describe(&description, &changed, 1), INVALID_RESOURCE_CONFIGURATION);
    changed = groups[0];
    changed.type = NOTHING;
    CHECK_EQ(describe(&description, &changed, 1), INVALID_RESOURCE_TYPE);
    CHECK_EQ(describe(NULL, &whole, 1), INVALID_VALUE);
    CHECK_EQ(describe(&description, NULL, 1), INVALID_VALUE);
}

static handle green_with(struct resource *resources, unsigned int number)
{
    handle green = NULL;
    CHECK_EQ(create_green(&green, described(resources, number), 0, 1), SUCCESS);
    return green;
}

/* Two green contexts of 16 multiprocessors. */
static void two_greens(handle greens[2])
{
    struct resource groups[2];
    unsigned int number = 2;
    CHECK_EQ(split_by_count(groups, &number, &whole, NULL, 0, 16), SUCCESS);
    CHECK_EQ(number, 2);
    greens[0] = green_with(&groups[0], 1);
    greens[1] = green_with(&groups[1], 1);
}

static void creation(void)
{
    unsigned int flags = 0;
    int active = 9;
    handle green = NULL, context = NULL;
    for (unsigned int wrong = 0; wrong < 5; wrong += wrong == 0 ? 2 : 1)
        CHECK_EQ(create_green(&green, NULL, 0, wrong), INVALID_VALUE);
    CHECK_EQ(create_green(NULL, NULL, 0, 1), INVALID_VALUE);
    CHECK_EQ(create_green(&green, NULL, 1000, 1), INVALID_DEVICE);
    CHECK_EQ(state_of(0, &flags, &active), SUCCESS);
    CHECK_EQ(active, 0);
    /* Without a description it has the whole device. It keeps the primary context active. */
    CHECK_EQ(create_green(&green, NULL, 0, 1), SUCCESS);
    CHECK_EQ(state_of(0, &flags, &active), SUCCESS);
    CHECK_EQ(active, 1);
    CHECK_EQ(get_current(&context), SUCCESS);
    CHECK(context == NULL);
    struct resource found;
    CHECK_EQ(green_resource(green, &found, SM), SUCCESS);
    CHECK_EQ(found.of.sm.count, whole.of.sm.count);
    CHECK_EQ(destroy_green(green), SUCCESS);
    CHECK_EQ(state_of(0, &flags, &active), SUCCESS);
    CHECK_EQ(active, 0);
}

static void resources_of_greens(void)
{
    struct resource found, part, rest;
    unsigned int number = 1;
    CHECK_EQ(split_by_count(&part, &number, &whole, &rest, 0, 16), SUCCESS);
    const handle green = green_with(&part, 1), other = green_with(&rest, 1);
    handle context = NULL, again = NULL;
    CHECK_EQ(context_of_green(&context, green), SUCCESS);
    CHECK_EQ(context_of_green(&again, green), SUCCESS);
    CHECK(context == again && context != primary && context != NULL);
    CHECK_EQ(context_of_green(NULL, green), INVALID_VALUE);
    CHECK_EQ(context_of_green(&context, NULL), INVALID_CONTEXT);
    CHECK(context == again);

    CHECK_EQ(green_resource(green, &found, SM), SUCCESS);
    CHECK_EQ(found.type, SM);
    CHECK_EQ(found.of.sm.count, part.of.sm.count);
    CHECK_EQ(found.of.sm.least, least);
    CHECK_EQ(found.of.sm.multiple, multiple);
    CHECK_EQ(green_resource(green, NULL, SM), INVALID_VALUE);
    CHECK_EQ(green_resource(green, &found, NOTHING), INVALID_RESOURCE_TYPE);
    CHECK_EQ(green_resource(NULL, &found, SM), INVALID_CONTEXT);
    /* What a green context has can be split again. */
    struct resource halves[2];
    CHECK_EQ(green_resource(green, &found, SM), SUCCESS);
    number = 2;
    CHECK_EQ(split_by_count(halves, &number, &found, NULL, 0, 8), SUCCESS);
    CHECK_EQ(number, 2);
    CHECK_EQ(halves[1].of.sm.count, 8);
    CHECK_EQ(green_resource(other, &found, SM), SUCCESS);
    CHECK_EQ(found.of.sm.count, rest.of.sm.count);
    CHECK_EQ(found.of.sm.least, 2);
    CHECK_EQ(found.of.sm.multiple, 2);

    CHECK_EQ(context_resource(context, &found, SM), SUCCESS);
    CHECK_EQ(found.of.sm.count, part.of.sm.count);
    CHECK_EQ(context_resource(primary, &found, SM), SUCCESS);
    CHECK_EQ(found.of.sm.count, whole.of.sm.count);
    CHECK_EQ(context_resource(NULL, &found, SM), INVALID_CONTEXT);
    CHECK_EQ(context_resource(context, &found, NOTHING), INVALID_RESOURCE_TYPE);
    CHECK_EQ(destroy_context(context), INVALID_CONTEXT);
    CHECK_EQ(destroy_green(other), SUCCESS);
    CHECK_EQ(destroy_green(green), SUCCESS);
}

static void identity(void)
{
    handle greens[2], context = NULL;
    uint64_t id = 0, of_green = 0, of_other = 0, of_primary = 0;
    two_greens(greens);
    CHECK_EQ(context_of_green(&context, greens[0]), SUCCESS);
    CHECK_EQ(id_of_context(context, &id), SUCCESS);
    CHECK_EQ(id_of_context(primary, &of_primary), SUCCESS);
    CHECK(id != of_primary);
    if (id_of_green != NULL) {
        CHECK_EQ(id_of_green(greens[0], &of_green), SUCCESS);
        CHECK_EQ(id_of_green(greens[1], &of_other), SUCCESS);
        CHECK(of_green == id && of_other != id && of_other != of_primary);
        CHECK_EQ(id_of_green(greens[0], NULL), INVALID_VALUE);
        CHECK_EQ(id_of_green(NULL, NULL), INVALID_VALUE);
        CHECK_EQ(id_of_green(NULL, &of_green), INVALID_CONTEXT);
        CHECK_EQ(push(context), SUCCESS);
        CHECK_EQ(id_of_green(NULL, &of_green), SUCCESS);
        CHECK(of_green == id);
        CHECK_EQ(id_of_context(NULL, &of_green), SUCCESS);
        CHECK(of_green == id);
        CHECK_EQ(pop(NULL), SUCCESS);
    }
    CHECK_EQ(destroy_green(greens[0]), SUCCESS);
    CHECK_EQ(destroy_green(greens[1]), SUCCESS);
}

/* A stream of a green context, whichever context was current. */
static void is_of(handle stream, handle green)
{
    handle context = NULL, of_green = NULL, found = NULL;
    unsigned int flags = 0;
    int device = 9;
    CHECK_EQ(context_of_green(&of_green, green), SUCCESS);
    CHECK_EQ(green_of(stream, &found), SUCCESS);
    CHECK(found == green);
    CHECK_EQ(context_of(stream, &context), SUCCESS);
    CHECK(context == of_green);
    CHECK_EQ(both_of(stream, &context, &found), SUCCESS);
    CHECK(context == primary && found == green);
    CHECK_EQ(flags_of(stream, &flags), SUCCESS);
    CHECK_EQ(flags, 1);
    CHECK_EQ(device_of(stream, &device), SUCCESS);
    CHECK_EQ(device, 0);
    if (stream_resource != NULL) {
        struct resource found_resource;
        CHECK_EQ(stream_resource(stream, &found_resource, SM), SUCCESS);
        CHECK_EQ(found_resource.of.sm.count, rounded_up(16));
        CHECK_EQ(stream_resource(stream, &found_resource, WORKQUEUE), INVALID_RESOURCE_TYPE);
        CHECK_EQ(stream_resource(stream, NULL, SM), INVALID_VALUE);
    }
}

static void streams(void)
{
    handle greens[2], stream = NULL, other = NULL, plain = NULL, context = NULL, found = NULL;
    int priority = 9;
    two_greens(greens);
    CHECK_EQ(create_in(&stream, greens[0], 0, 0), INVALID_VALUE);
    CHECK_EQ(create_in(&stream, greens[0], 2, 0), INVALID_VALUE);
    CHECK_EQ(create_in(NULL, greens[0], 1, 0), INVALID_VALUE);
    CHECK_EQ(create_in(&stream, NULL, 1, 0), INVALID_CONTEXT);
    CHECK_EQ(create_in(&stream, greens[0], 1, 0), SUCCESS);
    CHECK_EQ(create_in(&other, greens[1], 1, -7), SUCCESS);
    CHECK_EQ(priority_of(other, &priority), SUCCESS);
    CHECK_EQ(priority, -5);
    is_of(stream, greens[0]);
    is_of(other, greens[1]);
    CHECK_EQ(green_of(stream, NULL), INVALID_VALUE);
    CHECK_EQ(green_of(NULL, &found), SUCCESS);
    CHECK(found == NULL);
    CHECK_EQ(create_stream(&plain, 1), SUCCESS);
    CHECK_EQ(green_of(plain, &found), SUCCESS);
    CHECK(found == NULL);
    CHECK_EQ(copy_attributes(stream, plain), INVALID_VALUE);
    CHECK_EQ(copy_attributes(stream, other), INVALID_VALUE);

    CHECK_EQ(context_of_green(&context, greens[0]), SUCCESS);
    CHECK_EQ(push(context), SUCCESS);
    CHECK_EQ(get_current(&found), SUCCESS);
    CHECK(found == context);
    is_of(NULL, greens[0]);
    is_of((handle)1, greens[0]); /* CU_STREAM_LEGACY */
    /* A green context has no default streams of threads. */
    CHECK_EQ(green_of((handle)2, &found), INVALID_HANDLE);
    for (unsigned int flags = 0; flags < 2; flags++) {
        handle made = NULL;
        CHECK_EQ(create_stream(&made, flags), SUCCESS);
        is_of(made, greens[0]);
        CHECK_EQ(destroy_stream(made), SUCCESS);
    }
    is_of(other, greens[1]);
    CHECK_EQ(pop(&found), SUCCESS);
    CHECK(found == context);
    CHECK_EQ(destroy_stream(plain), SUCCESS);
    CHECK_EQ(destroy_stream(other), SUCCESS);
    CHECK_EQ(destroy_stream(stream), SUCCESS);
    CHECK_EQ(destroy_green(greens[0]), SUCCESS);
    CHECK_EQ(destroy_green(greens[1]), SUCCESS);
}

/* Everything but streams belongs to the primary context. */
static void other_objects(void)
{
    handle greens[2], context = NULL, owner = NULL, event = NULL, module = NULL, stream = NULL;
    address memory = 0;
    unsigned int number = 9, of_primary = 9;
    int device = 9;
    two_greens(greens);
    CHECK_EQ(context_of_green(&context, greens[0]), SUCCESS);
    CHECK_EQ(flags_of_context(&of_primary), SUCCESS);
    CHECK_EQ(push(context), SUCCESS);
    CHECK_EQ(flags_of_context(&number), SUCCESS);
    CHECK_EQ(number, of_primary);
    CHECK_EQ(api_version(context, &number), SUCCESS);
    CHECK_EQ(number, 3020);
    CHECK_EQ(current_device(&device), SUCCESS);
    CHECK_EQ(device, 0);
    CHECK_EQ(cuda_allocate(&memory, 4096), SUCCESS);
    CHECK_EQ(pointer_attribute(&owner, 1, memory), SUCCESS);
    CHECK(owner == primary);
    CHECK_EQ(create_event(&event, 2), SUCCESS);
    CHECK_EQ(load(&module, where), SUCCESS);
    CHECK_EQ(pop(NULL), SUCCESS);

    CHECK_EQ(create_in(&stream, greens[1], 1, 0), SUCCESS);
    CHECK_EQ(record(event, stream), SUCCESS);
    CHECK_EQ(record(event, NULL), SUCCESS);
    CHECK_EQ(wait_event(stream, event, 0), SUCCESS);
    CHECK_EQ(synchronize_event(event), SUCCESS);
    CHECK_EQ(destroy_green(greens[0]), SUCCESS);
    CHECK_EQ(unload(module), SUCCESS);
    CHECK_EQ(free_memory(memory), SUCCESS);
    CHECK_EQ(destroy_event(event), SUCCESS);
    CHECK_EQ(destroy_stream(stream), SUCCESS);
    CHECK_EQ(destroy_green(greens[1]), SUCCESS);
}

static void kernels_run_in_parts(void)
{
    handle greens[2], first = NULL, second = NULL, plain = NULL, context = NULL;
    two_greens(greens);
    CHECK_EQ(create_in(&first, greens[0], 1, 0), SUCCESS);
    CHECK_EQ(create_in(&second, greens[1], 1, 0), SUCCESS);
    CHECK_EQ(create_stream(&plain, 1), SUCCESS);
    const struct set one = place_of(first), two = place_of(second), all = place_of(plain);
    CHECK(count_of(&one) <= rounded_up(16) && count_of(&two) <= rounded_up(16));
    CHECK_EQ(common(&one, &two), 0);
    CHECK(count_of(&all) > rounded_up(16));
    /* It depends on the stream, not on the current context. */
    CHECK_EQ(context_of_green(&context, greens[0]), SUCCESS);
    CHECK_EQ(push(context), SUCCESS);
    struct set found = place_of(NULL);
    CHECK_EQ(common(&found, &two), 0);
    found = place_of(second);
    CHECK_EQ(common(&found, &one), 0);
    found = place_of(plain);
    CHECK(count_of(&found) > rounded_up(16));
    CHECK_EQ(pop(NULL), SUCCESS);

    /* Blocks of a cooperative kernel are all resident in the part. */
    int most = 0;
    address to = room;
    void *parameters[] = {&to};
    CHECK_EQ(most_blocks(&most, function, 1, 0), SUCCESS);
    const unsigned int fit = (unsigned int)most * rounded_up(16);
    CHECK_EQ(launch_together(function, fit, 1, 1, 1, 1, 1, 0, first, parameters), SUCCESS);
    CHECK_EQ(launch_together(function, fit + 1, 1, 1, 1, 1, 1, 0, first, parameters),
        COOPERATIVE_LAUNCH_TOO_LARGE);
    CHECK_EQ(launch_together(function, fit + 1, 1, 1, 1, 1, 1, 0, plain, parameters), SUCCESS);
    CHECK_EQ(cuda_synchronize(), SUCCESS);
    CHECK_EQ(destroy_stream(plain), SUCCESS);
    CHECK_EQ(destroy_stream(second), SUCCESS);
    CHECK_EQ(destroy_stream(first), SUCCESS);
    CHECK_EQ(destroy_green(greens[0]), SUCCESS);
    CHECK_EQ(destroy_green(greens[1]), SUCCESS);
}

/* Launches a graph on a stream. */
static struct set replayed(handle graph, handle stream)
{
    handle exec = NULL;
    CHECK_EQ(instantiate(&exec, graph, 0), SUCCESS);
    CHECK_EQ(launch_graph(exec, stream), SUCCESS);
    CHECK_EQ(synchronize_stream(stream), SUCCESS);
    CHECK_EQ(destroy_exec(exec), SUCCESS);
    return used(room);
}

static void captures(void)
{
    enum { RELAXED = 2 };
    handle greens[2], first = NULL, second = NULL, plain = NULL, graph = NULL, event = NULL;
    int status = 9;
    two_greens(greens);
    CHECK_EQ(create_in(&first, greens[0], 1, 0), SUCCESS);
    CHECK_EQ(create_in(&second, greens[1], 1, 0), SUCCESS);
    CHECK_EQ(create_stream(&plain, 1), SUCCESS);
    CHECK_EQ(create_event(&event, 2), SUCCESS);
    const struct set one = place_of(first), two = place_of(second);

    /* A kernel's node keeps the part of its stream. */
    CHECK_EQ(begin(first, RELAXED), SUCCESS);
    CHECK_EQ(launch_on(first, room), SUCCESS);
    CHECK_EQ(end(first, &graph), SUCCESS);
    const handle on[] = {first, second, plain};
    for (int i = 0; i < 3; i++) {
        const struct set found = replayed(graph, on[i]);
        CHECK_EQ(common(&found, &two), 0);
        CHECK(count_of(&found) <= rounded_up(16));
    }
    CHECK_EQ(destroy_graph(graph), SUCCESS);
    CHECK_EQ(begin(plain, RELAXED), SUCCESS);
    CHECK_EQ(launch_on(plain, room), SUCCESS);
    CHECK_EQ(end(plain, &graph), SUCCESS);
    struct set found = replayed(graph, first);
    CHECK(count_of(&found) > rounded_up(16));
    CHECK_EQ(destroy_graph(graph), SUCCESS);

    /* A green stream joins the capture of another. */
    const address behind = room + BLOCKS * 4;
    CHECK_EQ(begin(plain, RELAXED), SUCCESS);
    CHECK_EQ(launch_on(plain, room), SUCCESS);
    CHECK_EQ(record(event, plain), SUCCESS);
    CHECK_EQ(wait_event(second, event, 0), SUCCESS);
    CHECK_EQ(launch_on(second, behind), SUCCESS);
    CHECK_EQ(record(event, second), SUCCESS);
    CHECK_EQ(wait_event(plain, event, 0), SUCCESS);
    CHECK_EQ(end(plain, &graph), SUCCESS);
    found = replayed(graph, plain);
    CHECK(count_of(&found) > rounded_up(16));
    found = used(behind);
    CHECK_EQ(common(&found, &one), 0);
    CHECK(count_of(&found) <= rounded_up(16));
    CHECK_EQ(destroy_graph(graph), SUCCESS);

    /* Waits for a green context concern the captures of its own streams only. */
    CHECK_EQ(begin(first, RELAXED), SUCCESS);
    CHECK_EQ(record_green(greens[1], event), SUCCESS);
    CHECK_EQ(cuda_synchronize(), SUCCESS);
    CHECK_EQ(capturing(first, &status), SUCCESS);
    CHECK_EQ(status, 1);
    CHECK_EQ(record_green(greens[0], event), STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(end(first, &graph), STREAM_CAPTURE_INVALIDATED);
    CHECK_EQ(begin(first, RELAXED), SUCCESS);
    CHECK_EQ(wait_green(greens[1], event), SUCCESS);
    CHECK_EQ(wait_green(greens[0], event), STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(end(first, &graph), STREAM_CAPTURE_INVALIDATED);
    CHECK_EQ(begin(plain, RELAXED), SUCCESS);
    CHECK_EQ(record_green(greens[0], event), SUCCESS);
    CHECK_EQ(cuda_synchronize(), STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(end(plain, &graph), STREAM_CAPTURE_INVALIDATED);

    CHECK_EQ(destroy_event(event), SUCCESS);
    CHECK_EQ(destroy_stream(plain), SUCCESS);
    CHECK_EQ(destroy_stream(second), SUCCESS);
    CHECK_EQ(destroy_stream(first), SUCCESS);
    CHECK_EQ(destroy_green(greens[0]), SUCCESS);
    CHECK_EQ(destroy_green(greens[1]), SUCCESS);
}

static void events(void)
{
    handle greens[2], first = NULL, second = NULL, event = NULL;
    two_greens(greens);
    CHECK_EQ(create_in(&first, greens[0], 1, 0), SUCCESS);
    CHECK_EQ(create_in(&second, greens[1], 1, 0), SUCCESS);
    CHECK_EQ(create_event(&event, 2), SUCCESS);
    CHECK_EQ(launch_on(first, room), SUCCESS);
    CHECK_EQ(record_green(greens[0], event), SUCCESS);
    CHECK_EQ(wait_green(greens[1], event), SUCCESS);
    CHECK_EQ(cuda_copy(room + BLOCKS * 4, room, BLOCKS * 4, second), SUCCESS);
    CHECK_EQ(synchronize_stream(second), SUCCESS);
    const struct set one = used(room), copy = used(room + BLOCKS * 4);
    CHECK(memcmp(&one, &copy, sizeof one) == 0);
    CHECK_EQ(record_green(NULL, event), INVALID_CONTEXT);
    CHECK_EQ(record_green(greens[0], NULL), INVALID_HANDLE);
    CHECK_EQ(wait_green(NULL, event), INVALID_CONTEXT);
    CHECK_EQ(wait_green(greens[0], NULL), INVALID_HANDLE);
    CHECK_EQ(destroy_event(event), SUCCESS);
    CHECK_EQ(destroy_stream(second), SUCCESS);
    CHECK_EQ(destroy_stream(first), SUCCESS);
    CHECK_EQ(destroy_green(greens[0]), SUCCESS);
    CHECK_EQ(destroy_green(greens[1]), SUCCESS);
}

static void destroyed_while_busy(void)
{
    handle greens[2], stream = NULL, event = NULL, context = NULL, found = NULL, graph = NULL;
    unsigned int flags = 0;
    int number = 0;
    uint64_t id = 0;
    two_greens(greens);
    CHECK_EQ(create_in(&stream, greens[0], 1, 0), SUCCESS);
    CHECK_EQ(create_event(&event, 2), SUCCESS);
    const struct set one = place_of(stream);
    CHECK_EQ(launch_on(stream, room + BLOCKS * 4), SUCCESS);
    CHECK_EQ(context_of_green(&context, greens[0]), SUCCESS);
    CHECK_EQ(destroy_green(greens[0]), SUCCESS);
    /* Its work is done, and the primary context waits for it. */
    CHECK_EQ(cuda_synchronize(), SUCCESS);
    const struct set last = used(room + BLOCKS * 4);
    CHECK(common(&last, &one) > 0);

    CHECK_EQ(query_stream(stream), CONTEXT_IS_DESTROYED);
    CHECK_EQ(synchronize_stream(stream), CONTEXT_IS_DESTROYED);
    CHECK_EQ(launch_on(stream, room), CONTEXT_IS_DESTROYED);
    CHECK_EQ(green_of(stream, &found), CONTEXT_IS_DESTROYED);
    CHECK_EQ(context_of(stream, &found), CONTEXT_IS_DESTROYED);
    CHECK_EQ(id_of(stream, &id), CONTEXT_IS_DESTROYED);
    CHECK_EQ(capturing(stream, &number), CONTEXT_IS_DESTROYED);
    CHECK_EQ(record(event, stream), CONTEXT_IS_DESTROYED);
    CHECK_EQ(wait_event(stream, event, 0), CONTEXT_IS_DESTROYED);
    CHECK_EQ(flags_of(stream, &flags), CONTEXT_IS_DESTROYED);
    CHECK_EQ(priority_of(stream, &number), CONTEXT_IS_DESTROYED);
    CHECK_EQ(destroy_stream(stream), CONTEXT_IS_DESTROYED);
    CHECK_EQ(destroy_green(greens[0]), CONTEXT_IS_DESTROYED);
    CHECK_EQ(destroy_green(NULL), INVALID_CONTEXT);
    struct resource resource;
    CHECK_EQ(green_resource(greens[0], &resource, SM), CONTEXT_IS_DESTROYED);
    CHECK_EQ(create_in(&stream, greens[0], 1, 0), CONTEXT_IS_DESTROYED);
    CHECK_EQ(push(context), SUCCESS);
    CHECK_EQ(cuda_synchronize(), CONTEXT_IS_DESTROYED);
    CHECK_EQ(pop(&found), SUCCESS);
    CHECK(found == context);

    /* The current one, which is captured. */
    CHECK_EQ(context_of_green(&context, greens[1]), SUCCESS);
    CHECK_EQ(push(context), SUCCESS);
    CHECK_EQ(create_stream(&stream, 1), SUCCESS);
    CHECK_EQ(begin(stream, 2), SUCCESS);
    CHECK_EQ(destroy_green(greens[1]), SUCCESS);
    CHECK_EQ(end(stream, &graph), CONTEXT_IS_DESTROYED);
    CHECK_EQ(get_current(&found), SUCCESS);
    CHECK(found == context);
    CHECK_EQ(cuda_synchronize(), CONTEXT_IS_DESTROYED);
    CHECK_EQ(current_device(&number), SUCCESS);
    CHECK_EQ(number, 0);
    CHECK_EQ(pop(&found), SUCCESS);
    CHECK(found == context);
    CHECK_EQ(get_current(&found), SUCCESS);
    CHECK(found == primary);
    CHECK_EQ(destroy_event(event), SUCCESS);
}

static void many(void)
{
    enum { NUMBER = 200 };
    static handle greens[NUMBER];
    for (int i = 0; i < NUMBER; i++)
        CHECK_EQ(create_green(&greens[i], NULL, 0, 1), SUCCESS);
    for (int i = 0; i < NUMBER; i++)
        CHECK_EQ(destroy_green(greens[i]), SUCCESS);
}

/* Splits of CUDA 13.1, and locality domains. */
static void groups_of_sizes(void)
{
    const unsigned int all = whole.of.sm.count;
    struct resource made[2], rest;
    struct group wanted[2] = {{.count = 8, .coscheduled = 2}, {.coscheduled = 2}};
    CHECK_EQ(split(made, 2, &whole, &rest, 0, wanted), SUCCESS);
    CHECK_EQ(made[0].of.sm.count, 8);
    CHECK_EQ(made[0].of.sm.multiple, 2);
    CHECK_EQ(wanted[0].count, 8);
    CHECK_EQ(made[1].of.sm.count, wanted[1].count);
    CHECK_EQ(wanted[1].count, (all - 8) / 2 * 2);
    CHECK_EQ(rest.type, all % 2 == 0 ? NOTHING : SM);
    handle green = green_with(&made[0], 1), stream = NULL;
    CHECK_EQ(create_in(&stream, green, 1, 0), SUCCESS);
    const struct set found = place_of(stream);
    CHECK(count_of(&found) <= 8);
    CHECK_EQ(destroy_stream(stream), SUCCESS);
    CHECK_EQ(destroy_green(green), SUCCESS);

    /* Only the count is sought. */
    wanted[1].count = 0;
    CHECK_EQ(split(NULL, 2, &whole, NULL, 0, wanted), SUCCESS);
    CHECK_EQ(wanted[1].count, (all - 8) / 2 * 2);
    wanted[0].count = 16;
    CHECK_EQ(split(made, 1, &whole, &rest, 0, wanted), SUCCESS);
    CHECK_EQ(rest.of.sm.count, all - 16);
    wanted[0].count = 3;
    CHECK_EQ(split(made, 1, &whole, NULL, 0, wanted), INVALID_VALUE);
    wanted[0].count = 8;
    CHECK_EQ(split(made, 1, &whole, NULL, 1, wanted), INVALID_VALUE);
    CHECK_EQ(split(made, 1, NULL, NULL, 0, wanted), INVALID_VALUE);
    CHECK_EQ(split(made, 1, &whole, NULL, 0, NULL), INVALID_VALUE);
    CHECK_EQ(split(made, 1, &made[0], NULL, 0, wanted), INVALID_RESOURCE_CONFIGURATION);
    memset(&rest, 0, sizeof rest);
    CHECK_EQ(split(made, 1, &rest, NULL, 0, wanted), INVALID_RESOURCE_TYPE);
}

static void domains(void)
{
    int number = 1, each = 0;
    if (cuda_device_attribute(&number, 149, 0) != SUCCESS || number < 2)
        return;
    CHECK_EQ(cuda_device_attribute(&each, 157, 0), SUCCESS);
    struct set all;
    memset(&all, 0, sizeof all);
    for (unsigned int domain = 0; domain < (unsigned int)number; domain++) {
        struct group wanted = {.coscheduled = 2, .flags = OF_DOMAIN, .domain = domain};
        struct resource made, found;
        handle stream = NULL;
        CHECK_EQ(split(&made, 1, &whole, NULL, 0, &wanted), SUCCESS);
        CHECK_EQ(wanted.count, (unsigned int)each);
        CHECK_EQ(made.of.sm.flags, OF_DOMAIN);
        CHECK_EQ(made.of.sm.domain, domain);
        const handle green = green_with(&made, 1);
        CHECK_EQ(green_resource(green, &found, SM), SUCCESS);
        CHECK_EQ(found.of.sm.flags, OF_DOMAIN);
        CHECK_EQ(found.of.sm.domain, domain);
        CHECK_EQ(create_in(&stream, green, 1, 0), SUCCESS);
        const struct set here = place_of(stream);
        CHECK_EQ(common(&here, &all), 0);
        for (int i = 0; i < MOST; i++)
            all.has[i] |= here.has[i];
        CHECK_EQ(destroy_stream(stream), SUCCESS);
        CHECK_EQ(destroy_green(green), SUCCESS);
    }
    struct group absent = {.coscheduled = 2, .flags = OF_DOMAIN, .domain = (unsigned int)number};
    CHECK_EQ(split(NULL, 1, &whole, NULL, 0, &absent), INVALID_VALUE);
}

/* Queues of contexts, which newer drivers have. */
static void workqueues(void)
{
    struct resource parts[2], queue;
    handle green = NULL, other = NULL;
    if (device_resource(0, &parts[1], WORKQUEUE_CONFIG) != SUCCESS)
        return;
    CHECK_EQ(parts[1].of.queue.device, 0);
    CHECK_EQ(parts[1].of.queue.scope, 0);
    CHECK(parts[1].of.queue.limit >= 1 && parts[1].of.queue.limit <= 32);
    CHECK_EQ(device_resource(0, &queue, WORKQUEUE), INVALID_RESOURCE_TYPE);
    parts[0] = whole;
    parts[1].of.queue.limit = 3;
    parts[1].of.queue.scope = 1;
    green = green_with(parts, 2);
    CHECK_EQ(green_resource(green, &queue, WORKQUEUE_CONFIG), SUCCESS);
    CHECK_EQ(queue.of.queue.limit, 3);
    CHECK_EQ(queue.of.queue.scope, 1);
    CHECK_EQ(green_resource(green, &parts[1], WORKQUEUE), SUCCESS);
    other = green_with(parts, 2);
    CHECK_EQ(green_resource(other, &queue, WORKQUEUE), SUCCESS);
    CHECK(memcmp(&queue, &parts[1], sizeof queue) == 0);
    CHECK_EQ(context_resource(primary, &queue, WORKQUEUE), SUCCESS);
    CHECK(memcmp(&queue, &parts[1], sizeof queue) != 0);
    CHECK_EQ(destroy_green(other), SUCCESS);
    CHECK_EQ(destroy_green(green), SUCCESS);
}

/* The primary context cannot be reset under its green contexts. */
static void reset_of_the_primary_context(void)
{
    handle greens[2], stream = NULL;
    struct resource found;
    two_greens(greens);
    CHECK_EQ(create_in(&stream, greens[0], 1, 0), SUCCESS);
    CHECK_EQ(reset(0), NOT_PERMITTED);
    CHECK_EQ(green_resource(greens[0], &found, SM), SUCCESS);
    CHECK_EQ(synchronize_stream(stream), SUCCESS);
    CHECK_EQ(destroy_stream(stream), SUCCESS);
    CHECK_EQ(destroy_green(greens[0]), SUCCESS);
    CHECK_EQ(destroy_green(greens[1]), SUCCESS);
    CHECK_EQ(reset(0), SUCCESS);
}

int main(void)
{
    int active = 9;
    unsigned int flags = 0;
    start_the_driver();
    if (dlsym(library, "cuGreenCtxStreamCreate") == NULL) {
        printf("skipped: the driver is older than CUDA 12.5\n");
        return CHECK_SKIPPED;
    }
    FUNCTIONS(LOAD)
    if (dlsym(library, "cuGreenCtxGetId") != NULL)
        FIND(id_of_green, "cuGreenCtxGetId");
    if (dlsym(library, "cuStreamGetDevResource") != NULL)
        FIND(stream_resource, "cuStreamGetDevResource");
    if (dlsym(library, "cuDevSmResourceSplit") != NULL)
        FIND(split, "cuDevSmResourceSplit");
    resources();
    counts();
    wrong_splits();
    descriptions();
    creation();

    handle module = NULL;
    CHECK_EQ(retain(&primary, 0), SUCCESS);
    CHECK_EQ(set_current(primary), SUCCESS);
    CHECK_EQ(cuda_allocate(&room, (size_t)2 * BLOCKS * 4), SUCCESS);
    CHECK_EQ(load(&module, where), SUCCESS);
    CHECK_EQ(function_of(&function, module, "where"), SUCCESS);
    resources_of_greens();
    identity();
    streams();
    other_objects();
    kernels_run_in_parts();
    captures();
    events();
    destroyed_while_busy();
    many();
    workqueues();
    if (split != NULL) {
        groups_of_sizes();
        domains();
    }
    reset_of_the_primary_context();
    CHECK_EQ(release(0), SUCCESS);
    CHECK_EQ(state_of(0, &flags, &active), SUCCESS);
    CHECK_EQ(active, 0);
    return 0;
}
