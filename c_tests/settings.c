/* Settings of the allocator: by the environment, at run time, and the errors of wrong texts. */
#include "support.h"

static const size_t mib = 1 << 20;

static const char *config(void)
{
    static char text[2048];
    size_t needed = 0;
    CHECK_OK(tcuda_allocator_config_get(text, sizeof text, &needed));
    CHECK_EQ(needed, strlen(text));
    return text;
}

static uint64_t statistic(const char *key)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, key, &value));
    return value;
}

static void set(const char *text)
{
    CHECK_OK(tcuda_allocator_config_set(text));
}

static void contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fprintf(stderr, "no \"%s\" in \"%s\"\n", part, text);
        exit(EXIT_FAILURE);
    }
}

static const char default_text[] = "backend:native,expandable_segments:True,"
    "large_segment_size_mb:20,max_non_split_rounding_mb:20,release_lock_on_cudamalloc:False,"
    "graph_capture_record_stream_reuse:False,per_process_memory_fraction:1.0,"
    "throw_on_cudamalloc_oom:False,pinned_use_cuda_host_register:False,"
    "pinned_num_register_threads:1,pinned_use_background_threads:False,"
    "pinned_max_round_threshold_mb:0,pinned_max_cached_size_mb:17592186044415,"
    "pinned_free_catch_all:False";

static void defaults_are_told_without_a_device(void)
{
    bool initialised = true;
    CHECK_STR(config(), default_text);
    CHECK_OK(tcuda_is_initialized(&initialised));
    CHECK(!initialised);
    char four[4] = "abc";
    size_t needed = 0;
    CHECK_OK(tcuda_allocator_config_get(four, sizeof four, &needed));
    CHECK_STR(four, "bac");
    CHECK_EQ(needed, strlen(default_text));
}

/* What is set before the first use counts then; a shutdown forgets it. */
static void what_was_set_before_counts(void)
{
    set("max_split_size_mb:64,per_process_memory_fraction:0.5");
    CHECK_OK(tcuda_init());
    double fraction = 0;
    CHECK_OK(tcuda_memory_fraction_get(0, &fraction));
    CHECK(fraction == 0.5);
    CHECK_EQ(statistic("max_split_size"), 64 * mib);
    set(config());
    contains(config(), ",max_split_size_mb:64,");
    /* The same fraction again is no reason to undo another one. */
    CHECK_OK(tcuda_memory_fraction_set(0, 0.25));
    set(config());
    CHECK_OK(tcuda_memory_fraction_get(0, &fraction));
    CHECK(fraction == 0.25);
    set("per_process_memory_fraction:0.75");
    CHECK_OK(tcuda_memory_fraction_get(0, &fraction));
    CHECK(fraction == 0.75);
    CHECK(statistic("max_split_size") == UINT64_MAX);
    CHECK_EQ(finish(), EXIT_SUCCESS);
    CHECK_STR(config(), default_text);
}

static void wrong_texts_change_nothing(void)
{
    static const char *const rows[][2] = {
        { "max_split:1", "config: Unrecognized key 'max_split' in CUDA allocator config." },
        { "max_split_size_mb:19",
            "CachingAllocator option max_split_size_mb too small, must be >= 20, got 19" },
        { "max_non_split_rounding_mb:19",
            "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20, got 19" },
        { "large_segment_size_mb:10", "large_segment_size_mb must be > 10 MB, got '10'" },
        { "garbage_collection_threshold:1",
            "garbage_collect_threshold is invalid, set it in (0.0, 1.0), got '1'" },
        { "roundup_power2_divisions:3",
            "For roundups, the divisions has to be power of 2 or 0 to disable roundup, got '3'" },
        { "roundup_power2_divisions:[3:2]",
            "For roundups, the intervals have to be power of 2, got '3'" },
        { "roundup_power2_divisions:[4:2", "Expected closing bracket ']' in ConfigTokenizer" },
        { "expandable_segments:yes",
            "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'yes'" },
        { "backend:magic", "Unknown allocator backend, options are native and cudaMallocAsync" },
        { "pinned_num_register_threads:6",
            "Number of register threads has to be power of 2, got '6'" },
        { "pinned_num_register_threads:256",
            "Number of register threads should be less than or equal to 128, got '256'" },
        { "pinned_reserve_segment_size_mb:0",
            "Pinned reserve segment size has to be greater than 0, got '0'" },
        { "per_process_memory_fraction:1.01",
            "per_process_memory_fraction is invalid, set it in [0.0, 1.0], got '1.01'" },
        { "backend=native", "Unrecognized key 'backend=native'" },
        { "throw_on_cudamalloc_oom", "Expected separator ':'" },
        { "pinned_max_cached_size_mb:lots", "pinned_max_cached_size_mb is 'lots'" },
        { "max_split_size_mb:64,\xff", "not UTF-8" },
    };
    for (int round = 0; round < 2; round++) {
        char before[2048];
        set("max_split_size_mb:32,pinned_num_register_threads:4");
        snprintf(before, sizeof before, "%s", config());
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char text[256];
            snprintf(text, sizeof text, "max_split_size_mb:128,%s", rows[i][0]);
            CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_allocator_config_set(text));
            contains(tcuda_last_error(), strstr(rows[i][1], "index 2") ? "at index 6" : rows[i][1]);
            CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_allocator_config_set(rows[i][0]));
            contains(tcuda_last_error(), rows[i][1]);
            CHECK_STR(config(), before);
        }
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_allocator_config_set(NULL));
        CHECK_OK(tcuda_init());
    }
    CHECK_EQ(statistic("max_split_size"), 32 * mib);
}

