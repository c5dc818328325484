/* Statistics: the struct, the keys, JSON, peaks and resets, the summary. */
#include "support.h"

#include <stddef.h>

static const size_t mib = 1 << 20;

static const char *const array_names[] = { "allocation", "allocated_bytes", "active",
    "active_bytes", "requested_bytes", "segment", "reserved_bytes", "inactive_split",
    "inactive_split_bytes" };
static const char *const pools[] = { "all", "small_pool", "large_pool" };
static const char *const metrics[] = { "current", "peak", "allocated", "freed" };
enum { ARRAYS = 9, POOLS = 3, METRICS = 4, SINGLES = 2, NUMBERS = 7 };

/* In the order of the struct, after the arrays. */
static const char *const single_names[] = { "oversize_allocations", "oversize_segments" };
static const char *const number_names[] = { "num_alloc_retries", "num_ooms",
    "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size",
    "num_oom_rejections" };

/* The struct is its size and 64-bit numbers in a fixed order. */
enum { FIELDS = ARRAYS * POOLS * METRICS + SINGLES * METRICS + NUMBERS };
_Static_assert(sizeof(tcuda_memory_statistics) == sizeof(size_t) + FIELDS * 8, "no padding");
_Static_assert(offsetof(tcuda_memory_statistics, inactive_split_bytes.large_pool.freed) ==
    sizeof(size_t) + (ARRAYS * POOLS * METRICS - 1) * 8, "the arrays come first");

static tcuda_memory_statistics statistics(void)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    CHECK_OK(tcuda_memory_stats(0, &stats));
    CHECK_EQ(stats.struct_size, sizeof stats);
    return stats;
}

static uint64_t stat_of(const char *key)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, key, &value));
    return value;
}

/* The name of a field of the struct. */
static void key_of(int field, char *key, size_t len)
{
    const int singles = ARRAYS * POOLS * METRICS, numbers = singles + SINGLES * METRICS;
    if (field < singles)
        snprintf(key, len, "%s.%s.%s", array_names[field / (POOLS * METRICS)],
            pools[field / METRICS % POOLS], metrics[field % METRICS]);
    else if (field < numbers)
        snprintf(key, len, "%s.%s", single_names[(field - singles) / METRICS],
            metrics[(field - singles) % METRICS]);
    else
        snprintf(key, len, "%s", number_names[field - numbers]);
}

static uint64_t field_of(const tcuda_memory_statistics *stats, int field)
{
    uint64_t value = 0;
    memcpy(&value, (const char *)stats + sizeof(size_t) + (size_t)field * 8, sizeof value);
    return value;
}

static void zeros_before_initialisation(void)
{
    bool initialized = true;
    const tcuda_memory_statistics stats = statistics();
    for (int field = 0; field < FIELDS; field++) {
        char key[64];
        key_of(field, key, sizeof key);
        if (strcmp(key, "max_split_size") != 0)
            CHECK_EQ(field_of(&stats, field), 0);
        CHECK_EQ(stat_of(key), field_of(&stats, field));
    }
    CHECK_OK(tcuda_is_initialized(&initialized));
    CHECK(!initialized);
}

/* Something in every statistic that a test can move. */
static void make_history(void)
{
    for (int round = 0; round < 2; round++) {
        void *const blocks[] = { allocate(1000, 0, NULL), allocate(700, 0, NULL),
            allocate(3 * mib + 1, 0, NULL) };
        for (int i = 0; i < 3; i++)
            CHECK_OK(tcuda_free(blocks[(i + round) % 3]));
    }
    CHECK_OK(tcuda_memory_empty_cache());
}

static void every_key_is_its_field(void)
{
    const tcuda_memory_statistics stats = statistics();
    int moved = 0;
    for (int field = 0; field < FIELDS; field++) {
        char key[64];
        key_of(field, key, sizeof key);
        CHECK_EQ(stat_of(key), field_of(&stats, field));
        moved += field_of(&stats, field) != 0;
    }
    CHECK(moved > 60);
    CHECK_EQ(stats.max_split_size, UINT64_MAX);
}

