/* Handles that are stale, destroyed twice, of another kind, or no handles at all; also while other
 * threads destroy them. Each gives TCUDA_STATUS_INVALID_HANDLE, never anything worse. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

/* A kind of handle: how one is made, used in several ways, and destroyed. */
typedef struct kind {
    const char *name;
    void *(*create)(void);
    tcuda_status (*uses[4])(void *handle);
    tcuda_status (*destroy)(void *handle);
} kind;

static void *make_stream(void)
{
    return create_stream(0);
}

static tcuda_status stream_id(void *handle)
{
    int64_t id = -77;
    const tcuda_status status = tcuda_stream_id(handle, &id);
    CHECK(status == TCUDA_STATUS_OK ? id > 0 : id == -77);
    return status;
}

static tcuda_status stream_query(void *handle)
{
    bool done = false;
    return tcuda_stream_query(handle, &done);
}

static tcuda_status stream_copies_nothing(void *handle)
{
    return tcuda_copy(NULL, NULL, 0, handle);
}

static tcuda_status stream_waits(void *handle)
{
    return tcuda_stream_wait_stream(NULL, handle);
}

static tcuda_status stream_destroy(void *handle)
{
    return tcuda_stream_destroy(handle);
}

static void *make_event(void)
{
    return create_event(0);
}

static tcuda_status event_query(void *handle)
{
    bool done = false;
    return tcuda_event_query(handle, &done);
}

static tcuda_status event_device(void *handle)
{
    int32_t device = 77;
    const tcuda_status status = tcuda_event_device(handle, &device);
    CHECK(status == TCUDA_STATUS_OK ? device == 0 || device == -1 : device == 77);
    return status;
}

static tcuda_status event_record(void *handle)
{
    return tcuda_event_record(handle, NULL);
}

static tcuda_status event_wait(void *handle)
{
    return tcuda_event_wait(handle, NULL);
}

static tcuda_status event_destroy(void *handle)
{
    return tcuda_event_destroy(handle);
}

static void *make_allocation(void)
{
    tcuda_allocation *allocation = NULL;
    CHECK_OK(tcuda_allocation_create(1000, 0, NULL, &allocation));
    CHECK(allocation != NULL);
    return allocation;
}

static tcuda_status allocation_pointer(void *handle)
{
    void *ptr = NULL;
    const tcuda_status status = tcuda_allocation_pointer(handle, &ptr);
    CHECK_EQ(status == TCUDA_STATUS_OK, ptr != NULL);
    return status;
}

static tcuda_status allocation_bytes(void *handle)
{
    size_t bytes = 77;
    const tcuda_status status = tcuda_allocation_bytes(handle, &bytes);
    CHECK_EQ(bytes, status == TCUDA_STATUS_OK ? 1000 : 77);
    return status;
}

static tcuda_status allocation_device(void *handle)
{
    int32_t device = 77;
    const tcuda_status status = tcuda_allocation_device(handle, &device);
    CHECK_EQ(device, status == TCUDA_STATUS_OK ? 0 : 77);
    return status;
}

static tcuda_status allocation_stream(void *handle)
{
    tcuda_stream *stream = NULL;
    const tcuda_status status = tcuda_allocation_stream(handle, &stream);
    CHECK_EQ(status == TCUDA_STATUS_OK, stream != NULL);
    return status;
}

static tcuda_status allocation_destroy(void *handle)
{
    return tcuda_allocation_destroy(handle);
}

static tcuda_status generator_seed(void *handle)
{
    uint64_t seed = 77;
    const tcuda_status status = tcuda_generator_seed_get(handle, &seed);
    CHECK_EQ(seed == 77, status != TCUDA_STATUS_OK);
    return status;
}

static tcuda_status generator_offset(void *handle)
{
    uint64_t offset = 77;
    const tcuda_status status = tcuda_generator_offset_get(handle, &offset);
    CHECK_EQ(offset == 77, status != TCUDA_STATUS_OK);
    return status;
}

static tcuda_status generator_seeds(void *handle)
{
    return tcuda_generator_seed_set(handle, 5);
}

static tcuda_status generator_takes(void *handle)
{
    tcuda_philox_state state;
    return tcuda_generator_philox_state(handle, 4, &state);
}

static void *make_generator(void)
{
    tcuda_generator *generator = NULL;
    CHECK_OK(tcuda_generator_create(0, &generator));
    return generator;
}

static tcuda_status generator_destroy(void *handle)
{
    return tcuda_generator_destroy(handle);
}

