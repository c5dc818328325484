/* tcuda_ort.h as ONNX Runtime's CUDA provider uses it: the addresses come out of the options' text,
 * and the functions are called as by its CUDAExternalAllocator. C and C++. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "tcuda_ort.h"

enum { KIB = 1 << 10 };

/* The provider's types (onnxruntime/core/providers/cuda/cuda_allocator.h). */
typedef void *(*external_alloc)(size_t size);
typedef void (*external_free)(void *p);
typedef void (*external_empty_cache)(void);

/* What the provider has after it parsed the options. */
typedef struct provider {
    int32_t device_id;
    external_alloc alloc;
    external_free free;
    external_empty_cache empty_cache;
    uintptr_t user_compute_stream;
} provider;

/* As ParseStringWithClassicLocale of an integer: decimal digits, and nothing behind them. */
static uintptr_t parsed(const tcuda_ort_options *options, const char *key)
{
    for (size_t i = 0; i < options->count; i++) {
        if (strcmp(options->keys[i], key) == 0) {
            char *end = NULL;
            CHECK_EQ(strspn(options->values[i], "0123456789"), strlen(options->values[i]));
            const unsigned long long value = strtoull(options->values[i], &end, 10);
            CHECK(end != options->values[i] && *end == '\0');
            return (uintptr_t)value;
        }
    }
    check_failed(__FILE__, __LINE__, "the option is there", key);
    return 0;
}

static provider provider_of(const tcuda_ort_options *options)
{
    provider made;
    CHECK_EQ(options->count, 5);
    made.device_id = (int32_t)parsed(options, "device_id");
    made.alloc = (external_alloc)parsed(options, "gpu_external_alloc");
    made.free = (external_free)parsed(options, "gpu_external_free");
    made.empty_cache = (external_empty_cache)parsed(options, "gpu_external_empty_cache");
    made.user_compute_stream = parsed(options, "user_compute_stream");
    return made;
}

static uint64_t stat_of(int32_t device, const char *key)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(device, key, &value));
    return value;
}

/* The native stream whose memory a block is. */
static struct CUstream_st *stream_of_block(const void *ptr)
{
    tcuda_memory_snapshot *snapshot = NULL;
    size_t segments = 0, blocks = 0;
    struct CUstream_st *found = (struct CUstream_st *)(void *)&found;
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    for (size_t i = 0; i < segments; i++) {
        tcuda_segment_info segment = TCUDA_INIT(tcuda_segment_info);
        CHECK_OK(tcuda_memory_snapshot_segment(snapshot, i, &segment));
        const uintptr_t from = (uintptr_t)segment.ptr, at = (uintptr_t)ptr;
        if (at >= from && at < from + segment.total_bytes)
            found = segment.cu_stream;
    }
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    return found;
}

static provider running;

/* A session that runs: tensors, and reserved memory, as Alloc, Free and Reserve of the provider. */
static void *session(void *tcuda_stream_of_it)
{
    tcuda_stream *const stream = (tcuda_stream *)tcuda_stream_of_it;
    const unsigned char five = 5;
    unsigned char last = 0;
    struct CUstream_st *native = NULL;
    const int32_t device = running.device_id;
    const uint64_t before = stat_of(device, "allocated_bytes.all.current");
    CHECK_OK(tcuda_stream_native(stream, &native));
    CHECK_OK(tcuda_device_set(device)); /* the provider's cudaSetDevice */

    void *const tensor = running.alloc(100 * KIB);
    void *const reserved = running.alloc(8192 * KIB);
    CHECK(tensor != NULL && reserved != NULL);
    CHECK(stat_of(device, "allocated_bytes.all.current") >= before + 8292 * KIB);
    CHECK(stream_of_block(tensor) == native);
    CHECK_OK(tcuda_fill(tensor, &five, 1, 100 * KIB, stream));
    CHECK_OK(tcuda_copy(&last, (unsigned char *)tensor + 100 * KIB - 1, 1, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(last, 5);

    running.free(tensor);
    void *const again = running.alloc(100 * KIB);
    CHECK(again == tensor); /* in the order of the stream: at once */
    running.free(again);
    const uint64_t cached = stat_of(device, "reserved_bytes.all.current");
    running.free(reserved);
    running.empty_cache();
    CHECK(stat_of(device, "reserved_bytes.all.current") < cached);
    CHECK_EQ(stat_of(device, "allocated_bytes.all.current"), before);
    CHECK(running.alloc((size_t)1 << 50) == NULL);
    CHECK(strlen(tcuda_last_error()) > 0);
    return NULL;
}

static void run(int32_t device)
{
    tcuda_stream *stream = NULL, *other = NULL;
    struct CUstream_st *native = NULL;
    pthread_t thread;
    tcuda_ort_options options;
    CHECK_OK(tcuda_stream_create(device, 0, &stream));
    CHECK_OK(tcuda_stream_create(device, 0, &other));
    CHECK_OK(tcuda_stream_native(stream, &native));
    CHECK_OK(tcuda_ort_options_fill(&options, device, stream));
    running = provider_of(&options);
    CHECK_EQ(running.device_id, device);
    CHECK(running.user_compute_stream == (uintptr_t)native);
    /* A thread whose current stream is another one. */
    CHECK_EQ(pthread_create(&thread, NULL, session, stream), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);

    CHECK_OK(tcuda_ort_options_fill(&options, device, stream)); /* of another session */
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_ort_options_fill(&options, device, other));
    tcuda_ort_options_clear(device);
    CHECK(running.alloc(KIB) == NULL);
    CHECK_OK(tcuda_ort_options_fill(&options, device, other));
    tcuda_ort_options_clear(device);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

int main(void)
{
    int32_t devices = 0;
    tcuda_ort_options options;
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_count(&devices));
    for (int32_t device = 0; device < devices; device++)
        run(device);

    /* The default stream has a number that the provider does not take for none. */
    CHECK_OK(tcuda_ort_options_fill(&options, TCUDA_CURRENT_DEVICE, NULL));
    CHECK_EQ(provider_of(&options).user_compute_stream, 1);
    void *const ptr = provider_of(&options).alloc(KIB);
    CHECK(stream_of_block(ptr) == NULL);
    provider_of(&options).free(ptr);
    tcuda_ort_options_clear(0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_ort_options_fill(&options, 1000, NULL));
    if (devices > 1) {
        tcuda_stream *first = NULL;
        CHECK_OK(tcuda_stream_default(0, &first));
        CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_ort_options_fill(&options, 1, first));
    }
    return finish();
}