static void other_keys_are_refused(void)
{
    static const char *const keys[] = { "", ".", "allocated.all", "allocation",
        "allocation.all", "allocation.all.current.", "allocation.all.now", "num_ooms.current",
        "oversize_segments.all.current", "Allocation.all.current", " num_ooms", "num_oom",
        "allocation.medium_pool.peak" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t value = 42;
        char quoted[64];
        snprintf(quoted, sizeof quoted, "\"%s\"", keys[i]);
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_stat(0, keys[i], &value));
        CHECK(strstr(tcuda_last_error(), quoted) != NULL);
        CHECK_EQ(value, 42);
    }
}

static void structs_have_versions(void)
{
    const tcuda_memory_statistics all = statistics();
    tcuda_memory_statistics old;
    memset(&old, 0x5a, sizeof old);
    old.struct_size = sizeof(size_t) + sizeof(tcuda_stat_by_pool);
    CHECK_OK(tcuda_memory_stats(0, &old));
    CHECK_EQ(old.struct_size, sizeof(size_t) + sizeof(tcuda_stat_by_pool));
    CHECK(memcmp(&old.allocation, &all.allocation, sizeof old.allocation) == 0);
    CHECK_EQ(old.allocated_bytes.all.current, 0x5a5a5a5a5a5a5a5a);
    CHECK_EQ(old.num_oom_rejections, 0x5a5a5a5a5a5a5a5a);

    struct {
        tcuda_memory_statistics known;
        uint64_t later;
    } newer;
    memset(&newer, 0x5a, sizeof newer);
    newer.known.struct_size = sizeof newer;
    CHECK_OK(tcuda_memory_stats(0, &newer.known));
    CHECK_EQ(newer.known.struct_size, sizeof newer);
    CHECK(memcmp(&newer.known.allocation, &all.allocation, sizeof all - sizeof(size_t)) == 0);
    CHECK_EQ(newer.later, 0x5a5a5a5a5a5a5a5a);

    tcuda_memory_statistics unset;
    memset(&unset, 0, sizeof unset);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_stats(0, &unset));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_memory_stats(1000, &newer.known));
}

/* What follows `"name": ` behind `from`. */
static const char *member(const char *from, const char *name)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *const found = strstr(from, quoted);
    CHECK(found != NULL);
    return found + strlen(quoted);
}

static void json_has_all_keys(void)
{
    static char json[16384];
    size_t needed = 0;
    CHECK_OK(tcuda_memory_stats_json(0, json, sizeof json, &needed));
    CHECK_EQ(strlen(json), needed);
    int depth = 0;
    for (const char *c = json; *c != '\0'; c++) {
        depth += (*c == '{') - (*c == '}');
        CHECK(depth > 0 || c[1] == '\0');
    }
    CHECK_EQ(depth, 0);
    const tcuda_memory_statistics stats = statistics();
    for (int field = 0; field < FIELDS; field++) {
        char key[64];
        key_of(field, key, sizeof key);
        const char *at = json;
        for (const char *part = strtok(key, "."); part != NULL; part = strtok(NULL, "."))
            at = member(at, part);
        CHECK_EQ(strtoll(at, NULL, 10), field_of(&stats, field));
    }
    /* The rule for text. */
    char cut[10];
    size_t again = 0;
    CHECK_OK(tcuda_memory_stats_json(0, NULL, 0, &again));
    CHECK_EQ(again, needed);
    CHECK_OK(tcuda_memory_stats_json(0, cut, sizeof cut, NULL));
    CHECK_EQ(strlen(cut), sizeof cut - 1);
    CHECK(strncmp(cut, json, sizeof cut - 1) == 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_stats_json(0, NULL, 1, &again));
}