enum { KINDS = 4, USES = 4 };

static const kind kinds[KINDS] = {
    { "stream", make_stream, { stream_id, stream_query, stream_copies_nothing, stream_waits },
        stream_destroy },
    { "event", make_event, { event_query, event_device, event_record, event_wait },
        event_destroy },
    { "allocation", make_allocation,
        { allocation_pointer, allocation_bytes, allocation_device, allocation_stream },
        allocation_destroy },
    { "generator", make_generator,
        { generator_seed, generator_offset, generator_seeds, generator_takes }, generator_destroy },
};

static void is_refused(const kind *kind, void *handle)
{
    char number[24];
    snprintf(number, sizeof number, "%#llx", (unsigned long long)(uintptr_t)handle);
    for (int use = 0; use < USES; use++) {
        CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, kind->uses[use](handle));
        CHECK(strstr(tcuda_last_error(), number) != NULL);
        CHECK(strstr(tcuda_last_error(), kind->name) != NULL);
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, kind->destroy(handle));
    CHECK(strstr(tcuda_last_error(), number) != NULL);
}

static void is_accepted(const kind *kind, void *handle)
{
    for (int use = 0; use < USES; use++)
        CHECK_OK(kind->uses[use](handle));
}

static void destroyed_handles_are_refused(const kind *kind)
{
    void *first = kind->create(), *second = kind->create();
    CHECK(first != second);
    is_accepted(kind, first);
    CHECK_OK(kind->destroy(first));
    is_refused(kind, first);
    /* What is made in its place is not taken for it. */
    for (int i = 0; i < 100; i++) {
        void *other = kind->create();
        CHECK(other != first && other != second);
        is_refused(kind, first);
        is_accepted(kind, other);
        CHECK_OK(kind->destroy(other));
        is_refused(kind, other);
    }
    is_accepted(kind, second);
    CHECK_OK(kind->destroy(second));
    CHECK_OK(kind->destroy(NULL));
}

/* Enough for the library to run through what it has, and to reuse all of it. */
static void many_handles_are_all_different(const kind *kind)
{
    enum { MANY = 3000 };
    static void *handles[MANY], *old[MANY];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MANY; i++)
            handles[i] = kind->create();
        for (int i = 0; i < MANY; i += 7)
            is_accepted(kind, handles[i]);
        for (int i = 0; round > 0 && i < MANY; i += 11)
            is_refused(kind, old[i]);
        for (int i = 0; i < MANY; i++)
            CHECK_OK(kind->destroy(handles[round % 2 == 0 ? i : MANY - 1 - i]));
        for (int i = 0; i < MANY; i += 13)
            is_refused(kind, handles[i]);
        memcpy(old, handles, sizeof old);
    }
}

static void other_kinds_are_refused(void)
{
    void *handles[KINDS];
    for (int i = 0; i < KINDS; i++)
        handles[i] = kinds[i].create();
    for (int i = 0; i < KINDS; i++)
        for (int j = 0; j < KINDS; j++)
            if (i != j)
                is_refused(&kinds[i], handles[j]);
    for (int i = 0; i < KINDS; i++) {
        is_accepted(&kinds[i], handles[i]);
        CHECK_OK(kinds[i].destroy(handles[i]));
    }
}

/* xorshift64*: the same numbers in every run. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

static void random_bits_are_refused(const kind *kind)
{
    int on_the_stack = 0;
    uint64_t state = 88172645463325252u;
    void *live = kind->create();
    void *on_the_heap = malloc(64);
    CHECK(on_the_heap != NULL);
    is_refused(kind, &on_the_stack);
    is_refused(kind, on_the_heap);
    is_refused(kind, (void *)(uintptr_t)1);
    is_refused(kind, (void *)UINTPTR_MAX);
    is_refused(kind, (void *)kind);
    for (int i = 0; i < 20000; i++) {
        /* Anything; then a live handle with one bit, or with its low half, changed. */
        const uint64_t bits = next_random(&state);
        const uint64_t near = (uint64_t)(uintptr_t)live;
        const uint64_t tries[] = { bits, near ^ UINT64_C(1) << bits % 64,
            (near & UINT64_C(0xffffffff00000000)) | (bits >> 32 | 1u << 31),
            (near & UINT64_C(0xff00000000000000)) | bits >> 8 };
        for (size_t j = 0; j < sizeof tries / sizeof tries[0]; j++) {
            void *handle = (void *)(uintptr_t)tries[j];
            if (handle == live || handle == NULL)
                continue;
            CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, kind->uses[i % USES](handle));
            if (i % 8 == 0)
                CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, kind->destroy(handle));
        }
    }
    is_accepted(kind, live);
    CHECK_OK(kind->destroy(live));
    free(on_the_heap);
}

