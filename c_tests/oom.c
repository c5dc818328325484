/* Out of memory, and failures of the driver while memory is mapped: a status, nothing changed. */
#include "check.h"

static const size_t mib = 1 << 20;

static bool is_simulated(void)
{
    return strcmp(tcuda_backend_name(), "sim") == 0;
}

static tcuda_memory_statistics statistics(void)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    CHECK_OK(tcuda_memory_stats(0, &stats));
    return stats;
}

static void *allocate(size_t bytes, tcuda_stream *stream)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(bytes, 0, stream, &ptr));
    return ptr;
}

static size_t free_memory(size_t *total)
{
    size_t free_bytes = 0;
    CHECK_OK(tcuda_memory_info(0, &free_bytes, total));
    return free_bytes;
}

/* Everything but the counters of attempts. */
static void only_attempts_were_counted(tcuda_memory_statistics before, uint64_t retries,
    uint64_t ooms)
{
    const tcuda_memory_statistics after = statistics();
    CHECK_EQ(after.num_alloc_retries, before.num_alloc_retries + retries);
    CHECK_EQ(after.num_ooms, before.num_ooms + ooms);
    before.num_alloc_retries = after.num_alloc_retries;
    before.num_ooms = after.num_ooms;
    before.num_sync_all_streams = after.num_sync_all_streams;
    CHECK(memcmp(&before, &after, sizeof before) == 0);
}

static void parts_are_in_order(const char *text, const char *const *parts)
{
    for (; *parts != NULL; parts++) {
        const char *const found = strstr(text, *parts);
        if (found == NULL) {
            fprintf(stderr, "no \"%s\" in \"%s\"\n", *parts, text);
            exit(EXIT_FAILURE);
        }
        text = found + strlen(*parts);
    }
}

static void out_of_memory_says_so(void)
{
    static const char *const parts[] = { "CUDA out of memory. Tried to allocate ",
        " GiB. GPU 0 has a total capacity of ", " of which ", " is free. ",
        "Of the allocated memory 8.00 MiB is allocated by tcuda, ",
        "and 0 bytes is reserved by tcuda but unallocated.", NULL };
    void *const held = allocate(8 * mib, NULL);
    size_t total = 0;
    (void)free_memory(&total);
    const tcuda_memory_statistics before = statistics();
    void *ptr = held;
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(total + 1024 * mib, 0, NULL, &ptr));
    CHECK(ptr == held);
    CHECK_EQ(tcuda_last_error_native(), 2);
    parts_are_in_order(tcuda_last_error(), parts);
    CHECK(strncmp(tcuda_last_error(), parts[0], strlen(parts[0])) == 0);
    if (is_simulated())
        CHECK_STR(tcuda_last_error(), "CUDA out of memory. Tried to allocate 2.00 GiB. "
            "GPU 0 has a total capacity of 1024.00 MiB of which 1016.00 MiB is free. "
            "Including non-tcuda memory, this process has 8.00 MiB memory in use. "
            "Of the allocated memory 8.00 MiB is allocated by tcuda, "
            "and 0 bytes is reserved by tcuda but unallocated.");
    CHECK(statistics().num_ooms == before.num_ooms + 1);

    tcuda_allocation *allocation = NULL;
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY,
        tcuda_allocation_create(total + 1024 * mib, 0, NULL, &allocation));
    CHECK(allocation == NULL);
    CHECK_OK(tcuda_free(held));
}

/* What is asked of the driver is tried again after everything reusable was given back. */
static void attempts_are_counted(void)
{
    size_t total = 0;
    void *const held = allocate(8 * mib, NULL);
    (void)free_memory(&total);
    const tcuda_memory_statistics before = statistics();
    void *ptr = NULL;
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(total, 0, NULL, &ptr));
    CHECK(ptr == NULL);
    only_attempts_were_counted(before, 1, 1);
    CHECK_EQ(statistics().num_sync_all_streams, before.num_sync_all_streams + 1);
    CHECK_OK(tcuda_memory_reset_accumulated(0));
    CHECK_EQ(statistics().num_ooms, 0);
    CHECK_EQ(statistics().num_alloc_retries, 0);
    CHECK_EQ(statistics().num_sync_all_streams, 0);
    CHECK_OK(tcuda_free(held));
}

