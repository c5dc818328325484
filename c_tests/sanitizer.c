/* The stream sanitizer: single races by hand, what reports say, how they are handed over, and what
 * it refuses. Many programs at once are in tests/sanitizer. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

enum { BYTES = 1 << 12, HALF = BYTES / 2, MIB = 1 << 20 };

/* Reports that the callback got, and calls of the other functions. */
typedef struct heard {
    size_t reports;
    tcuda_sanitizer_report last;
    size_t frames;
    int line;
    size_t destroyed;
} heard;

static void take_report(void *user_data, const tcuda_sanitizer_report *report)
{
    heard *to = user_data;
    to->reports++;
    to->last = *report;
    /* It may call the library, also what tells the sanitizer. */
    size_t count = 0;
    CHECK_OK(tcuda_sanitizer_report_count(&count));
    CHECK(count >= to->reports);
}

static size_t give_frames(void *user_data, tcuda_frame *frames, size_t capacity)
{
    heard *from = user_data;
    from->frames++;
    CHECK(capacity >= 2);
    frames[0] = (tcuda_frame) { "layer", "model.py", from->line };
    frames[1] = (tcuda_frame) { "main", NULL, 0 };
    return 2;
}

static void let_go(void *user_data)
{
    ((heard *)user_data)->destroyed++;
}

static size_t count_of_reports(void)
{
    size_t count = 0;
    CHECK_OK(tcuda_sanitizer_report_count(&count));
    return count;
}

static tcuda_sanitizer_report report_of(size_t index)
{
    tcuda_sanitizer_report report = TCUDA_INIT(tcuda_sanitizer_report);
    CHECK_OK(tcuda_sanitizer_report_get(index, &report));
    return report;
}

static tcuda_stream *new_stream(void)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_create(0, 0, &stream));
    return stream;
}

static void *new_memory(size_t bytes, tcuda_stream *stream)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(bytes, 0, stream, &ptr));
    return ptr;
}

static void access_by(tcuda_stream *stream, const void *ptr, size_t bytes, int32_t mode)
{
    CHECK_OK(tcuda_sanitizer_access(stream, ptr, bytes, mode, "step"));
}

static void enable(void)
{
    CHECK_OK(tcuda_sanitizer_enable(NULL));
    CHECK_EQ(count_of_reports(), 0);
}

