/* Events of the allocators as they happen and in snapshots, with the objects of the host that stand
 * for stacks, and with contexts of compilation. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MOST = 4096, THREADS = 4, ROUNDS = 300 };

/* What a listener saw. */
typedef struct seen {
    pthread_mutex_t lock;
    tcuda_memory_event events[MOST];
    char metadata[MOST][24];
    char compile_context[MOST][24];
    size_t count;
    tcuda_status inside[4]; /* of calls that the listener made */
    char message[200]; /* of the last of them */
    bool calls;
    int destroyed;
} seen;

static void on_event(void *user_data, const tcuda_memory_event *event)
{
    seen *const to = user_data;
    pthread_mutex_lock(&to->lock);
    if (to->count < MOST) {
        to->events[to->count] = *event;
        snprintf(to->metadata[to->count], sizeof to->metadata[0], "%s", event->metadata);
        snprintf(to->compile_context[to->count], sizeof to->compile_context[0], "%s",
            event->compile_context);
        to->count++;
    }
    if (to->calls) {
        void *ptr = NULL;
        uint64_t value = 0;
        to->inside[0] = tcuda_malloc(1, 0, NULL, &ptr);
        to->inside[1] = tcuda_free(event->ptr);
        to->inside[2] = tcuda_memory_stat(0, "num_ooms", &value);
        to->inside[3] = tcuda_memory_empty_cache();
        snprintf(to->message, sizeof to->message, "%s", tcuda_last_error());
    }
    pthread_mutex_unlock(&to->lock);
}

static void on_destroy(void *user_data)
{
    ((seen *)user_data)->destroyed++;
}

static tcuda_observer *listen(seen *to)
{
    tcuda_observer *observer = NULL;
    memset(to, 0, sizeof *to);
    CHECK_EQ(pthread_mutex_init(&to->lock, NULL), 0);
    CHECK_OK(tcuda_memory_on_event(on_event, to, on_destroy, &observer));
    CHECK(observer != NULL);
    return observer;
}

static void stop(tcuda_observer *observer, seen *by)
{
    CHECK_EQ(by->destroyed, 0);
    CHECK_OK(tcuda_observer_destroy(observer));
    CHECK_EQ(by->destroyed, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_observer_destroy(observer));
    CHECK_EQ(pthread_mutex_destroy(&by->lock), 0);
}

/* The next event of an action from `*at` on. */
static const tcuda_memory_event *next(const seen *by, size_t *at, tcuda_memory_action action)
{
    for (; *at < by->count; ++*at)
        if (by->events[*at].action == action)
            return &by->events[(*at)++];
    check_failed(__FILE__, __LINE__, "there is such an event", "");
    return NULL;
}

static seen first, second;

static void check_block(const tcuda_memory_event *event, const void *ptr, uint64_t bytes,
    struct CUstream_st *stream)
{
    CHECK(event->ptr == ptr);
    CHECK_EQ(event->bytes, bytes);
    CHECK(event->cu_stream == stream);
    CHECK_EQ(event->device, 0);
    CHECK_EQ(event->free_bytes, 0);
    CHECK(event->time_us > 1700000000000000);
    CHECK(event->context == NULL);
}

