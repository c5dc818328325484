/* Waits that are easily overlooked: warned of, or refused. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { BYTES = 4096 };

static atomic_int warnings;
static char last_warning[1024];

static void count_warning(void *user_data, tcuda_log_level level, const char *message)
{
    (void)user_data;
    if (level == TCUDA_LOG_WARNING) {
        snprintf(last_warning, sizeof last_warning, "%s", message);
        atomic_fetch_add(&warnings, 1);
    }
}

static int32_t mode_now(void)
{
    int32_t mode = -1;
    CHECK_OK(tcuda_sync_debug_mode_get(&mode));
    return mode;
}

static void modes_are_checked(void)
{
    CHECK_EQ(mode_now(), TCUDA_SYNC_DEBUG_DEFAULT);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sync_debug_mode_set(3));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sync_debug_mode_set(-1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sync_debug_mode_get(NULL));
    CHECK_EQ(mode_now(), TCUDA_SYNC_DEBUG_DEFAULT);
}

static void turning_it_on_is_told_once(void)
{
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_DEFAULT));
    CHECK_EQ(warnings, 0);
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_WARN));
    CHECK_EQ(warnings, 1);
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_ERROR));
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_DEFAULT));
    CHECK_EQ(warnings, 1);
}

static void waits_are_told(tcuda_stream *stream, void *block)
{
    char pageable[BYTES] = { 1 };
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_WARN));
    warnings = 0;
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(warnings, 1);
    CHECK_STR(last_warning, "tcuda_stream_synchronize makes the host wait for the device; order "
        "the work by events, or wait for an event");
    CHECK_OK(tcuda_copy(block, pageable, BYTES, stream));
    CHECK_EQ(warnings, 2);
    CHECK_OK(tcuda_copy_2d(pageable, 64, block, 64, 64, 2, stream));
    CHECK_EQ(warnings, 3);
    CHECK_STR(last_warning, "a copy from or to pageable host memory makes the host wait for the "
        "device; use pinned memory (tcuda_host_malloc)");
}

/* Refused before anything happens. */
static void waits_are_refused(tcuda_stream *stream, char *block)
{
    static char pageable[BYTES];
    gate held = { 0 };
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_ERROR));
    warnings = 0;
    memset(pageable, 3, BYTES);
    gate_close(&held, stream);
    CHECK_STATUS(TCUDA_STATUS_WOULD_SYNCHRONIZE, tcuda_stream_synchronize(stream));
    CHECK_STATUS(TCUDA_STATUS_WOULD_SYNCHRONIZE, tcuda_copy(block, pageable, BYTES, stream));
    CHECK_STATUS(TCUDA_STATUS_WOULD_SYNCHRONIZE, tcuda_copy(pageable, block, BYTES, stream));
    CHECK_STATUS(TCUDA_STATUS_WOULD_SYNCHRONIZE,
        tcuda_copy_2d(block, 8, pageable, 8, 8, 1, stream));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_copy(NULL, pageable, BYTES, stream));
    CHECK_EQ(pageable[0], 3);
    CHECK_EQ(warnings, 0);
    gate_open(&held);
    /* The gate is of this frame: it is through before the frame ends. */
    CHECK_OK(tcuda_device_synchronize(0));
}

/* In PyTorch's sense these do not count, nor do copies that the device makes alone. */
static void others_pass(tcuda_stream *stream, char *block)
{
    bool done = false;
    void *pinned = NULL;
    tcuda_event *event = create_event(0);
    CHECK_OK(tcuda_host_malloc(BYTES, &pinned));
    CHECK_OK(tcuda_copy(block, block + BYTES, BYTES, stream));
    CHECK_OK(tcuda_copy(block, pinned, BYTES, stream));
    CHECK_OK(tcuda_copy(pinned, block, BYTES, stream));
    CHECK_OK(tcuda_copy_2d(pinned, 64, block, 64, 64, 2, stream));
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_stream_query(stream, &done));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_host_free(pinned));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_EQ(warnings, 0);
}

static void *look(void *unused)
{
    (void)unused;
    CHECK_EQ(mode_now(), TCUDA_SYNC_DEBUG_ERROR);
    CHECK_STATUS(TCUDA_STATUS_WOULD_SYNCHRONIZE, tcuda_stream_synchronize(NULL));
    return NULL;
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_WARNING, count_warning, NULL, NULL));
    modes_are_checked();
    turning_it_on_is_told_once();
    tcuda_stream *stream = create_stream(0);
    char *block = allocate(2 * BYTES, 0, stream);
    waits_are_told(stream, block);
    waits_are_refused(stream, block);
    others_pass(stream, block);
    run_on_thread(look, NULL);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(mode_now(), TCUDA_SYNC_DEBUG_DEFAULT);
    return finish();
}