static void absurd_sizes_are_refused(void)
{
    static const uint64_t sizes[] = { UINT64_C(1) << 41, (UINT64_C(1) << 41) + 512,
        (UINT64_C(1) << 60) - (1 << 30), UINT64_C(1) << 60, UINT64_MAX - 511, UINT64_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const tcuda_memory_statistics before = statistics();
        void *ptr = NULL;
        CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc((size_t)sizes[i], 0, NULL, &ptr));
        const bool is_told = strstr(tcuda_last_error(), "more than 1EB memory.") != NULL;
        CHECK_EQ(is_told, sizes[i] >= UINT64_C(1) << 60);
        const tcuda_memory_statistics after = statistics();
        CHECK_EQ(after.allocation.all.allocated, before.allocation.all.allocated);
        CHECK_EQ(after.reserved_bytes.all.current, before.reserved_bytes.all.current);
    }
}

/* Cached on one stream, most of the memory serves another one all the same: where it is, or, where
 * streams are not to share, once it was given back. */
static void what_is_cached_elsewhere_serves(bool shares)
{
    CHECK_OK(tcuda_allocator_config_set(
        shares ? "share_between_streams:True" : "share_between_streams:False"));
    tcuda_stream *first = NULL, *second = NULL;
    CHECK_OK(tcuda_stream_create(0, 0, &first));
    CHECK_OK(tcuda_stream_create(0, 0, &second));
    CHECK_OK(tcuda_memory_empty_cache());
    size_t total = 0;
    const size_t bytes = free_memory(&total) / 8 * 5 / (2 * mib) * (2 * mib);
    CHECK_OK(tcuda_free(allocate(bytes, first)));
    const tcuda_memory_statistics before = statistics();
    CHECK_EQ(before.reserved_bytes.all.current, bytes);
    void *const block = allocate(bytes, second);
    const tcuda_memory_statistics after = statistics();
    CHECK_EQ(after.num_alloc_retries, before.num_alloc_retries + !shares);
    CHECK_EQ(after.num_ooms, before.num_ooms);
    CHECK_EQ(after.reserved_bytes.all.current, bytes);

    /* Nor is it lost when a free still waits for a stream. */
    CHECK_OK(tcuda_record_stream(block, first));
    CHECK_OK(tcuda_free(block));
    void *const again = allocate(bytes, first);
    CHECK_EQ(statistics().reserved_bytes.all.current, bytes);
    CHECK_EQ(statistics().active.all.current, 1);
    CHECK_OK(tcuda_free(again));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistics().reserved_bytes.all.current, 0);
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

/* What an observer is to do, and what it has seen. */
typedef struct watcher {
    void *block;
    int32_t answer;
    int order, asked, destroyed;
    size_t bytes, limit;
    /* What it did, to be looked at when it is over. */
    tcuda_status allocated, shut_down, freed;
    bool is_clean;
} watcher;

static int asked_so_far;

static int32_t watch(void *user_data, int32_t device, size_t bytes, size_t limit_bytes,
    size_t free_bytes)
{
    watcher *const self = (watcher *)user_data;
    void *ptr = self;
    size_t live = 77, free_now = 0, total = 0;
    const tcuda_status told = tcuda_memory_info(0, &free_now, &total);
    self->order = ++asked_so_far;
    self->asked++;
    self->bytes = bytes;
    self->limit = limit_bytes;
    self->allocated = tcuda_malloc(1, 0, NULL, &ptr);
    self->is_clean = ptr == self && strstr(tcuda_last_error(), "observer") != NULL;
    self->shut_down = tcuda_shutdown(&live);
    self->freed = tcuda_free(self->block);
    self->is_clean = self->is_clean && device == 0 && live == 77
        && (told != TCUDA_STATUS_OK || free_now == free_bytes);
    self->block = NULL;
    return self->answer;
}