static size_t size_of(tcuda_status (*function)(int32_t, size_t *))
{
    size_t bytes = 0;
    CHECK_OK(function(0, &bytes));
    return bytes;
}

static void peaks_and_totals_are_reset(void)
{
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_reset_peak(0));
    CHECK_OK(tcuda_memory_reset_accumulated(0));
    for (int field = 0; field < FIELDS; field++) {
        char key[64];
        key_of(field, key, sizeof key);
        if (strcmp(key, "max_split_size") != 0)
            CHECK_EQ(stat_of(key), 0);
    }
    void *const small = allocate(1000, 0, NULL), *const large = allocate(5 * mib, 0, NULL);
    CHECK_OK(tcuda_free(large));
    CHECK_EQ(size_of(tcuda_memory_allocated), 1024);
    CHECK_EQ(size_of(tcuda_memory_max_allocated), 5 * mib + 1024);
    CHECK_EQ(size_of(tcuda_memory_reserved), 8 * mib);
    CHECK_EQ(size_of(tcuda_memory_max_reserved), 8 * mib);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(size_of(tcuda_memory_reserved), 2 * mib);
    CHECK_EQ(size_of(tcuda_memory_max_reserved), 8 * mib);
    tcuda_memory_statistics stats = statistics();
    CHECK_EQ(stats.allocation.all.peak, 2);
    CHECK_EQ(stats.allocation.large_pool.peak, 1);
    CHECK_EQ(stats.allocation.large_pool.freed, 1);
    CHECK_EQ(stats.segment.all.peak, 2);
    CHECK_EQ(stats.num_device_alloc, 2);
    CHECK_EQ(stats.num_device_free, 1);

    CHECK_OK(tcuda_memory_reset_peak(0));
    stats = statistics();
    CHECK_EQ(stats.allocated_bytes.all.peak, 1024);
    CHECK_EQ(stats.allocated_bytes.large_pool.peak, 0);
    CHECK_EQ(stats.reserved_bytes.all.peak, 2 * mib);
    CHECK_EQ(stats.requested_bytes.all.peak, 1000);
    CHECK_EQ(stats.allocated_bytes.all.allocated, 5 * mib + 1024);
    CHECK_OK(tcuda_memory_reset_accumulated(0));
    stats = statistics();
    CHECK_EQ(stats.allocated_bytes.all.allocated, 0);
    CHECK_EQ(stats.allocated_bytes.all.current, 1024);
    CHECK_EQ(stats.num_device_alloc, 0);
    CHECK_OK(tcuda_free(small));
    stats = statistics();
    CHECK_EQ(stats.allocated_bytes.all.freed, 1024);
    CHECK_EQ(stats.allocated_bytes.all.peak, 1024);
}

static char summary[8192];

/* A line of the summary, from 1, without its newline. */
static const char *line(int number)
{
    static char copy[128];
    const char *from = summary;
    for (int i = 1; i < number; i++) {
        from = strchr(from, '\n');
        CHECK(from != NULL);
        from++;
    }
    const size_t length = strcspn(from, "\n");
    CHECK(length < sizeof copy);
    memcpy(copy, from, length);
    copy[length] = '\0';
    return copy;
}

static int summarise(int32_t abbreviated)
{
    size_t needed = 0;
    int lines = 0;
    CHECK_OK(tcuda_memory_summary(0, abbreviated, summary, sizeof summary, &needed));
    CHECK_EQ(strlen(summary), needed);
    for (const char *from = summary; *from != '\0'; lines++) {
        const size_t length = strcspn(from, "\n");
        CHECK_EQ(length, 77);
        CHECK(from[0] == '|' && from[length - 1] == '|' && from[length] == '\n');
        from += length + 1;
    }
    return lines;
}

static const char rule[] =
    "|---------------------------------------------------------------------------|";
static const char double_rule[] =
    "|===========================================================================|";