static void a_listener_sees_each_event(void)
{
    tcuda_stream *const stream = create_stream(0);
    struct CUstream_st *native = NULL;
    CHECK_OK(tcuda_stream_native(stream, &native));
    tcuda_mem_pool *pool = NULL;
    uint64_t id0 = 1, id1 = 0;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_id(pool, &id0, &id1));
    tcuda_observer *const observer = listen(&first);

    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *const block = allocate(1000, 0, stream);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_memory_annotate(block, "weights"));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_memory_empty_cache());
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    size_t count = 1;
    CHECK_OK(tcuda_memory_snapshot_event_count(snapshot, 0, &count));
    CHECK_EQ(count, 0); /* history is off */
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    void *ptr = NULL;
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc((size_t)1 << 46, 0, stream, &ptr));
    void *pinned = NULL;
    CHECK_OK(tcuda_host_malloc(100, &pinned));
    CHECK_OK(tcuda_host_free(pinned));
    stop(observer, &first);

    size_t at = 0;
    const bool whole = in_segments();
    const tcuda_memory_event *event =
        next(&first, &at, whole ? TCUDA_ACTION_SEGMENT_ALLOC : TCUDA_ACTION_SEGMENT_MAP);
    CHECK(event->ptr <= block && event->bytes >= 1000 && event->cu_stream == native);
    CHECK_EQ(event->pool_id0, id0);
    CHECK_EQ(event->pool_id1, id1);
    event = next(&first, &at, TCUDA_ACTION_ALLOC);
    check_block(event, block, 1000, native);
    CHECK_EQ(event->pool_id1, id1);
    const size_t annotated = at;
    event = next(&first, &at, TCUDA_ACTION_ANNOTATE);
    check_block(event, block, 1000, native);
    CHECK_STR(first.metadata[annotated], "weights");
    check_block(next(&first, &at, TCUDA_ACTION_FREE_REQUESTED), block, 1000, native);
    CHECK_STR(first.metadata[at - 1], "");
    check_block(next(&first, &at, TCUDA_ACTION_FREE_COMPLETED), block, 1000, native);
    event = next(&first, &at, whole ? TCUDA_ACTION_SEGMENT_FREE : TCUDA_ACTION_SEGMENT_UNMAP);
    CHECK(event->ptr <= block && event->pool_id1 == id1);
    event = next(&first, &at, TCUDA_ACTION_SNAPSHOT);
    CHECK(event->ptr == NULL);
    event = next(&first, &at, TCUDA_ACTION_OOM);
    CHECK(event->ptr == NULL && event->free_bytes > 0 && event->cu_stream == native);
    CHECK_EQ(event->bytes, (uint64_t)1 << 46);
    event = next(&first, &at, TCUDA_ACTION_ALLOC);
    CHECK(event->ptr == pinned && event->device == TCUDA_CPU_DEVICE);
    event = next(&first, &at, TCUDA_ACTION_FREE_REQUESTED);
    CHECK(event->ptr == pinned && event->device == TCUDA_CPU_DEVICE);

    const size_t before = first.count;
    CHECK_OK(tcuda_free(allocate(1000, 0, stream)));
    CHECK_EQ(first.count, before);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void *allocate_once(void *argument)
{
    (void)argument;
    CHECK_OK(tcuda_free(allocate(3 * MIB, 0, NULL)));
    return NULL;
}

static void a_listener_may_not_call_the_library(void)
{
    CHECK_OK(tcuda_free(allocate(100, 0, NULL))); /* has memory from now on */
    tcuda_observer *const calling = listen(&first), *const quiet = listen(&second);
    first.calls = true;
    run_on_thread(allocate_once, NULL); /* which has no message yet */
    CHECK(strstr(first.message, "must not call tcuda") != NULL);
    CHECK_EQ(first.count, second.count);
    for (size_t i = 0; i < sizeof first.inside / sizeof *first.inside; i++)
        CHECK_EQ(first.inside[i], TCUDA_STATUS_INVALID_STATE);
    first.calls = false;
    stop(calling, &first);
    const size_t before = second.count;
    CHECK_OK(tcuda_free(allocate(100, 0, NULL)));
    CHECK_EQ(second.count, before + 3);
    stop(quiet, &second);
    tcuda_observer *observer = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_on_event(NULL, &first, on_destroy, &observer));
    CHECK(observer == NULL && first.destroyed == 1);
}

/* More than the library retires before it frees what it retired. */
static void many_observers_come_and_go(void)
{
    enum { MANY = 200 };
    tcuda_observer *observers[MANY];
    memset(&second, 0, sizeof second);
    for (int i = 0; i < MANY; i++)
        CHECK_OK(tcuda_memory_on_event(on_event, &second, on_destroy, &observers[i]));
    for (int i = 0; i < MANY; i++)
        CHECK_OK(tcuda_observer_destroy(observers[i]));
    CHECK_EQ(second.destroyed, MANY);
}

static void *allocate_and_free(void *argument)
{
    (void)argument;
    for (int round = 0; round < (under_adversary() ? ROUNDS / 10 : ROUNDS); round++)
        CHECK_OK(tcuda_free(allocate(500, 0, NULL)));
    return NULL;
}

/* Threads share a stream: an address is allocated, freed, and only then allocated again. */
static void events_of_an_address_are_in_order(void)
{
    tcuda_observer *const observer = listen(&first);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(allocate_and_free, NULL);
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    stop(observer, &first);
    CHECK(first.count >= 3 * THREADS * ROUNDS / 10);
    void *live[THREADS] = { NULL };
    for (size_t i = 0; i < first.count; i++) {
        const tcuda_memory_event *const event = &first.events[i];
        int place = 0;
        while (place < THREADS && live[place] != event->ptr)
            place++;
        if (event->action == TCUDA_ACTION_ALLOC) {
            CHECK_EQ(place, THREADS);
            for (place = 0; place < THREADS && live[place] != NULL; place++)
                ;
            CHECK(place < THREADS);
            live[place] = event->ptr;
        } else if (event->action == TCUDA_ACTION_FREE_REQUESTED) {
            CHECK(place < THREADS);
            live[place] = NULL;
        }
    }
    for (int place = 0; place < THREADS; place++)
        CHECK(live[place] == NULL);
}

/* An object that stands for a stack. */
typedef struct stack {
    tcuda_frame_context head;
    atomic_int references;
    int number;
} stack;

