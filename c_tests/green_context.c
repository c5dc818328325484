/* Green contexts: partitions of multiprocessors, and streams whose work runs on them. */
#include "support.h"

enum { BLOCKS = 4096, WORDS = 64, MOST = 64 };

static const char *const source =
    "extern \"C\" __global__ void where(unsigned *to, long long ns)\n"
    "{\n"
    "    unsigned id;\n"
    "    unsigned long long begin, now;\n"
    "    asm volatile(\"mov.u32 %0, %%smid;\" : \"=r\"(id));\n"
    "    asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(begin));\n"
    "    to[blockIdx.x] = id;\n"
    "    do asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(now));\n"
    "    while ((long long)(now - begin) < ns);\n"
    "}\n"
    "extern \"C\" __global__ void meet(volatile int *own, volatile int *other, int *met)\n"
    "{\n"
    "    unsigned long long begin, now;\n"
    "    *own = 1;\n"
    "    __threadfence();\n"
    "    asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(begin));\n"
    "    do asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(now));\n"
    "    while (*other == 0 && now - begin < 2000000000ull);\n"
    "    *met = *other;\n"
    "}\n";

/* The multiprocessors that blocks ran on, as bits. */
typedef struct places {
    uint64_t bits[WORDS];
} places;

static tcuda_kernel *where, *meet;
static uint32_t *ids;
static uint32_t total;

static uint32_t count_of(const places *set)
{
    uint32_t count = 0;
    for (int word = 0; word < WORDS; word++)
        count += (uint32_t)__builtin_popcountll(set->bits[word]);
    return count;
}

static bool overlap(const places *one, const places *other)
{
    bool found = false;
    for (int word = 0; word < WORDS; word++)
        found = found || (one->bits[word] & other->bits[word]) != 0;
    return found;
}

static bool is_within(const places *part, const places *whole)
{
    bool is = true;
    for (int word = 0; word < WORDS; word++)
        is = is && (part->bits[word] & ~whole->bits[word]) == 0;
    return is;
}

static void launch_where(tcuda_stream *stream)
{
    tcuda_launch_options options = TCUDA_INIT(tcuda_launch_options);
    /* So long that blocks spread over all multiprocessors; the simulated ones need no time. */
    int64_t ns = on_simulator() ? 0 : 20000;
    options.grid[0] = BLOCKS;
    void *args[] = { &ids, &ns };
    CHECK_OK(tcuda_kernel_launch(where, &options, args, 2, stream));
}

/* What the last launch wrote, which the stream has. */
static places fetch(tcuda_stream *stream)
{
    static uint32_t host[BLOCKS];
    places found = { { 0 } };
    CHECK_OK(tcuda_copy(host, ids, sizeof host, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (int block = 0; block < BLOCKS; block++) {
        CHECK(host[block] < WORDS * 64);
        found.bits[host[block] / 64] |= UINT64_C(1) << host[block] % 64;
    }
    return found;
}

static places places_of(tcuda_stream *stream)
{
    launch_where(stream);
    return fetch(stream);
}

static tcuda_sm_partition_info info_of(tcuda_sm_partition *partition)
{
    tcuda_sm_partition_info info = TCUDA_INIT(tcuda_sm_partition_info);
    CHECK_OK(tcuda_sm_partition_properties(partition, &info));
    return info;
}

static tcuda_sm_partition *whole_device(int32_t device)
{
    tcuda_sm_partition *whole = NULL;
    CHECK_OK(tcuda_sm_partition_from_device(device, &whole));
    return whole;
}

static tcuda_green_context *create_with(uint32_t sm_count)
{
    tcuda_green_context_options options = TCUDA_INIT(tcuda_green_context_options);
    tcuda_green_context *context = NULL;
    options.sm_count = sm_count;
    CHECK_OK(tcuda_green_context_create(TCUDA_CURRENT_DEVICE, NULL, &options, &context));
    return context;
}

static tcuda_green_context *create_of(tcuda_sm_partition *partition)
{
    tcuda_green_context *context = NULL;
    CHECK_OK(tcuda_green_context_create(TCUDA_CURRENT_DEVICE, partition, NULL, &context));
    return context;
}

static tcuda_stream *stream_in(tcuda_green_context *context)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_green_context_stream_create(context, &stream));
    return stream;
}

