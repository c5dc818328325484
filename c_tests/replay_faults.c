/* Can the verifying pass of examples/replay fail? It runs here on a library with faults.
 *
 * Built from the example's own replay_trace.c, replay_check.c, replay_ranges.c and
 * replay_report.c, and from the few functions of tcuda.h that they call, which are below: on host
 * memory, right when `fault` is NONE and else wrong in one way. Not linked with tcuda. */

#include "../examples/replay/replay.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum fault {
    NONE,
    LOST_FILL,      /* a write does not arrive */
    LATE_WRITE,     /* a block is overwritten while it is live */
    LAST_BYTE,      /* only the very last byte of a block is wrong */
    SWAPPED_UNITS,  /* the bytes of another place of the same block */
    SAME_BLOCK,     /* a live block is returned again */
    OVERLAP_END,    /* a new block begins inside a live one */
    OVERLAP_AROUND, /* a new block contains a live one */
    MISALIGNED,
    NULL_BLOCK,
    FAILED_MALLOC,
    FAILED_COPY,
    NUM_FAULTS
} fault;

static fault present_fault;
static int num_mallocs, num_fills, num_copies;
static unsigned char *arena; /* blocks follow each other; only the last goes back */
static size_t arena_used;

enum { ARENA_BYTES = 64 << 20, BAD_MALLOC = 12, BAD_CALL = 20 };

const char *tcuda_status_name(int32_t status)
{
    return status == TCUDA_STATUS_OK ? "TCUDA_STATUS_OK" : "TCUDA_STATUS_OUT_OF_MEMORY";
}

const char *tcuda_last_error(void)
{
    return "the test wants this call to fail";
}

/* replay_report.c refers to these; the verifying pass does not call them. */
uint32_t tcuda_version(void)
{
    return TCUDA_VERSION;
}

tcuda_status tcuda_memory_summary(int32_t device, int32_t abbreviated, char *buf, size_t len,
    size_t *needed)
{
    (void)device, (void)abbreviated, (void)buf, (void)len, (void)needed;
    return TCUDA_STATUS_INTERNAL;
}

tcuda_status tcuda_stream_synchronize(tcuda_stream *stream)
{
    (void)stream;
    return TCUDA_STATUS_OK;
}

tcuda_status tcuda_malloc(size_t bytes, int32_t device, tcuda_stream *stream, void **ptr)
{
    static unsigned char *previous;
    (void)device, (void)stream;
    if (bytes == 0) {
        *ptr = NULL;
        return TCUDA_STATUS_OK;
    }
    unsigned char *const fresh = arena + arena_used;
    arena_used += (bytes + 1023) / 512 * 512; /* and a gap */
    if (arena_used > ARENA_BYTES)
        return TCUDA_STATUS_OUT_OF_MEMORY;
    *ptr = fresh;
    if (++num_mallocs == BAD_MALLOC) {
        if (present_fault == SAME_BLOCK)
            *ptr = previous;
        if (present_fault == OVERLAP_END)
            *ptr = previous + 512;
        if (present_fault == OVERLAP_AROUND)
            *ptr = previous - 512;
        if (present_fault == MISALIGNED)
            *ptr = fresh + 256;
        if (present_fault == NULL_BLOCK)
            *ptr = NULL;
        if (present_fault == FAILED_MALLOC)
            return TCUDA_STATUS_OUT_OF_MEMORY;
    }
    previous = *ptr;
    return TCUDA_STATUS_OK;
}

tcuda_status tcuda_free(void *ptr)
{
    (void)ptr;
    return TCUDA_STATUS_OK;
}

tcuda_status tcuda_fill(void *ptr, const void *value, size_t value_bytes, size_t count,
    tcuda_stream *stream)
{
    unsigned char *const to = ptr;
    (void)stream;
    if (++num_fills == BAD_CALL && present_fault == LOST_FILL)
        return TCUDA_STATUS_OK;
    for (size_t i = 0; i < count; i++)
        memcpy(to + i * value_bytes, value, value_bytes);
    if (num_fills == BAD_CALL && present_fault == LAST_BYTE)
        to[value_bytes * count - 1] ^= 1;
    if (num_fills == BAD_CALL && present_fault == LATE_WRITE)
        memset(to + 100, 0, 16);
    return TCUDA_STATUS_OK;
}

tcuda_status tcuda_copy(void *dst, const void *src, size_t bytes, tcuda_stream *stream)
{
    const unsigned char *from = src;
    (void)stream;
    num_copies++;
    if (num_copies == BAD_CALL && present_fault == FAILED_COPY)
        return TCUDA_STATUS_OUT_OF_MEMORY;
    if (num_copies == 2 && present_fault == SWAPPED_UNITS)
        from += 512;
    memcpy(dst, from, bytes);
    return TCUDA_STATUS_OK;
}

/* ---- The trace, and what must come of each fault ---- */

/* 64 blocks, at most 16 live, of sizes with whole and broken units; some stay to the end. */
static bool write_trace(const char *path)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return false;
    fputs("a 1000 0 0\nf 1000\n", file);
    for (int i = 0; i < 64; i++) {
        const int bytes = 4096 + i % 5 * 512 + i % 7 * 3 + (i % 11 == 0 ? -4090 : 0);
        fprintf(file, "a %d %d %d\n", i, bytes, i % 3);
        if (i >= 16)
            fprintf(file, "f %d\n", i - 16);
    }
    return fclose(file) == 0;
}

static bool check_with(const replay_trace *trace, fault wanted, replay_result *result)
{
    tcuda_stream *streams[3] = {NULL, NULL, NULL};
    const replay_run run = {.repeat = 1, .verify = true, .streams = streams};
    present_fault = wanted;
    num_mallocs = num_fills = num_copies = 0;
    arena_used = 0;
    memset(arena, 0xAA, ARENA_BYTES);
    *result = (replay_result){0};
    return replay_check(trace, &run, result);
}

int main(void)
{
    char path[] = "/tmp/replay_faults_XXXXXX";
    const int descriptor = mkstemp(path);
    replay_trace trace;
    replay_result result;
    int failures = 0;
    arena = aligned_alloc(512, ARENA_BYTES);
    if (descriptor < 0 || arena == NULL || !write_trace(path) || !replay_trace_read(path, &trace)) {
        fprintf(stderr, "the test cannot be set up\n");
        return 1;
    }
    close(descriptor);
    remove(path);
    for (int i = NONE; i < NUM_FAULTS; i++) {
        const bool passed = check_with(&trace, (fault)i, &result);
        if (passed != (i == NONE)) {
            fprintf(stderr, "FAILED: fault %d: the verifying pass %s\n", i,
                passed ? "did not notice" : "complains without reason");
            failures++;
        }
        if (i == NONE && (result.verified_blocks != 64 || result.verified_units <= 128)) {
            fprintf(stderr, "FAILED: too little was verified\n");
            failures++;
        }
    }
    replay_trace_free(&trace);
    free(arena);
    return failures == 0 ? 0 : 1;
}
