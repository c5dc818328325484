/* Library: version, status names, the last error. */
#include "check.h"

static void version_is_that_of_the_header(void)
{
    CHECK_EQ(tcuda_version(), TCUDA_VERSION);
    CHECK_EQ(TCUDA_VERSION,
        TCUDA_VERSION_MAJOR * 1000000 + TCUDA_VERSION_MINOR * 1000 + TCUDA_VERSION_PATCH);
}

static void statuses_have_names(void)
{
    CHECK_STR(tcuda_status_name(TCUDA_STATUS_OK), "TCUDA_STATUS_OK");
    CHECK_STR(tcuda_status_name(TCUDA_STATUS_OUT_OF_MEMORY), "TCUDA_STATUS_OUT_OF_MEMORY");
    CHECK_STR(tcuda_status_name(-1), "unknown");
    CHECK_STR(tcuda_status_name(INT32_MAX), "unknown");
}

static void last_error_tells_of_the_last_failure(void)
{
    char text[256];
    size_t needed = 0;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_device_count(NULL));
    CHECK(strlen(tcuda_last_error()) > 0);
    CHECK_OK(tcuda_last_error_message(text, sizeof text, &needed));
    CHECK_STR(text, tcuda_last_error());
    CHECK_EQ(needed, strlen(text));

    /* Cut, and only asked for. */
    CHECK_OK(tcuda_last_error_message(text, 2, NULL));
    CHECK_EQ(strlen(text), 1);
    needed = 0;
    CHECK_OK(tcuda_last_error_message(NULL, 0, &needed));
    CHECK_EQ(needed, strlen(tcuda_last_error()));
}

int main(void)
{
    version_is_that_of_the_header();
    statuses_have_names();
    last_error_tells_of_the_last_failure();
    return finish();
}