/* First lines: the driver may be older than green contexts. */
static void skip_without_green_contexts(void)
{
    tcuda_sm_partition *whole = NULL;
    const tcuda_status status = tcuda_sm_partition_from_device(TCUDA_CURRENT_DEVICE, &whole);
    if (status == TCUDA_STATUS_NOT_SUPPORTED) {
        printf("skipped: %s\n", tcuda_last_error());
        exit(CHECK_SKIPPED);
    }
    CHECK_EQ(status, TCUDA_STATUS_OK);
    total = info_of(whole).sm_count;
    CHECK_OK(tcuda_sm_partition_destroy(whole));
}

static void a_partition_describes_a_device(void)
{
    tcuda_device_info device = TCUDA_INIT(tcuda_device_info);
    unsigned char native[144];
    CHECK_OK(tcuda_device_properties(TCUDA_CURRENT_DEVICE, &device));
    for (int32_t ordinal = 0; ordinal < num_devices(); ordinal++) {
        tcuda_sm_partition *const whole = whole_device(ordinal);
        const tcuda_sm_partition_info info = info_of(whole);
        CHECK_EQ(info.device, ordinal);
        CHECK_EQ(info.sm_count, (uint32_t)device.multi_processor_count);
        CHECK_EQ(info.locality_domain, -1);
        /* CUDA's guide: parts of 9.0 and later are multiples of 8, of 8.x of 2 from 4 on. */
        if (device.major >= 9)
            CHECK(info.min_part_sm_count == 8 && info.coscheduled_sm_count == 8);
        /* The field smCount of CUdevResource. */
        uint32_t count = 0;
        size_t needed = 0;
        CHECK_OK(tcuda_sm_partition_native(whole, native, sizeof native, &needed));
        CHECK_EQ(needed, sizeof native);
        memcpy(&count, native + 96, sizeof count);
        CHECK_EQ(count, info.sm_count);
        CHECK_OK(tcuda_sm_partition_destroy(whole));
    }
    CHECK_OK(tcuda_sm_partition_destroy(NULL));
}

/* Parts have one size, and with what is left they are the whole. */
static void check_split(tcuda_sm_partition *whole, uint32_t least, uint32_t flags,
    uint32_t capacity)
{
    tcuda_sm_partition *parts[MOST], *rest = NULL;
    uint32_t count = 0, sum = 0;
    const uint32_t step = flags == TCUDA_SM_SPLIT_IGNORE_COSCHEDULING ? 2 : 8;
    CHECK_OK(tcuda_sm_partition_split(whole, least, flags, capacity, parts, &count, &rest));
    CHECK(count >= 1 && count <= capacity);
    const uint32_t size = info_of(parts[0]).sm_count;
    CHECK(size >= least && (size % step == 0 || size == total));
    CHECK(size < least + step || size == step || size == total);
    for (uint32_t part = 0; part < count; part++) {
        CHECK_EQ(info_of(parts[part]).sm_count, size);
        sum += size;
        CHECK_OK(tcuda_sm_partition_destroy(parts[part]));
    }
    sum += rest != NULL ? info_of(rest).sm_count : 0;
    CHECK_EQ(sum, total);
    CHECK_OK(tcuda_sm_partition_destroy(rest));
}

static void splits_divide_all(void)
{
    tcuda_sm_partition *const whole = whole_device(TCUDA_CURRENT_DEVICE);
    const uint32_t leasts[] = { 0, 1, 2, 8, 9, 16, 17, 31, 32, 33, total / 2, total - 1, total };
    const uint32_t capacities[] = { 1, 2, 3, MOST };
    const uint32_t flags[] = { 0, TCUDA_SM_SPLIT_IGNORE_COSCHEDULING, TCUDA_SM_SPLIT_MAX_CLUSTER };
    for (size_t least = 0; least < sizeof leasts / sizeof *leasts; least++)
        for (size_t capacity = 0; capacity < 4; capacity++)
            for (size_t flag = 0; flag < 3; flag++)
                if (info_of(whole).coscheduled_sm_count == 8)
                    check_split(whole, leasts[least], flags[flag], capacities[capacity]);
    CHECK_OK(tcuda_sm_partition_destroy(whole));
}