static void did_what_it_may(const watcher *self)
{
    CHECK_EQ(self->freed, TCUDA_STATUS_OK);
    CHECK_EQ(self->allocated, TCUDA_STATUS_INVALID_STATE);
    CHECK_EQ(self->shut_down, TCUDA_STATUS_INVALID_STATE);
    CHECK(self->is_clean);
}

static void forget(void *user_data)
{
    ((watcher *)user_data)->destroyed++;
}

static tcuda_observer *observe(watcher *self)
{
    tcuda_observer *observer = NULL;
    CHECK_OK(tcuda_memory_on_out_of_memory(watch, self, forget, &observer));
    CHECK(observer != NULL);
    return observer;
}

static void fails_for_want(size_t bytes)
{
    void *ptr = NULL;
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(bytes, 0, NULL, &ptr));
    CHECK(ptr == NULL);
}

/* Asked last, the newest first; one that freed memory has the allocation tried once more. */
static void observers_may_free(void)
{
    watcher first = { 0 }, second = { 0 };
    tcuda_observer *const observers[] = { observe(&first), observe(&second) };
    tcuda_stream *stream = NULL;
    size_t total = 0;
    CHECK_OK(tcuda_stream_create(0, 0, &stream));
    (void)free_memory(&total);

    /* No observer freed anything. */
    tcuda_memory_statistics before = statistics();
    fails_for_want(total + 2 * mib);
    did_what_it_may(&first);
    did_what_it_may(&second);
    CHECK_EQ(second.order, 1);
    CHECK_EQ(first.order, 2);
    /* The driver is asked for whole handles. */
    CHECK_EQ(first.bytes, (total + 4 * mib - 1) / (2 * mib) * (2 * mib));
    CHECK_EQ(first.limit, total);
    only_attempts_were_counted(before, 1, 1);

    /* Memory of another stream is freed, and serves the second attempt where it is. */
    const size_t most = free_memory(&total) / 8 * 5 / (2 * mib) * (2 * mib);
    first.block = allocate(most, stream);
    first.answer = 1;
    before = statistics();
    void *const block = allocate(most, NULL);
    CHECK_EQ(statistics().num_alloc_retries, before.num_alloc_retries + 1);
    CHECK_EQ(statistics().num_ooms, before.num_ooms);
    CHECK(first.block == NULL);
    did_what_it_may(&first);
    CHECK_OK(tcuda_free(block));

    /* Once: an observer that always says so gets one more attempt. */
    before = statistics();
    fails_for_want(total + 2 * mib);
    CHECK_EQ(first.asked, 3);
    CHECK_EQ(statistics().num_alloc_retries, before.num_alloc_retries + 2);
    CHECK_EQ(statistics().num_ooms, before.num_ooms + 1);

    /* Beyond all addresses too; the absurd is refused without them. */
    fails_for_want((size_t)1 << 50);
    CHECK_EQ(first.asked, 4);
    fails_for_want((size_t)1 << 60);
    CHECK_EQ(first.asked, 4);

    /* The limit is what may be reserved. */
    CHECK_OK(tcuda_memory_fraction_set(0, 0.5));
    fails_for_want(total / 2 + 2 * mib);
    CHECK_EQ(second.limit, total / 2);
    CHECK_OK(tcuda_memory_fraction_set(0, 1));

    CHECK_EQ(first.destroyed + second.destroyed, 0);
    CHECK_OK(tcuda_observer_destroy(observers[0]));
    CHECK_EQ(first.destroyed, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_observer_destroy(observers[0]));
    CHECK_OK(tcuda_observer_destroy(NULL));
    fails_for_want(total + 2 * mib);
    CHECK_EQ(first.asked, 5);
    CHECK_EQ(second.asked, 6);
    CHECK_OK(tcuda_observer_destroy(observers[1]));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_on_out_of_memory(NULL, &first, forget, NULL));
    CHECK_EQ(first.destroyed, 1);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* An observer that takes itself out, and the older one as well: the data of each go when it
 * returns. */
