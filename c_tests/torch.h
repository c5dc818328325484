/* What the tests of PyTorch's functions have in common: what was logged, and calls that must not
 * fail. */
#ifndef TORCH_H
#define TORCH_H

#include "support.h"

#define MIB ((size_t)1 << 20)

/* ---- What is logged ---- */

static atomic_int lines;
static char last_line[3000];

static inline void take_line(void *user_data, tcuda_log_level level, const char *line)
{
    (void)user_data;
    if (level != TCUDA_LOG_ERROR)
        return;
    atomic_fetch_add(&lines, 1);
    snprintf(last_line, sizeof last_line, "%s", line);
}

/* One line more was logged since, with these words in it. */
static inline void expect_line(const char *words)
{
    CHECK_EQ(atomic_load(&lines), 1);
    if (strstr(last_line, words) == NULL)
        fprintf(stderr, "%s\n", last_line);
    CHECK(strstr(last_line, words) != NULL);
    atomic_store(&lines, 0);
}

/* Nothing was logged since, but for what a fault of the fault loop makes fail. */
static inline void expect_silence(void)
{
    CHECK_EQ(atomic_load(&lines), 0);
}

static inline void *torch_malloc(size_t bytes, int32_t device, struct CUstream_st *stream)
{
    void *block = tcuda_torch_malloc((ptrdiff_t)bytes, device, stream);
    CHECK(block != NULL);
    return block;
}

static inline void torch_free(void *block)
{
    tcuda_torch_free(block, -5, 77, NULL);
    expect_silence();
}

static inline uint64_t stat_of(const char *key)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, key, &value));
    return value;
}

static inline size_t reserved(void)
{
    size_t bytes = 0;
    CHECK_OK(tcuda_memory_reserved(0, &bytes));
    return bytes;
}

/* The pool in which a block is, as one number; 0: none. */
static inline uint64_t pool_of(const void *ptr)
{
    tcuda_memory_snapshot *snapshot = NULL;
    size_t segments = 0, blocks = 0;
    uint64_t pool = UINT64_MAX;
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    for (size_t i = 0; i < segments; i++) {
        tcuda_segment_info info = TCUDA_INIT(tcuda_segment_info);
        CHECK_OK(tcuda_memory_snapshot_segment(snapshot, i, &info));
        const uintptr_t first = (uintptr_t)info.ptr, byte = (uintptr_t)ptr;
        if (byte >= first && byte - first < info.total_bytes)
            pool = 2 * info.pool_id0 + (info.pool_id1 > 0 ? 2 * info.pool_id1 + 1 : 0);
    }
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK(pool != UINT64_MAX);
    return pool;
}

#endif /* TORCH_H */