static void bad_splits_are_refused(void)
{
    tcuda_sm_partition *const whole = whole_device(TCUDA_CURRENT_DEVICE), *part = NULL;
    tcuda_sm_partition *const none = whole, *untouched = none;
    uint32_t count = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split(whole, total + 1, 0, 1, &untouched, &count, NULL));
    CHECK(strstr(tcuda_last_error(), "min_sm_count") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split(whole, 8, 3, 1, &untouched, &count, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split(whole, 8, 4, 1, &untouched, &count, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split(whole, 8, 0, 0, &untouched, &count, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split(whole, 8, 0, 1, NULL, &count, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split(whole, 8, 0, 1, &untouched, NULL, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE,
        tcuda_sm_partition_split(NULL, 8, 0, 1, &untouched, &count, NULL));
    CHECK(untouched == none && count == 77);

    /* The driver divides a part only after a context was made of it. */
    CHECK_OK(tcuda_sm_partition_split(whole, 16, 0, 1, &part, &count, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_sm_partition_split(part, 8, 0, 1, &untouched, &count, NULL));
    tcuda_green_context *const context = create_of(part);
    tcuda_sm_partition *own = NULL, *half = NULL, *rest = NULL;
    CHECK_OK(tcuda_green_context_partition(context, &own));
    CHECK_EQ(info_of(own).sm_count, info_of(part).sm_count);
    CHECK_OK(tcuda_sm_partition_split(own, 8, 0, 1, &half, &count, &rest));
    CHECK_EQ(count, 1);
    const uint32_t left = rest != NULL ? info_of(rest).sm_count : 0;
    CHECK_EQ(info_of(half).sm_count + left, info_of(part).sm_count);
    CHECK_OK(tcuda_sm_partition_destroy(rest));
    CHECK_OK(tcuda_sm_partition_destroy(half));
    CHECK_OK(tcuda_sm_partition_destroy(own));
    CHECK_OK(tcuda_green_context_destroy(context));
    CHECK_OK(tcuda_sm_partition_destroy(part));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_sm_partition_destroy(part));
    CHECK_OK(tcuda_sm_partition_destroy(whole));
}

/* Groups with conditions of their own, which CUDA 13.1 has. */
static void groups(void)
{
    tcuda_sm_partition *const whole = whole_device(TCUDA_CURRENT_DEVICE);
    tcuda_sm_partition *parts[3] = { NULL, NULL, NULL }, *rest = NULL;
    tcuda_sm_group wanted[3] = { { .sm_count = 16, .coscheduled_sm_count = 8 },
        { .sm_count = 4, .coscheduled_sm_count = 2 },
        { .sm_count = 0, .coscheduled_sm_count = 2, .flags = TCUDA_SM_GROUP_BACKFILL } };
    const tcuda_status status = tcuda_sm_partition_split_groups(whole, wanted, 3, parts, &rest);
    if (status == TCUDA_STATUS_NOT_SUPPORTED) {
        printf("left out: %s\n", tcuda_last_error());
        CHECK(parts[0] == NULL && rest == NULL);
    } else {
        CHECK_EQ(status, TCUDA_STATUS_OK);
        CHECK_EQ(info_of(parts[0]).sm_count, 16);
        CHECK_EQ(info_of(parts[1]).sm_count, 4);
        const uint32_t left = rest != NULL ? info_of(rest).sm_count : 0;
        CHECK_EQ(info_of(parts[2]).sm_count + left, total - 20);
        for (int part = 0; part < 3; part++)
            CHECK_OK(tcuda_sm_partition_destroy(parts[part]));
        CHECK_OK(tcuda_sm_partition_destroy(rest));
        /* An odd count, and more than there are. */
        wanted[0].sm_count = 15;
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_sm_partition_split_groups(whole, wanted, 1, parts, NULL));
        wanted[0].sm_count = total / 8 * 8 + 8;
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_sm_partition_split_groups(whole, wanted, 1, parts, NULL));
        wanted[0].sm_count = 16;
    }
    /* These are refused before the driver is called. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split_groups(whole, wanted, 0, parts, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split_groups(whole, NULL, 1, parts, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split_groups(whole, wanted, 1, NULL, NULL));
    wanted[1] = wanted[2];
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split_groups(whole, wanted, 3, parts, NULL));
    wanted[0].flags = 4;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split_groups(whole, wanted, 1, parts, NULL));
    wanted[0].flags = TCUDA_SM_GROUP_LOCALITY_DOMAIN;
    wanted[0].locality_domain = 1000;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sm_partition_split_groups(whole, wanted, 1, parts, NULL));
    CHECK_OK(tcuda_sm_partition_destroy(whole));
}

static void contexts_have_what_they_were_given(void)
{
    tcuda_sm_partition_info info = TCUDA_INIT(tcuda_sm_partition_info);
    tcuda_green_context_options options = TCUDA_INIT(tcuda_green_context_options);
    tcuda_sm_partition *const whole = whole_device(TCUDA_CURRENT_DEVICE);
    tcuda_green_context *none = (tcuda_green_context *)&info, *context = none;
    struct CUgreenCtx_st *green = NULL;
    struct CUctx_st *cu_context = NULL;

    /* One of the three says of what. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_green_context_create(TCUDA_CURRENT_DEVICE, NULL, NULL, &context));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_green_context_create(TCUDA_CURRENT_DEVICE, NULL, &options, &context));
    options.sm_count = total + 1;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_green_context_create(TCUDA_CURRENT_DEVICE, NULL, &options, &context));
    options.sm_count = 8;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_green_context_create(TCUDA_CURRENT_DEVICE, whole, &options, &context));
    options.workqueue_concurrency = 2;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_green_context_create(TCUDA_CURRENT_DEVICE, NULL, &options, &context));
    options.workqueue_scope = 3;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_green_context_create(TCUDA_CURRENT_DEVICE, NULL, &options, &context));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_green_context_create(99, NULL,
        &(tcuda_green_context_options){ sizeof options, 8, 0, 0 }, &context));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_green_context_create(num_devices(), whole, NULL, &context));
    if (num_devices() > 1)
        CHECK_STATUS(
            TCUDA_STATUS_INVALID_ARGUMENT, tcuda_green_context_create(1, whole, NULL, &context));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_green_context_create(TCUDA_CURRENT_DEVICE, whole, NULL, NULL));
    CHECK(context == none);

    /* Work queues: CUDA 13.1. */
    uint32_t concurrency = 0;
    const tcuda_status queues
        = tcuda_device_workqueue_concurrency(TCUDA_CURRENT_DEVICE, &concurrency);
    options = (tcuda_green_context_options)TCUDA_INIT(tcuda_green_context_options);
    options.workqueue_scope = TCUDA_WORKQUEUE_BALANCED;
    const tcuda_status created
        = tcuda_green_context_create(TCUDA_CURRENT_DEVICE, NULL, &options, &context);
    CHECK_EQ(queues, created);
    if (created == TCUDA_STATUS_NOT_SUPPORTED) {
        printf("left out: %s\n", tcuda_last_error());
        CHECK(context == none && concurrency == 0);
    } else {
        CHECK_EQ(created, TCUDA_STATUS_OK);
        CHECK(concurrency >= 1);
        CHECK_OK(tcuda_green_context_properties(context, &info));
        CHECK_EQ(info.sm_count, total);
        CHECK_OK(tcuda_green_context_destroy(context));
    }
    int32_t domains = 0;
    CHECK_OK(tcuda_device_locality_domains(TCUDA_CURRENT_DEVICE, &domains));
    CHECK(domains >= 1);

    context = create_with(9);
    CHECK_OK(tcuda_green_context_properties(context, &info));
    CHECK_EQ(info.device, current_device());
    CHECK(info.sm_count >= 9 && info.sm_count <= 16);
    CHECK_OK(tcuda_green_context_native(context, &green, &cu_context));
    CHECK(green != NULL && cu_context != NULL);
    CHECK_OK(tcuda_green_context_native(context, NULL, NULL));
    CHECK_OK(tcuda_green_context_destroy(context));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_green_context_destroy(context));
    CHECK_OK(tcuda_green_context_destroy(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_green_context_properties(context, &info));
    CHECK_OK(tcuda_sm_partition_destroy(whole));
}

static void streams_go_round(void)
{
    enum { PER_CONTEXT = 32 };
    tcuda_green_context *const context = create_with(8);
    tcuda_stream *streams[PER_CONTEXT + 1];
    for (int index = 0; index <= PER_CONTEXT; index++) {
        int32_t device = -1, priority = -1;
        streams[index] = stream_in(context);
        CHECK_OK(tcuda_stream_device(streams[index], &device));
        CHECK_OK(tcuda_stream_priority(streams[index], &priority));
        CHECK(device == current_device() && priority == 0);
        for (int other = 0; other < index; other++)
            CHECK((id_of(streams[index]) == id_of(streams[other]))
                == (index == PER_CONTEXT && other == 0));
    }
    CHECK_OK(tcuda_green_context_destroy(context));
    for (int index = 0; index <= PER_CONTEXT; index++)
        CHECK_OK(tcuda_stream_destroy(streams[index]));
}

/* Kernels of two parts run on their multiprocessors and on no others. */
static void kernels_stay_on_their_multiprocessors(void)
{
    tcuda_sm_partition *const whole = whole_device(TCUDA_CURRENT_DEVICE);
    tcuda_sm_partition *parts[2], *rest = NULL;
    tcuda_stream *streams[3];
    places found[3];
    uint32_t count = 0;
    CHECK_OK(tcuda_sm_partition_split(whole, 32, 0, 2, parts, &count, &rest));
    CHECK_EQ(count, 2);
    tcuda_green_context *const contexts[3]
        = { create_of(parts[0]), create_of(parts[1]), create_of(rest) };
    for (int index = 0; index < 3; index++) {
        tcuda_sm_partition_info info = TCUDA_INIT(tcuda_sm_partition_info);
        streams[index] = stream_in(contexts[index]);
        found[index] = places_of(streams[index]);
        CHECK_OK(tcuda_green_context_properties(contexts[index], &info));
        printf("part %d: %u of %u multiprocessors\n", index, count_of(&found[index]),
            info.sm_count);
        CHECK_EQ(count_of(&found[index]), info.sm_count);
        for (int other = 0; other < index; other++)
            CHECK(!overlap(&found[index], &found[other]));
    }
    tcuda_stream *const plain = create_stream(TCUDA_CURRENT_DEVICE);
    const places all = places_of(plain);
    printf("whole device: %u of %u multiprocessors\n", count_of(&all), total);
    CHECK_EQ(count_of(&all), total);

    /* A graph keeps the multiprocessors of the stream on which its work was captured. */
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, streams[0], NULL, TCUDA_CAPTURE_GLOBAL));
    launch_where(streams[0]);
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_replay(graph, plain));
    places replayed = fetch(plain);
    printf("replayed elsewhere: %u of them, all of part 0: %d\n", count_of(&replayed),
        is_within(&replayed, &found[0]));
    CHECK(is_within(&replayed, &found[0]));
    CHECK_OK(tcuda_graph_replay(graph, streams[1]));
    replayed = fetch(streams[1]);
    CHECK(is_within(&replayed, &found[0]));
    CHECK_OK(tcuda_graph_destroy(graph));

    /* Both at a time, on a GPU: each kernel waits until the other has begun. */
    if (!on_simulator()) {
        int32_t *const words = allocate(4 * sizeof *words, TCUDA_CURRENT_DEVICE, plain);
        int32_t host[4];
        fill_bytes(words, 0, 4 * sizeof *words, plain);
        CHECK_OK(tcuda_stream_synchronize(plain));
        for (int index = 0; index < 2; index++) {
            tcuda_launch_options options = TCUDA_INIT(tcuda_launch_options);
            int32_t *own = words + index, *other = words + 1 - index, *met = words + 2 + index;
            void *args[] = { &own, &other, &met };
            CHECK_OK(tcuda_kernel_launch(meet, &options, args, 3, streams[index]));
        }
        CHECK_OK(tcuda_stream_wait_stream(plain, streams[0]));
        CHECK_OK(tcuda_stream_wait_stream(plain, streams[1]));
        CHECK_OK(tcuda_copy(host, words, sizeof host, plain));
        CHECK_OK(tcuda_stream_synchronize(plain));
        printf("side by side: %d %d\n", host[2], host[3]);
        CHECK(host[2] == 1 && host[3] == 1);
        CHECK_OK(tcuda_free(words));
    }
    for (int index = 0; index < 3; index++) {
        CHECK_OK(tcuda_stream_destroy(streams[index]));
        CHECK_OK(tcuda_green_context_destroy(contexts[index]));
    }
    for (int index = 0; index < 2; index++)
        CHECK_OK(tcuda_sm_partition_destroy(parts[index]));
    CHECK_OK(tcuda_sm_partition_destroy(rest));
    CHECK_OK(tcuda_sm_partition_destroy(whole));
    CHECK_OK(tcuda_stream_destroy(plain));
}