typedef struct leaver {
    tcuda_observer *own, *other;
    int asked, destroyed, destroyed_in_callback;
    tcuda_status left;
} leaver;

static int32_t leave(void *user_data, int32_t device, size_t bytes, size_t limit_bytes,
    size_t free_bytes)
{
    leaver *const self = (leaver *)user_data;
    (void)device, (void)bytes, (void)limit_bytes, (void)free_bytes;
    self->asked++;
    self->left = tcuda_observer_destroy(self->own);
    if (self->left == TCUDA_STATUS_OK)
        self->left = tcuda_observer_destroy(self->other);
    self->destroyed_in_callback = self->destroyed;
    return 1;
}

static void forget_leaver(void *user_data)
{
    ((leaver *)user_data)->destroyed++;
}

static void observers_may_take_themselves_out(void)
{
    leaver self = { 0 };
    watcher older = { 0 };
    size_t total = 0;
    (void)free_memory(&total);
    self.other = observe(&older);
    CHECK_OK(tcuda_memory_on_out_of_memory(leave, &self, forget_leaver, &self.own));
    fails_for_want(total + 2 * mib);
    CHECK_EQ(self.left, TCUDA_STATUS_OK);
    CHECK_EQ(self.asked, 1);
    CHECK_EQ(self.destroyed_in_callback, 0);
    CHECK_EQ(self.destroyed, 1);
    CHECK_EQ(older.asked, 0);
    CHECK_EQ(older.destroyed, 1);
    fails_for_want(total + 2 * mib);
    CHECK_EQ(self.asked, 1);
}

/* One without a handle goes with the library, and so does one whose handle is forgotten. */
static void observers_end_with_the_library(void)
{
    watcher kept = { 0 }, forgotten = { 0 };
    size_t live = 0;
    CHECK_OK(tcuda_memory_on_out_of_memory(watch, &kept, forget, NULL));
    tcuda_observer *const observer = observe(&forgotten);
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 1);
    CHECK_EQ(kept.destroyed, 1);
    CHECK_EQ(forgotten.destroyed, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_observer_destroy(observer));
    fails_for_want((size_t)1 << 50);
    CHECK_EQ(kept.asked + forgotten.asked, 0);
}

/* It works after all that, with all of the memory. */
static void the_library_still_works(void)
{
    size_t total = 0;
    CHECK_OK(tcuda_memory_empty_cache());
    const size_t bytes = is_simulated() ? 1024 * mib : 64 * mib;
    unsigned char *const block = (unsigned char *)allocate(bytes, NULL);
    const unsigned char value = 0xa5;
    unsigned char back = 0;
    CHECK_OK(tcuda_fill(block + bytes - 1, &value, 1, 1, NULL));
    CHECK_OK(tcuda_copy(&back, block + bytes - 1, 1, NULL));
    CHECK_EQ(back, value);
    CHECK(free_memory(&total) + bytes <= total);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistics().reserved_bytes.all.current, 0);
}

