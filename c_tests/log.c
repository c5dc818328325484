/* Where lines of log go: to stderr those that the host has asked for, as long as it has not chosen.
 * Each case in a process of its own, whose stderr is a file. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

static char written[1 << 16];

/* From now on stderr is a file; gives what was written there, and stderr back. */
static int old_stderr = -1;
static FILE *kept;

static void keep_stderr(void)
{
    kept = tmpfile();
    CHECK(kept != NULL);
    old_stderr = dup(STDERR_FILENO);
    CHECK(old_stderr >= 0 && dup2(fileno(kept), STDERR_FILENO) == STDERR_FILENO);
}

static const char *kept_stderr(void)
{
    CHECK_EQ(dup2(old_stderr, STDERR_FILENO), STDERR_FILENO);
    rewind(kept);
    const size_t bytes = fread(written, 1, sizeof written - 1, kept);
    written[bytes] = 0;
    return written;
}

/* The environment of the case, before the first call of the library. */
static void begin(const char *level)
{
    if (level != NULL)
        CHECK_EQ(setenv("TCUDA_LOG", level, 1), 0);
    else
        CHECK_EQ(unsetenv("TCUDA_LOG"), 0);
    keep_stderr();
}

static void hide_a_wait(void)
{
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_WARN));
    CHECK_OK(tcuda_stream_synchronize(NULL));
}

static const char wait_warning[] = "tcuda: warning: tcuda_stream_synchronize makes the host wait "
    "for the device; order the work by events, or wait for an event\n";

static void race(void)
{
    tcuda_stream *first = create_stream(0), *second = create_stream(0);
    char *block = allocate(4096, 0, first);
    fill_bytes(block, 1, 4096, first);
    fill_bytes(block, 2, 4096, second);
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_record_stream(block, second));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

static void leave_a_stream(void)
{
    size_t live = 0;
    create_stream(0);
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 1);
}

static atomic_int lines;

static void count_line(void *user_data, tcuda_log_level level, const char *message)
{
    (void)user_data, (void)level, (void)message;
    atomic_fetch_add(&lines, 1);
}

static void sync_debug_warns(void)
{
    begin(NULL);
    hide_a_wait();
    CHECK(strstr(kept_stderr(), wait_warning) != NULL);
}

static void the_sanitizer_reports(void)
{
    CHECK_EQ(setenv("TCUDA_SANITIZER", "1", 1), 0);
    begin(NULL);
    race();
    CHECK(strstr(kept_stderr(), "tcuda: warning: tcuda found a possible data race on 4096 bytes")
        != NULL);
    CHECK(strstr(written, "tcuda: warning: Missing: ") != NULL);
}

static void others_say_nothing(void)
{
    begin(NULL);
    leave_a_stream();
    CHECK_STR(kept_stderr(), "");
}

static void others_speak_where_they_are_asked(void)
{
    begin("warning");
    leave_a_stream();
    CHECK(strstr(kept_stderr(), "tcuda: warning: tcuda_shutdown: 1 stream handle") == written);
}

static void a_lower_level_leaves_warnings_out(void)
{
    begin("error");
    hide_a_wait();
    leave_a_stream();
    CHECK_STR(kept_stderr(), "");
}

static void off_is_silence(void)
{
    begin("off");
    hide_a_wait();
    leave_a_stream();
    CHECK_STR(kept_stderr(), "");
}

/* The host's function takes the place of stderr; so does none. */
static void a_callback_takes_all(void)
{
    begin("debug");
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_WARNING, count_line, NULL, NULL));
    hide_a_wait();
    CHECK_EQ(lines, 2);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, count_line, NULL, NULL));
    hide_a_wait();
    CHECK_EQ(lines, 2);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    hide_a_wait();
    leave_a_stream();
    CHECK_STR(kept_stderr(), "");
}

static void a_wrong_level_is_an_error(void)
{
    begin("loud");
    const tcuda_status status = tcuda_init();
    CHECK_STR(kept_stderr(), "");
    CHECK_EQ(status, TCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_STR(tcuda_last_error(), "TCUDA_LOG is \"loud\"; use off, error, warning, info or debug");
    CHECK_EQ(setenv("TCUDA_LOG", "info", 1), 0);
    CHECK_OK(tcuda_init());
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* A host that has closed its stderr. */
static void a_closed_stderr_is_no_matter(void)
{
    begin(NULL);
    close(STDERR_FILENO);
    hide_a_wait();
    CHECK_STR(kept_stderr(), "");
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static void looks_for_a_gpu(void)
{
    SKIP_WITHOUT_GPU();
}

int main(void)
{
    int status = 0;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        looks_for_a_gpu();
        exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CHECK_SKIPPED)
        return CHECK_SKIPPED;
    RUNS(sync_debug_warns);
    RUNS(the_sanitizer_reports);
    RUNS(others_say_nothing);
    RUNS(others_speak_where_they_are_asked);
    RUNS(a_lower_level_leaves_warnings_out);
    RUNS(off_is_silence);
    RUNS(a_callback_takes_all);
    RUNS(a_wrong_level_is_an_error);
    RUNS(a_closed_stderr_is_no_matter);
    return finish_cases();
}
