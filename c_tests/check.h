/* The checks of the C tests. No framework: each program is one test of ctest, and the first check
 * that fails ends it. Works in C++ too. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "recovery.h"
#include "tcuda.h"

/* The exit status by which ctest knows a skipped test. */
#define CHECK_SKIPPED 77

#define CHECK(condition) \
    do { \
        recovery_point(); \
        if (!(condition)) \
            check_failed(__FILE__, __LINE__, #condition, ""); \
    } while (0)

#define CHECK_OK(call) CHECK_STATUS(TCUDA_STATUS_OK, call)

/* The call fails with just this status. */
#define CHECK_STATUS(expected, call) \
    do { \
        recovery_point(); \
        tcuda_status check_status_ = (call); \
        if (check_status_ != (expected)) \
            check_status_failed(__FILE__, __LINE__, #call, (expected), check_status_); \
    } while (0)

/* Both integers are printed when they differ. */
#define CHECK_EQ(actual, expected) \
    do { \
        recovery_point(); \
        int64_t check_actual_ = (int64_t)(actual), check_expected_ = (int64_t)(expected); \
        if (check_actual_ != check_expected_) { \
            char check_text_[80]; \
            snprintf(check_text_, sizeof check_text_, ": %lld, not %lld", \
                (long long)check_actual_, (long long)check_expected_); \
            check_failed(__FILE__, __LINE__, #actual " == " #expected, check_text_); \
        } \
    } while (0)

#define CHECK_STR(actual, expected) \
    do { \
        recovery_point(); \
        const char *check_actual_ = (actual), *check_expected_ = (expected); \
        if (strcmp(check_actual_, check_expected_) != 0) \
            check_failed(__FILE__, __LINE__, #actual " == " #expected, check_actual_); \
    } while (0)

/* First line of a test that needs a GPU, real or simulated. */
#define SKIP_WITHOUT_GPU() \
    do { \
        bool check_available_ = false; \
        CHECK_OK(tcuda_is_available(&check_available_)); \
        if (!check_available_) { \
            printf("skipped: no GPU on backend %s\n", tcuda_backend_name()); \
            exit(CHECK_SKIPPED); \
        } \
    } while (0)

/* Does memory come in segments of PyTorch's sizes, where blocks above 1 MiB may be larger than
 * asked? */
static inline bool in_segments(void)
{
    const char *settings = getenv("TCUDA_ALLOC_CONF");
    return settings != NULL && strstr(settings, "expandable_segments:False") != NULL;
}

static inline void check_failed(const char *file, int line, const char *what, const char *detail)
{
    recover(what);
    fprintf(stderr, "%s:%d: %s%s\n", file, line, what, detail);
    exit(EXIT_FAILURE);
}

static inline void check_status_failed(const char *file, int line, const char *call,
    tcuda_status expected, tcuda_status actual)
{
    recover(call);
    fprintf(stderr, "%s:%d: %s\n    gave %s, not %s: %s\n", file, line, call,
        tcuda_status_name(actual), tcuda_status_name(expected), tcuda_last_error());
    exit(EXIT_FAILURE);
}

/* The exit status of a child, in which a test may recover like in any other process. */
static inline int child_status(int wait_status)
{
    if (!WIFEXITED(wait_status))
        check_failed(__FILE__, __LINE__, "WIFEXITED(wait_status)", "");
    const int status = WEXITSTATUS(wait_status);
    return status == CHECK_RECOVERED ? EXIT_SUCCESS : status;
}

/* Last line of a test, return finish(): nothing that it made is alive. */
static inline int finish(void)
{
    size_t live_handles = 0;
    CHECK_OK(tcuda_shutdown(&live_handles));
    CHECK_EQ(live_handles, 0);
    return EXIT_SUCCESS;
}

#endif /* CHECK_H */