/* The first variable that is set counts, alone. */
static void variables_have_an_order(void)
{
    CHECK_EQ(setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:21", 1), 0);
    contains(config(), ",max_split_size_mb:21,");
    CHECK_EQ(setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:22", 1), 0);
    contains(config(), ",max_split_size_mb:22,");
    CHECK_EQ(setenv("TCUDA_ALLOC_CONF", "roundup_power2_divisions:2", 1), 0);
    CHECK(strstr(config(), "max_split") == NULL);
    CHECK_OK(tcuda_init());
    /* From now on it is not read any more. */
    CHECK_EQ(setenv("TCUDA_ALLOC_CONF", "nonsense", 1), 0);
    contains(config(), "roundup_power2_divisions:[1:2,2:2,");
    void *const block = allocate(1200, 0, NULL);
    CHECK_EQ(statistic("allocated_bytes.all.current"), 1536);
    CHECK_EQ(statistic("requested_bytes.all.current"), 1200);
    CHECK_OK(tcuda_free(block));
    set("");
    CHECK_STR(config(), default_text);
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_init());
}

static void a_wrong_environment_is_told_at_the_first_use(void)
{
    char text[64] = "unchanged";
    void *ptr = NULL;
    CHECK_EQ(setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:1", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_init());
    contains(tcuda_last_error(), "PYTORCH_ALLOC_CONF: CachingAllocator option max_split_size_mb");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_malloc(1, 0, NULL, &ptr));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_allocator_config_set("backend:native"));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_allocator_config_get(text, sizeof text, NULL));
    CHECK_STR(text, "unchanged");
    CHECK_EQ(setenv("PYTORCH_ALLOC_CONF", "\xff", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_init());
    contains(tcuda_last_error(), "UTF-8");
    CHECK_EQ(unsetenv("PYTORCH_ALLOC_CONF"), 0);
    CHECK_OK(tcuda_init());
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* The table of the specification: 1200 with 4 divisions between 1024 and 2048 is 1280, but units
 * are 512 bytes, and above 4 units only are there divisions of a unit each. */
static void sizes_are_rounded_by_divisions(void)
{
    static const size_t rows[][3] = { { 4, 1200, 1536 }, { 4, 2048, 2048 }, { 4, 2049, 2560 },
        { 4, 5000, 5120 }, { 8, (1 << 20) + 1, (1 << 20) + (1 << 17) },
        { 4, 1200 << 20, 1280 << 20 }, { 2, (33 << 20) - 5, 48 << 20 }, { 1, 5000, 5120 },
        { 0, 2049, 2560 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[64];
        snprintf(text, sizeof text, "roundup_power2_divisions:%zu", rows[i][0]);
        set(text);
        void *const block = allocate(rows[i][1], 0, NULL);
        CHECK_EQ(statistic("allocated_bytes.all.current"), rows[i][2]);
        CHECK_EQ(statistic("active_bytes.all.current"), rows[i][2]);
        CHECK_EQ(statistic("requested_bytes.all.current"), rows[i][1]);
        set("");
        CHECK_OK(tcuda_free(block));
        CHECK_EQ(statistic("allocated_bytes.all.current"), 0);
    }
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static void oversize_blocks_are_counted(void)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    set("max_split_size_mb:32");
    void *const blocks[] = { allocate(32 * mib, 0, NULL), allocate(32 * mib - 511, 0, NULL),
        allocate(32 * mib - 512, 0, NULL) };
    CHECK_OK(tcuda_memory_stats(0, &stats));
    CHECK_EQ(stats.max_split_size, 32 * mib);
    CHECK_EQ(stats.oversize_allocations.current, 2);
    /* A block stays what it was. */
    set("max_split_size_mb:20");
    CHECK_OK(tcuda_free(blocks[2]));
    CHECK_EQ(statistic("oversize_allocations.current"), 2);
    set("");
    CHECK_OK(tcuda_record_stream(blocks[1], NULL));
    CHECK_OK(tcuda_free(blocks[1]));
    CHECK_OK(tcuda_free(blocks[0]));
    CHECK_EQ(statistic("oversize_allocations.current"), 0);
    CHECK_EQ(statistic("oversize_allocations.peak"), 2);
    CHECK_EQ(statistic("oversize_allocations.allocated"), 2);
    CHECK_EQ(statistic("oversize_allocations.freed"), 2);
    CHECK_EQ(statistic("oversize_segments.peak"), 0);
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static void the_backend_is_chosen_before_the_first_allocation(void)
{
    set("backend:native");
    CHECK_OK(tcuda_init());
    set("backend:native");
    void *const block = allocate(512, 0, NULL);
    set("backend:native");
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_allocator_config_set("backend:cudaMallocAsync"));
    CHECK_STR(config(), default_text);
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

int main(void)
{
    CHECK_EQ(unsetenv("TCUDA_ALLOC_CONF") | unsetenv("PYTORCH_ALLOC_CONF")
        | unsetenv("PYTORCH_CUDA_ALLOC_CONF"), 0);
    RUNS(defaults_are_told_without_a_device);
    if (!on_simulator())
        printf("what needs a device runs on the simulated machine only\n");
    else {
        RUNS(what_was_set_before_counts);
        RUNS(wrong_texts_change_nothing);
        RUNS(variables_have_an_order);
        RUNS(a_wrong_environment_is_told_at_the_first_use);
        RUNS(sizes_are_rounded_by_divisions);
        RUNS(oversize_blocks_are_counted);
        RUNS(the_backend_is_chosen_before_the_first_allocation);
    }
    return finish_cases();
}