/* ---- Threads ---- */

enum { SHARED = 8, USERS = 3, DESTROYERS = 2 };

static struct shared {
    const kind *kind;
    _Atomic(void *) handles[SHARED];
    atomic_bool stop;
    atomic_long used, created, destroyed;
    int rounds;
} shared;

static void *uses_what_others_destroy(void *seed)
{
    uint64_t state = (uint64_t)(uintptr_t)seed * 7919 + 1;
    long used = 0;
    while (!atomic_load(&shared.stop)) {
        void *handle = atomic_load(&shared.handles[next_random(&state) % SHARED]);
        const tcuda_status status = shared.kind->uses[next_random(&state) % USES](handle);
        CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_INVALID_HANDLE);
        used += status == TCUDA_STATUS_OK;
    }
    atomic_fetch_add(&shared.used, used);
    return NULL;
}

/* Several may destroy the same handle: one of them does. */
static void *destroys_what_others_use(void *seed)
{
    uint64_t state = (uint64_t)(uintptr_t)seed * 104729 + 1;
    for (int i = 0; i < shared.rounds; i++) {
        _Atomic(void *) *place = &shared.handles[next_random(&state) % SHARED];
        void *handle = atomic_load(place);
        const tcuda_status status = shared.kind->destroy(handle);
        CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_INVALID_HANDLE);
        if (status == TCUDA_STATUS_OK) {
            atomic_fetch_add(&shared.destroyed, 1);
            atomic_store(place, shared.kind->create());
            atomic_fetch_add(&shared.created, 1);
        }
    }
    return NULL;
}

static void threads_may_destroy_what_others_use(const kind *kind)
{
    pthread_t users[USERS], destroyers[DESTROYERS];
    shared.kind = kind;
    shared.rounds = under_adversary() ? 2000 : on_simulator() ? 20000 : 5000;
    atomic_store(&shared.stop, false);
    atomic_store(&shared.used, 0);
    atomic_store(&shared.created, SHARED);
    atomic_store(&shared.destroyed, 0);
    for (int i = 0; i < SHARED; i++)
        atomic_store(&shared.handles[i], kind->create());
    for (int i = 0; i < USERS; i++)
        users[i] = start_thread(uses_what_others_destroy, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < DESTROYERS; i++)
        destroyers[i] = start_thread(destroys_what_others_use, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < DESTROYERS; i++)
        join_thread(destroyers[i]);
    atomic_store(&shared.stop, true);
    for (int i = 0; i < USERS; i++)
        join_thread(users[i]);
    CHECK(atomic_load(&shared.used) > 0);
    CHECK(atomic_load(&shared.destroyed) > 1000);
    CHECK_EQ(atomic_load(&shared.created) - atomic_load(&shared.destroyed), SHARED);
    for (int i = 0; i < SHARED; i++)
        CHECK_OK(kind->destroy(atomic_load(&shared.handles[i])));
}

/* Handles of an earlier life of the library are stale as well, also where new ones take their
 * place. */
static void shutdown_makes_handles_stale(void)
{
    void *before[KINDS], *after[KINDS];
    size_t live = 77;
    for (int i = 0; i < KINDS; i++)
        before[i] = kinds[i].create();
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, KINDS);
    for (int i = 0; i < KINDS; i++)
        is_refused(&kinds[i], before[i]);
    for (int i = 0; i < KINDS; i++)
        after[i] = kinds[i].create();
    for (int i = 0; i < KINDS; i++) {
        CHECK(after[i] != before[i]);
        is_refused(&kinds[i], before[i]);
        is_accepted(&kinds[i], after[i]);
        CHECK_OK(kinds[i].destroy(after[i]));
    }
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    for (int i = 0; i < KINDS; i++) {
        destroyed_handles_are_refused(&kinds[i]);
        many_handles_are_all_different(&kinds[i]);
        random_bits_are_refused(&kinds[i]);
    }
    other_kinds_are_refused();
    for (int i = 0; i < KINDS; i++)
        threads_may_destroy_what_others_use(&kinds[i]);
    shutdown_makes_handles_stale();
    return finish();
}
