/* Hosts that call back from where they are called: log functions, and what frees their data. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

static atomic_int calls, frees;

/* From here nothing may be shut down: it would wait for this very function. */
static void is_turned_away(void)
{
    size_t live_handles = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_shutdown(&live_handles));
    CHECK_EQ(live_handles, 77);
}

static void function(void *user_data)
{
    (void)user_data;
    is_turned_away();
    atomic_fetch_add(&calls, 1);
}

static void destroy(void *user_data)
{
    (void)user_data;
    is_turned_away();
    atomic_fetch_add(&frees, 1);
}

static void streams_call_what_shuts_down(void)
{
    atomic_store(&calls, 0);
    atomic_store(&frees, 0);
    CHECK_OK(tcuda_stream_add_callback(NULL, function, NULL, destroy));
    CHECK_OK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(atomic_load(&calls), 1);
    CHECK_EQ(atomic_load(&frees), 1);
}

/* What frees the data of a log function may call anything: each call works or says why not. */
static void destroy_and_try_everything(void *user_data)
{
    int32_t count = -1;
    void *ptr = NULL;
    tcuda_stream *stream = NULL;
    tcuda_event *event = NULL;
    tcuda_memory_snapshot *snapshot = NULL;
    destroy(user_data);
    if (tcuda_device_count(&count) == TCUDA_STATUS_OK)
        CHECK(count >= 0);
    if (tcuda_malloc(1000, TCUDA_CURRENT_DEVICE, NULL, &ptr) == TCUDA_STATUS_OK)
        CHECK_OK(tcuda_free(ptr));
    if (tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &stream) == TCUDA_STATUS_OK)
        CHECK_OK(tcuda_stream_destroy(stream));
    if (tcuda_memory_snapshot_create(0, &snapshot) == TCUDA_STATUS_OK)
        CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_OK(tcuda_event_create(0, &event));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
}

static void line(void *user_data, tcuda_log_level level, const char *message)
{
    (void)user_data;
    (void)level;
    CHECK(message != NULL);
}

static void logs_are_freed_by_what_calls_everything(void)
{
    atomic_store(&frees, 0);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, line, NULL, destroy_and_try_everything));
    CHECK_OK(tcuda_init());
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, line, NULL, destroy_and_try_everything));
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    /* The last one may go only here, with the library on its way down. */
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(atomic_load(&frees), 2);
}

static void note_end(void *user_data)
{
    atomic_fetch_add((atomic_int *)user_data, 1);
}

static atomic_int ends;

static void line_that_replaces(void *user_data, tcuda_log_level level, const char *message)
{
    line(user_data, level, message);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    CHECK_EQ(atomic_load(&ends), 0);
}

static size_t no_frames_that_replace(void *user_data, tcuda_frame *frames, size_t capacity)
{
    (void)user_data;
    (void)frames;
    (void)capacity;
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_OFF, NULL));
    CHECK_OK(tcuda_sanitizer_disable());
    CHECK_EQ(atomic_load(&ends), 0);
    return 0;
}

/* What is replaced by itself is freed when the call that runs it returns. */
static void what_replaces_itself_is_freed_at_once(void)
{
    atomic_store(&ends, 0);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_DEBUG, line_that_replaces, &ends, note_end));
    CHECK_OK(tcuda_sync_debug_mode_set(1));
    CHECK_OK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    CHECK_OK(tcuda_sync_debug_mode_set(0));
    CHECK_EQ(atomic_load(&ends), 1);

    atomic_store(&ends, 0);
    tcuda_history_options history = TCUDA_INIT(tcuda_history_options);
    history.frames_for = TCUDA_FRAMES_ALL;
    history.frames = no_frames_that_replace;
    history.user_data = &ends;
    history.destroy = note_end;
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_ALL, &history));
    void *block = allocate(1000, 0, NULL);
    CHECK_EQ(atomic_load(&ends), 1);
    CHECK_OK(tcuda_free(block));

    atomic_store(&ends, 0);
    tcuda_sanitizer_options watching = TCUDA_INIT(tcuda_sanitizer_options);
    watching.frames = no_frames_that_replace;
    watching.user_data = &ends;
    watching.destroy = note_end;
    CHECK_OK(tcuda_sanitizer_enable(&watching));
    block = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_fill(block, "", 1, 1000, NULL));
    CHECK_EQ(atomic_load(&ends), 1);
    CHECK_OK(tcuda_free(block));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    what_replaces_itself_is_freed_at_once();
    streams_call_what_shuts_down();
    logs_are_freed_by_what_calls_everything();
    if (on_simulator()) {
        CHECK_OK(tcuda_backend_select("sim", "memory=64MiB,schedule=threads"));
        streams_call_what_shuts_down();
        CHECK_OK(tcuda_backend_select("sim", "memory=64MiB,schedule=adversarial:1"));
        streams_call_what_shuts_down();
    }
    return finish();
}