/* One live small block and one live large one, a cached one, nothing before: no number of these
 * depends on the device. */
static void the_summary_is_torchs(void)
{
    static const char *const frame[] = { double_rule,
        "|                  tcuda CUDA memory summary, device ID 0                   |", rule,
        "|            CUDA OOMs: 0            |        cudaMalloc retries: 0         |",
        double_rule,
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |" };
    static const char *const rows[] = {
        "| Allocated memory      |   3074 KiB |   8197 KiB |   8197 KiB |   5123 KiB |",
        "|       from large pool |   3072 KiB |   8192 KiB |   8192 KiB |   5120 KiB |",
        "|       from small pool |      2 KiB |      5 KiB |      5 KiB |      3 KiB |",
        "| Active memory         |   3074 KiB |   8197 KiB |   8197 KiB |   5123 KiB |",
        "|       from large pool |   3072 KiB |   8192 KiB |   8192 KiB |   5120 KiB |",
        "|       from small pool |      2 KiB |      5 KiB |      5 KiB |      3 KiB |",
        "| Requested memory      |   3073 KiB |   8196 KiB |   8196 KiB |   5122 KiB |",
        "|       from large pool |   3072 KiB |   8192 KiB |   8192 KiB |   5120 KiB |",
        "|       from small pool |      1 KiB |      4 KiB |      4 KiB |      2 KiB |",
        "| GPU reserved memory   |  10240 KiB |  10240 KiB |  10240 KiB |      0 B   |",
        "|       from large pool |   8192 KiB |   8192 KiB |   8192 KiB |      0 B   |",
        "|       from small pool |   2048 KiB |   2048 KiB |   2048 KiB |      0 B   |",
    };
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_reset_peak(0));
    CHECK_OK(tcuda_memory_reset_accumulated(0));
    void *const blocks[] = { allocate(3 * mib, 0, NULL), allocate(5 * mib, 0, NULL),
        allocate(2000, 0, NULL), allocate(2561, 0, NULL) };
    CHECK_OK(tcuda_free(blocks[1]));
    CHECK_OK(tcuda_free(blocks[3]));
    CHECK_EQ(summarise(0), 47);
    for (int i = 0; i < 6; i++)
        CHECK_STR(line(i + 1), frame[i]);
    for (int i = 0; i < 12; i++)
        CHECK_STR(line(8 + i + i / 3), rows[i]);
    for (int group = 0; group < 9; group++)
        CHECK_STR(line(7 + group * 4), rule);
    CHECK_STR(line(28),
        "| Allocations           |       2    |       4    |       4    |       2    |");
    CHECK_STR(line(29),
        "|       from large pool |       1    |       2    |       2    |       1    |");
    CHECK_STR(line(32),
        "| Active allocs         |       2    |       4    |       4    |       2    |");
    CHECK_STR(line(36),
        "| GPU reserved segments |       2    |       2    |       2    |       0    |");
    CHECK(strncmp(line(24), "| Non-releasable memory |", 25) == 0);
    CHECK(strncmp(line(40), "| Non-releasable allocs |", 25) == 0);
    CHECK_STR(line(43), rule);
    CHECK_STR(line(44),
        "| Oversize allocations  |       0    |       0    |       0    |       0    |");
    CHECK_STR(line(45), rule);
    CHECK_STR(line(46),
        "| Oversize GPU segments |       0    |       0    |       0    |       0    |");
    CHECK_STR(line(47), double_rule);

    CHECK_EQ(summarise(1), 29);
    CHECK_STR(line(8), rows[0]);
    CHECK_STR(line(10), rows[3]);
    CHECK_STR(line(14), rows[9]);
    CHECK(strstr(summary, "from") == NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_summary(0, 2, summary, sizeof summary, NULL));
    CHECK_OK(tcuda_free(blocks[0]));
    CHECK_OK(tcuda_free(blocks[2]));
}