/* One call of the driver fails, in the first or a later of the handles of a block. */
static void a_failing_driver_changes_nothing(const char *function, int32_t code, bool forever)
{
    static const size_t sizes[] = { 1000, 3 << 20, 150 << 20 };
    for (size_t i = 0; i < 3; i++) {
        for (uint64_t nth = 1; nth <= 3; nth++) {
            CHECK_OK(tcuda_memory_empty_cache());
            size_t total = 0;
            const size_t free_before = free_memory(&total);
            const tcuda_memory_statistics before = statistics();
            uint64_t calls_before = 0, calls = 0;
            CHECK_OK(tcuda_backend_call_count(function, &calls_before));
            CHECK_OK(tcuda_backend_inject(function, nth, code, forever));
            void *ptr = NULL;
            const tcuda_status status = tcuda_malloc(sizes[i], 0, NULL, &ptr);
            CHECK_OK(tcuda_backend_call_count(function, &calls));
            CHECK_OK(tcuda_backend_inject(function, 0, 0, 0));
            const bool has_fired = calls - calls_before >= nth;
            const bool is_survived = !has_fired || (code == 2 && !forever);
            if (is_survived) {
                CHECK_EQ(status, TCUDA_STATUS_OK);
                CHECK_EQ(statistics().num_alloc_retries, before.num_alloc_retries + has_fired);
                CHECK_OK(tcuda_free(ptr));
            } else {
                CHECK(ptr == NULL);
                CHECK_EQ(status,
                    code == 2 ? TCUDA_STATUS_OUT_OF_MEMORY : TCUDA_STATUS_CUDA_ERROR);
                CHECK_EQ(tcuda_last_error_native(), code);
                CHECK(code == 2 || strstr(tcuda_last_error(), function) != NULL);
                CHECK_EQ(free_memory(&total), free_before);
                only_attempts_were_counted(before, code == 2, code == 2);
            }
            void *const next = allocate(sizes[i], NULL);
            CHECK_EQ(statistics().allocation.all.current, before.allocation.all.current + 1);
            CHECK_OK(tcuda_free(next));
        }
    }
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistics().reserved_bytes.all.current, 0);
}

/* Addresses are reserved when a stream first allocates. */
static void addresses_can_be_short(int32_t code, bool forever)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_init());
    CHECK_OK(tcuda_backend_inject("cuMemAddressReserve", 1, code, forever));
    const tcuda_status status = tcuda_malloc(1000, 0, NULL, &ptr);
    CHECK_OK(tcuda_backend_inject("cuMemAddressReserve", 0, 0, 0));
    if (forever) {
        CHECK_EQ(status, code == 2 ? TCUDA_STATUS_OUT_OF_HOST_MEMORY : TCUDA_STATUS_CUDA_ERROR);
        CHECK_EQ(tcuda_last_error_native(), code);
        CHECK(ptr == NULL);
        CHECK_EQ(statistics().allocation.all.allocated, 0);
        CHECK_EQ(statistics().reserved_bytes.all.allocated, 0);
        ptr = allocate(1000, NULL);
    } else {
        /* Fewer at a time will do. */
        CHECK_EQ(status, TCUDA_STATUS_OK);
    }
    CHECK_EQ(statistics().allocation.all.current, 1);
    CHECK_OK(tcuda_free(ptr));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

int main(void)
{
    static const char *const functions[] = { "cuMemCreate", "cuMemMap", "cuMemSetAccess" };
    static const int32_t codes[] = { 2, 1, 999 };
    if (is_simulated())
        CHECK_OK(tcuda_backend_select("sim", "memory=1GiB,leaks=report"));
    SKIP_WITHOUT_GPU();
    if (is_simulated()) {
        for (size_t i = 0; i < 3; i++) {
            addresses_can_be_short(codes[i], false);
            addresses_can_be_short(codes[i], true);
        }
    }
    out_of_memory_says_so();
    attempts_are_counted();
    absurd_sizes_are_refused();
    what_is_cached_elsewhere_serves(false);
    what_is_cached_elsewhere_serves(true);
    for (size_t i = 0; is_simulated() && i < 3; i++) {
        for (size_t j = 0; j < 3; j++) {
            a_failing_driver_changes_nothing(functions[i], codes[j], false);
            a_failing_driver_changes_nothing(functions[i], codes[j], true);
        }
    }
    observers_may_free();
    observers_may_take_themselves_out();
    observers_end_with_the_library();
    the_library_still_works();
    return finish();
}
