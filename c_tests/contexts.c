/* Primary contexts of devices that the host did not choose. */
#include "support.h"

static int lines;

static void count_line(void *user_data, tcuda_log_level level, const char *message)
{
    (void)user_data;
    if (level == TCUDA_LOG_WARNING && strstr(message, "has a primary context already") != NULL)
        lines++;
}

static size_t contexts(int32_t *devices, size_t capacity)
{
    size_t count = 99;
    CHECK_OK(tcuda_device_primary_contexts(devices, capacity, &count));
    return count;
}

static int32_t mode(void)
{
    int32_t found = -1;
    CHECK_OK(tcuda_context_check_mode_get(&found));
    return found;
}

/* A question creates none. */
static void contexts_are_listed(void)
{
    int32_t devices[8] = { -1, -1, -1, -1, -1, -1, -1, -1 };
    const int32_t last = num_devices() - 1;
    CHECK_EQ(contexts(devices, 8), 0);
    CHECK_EQ(devices[0], -1);
    CHECK_OK(tcuda_device_set(last));
    CHECK_EQ(contexts(devices, 8), 1);
    CHECK(devices[0] == last && devices[1] == -1);
    CHECK_EQ(contexts(NULL, 0), 1);
    CHECK_OK(tcuda_device_set(0));
    CHECK_EQ(contexts(devices, 1), last > 0 ? 2 : 1);
    CHECK(devices[0] == 0 && devices[1] == -1);
    size_t count = 7;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_device_primary_contexts(NULL, 1, &count));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_device_primary_contexts(devices, 8, NULL));
    CHECK_EQ(count, 7);
}

/* Device 0 is chosen for the first time while another one has a context. */
static void stray_ones_are_found(void)
{
    const int32_t last = num_devices() - 1;
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(mode(), TCUDA_CONTEXT_CHECK_DEFAULT);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_context_check_mode_set(3));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_context_check_mode_set(-1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_context_check_mode_get(NULL));
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_WARNING, count_line, NULL, NULL));
    CHECK_OK(tcuda_context_check_mode_set(TCUDA_CONTEXT_CHECK_WARN));
    CHECK_OK(tcuda_device_set(last));
    CHECK_EQ(lines, 0);
    CHECK_OK(tcuda_device_set(0));
    CHECK_EQ(lines, last > 0 ? 1 : 0);
    /* Back to a device that is in use. */
    CHECK_OK(tcuda_device_set(last));
    CHECK_EQ(lines, last > 0 ? 1 : 0);

    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_context_check_mode_set(TCUDA_CONTEXT_CHECK_ERROR));
    CHECK_EQ(mode(), TCUDA_CONTEXT_CHECK_ERROR);
    CHECK_OK(tcuda_device_set(last));
    if (last > 0) {
        CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_device_set(0));
        CHECK(strstr(tcuda_last_error(), "has a primary context already") != NULL);
    }
    CHECK_EQ(current_device(), last);
    /* Guards are not checked, and their end sets the previous device. */
    int32_t previous = -1;
    CHECK_OK(tcuda_device_exchange(0, &previous));
    CHECK_EQ(previous, last);
    CHECK_OK(tcuda_device_set(previous));
    CHECK_EQ(current_device(), last);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
}

/* The environment decides anew in each life of the library. */
static void the_environment_decides(void)
{
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(setenv("TORCH_CUDA_CHECK_STRAY_CONTEXT", "Warn", 1), 0);
    CHECK_EQ(mode(), TCUDA_CONTEXT_CHECK_WARN);
    CHECK_OK(tcuda_init());
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(setenv("TCUDA_CHECK_STRAY_CONTEXT", "error", 1), 0);
    CHECK_EQ(mode(), TCUDA_CONTEXT_CHECK_ERROR);
    CHECK_OK(tcuda_device_set(0));
    CHECK_OK(tcuda_device_set(0));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(setenv("TCUDA_CHECK_STRAY_CONTEXT", "1", 1), 0);
    CHECK_EQ(mode(), TCUDA_CONTEXT_CHECK_DEFAULT);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    contexts_are_listed();
    stray_ones_are_found();
    the_environment_decides();
    return finish();
}