static bool has(const char *row)
{
    summarise(1);
    return strstr(summary, row) != NULL;
}

/* Units change at 768 of the smaller one, and at 750 thousand. */
static void units_change_where_torchs_do(void)
{
    CHECK_OK(tcuda_memory_reset_peak(0));
    CHECK_OK(tcuda_memory_reset_accumulated(0));
    void *const most = allocate(768 * 1024 - 512, 0, NULL);
    CHECK(has("| Allocated memory      | 785920 B   | 785920 B   | 785920 B   |      0 B   |"));
    void *const rest = allocate(512, 0, NULL);
    CHECK(has("| Allocated memory      |    768 KiB |    768 KiB |    768 KiB |      0 B   |"));
    CHECK_OK(tcuda_free(rest));
    CHECK(has("| Allocated memory      | 785920 B   |    768 KiB |    768 KiB |    512 B   |"));
    CHECK_OK(tcuda_free(most));

    CHECK_OK(tcuda_memory_reset_accumulated(0));
    for (int i = 0; i < 12; i++)
        CHECK_OK(tcuda_free(allocate(i == 0 ? 64 * mib - 512 : 64 * mib, 0, NULL)));
    CHECK(has("|      0 B   |  65536 KiB | 786431 KiB | 786431 KiB |"));
    CHECK_OK(tcuda_free(allocate(512, 0, NULL)));
    CHECK(has("|      0 B   |  65536 KiB |    768 MiB |    768 MiB |"));

    CHECK_OK(tcuda_memory_reset_accumulated(0));
    CHECK_OK(tcuda_memory_reset_peak(0));
    for (int i = 0; i < 749999; i++)
        CHECK_OK(tcuda_free(allocate(1, 0, NULL)));
    CHECK(has("| Allocations           |       0    |       1    |  749999    |  749999    |"));
    void *const last = allocate(1, 0, NULL);
    CHECK(has("| Allocations           |       1    |       1    |     750 K  |  749999    |"));
    CHECK_OK(tcuda_free(last));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* A scope has peaks and totals of its own, and those around it include it. */
static void scopes_have_their_own(void)
{
    tcuda_memory_statistics inner = TCUDA_INIT(tcuda_memory_statistics), outer = inner;
    CHECK_OK(tcuda_memory_empty_cache());
    void *const before = allocate(1024, 0, NULL);
    CHECK_OK(tcuda_free(allocate(8 * mib, 0, NULL)));
    CHECK_OK(tcuda_memory_stats_push(0));
    void *const held = allocate(2048, 0, NULL);
    CHECK_OK(tcuda_memory_stats_push(0));
    CHECK_OK(tcuda_free(allocate(4 * mib, 0, NULL)));
    CHECK_OK(tcuda_free(before));
    CHECK_OK(tcuda_memory_reset_peak(0));
    CHECK_OK(tcuda_memory_reset_accumulated(0));
    CHECK_OK(tcuda_memory_stats_pop(0, &inner));
    CHECK_EQ(inner.allocated_bytes.all.current, 2048);
    CHECK_EQ(inner.allocated_bytes.all.peak, 3072 + 4 * mib);
    CHECK_EQ(inner.allocated_bytes.all.allocated, 4 * mib);
    CHECK_EQ(inner.allocated_bytes.all.freed, 4 * mib + 1024);
    CHECK_EQ(inner.allocation.small_pool.peak, 2);
    CHECK_EQ(inner.allocation.large_pool.peak, 1);
    CHECK_EQ(inner.requested_bytes.small_pool.peak, 3072);
    CHECK_EQ(inner.reserved_bytes.all.allocated, 0);
    CHECK_EQ(inner.num_device_alloc, 0);
    CHECK(inner.max_split_size == UINT64_MAX);
    CHECK_OK(tcuda_free(held));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_stats_pop(0, &outer));
    CHECK_EQ(outer.allocated_bytes.all.peak, 3072 + 4 * mib);
    CHECK_EQ(outer.allocation.all.allocated, 2);
    CHECK_EQ(outer.allocation.all.freed, 3);
    CHECK_EQ(outer.reserved_bytes.all.peak, outer.reserved_bytes.all.freed);
    CHECK_EQ(outer.reserved_bytes.all.current, 0);
    CHECK_EQ(outer.num_sync_all_streams, 1);
    CHECK(outer.num_device_free > 0);

    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_memory_stats_pop(0, &outer));
    CHECK_EQ(outer.allocation.all.freed, 3);
    CHECK_OK(tcuda_memory_stats_push(0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_memory_stats_pop(99, NULL));
    CHECK_OK(tcuda_memory_stats_pop(0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_memory_stats_push(99));
}

/* The memory of each stream and class, and the largest block that there is. */
static void sizes_are_those_of_the_snapshot(void)
{
    enum { MOST = 16 };
    tcuda_segment_size sizes[MOST];
    size_t count = 0, largest = 0, unused = 0, total = 0;
    CHECK_OK(tcuda_memory_empty_cache());
    tcuda_stream *const stream = create_stream(0);
    struct CUstream_st *const native = native_of(stream);
    void *const small = allocate(1000, 0, stream), *const large = allocate(5 << 20, 0, stream);
    CHECK_OK(tcuda_memory_segment_sizes(0, sizes, MOST, &count));
    CHECK(count <= MOST);
    uint64_t found[2] = { 0, 0 };
    for (size_t i = 0; i < count; i++) {
        if (sizes[i].cu_stream == native)
            found[sizes[i].is_small] += sizes[i].bytes;
    }
    tcuda_memory_snapshot *snapshot = NULL;
    size_t segments = 0, blocks = 0;
    uint64_t expected[2] = { 0, 0 };
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    for (size_t i = 0; i < segments; i++) {
        tcuda_segment_info info = TCUDA_INIT(tcuda_segment_info);
        CHECK_OK(tcuda_memory_snapshot_segment(snapshot, i, &info));
        if (info.cu_stream == native)
            expected[info.is_small] += info.total_bytes;
    }
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK(found[0] >= 5 << 20 && found[1] >= 1000);
    CHECK_EQ(found[0], expected[0]);
    CHECK_EQ(found[1], expected[1]);
    const size_t all = count;
    CHECK_OK(tcuda_memory_segment_sizes(0, sizes, 1, &count));
    CHECK_EQ(count, all);
    CHECK_OK(tcuda_memory_segment_sizes(0, NULL, 0, &count));
    CHECK_EQ(count, all);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_segment_sizes(0, NULL, 1, &count));

    CHECK_OK(tcuda_memory_info(0, &unused, &total));
    CHECK_OK(tcuda_memory_largest_free(0, &largest));
    CHECK(largest >= unused);
    CHECK_OK(tcuda_free(small));
    CHECK_OK(tcuda_free(large));
    if (on_simulator()) {
        /* The rest of the device: what is largest now is a cached block. */
        void *const rest = allocate((unused >> 20 << 20) - (32 << 20), 0, stream);
        CHECK_OK(tcuda_free(rest));
        CHECK_OK(tcuda_memory_info(0, &unused, &total));
        CHECK_OK(tcuda_memory_largest_free(0, &largest));
        CHECK(largest > unused && largest <= total);
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_OK(tcuda_memory_info(0, &unused, &total));
        CHECK_OK(tcuda_memory_largest_free(0, &largest));
        CHECK_EQ(largest, unused);
    }
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    zeros_before_initialisation();
    make_history();
    every_key_is_its_field();
    other_keys_are_refused();
    structs_have_versions();
    json_has_all_keys();
    peaks_and_totals_are_reset();
    the_summary_is_torchs();
    units_change_where_torchs_do();
    scopes_have_their_own();
    sizes_are_those_of_the_snapshot();
    return finish();
}