static stack stacks[MOST];
static atomic_int stack_count;
static tcuda_status inside_release;

static void retain(void *context)
{
    stack *const object = context;
    CHECK(atomic_fetch_add(&object->references, 1) > 0);
}

static void release(void *context)
{
    stack *const object = context;
    void *ptr = NULL;
    inside_release = tcuda_malloc(1, 0, NULL, &ptr);
    CHECK(atomic_fetch_sub(&object->references, 1) > 0);
}

static tcuda_frame_context *make_stack(void *user_data)
{
    CHECK(user_data == &stack_count);
    const int number = atomic_fetch_add(&stack_count, 1);
    CHECK(number < MOST);
    stacks[number] = (stack){ .head = { retain, release }, .references = 1, .number = number };
    return &stacks[number].head;
}

static int live_stacks(void)
{
    int live = 0;
    for (int i = 0; i < stack_count; i++)
        live += stacks[i].references != 0;
    return live;
}

static void record(tcuda_history_mode mode, uint32_t flags, tcuda_frame_context_fn context)
{
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    options.flags = flags;
    options.context = context;
    options.user_data = &stack_count;
    CHECK_OK(tcuda_memory_record_history(mode, &options));
}

static void *context_of(void *ptr)
{
    tcuda_frame_context *context = NULL;
    CHECK_OK(tcuda_memory_context_of(ptr, &context));
    return context;
}

static void stacks_are_objects_of_the_host(void)
{
    tcuda_stream *const stream = create_stream(0);
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_CLEAR, make_stack);
    tcuda_observer *const observer = listen(&first);
    void *const block = allocate(1000, 0, stream);
    CHECK_EQ(stack_count, 1);
    void *const other = allocate(2000, 0, stream);
    CHECK_EQ(stack_count, 2);
    size_t at = 0;
    CHECK(next(&first, &at, TCUDA_ACTION_ALLOC)->context == &stacks[0].head);
    CHECK(next(&first, &at, TCUDA_ACTION_ALLOC)->context == &stacks[1].head);
    stop(observer, &first);

    const int references = stacks[0].references;
    CHECK(context_of(block) == &stacks[0]);
    CHECK_EQ(stacks[0].references, references + 1);
    atomic_fetch_sub(&stacks[0].references, 1); /* that of this test */
    CHECK(context_of(other) == &stacks[1]);
    atomic_fetch_sub(&stacks[1].references, 1);

    CHECK_OK(tcuda_free(other)); /* has a stack of its own */
    CHECK_EQ(stack_count, 3);
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    size_t count = 0, segment_count = 0, block_count = 0;
    CHECK_OK(tcuda_memory_snapshot_event_count(snapshot, 0, &count));
    bool found[2] = { false, false };
    for (size_t i = 0; i < count; i++) {
        tcuda_memory_event event = TCUDA_INIT(tcuda_memory_event);
        CHECK_OK(tcuda_memory_snapshot_event(snapshot, 0, i, &event));
        if (event.action == TCUDA_ACTION_ALLOC && event.ptr == block) {
            found[0] = event.context == &stacks[0].head && event.bytes == 1000;
        } else if (event.action == TCUDA_ACTION_FREE_REQUESTED && event.ptr == other) {
            found[1] = event.context == &stacks[2].head && event.bytes == 2000;
        }
    }
    CHECK(found[0] && found[1]);
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segment_count, &block_count));
    tcuda_frame_context *of_block = NULL;
    for (size_t i = 0; i < block_count; i++) {
        tcuda_block_info info = TCUDA_INIT(tcuda_block_info);
        CHECK_OK(tcuda_memory_snapshot_block(snapshot, i, &info));
        if (info.ptr == block)
            of_block = info.context;
    }
    CHECK(of_block == &stacks[0].head);

    /* The snapshot keeps them, whatever becomes of the rest. */
    CHECK_OK(tcuda_free(block));
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR, NULL);
    CHECK(stacks[0].references > 0 && stacks[2].references > 0);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_EQ(live_stacks(), 0);
    CHECK_EQ(inside_release, TCUDA_STATUS_INVALID_STATE);

    CHECK(context_of(allocate(1, 0, stream)) == NULL);
    tcuda_frame_context *unset = (tcuda_frame_context *)&first;
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_memory_context_of(&first, &unset));
    CHECK(unset == (tcuda_frame_context *)&first);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Stacks that nothing refers to do not accumulate. */
static void stacks_end_with_their_events(void)
{
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    options.max_entries = 8;
    options.context = make_stack;
    options.user_data = &stack_count;
    stack_count = 0;
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
    for (int i = 0; i < 100; i++)
        CHECK_OK(tcuda_free(allocate(100, 0, NULL)));
    CHECK(stack_count >= 100);
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_CLEAR, NULL);
    CHECK(live_stacks() <= 1); /* that of this thread's last call */
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR, NULL);
    CHECK_EQ(live_stacks(), 0);
}

