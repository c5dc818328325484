/* Programs of a few calls, each of them with one call and without it: whether the stream sanitizer
 * finds a race must depend on that call, or the call does not tell it what it does. */
#ifndef SANITIZER_CALLS_H
#define SANITIZER_CALLS_H

#include "support.h"

enum { READS = TCUDA_ACCESS_READ, WRITES = TCUDA_ACCESS_WRITE, BYTES = 4096, COUNT = BYTES / 4 };

/* Two streams of the first device that nothing orders, and memory that both reach. */
static tcuda_stream *own, *far;
static char *dst, *src, *pinned;
static tcuda_event *event;

/* With a call and without it: `races` says whether there is a race with it. */
struct row {
    const char *function;
    bool races;
    void (*run)(bool call);
};

#define RACES(function, run) { #function, true, run }
#define ORDERS(function, run) { #function, false, run }

/* An access of a kernel that the sanitizer cannot see, to `bytes` bytes. */
static void access_some(tcuda_stream *stream, void *ptr, size_t bytes, int32_t mode)
{
    CHECK_OK(tcuda_sanitizer_access(stream, ptr, bytes, mode, "a kernel"));
}

static void access_all(tcuda_stream *stream, void *ptr, int32_t mode)
{
    access_some(stream, ptr, BYTES, mode);
}

static tcuda_tensor tensor_of(void *data, uint8_t code, uint8_t bits, int64_t *shape)
{
    tcuda_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.data = data;
    tensor.device.device_type = TCUDA_DEVICE_CUDA;
    tensor.ndim = 1;
    tensor.dtype.code = code;
    tensor.dtype.bits = bits;
    tensor.dtype.lanes = 1;
    tensor.shape = shape;
    return tensor;
}

static int64_t all[1] = { COUNT };

/* All of a block. */
static tcuda_tensor floats(void *data)
{
    return tensor_of(data, TCUDA_DTYPE_FLOAT, 32, all);
}

static size_t races(void)
{
    size_t count = 0;
    CHECK_OK(tcuda_sanitizer_report_count(&count));
    return count;
}

/* Each report is heard, and frames are asked for, with no lock held: both may call the library. */
static size_t heard;

static size_t frames(void *user_data, tcuda_frame *list, size_t capacity)
{
    bool is_capturing = false;
    (void)user_data;
    CHECK_OK(tcuda_stream_is_capturing(own, &is_capturing));
    if (capacity > 0)
        list[0] = (tcuda_frame) { "a program", "sanitizer_calls.h", 1 };
    return 1;
}

static void hear(void *user_data, const tcuda_sanitizer_report *report)
{
    bool is_capturing = false;
    (void)user_data;
    CHECK(report->bytes > 0 && report->current.sequence > report->previous.sequence);
    CHECK(strstr(report->current.frames, "a program") != NULL);
    CHECK_OK(tcuda_stream_is_capturing(own, &is_capturing));
    heard++;
}

/* All rows are run. */
static int failures;

static void fail(const struct row *row, const char *why)
{
    recover(row->function);
    fprintf(stderr, "%s: %s\n", row->function, why);
    failures++;
}

static void run_rows(const struct row *rows, size_t count)
{
    tcuda_sanitizer_options options = TCUDA_INIT(tcuda_sanitizer_options);
    options.report = hear;
    options.frames = frames;
    for (size_t i = 0; i < count; i++) {
        for (int call = 0; call < 2; call++) {
            CHECK_OK(tcuda_sanitizer_enable(&options));
            heard = 0;
            rows[i].run(call);
            const bool is_race = races() > 0;
            CHECK_EQ(heard, races());
            CHECK_OK(tcuda_sanitizer_disable());
            for (int32_t device = 0; device < num_devices(); device++)
                CHECK_OK(tcuda_device_synchronize(device));
            if (is_race != (rows[i].races == call))
                fail(&rows[i], !call ? is_race ? "a race without it" : "no race without it"
                    : is_race ? "a race with it" : "no race with it");
        }
    }
}

#define RUN(rows) run_rows(rows, sizeof(rows) / sizeof *(rows))

static void begin(void)
{
    CHECK_OK(tcuda_device_set(0));
    CHECK_OK(tcuda_stream_create(0, 0, &own));
    CHECK_OK(tcuda_stream_create(0, 0, &far));
    CHECK_OK(tcuda_event_create(TCUDA_EVENT_TIMING, &event));
    CHECK_OK(tcuda_malloc(BYTES, 0, own, (void **)(void *)&dst));
    CHECK_OK(tcuda_malloc(BYTES, 0, own, (void **)(void *)&src));
    CHECK_OK(tcuda_host_malloc(BYTES, (void **)(void *)&pinned));
}

static void end(void)
{
    CHECK_EQ(failures, 0);
    CHECK_OK(tcuda_host_free(pinned));
    CHECK_OK(tcuda_free(src));
    CHECK_OK(tcuda_free(dst));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(far));
    CHECK_OK(tcuda_stream_destroy(own));
}

#endif /* SANITIZER_CALLS_H */