/* Memory is the device's: it is counted, passes between streams, and is reused. */
static void memory_is_the_devices(void)
{
    enum { BYTES = 1 << 20 };
    tcuda_green_context *const context = create_with(8);
    tcuda_stream *const green = stream_in(context);
    tcuda_stream *const plain = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_event *const event = create_event(0);
    uint64_t before = 0, now = 0;
    CHECK_OK(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &before));
    unsigned char *const bytes = allocate(BYTES, TCUDA_CURRENT_DEVICE, green);
    CHECK_OK(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &now));
    CHECK_EQ(now - before, BYTES);
    fill_bytes(bytes, 5, BYTES, green);
    CHECK_OK(tcuda_event_record(event, green));
    CHECK_OK(tcuda_event_wait(event, plain));
    CHECK_EQ(count_other_bytes(bytes, 5, BYTES, plain), 0);
    CHECK_OK(tcuda_record_stream(bytes, plain));
    CHECK_OK(tcuda_free(bytes));
    unsigned char *const again = allocate(BYTES, TCUDA_CURRENT_DEVICE, green);
    fill_bytes(again, 6, BYTES, green);
    CHECK_EQ(count_other_bytes(again, 6, BYTES, green), 0);

    /* The handle of the context goes first; its stream and the block stay. */
    CHECK_OK(tcuda_green_context_destroy(context));
    fill_bytes(again, 7, BYTES, green);
    CHECK_EQ(count_other_bytes(again, 7, BYTES, green), 0);
    CHECK_OK(tcuda_stream_destroy(green));
    CHECK_EQ(count_other_bytes(again, 7, BYTES, plain), 0);
    CHECK_OK(tcuda_free(again));
    CHECK_OK(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &now));
    CHECK_EQ(now, before);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(plain));
}