static void contexts_of_compilation_are_on_events(void)
{
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_memory_compile_context_pop());
    record(TCUDA_HISTORY_ALL, TCUDA_RECORD_CLEAR, NULL);
    tcuda_observer *const observer = listen(&first);
    CHECK_OK(tcuda_memory_metadata_set("step 1"));
    CHECK_OK(tcuda_memory_compile_context_push("0/0"));
    CHECK_OK(tcuda_memory_compile_context_push("1/0"));
    void *const inner = allocate(100, 0, NULL);
    CHECK_OK(tcuda_memory_compile_context_pop());
    CHECK_OK(tcuda_free(inner));
    CHECK_OK(tcuda_memory_compile_context_pop());
    CHECK_OK(tcuda_memory_metadata_set(NULL));
    CHECK_OK(tcuda_free(allocate(100, 0, NULL)));
    stop(observer, &first);
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    record(TCUDA_HISTORY_OFF, TCUDA_RECORD_CLEAR, NULL);
    const char *const expected[][2] = { { "1/0", "step 1" }, { "0/0", "step 1" },
        { "0/0", "step 1" }, { "", "" }, { "", "" }, { "", "" } };
    const tcuda_memory_action actions[] = { TCUDA_ACTION_ALLOC, TCUDA_ACTION_FREE_REQUESTED,
        TCUDA_ACTION_FREE_COMPLETED, TCUDA_ACTION_ALLOC, TCUDA_ACTION_FREE_REQUESTED,
        TCUDA_ACTION_FREE_COMPLETED };
    size_t at = 0, i = 0, count = 0;
    CHECK_OK(tcuda_memory_snapshot_event_count(snapshot, 0, &count));
    for (size_t event = 0; event < 6; event++) {
        next(&first, &at, actions[event]);
        CHECK_STR(first.compile_context[at - 1], expected[event][0]);
        CHECK_STR(first.metadata[at - 1], expected[event][1]);
        tcuda_memory_event found = TCUDA_INIT(tcuda_memory_event);
        do {
            CHECK_OK(tcuda_memory_snapshot_event(snapshot, 0, i++, &found));
        } while (found.action != actions[event]);
        CHECK_STR(found.compile_context, expected[event][0]);
        CHECK_STR(found.metadata, expected[event][1]);
    }
    size_t needed = 0;
    CHECK_OK(tcuda_memory_snapshot_json(snapshot, NULL, 0, &needed));
    char *const json = malloc(needed + 1);
    CHECK(json != NULL);
    CHECK_OK(tcuda_memory_snapshot_json(snapshot, json, needed + 1, NULL));
    CHECK(strstr(json, "\"compile_context\":\"1/0\",\"user_metadata\":\"step 1\"") != NULL);
    CHECK(strstr(json, "\"compile_context\":\"N/A\",\"user_metadata\":\"\"") != NULL);
    free(json);

    tcuda_memory_event event = TCUDA_INIT(tcuda_memory_event);
    const tcuda_status out_of_range = TCUDA_STATUS_INVALID_ARGUMENT;
    CHECK_STATUS(out_of_range, tcuda_memory_snapshot_event(snapshot, 0, count, &event));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_memory_snapshot_event(snapshot, 64, 0, &event));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_memory_snapshot_event_count(snapshot, TCUDA_CURRENT_DEVICE, &count));
    CHECK_OK(tcuda_memory_snapshot_event_count(snapshot, TCUDA_CPU_DEVICE, &count));
    CHECK_EQ(count, 0);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
}

/* What is left to shutdown. */
static void a_listener_ends_with_the_library(void)
{
    memset(&first, 0, sizeof first);
    CHECK_EQ(pthread_mutex_init(&first.lock, NULL), 0);
    CHECK_OK(tcuda_memory_on_event(on_event, &first, on_destroy, NULL));
    record(TCUDA_HISTORY_STATE, 0, make_stack);
    stack_count = 0;
    CHECK_OK(tcuda_free(allocate(100, 0, NULL)));
    CHECK_EQ(stack_count, 1);
    (void)allocate(100, 0, NULL);
    CHECK_EQ(live_stacks(), 2);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    a_listener_sees_each_event();
    a_listener_may_not_call_the_library();
    many_observers_come_and_go();
    events_of_an_address_are_in_order();
    stacks_are_objects_of_the_host();
    stacks_end_with_their_events();
    contexts_of_compilation_are_on_events();
    a_listener_ends_with_the_library();
    const int status = finish();
    CHECK_EQ(first.destroyed, 1);
    CHECK_EQ(live_stacks(), 0);
    return status;
}