static void an_access_without_a_wait_is_reported(void)
{
    enable();
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    char *const ptr = new_memory(BYTES, first);
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_EQ(count_of_reports(), 0);
    access_by(second, ptr + HALF, HALF, TCUDA_ACCESS_READ);
    CHECK_EQ(count_of_reports(), 1);
    const tcuda_sanitizer_report report = report_of(0);
    CHECK(report.ptr == ptr + HALF);
    CHECK_EQ(report.bytes, HALF);
    CHECK(report.current.ptr == ptr + HALF && report.previous.ptr == ptr);
    CHECK_EQ(report.current.bytes, HALF);
    CHECK_EQ(report.previous.bytes, BYTES);
    CHECK_EQ(report.current.stream_id, id_of(second));
    CHECK_EQ(report.previous.stream_id, id_of(first));
    CHECK_EQ(report.current.mode, TCUDA_ACCESS_READ);
    CHECK_EQ(report.previous.mode, TCUDA_ACCESS_WRITE);
    CHECK(report.current.sequence > report.previous.sequence);
    CHECK_STR(report.current.label, "step");
    CHECK_STR(report.current.frames, "");
    CHECK(strstr(report.missing, "must wait for stream") != NULL);
    CHECK(strstr(report.missing, "tcuda_event_wait") != NULL);
    /* The same pair is reported once. */
    access_by(second, ptr + HALF, HALF, TCUDA_ACCESS_READ);
    CHECK_EQ(count_of_reports(), 1);
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

static void what_is_ordered_is_not(void)
{
    enable();
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    tcuda_event *event = NULL;
    CHECK_OK(tcuda_event_create(0, &event));
    char *const ptr = new_memory(BYTES, first);
    /* An event, an event that was waited for, a wait for the stream, a synchronisation. */
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_OK(tcuda_event_record(event, first));
    CHECK_OK(tcuda_event_wait(event, second));
    access_by(second, ptr, BYTES, TCUDA_ACCESS_READ_WRITE);
    CHECK_OK(tcuda_event_record(event, second));
    CHECK_OK(tcuda_event_synchronize(event));
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_OK(tcuda_stream_wait_stream(second, first));
    access_by(second, ptr, BYTES, TCUDA_ACCESS_READ);
    access_by(first, ptr, BYTES, TCUDA_ACCESS_READ);
    CHECK_OK(tcuda_stream_synchronize(second));
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_OK(tcuda_device_synchronize(0));
    access_by(second, ptr, BYTES, TCUDA_ACCESS_WRITE);
    /* Other bytes. */
    CHECK_OK(tcuda_device_synchronize(0));
    access_by(first, ptr, HALF, TCUDA_ACCESS_WRITE);
    access_by(second, ptr + HALF, HALF, TCUDA_ACCESS_WRITE);
    CHECK_EQ(count_of_reports(), 0);
    /* A wait for what came before does not cover what came after. */
    CHECK_OK(tcuda_event_record(event, first));
    access_by(first, ptr, HALF, TCUDA_ACCESS_WRITE);
    CHECK_OK(tcuda_event_wait(event, second));
    access_by(second, ptr, HALF, TCUDA_ACCESS_READ);
    CHECK_EQ(count_of_reports(), 1);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

static void operations_tell_of_themselves(void)
{
    enable();
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    char *const ptr = new_memory(BYTES, first), *const other = new_memory(BYTES, second);
    const int zero = 0;
    CHECK_OK(tcuda_fill(ptr, &zero, sizeof zero, BYTES / sizeof zero, first));
    CHECK_OK(tcuda_copy(other, ptr, BYTES, second));
    CHECK_EQ(count_of_reports(), 1);
    CHECK_STR(report_of(0).previous.label, "tcuda_fill");
    CHECK_STR(report_of(0).current.label, "tcuda_copy");
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

/* Memory that serves again on its stream, while another one still used it. */
static void memory_that_serves_again(bool is_recorded)
{
    enable();
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    char *const ptr = new_memory(4 * MIB, first);
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_OK(tcuda_stream_wait_stream(second, first));
    access_by(second, ptr, BYTES, TCUDA_ACCESS_READ);
    if (is_recorded)
        CHECK_OK(tcuda_record_stream(ptr, second));
    CHECK_OK(tcuda_free(ptr));
    char *const again = new_memory(4 * MIB, first);
    if (again == ptr) {
        access_by(first, again, BYTES, TCUDA_ACCESS_WRITE);
        CHECK_EQ(count_of_reports(), is_recorded ? 0 : 1);
        if (!is_recorded)
            CHECK(strstr(report_of(0).missing, "tcuda_record_stream(") == report_of(0).missing);
    }
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_free(again));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

/* A block belongs to the stream that it was allocated on: another one has to wait for that. */
static void who_uses_a_block_elsewhere_waits_first(void)
{
    enable();
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    char *const ptr = new_memory(4 * MIB, first);
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_OK(tcuda_free(ptr));
    char *const again = new_memory(4 * MIB, first);
    CHECK(again == ptr);
    access_by(second, again, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_EQ(count_of_reports(), 1);
    CHECK(strstr(report_of(0).missing, "after the allocation of this memory") != NULL);
    CHECK(strstr(report_of(0).allocation, "4194304 bytes at ") == report_of(0).allocation);
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_free(again));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

static void reports_are_handed_over(void)
{
    heard all = { .line = 7 };
    tcuda_sanitizer_options options = TCUDA_INIT(tcuda_sanitizer_options);
    options.max_reports = 2;
    options.report = take_report;
    options.frames = give_frames;
    options.user_data = &all;
    options.destroy = let_go;
    CHECK_OK(tcuda_sanitizer_enable(&options));
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    char *const ptr = new_memory(BYTES, first);
    for (int i = 0; i < 4; i++) {
        all.line = 10 + i;
        access_by(i % 2 == 0 ? first : second, ptr, BYTES, TCUDA_ACCESS_WRITE);
    }
    CHECK_EQ(all.reports, 2);
    CHECK_EQ(count_of_reports(), 3);
    CHECK(all.frames >= 4);
    CHECK_STR(all.last.current.frames, "layer (model.py:12)\nmain");
    CHECK_STR(all.last.previous.frames, "layer (model.py:11)\nmain");
    CHECK_STR(report_of(1).current.frames, "layer (model.py:12)\nmain");
    CHECK(strstr(report_of(0).allocation, "layer (model.py:7)\nmain") != NULL);
    /* The third one is counted, and neither logged nor kept. */
    tcuda_sanitizer_report none = TCUDA_INIT(tcuda_sanitizer_report);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sanitizer_report_get(2, &none));
    char text[2000];
    size_t needed = 0;
    CHECK_OK(tcuda_sanitizer_report_text(0, text, sizeof text, &needed));
    CHECK_EQ(strlen(text), needed);
    CHECK(strstr(text, "============================\ntcuda found a possible data race") == text);
    CHECK(strstr(text, "\nEarlier access by stream ") != NULL);
    CHECK(strstr(text, "    layer (model.py:10)\n") != NULL);
    CHECK(strstr(text, "\nMissing: ") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sanitizer_report_text(2, text, 4, NULL));
    /* Texts outlive the reports. */
    const tcuda_sanitizer_report kept = report_of(0);
    CHECK_OK(tcuda_free(ptr));
    enable();
    CHECK_EQ(all.destroyed, 1);
    CHECK_STR(kept.current.frames, "layer (model.py:11)\nmain");
    /* A call that is refused takes nothing. */
    options.struct_size = 3;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sanitizer_enable(&options));
    CHECK_EQ(all.destroyed, 1);
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

static size_t lines;

static void take_line(void *user_data, tcuda_log_level level, const char *line)
{
    (void)user_data;
    if (level == TCUDA_LOG_WARNING && strstr(line, "possible data race on 4096 bytes") != NULL)
        lines++;
}

static void reports_that_nobody_takes_are_logged(void)
{
    enable();
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_WARNING, take_line, NULL, NULL));
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    char *const ptr = new_memory(BYTES, first);
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    access_by(second, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_EQ(lines, 1);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

static void it_can_be_turned_off(void)
{
    enable();
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    char *const ptr = new_memory(BYTES, first);
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_OK(tcuda_sanitizer_disable());
    CHECK_OK(tcuda_sanitizer_disable());
    access_by(second, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_EQ(count_of_reports(), 0);
    /* What was before it was turned on is not known. */
    enable();
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_EQ(count_of_reports(), 0);
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

static void wrong_arguments_are_refused(void)
{
    enable();
    char byte = 0;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_sanitizer_access(NULL, &byte, 1, TCUDA_ACCESS_NONE, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sanitizer_access(NULL, &byte, 1, 4, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sanitizer_access(NULL, NULL, 1, 1, NULL));
    CHECK_OK(tcuda_sanitizer_access(NULL, NULL, 0, 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sanitizer_report_count(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sanitizer_report_get(0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_sanitizer_report_text(0, NULL, 0, NULL));
}

/* Shutting down ends it, and lets the host's data go. */
static void a_shutdown_ends_it(void)
{
    heard all = { 0 };
    tcuda_sanitizer_options options = TCUDA_INIT(tcuda_sanitizer_options);
    options.user_data = &all;
    options.destroy = let_go;
    CHECK_OK(tcuda_sanitizer_enable(&options));
    access_by(NULL, &all, 1, TCUDA_ACCESS_WRITE);
    size_t live = 0;
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(all.destroyed, 1);
    CHECK_EQ(count_of_reports(), 0);
    /* The environment turns it on where the library begins. */
    CHECK_EQ(setenv("TCUDA_SANITIZER", "1", 1), 0);
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    char *const ptr = new_memory(BYTES, first);
    access_by(first, ptr, BYTES, TCUDA_ACCESS_WRITE);
    access_by(second, ptr, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_EQ(count_of_reports(), 1);
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 0);
    /* But not against the host, whichever comes first. */
    CHECK_OK(tcuda_sanitizer_disable());
    tcuda_stream *const third = new_stream(), *const fourth = new_stream();
    char *const other = new_memory(BYTES, third);
    access_by(third, other, BYTES, TCUDA_ACCESS_WRITE);
    access_by(fourth, other, BYTES, TCUDA_ACCESS_WRITE);
    CHECK_EQ(count_of_reports(), 0);
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_stream_destroy(third));
    CHECK_OK(tcuda_stream_destroy(fourth));
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(setenv("TCUDA_SANITIZER", "yes", 1), 0);
    tcuda_stream *none = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_stream_create(0, 0, &none));
    CHECK_EQ(unsetenv("TCUDA_SANITIZER"), 0);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    an_access_without_a_wait_is_reported();
    what_is_ordered_is_not();
    operations_tell_of_themselves();
    memory_that_serves_again(true);
    memory_that_serves_again(false);
    who_uses_a_block_elsewhere_waits_first();
    reports_are_handed_over();
    reports_that_nobody_takes_are_logged();
    it_can_be_turned_off();
    wrong_arguments_are_refused();
    CHECK_OK(tcuda_sanitizer_disable());
    a_shutdown_ends_it();
    return finish();
}