static int64_t current_id(void)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_current(TCUDA_CURRENT_DEVICE, &stream));
    return id_of(stream);
}

static struct CUctx_st *current_context(void)
{
    int (*get)(struct CUctx_st **) = NULL;
    void *address = NULL;
    struct CUctx_st *context = NULL;
    CHECK_OK(tcuda_backend_function("cuCtxGetCurrent", &address));
    memcpy(&get, &address, sizeof get);
    CHECK_EQ(get(&context), 0);
    return context;
}

static void *pops(void *context)
{
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_green_context_pop(context));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_green_context_set(context));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_green_context_destroy(context));
    return NULL;
}

static void *sets(void *context)
{
    CHECK_OK(tcuda_green_context_set(context));
    return NULL;
}

static void contexts_are_set_and_popped(void)
{
    enum { BYTES = 4096 };
    tcuda_green_context *const context = create_with(16), *const other = create_with(8);
    struct CUctx_st *own = NULL, *const before_context = current_context();
    const int64_t before = current_id();
    gate held;
    CHECK_OK(tcuda_green_context_native(context, NULL, &own));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_green_context_pop(context));

    /* The stream that becomes current comes after the one that was. */
    unsigned char *const bytes = allocate(BYTES, TCUDA_CURRENT_DEVICE, NULL);
    fill_bytes(bytes, 1, BYTES, NULL);
    CHECK_OK(tcuda_stream_synchronize(NULL));
    gate_close(&held, NULL);
    fill_bytes(bytes, 2, BYTES, NULL);
    CHECK_OK(tcuda_green_context_set(context));
    CHECK(current_id() != before);
    CHECK(current_context() == own);
    bool done = false;
    CHECK_OK(tcuda_stream_query(NULL, &done));
    CHECK(done != runs_late() || under_adversary());
    gate_open(&held);
    CHECK_EQ(count_other_bytes(bytes, 2, BYTES, NULL), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_green_context_set(context));
    run_on_thread(pops, context);
    CHECK_EQ(current_device(), 0);

    /* Another context inside: the last one that was set is popped first. */
    const int64_t outer = current_id();
    CHECK_OK(tcuda_green_context_set(other));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_green_context_pop(context));
    CHECK_OK(tcuda_green_context_pop(other));
    CHECK_EQ(current_id(), outer);
    fill_bytes(bytes, 3, BYTES, NULL);
    CHECK_OK(tcuda_green_context_pop(context));
    CHECK_EQ(current_id(), before);
    CHECK(current_context() == before_context);
    CHECK_EQ(count_other_bytes(bytes, 3, BYTES, NULL), 0);

    /* A context that ends while it is set is popped; that of a thread that has ended, too. */
    CHECK_OK(tcuda_green_context_set(other));
    CHECK_OK(tcuda_green_context_destroy(other));
    CHECK_EQ(current_id(), before);
    CHECK(current_context() == before_context);
    run_on_thread(sets, context);
    CHECK_OK(tcuda_green_context_set(context));
    /* The host has replaced it on the thread. */
    CHECK_OK(tcuda_device_set(0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_green_context_pop(context));
    CHECK_OK(tcuda_green_context_destroy(context));
    CHECK_EQ(current_id(), before);
    CHECK_OK(tcuda_free(bytes));
}

static size_t reports(void)
{
    size_t count = 0;
    CHECK_OK(tcuda_sanitizer_report_count(&count));
    return count;
}

/* The stream sanitizer knows the streams, and what set and pop order. */
static void the_sanitizer_sees_them(void)
{
    enum { BYTES = 4096 };
    tcuda_green_context *const context = create_with(8);
    tcuda_stream *const green = stream_in(context);
    CHECK_OK(tcuda_sanitizer_enable(NULL));
    unsigned char *const bytes = allocate(BYTES, TCUDA_CURRENT_DEVICE, NULL);
    const size_t before = reports();
    fill_bytes(bytes, 1, BYTES, NULL);
    CHECK_OK(tcuda_green_context_set(context));
    fill_bytes(bytes, 2, BYTES, NULL);
    CHECK_OK(tcuda_green_context_pop(context));
    fill_bytes(bytes, 3, BYTES, NULL);
    CHECK_EQ(reports(), before);
    fill_bytes(bytes, 4, BYTES, green);
    CHECK_EQ(reports(), before + 1);
    CHECK_OK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    CHECK_OK(tcuda_sanitizer_disable());
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(green));
    CHECK_OK(tcuda_green_context_destroy(context));
}

/* What comes and goes leaves nothing, also where memory was used. */
static void contexts_come_and_go(void)
{
    enum { ROUNDS = 200, BYTES = 4096 };
    for (int round = 0; round < ROUNDS; round++) {
        tcuda_green_context *const context = create_with(8);
        tcuda_stream *const stream = stream_in(context);
        unsigned char *const bytes = allocate(BYTES, TCUDA_CURRENT_DEVICE, stream);
        fill_bytes(bytes, round, BYTES, stream);
        CHECK_OK(tcuda_free(bytes));
        CHECK_OK(tcuda_stream_destroy(stream));
        CHECK_OK(tcuda_green_context_destroy(context));
    }
    CHECK_OK(tcuda_memory_empty_cache());
    for (int round = 0; round < 3; round++)
        CHECK_OK(tcuda_green_context_destroy(create_with(8)));
    const uint64_t created = calls_of("cuGreenCtxCreate"), ended = calls_of("cuGreenCtxDestroy");
    printf("green contexts: %llu created, %llu ended\n", (unsigned long long)created,
        (unsigned long long)ended);
    CHECK(created - ended <= 4);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_green_contexts();
    a_partition_describes_a_device();
    splits_divide_all();
    bad_splits_are_refused();
    groups();
    contexts_have_what_they_were_given();
    streams_go_round();
    memory_is_the_devices();
    contexts_are_set_and_popped();
    the_sanitizer_sees_them();
    contexts_come_and_go();
    if (has_compiler()) {
        CHECK_OK(tcuda_kernel_compile(source, "where", NULL, &where));
        CHECK_OK(tcuda_kernel_compile(source, "meet", NULL, &meet));
        ids = allocate(BLOCKS * sizeof *ids, TCUDA_CURRENT_DEVICE, NULL);
        kernels_stay_on_their_multiprocessors();
        CHECK_OK(tcuda_free(ids));
        CHECK_OK(tcuda_kernel_destroy(where));
        CHECK_OK(tcuda_kernel_destroy(meet));
    }
    return finish();
}
