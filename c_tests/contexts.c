/* Primary contexts of devices that the host did not choose, and green ones of the host. */
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

/* A stream that the host makes in a green context is an external stream of the device. */
static void green_streams_of_the_host(void)
{
    enum { BYTES = 4096 };
    int (*create)(struct CUstream_st **, struct CUgreenCtx_st *, unsigned, int) = NULL;
    int (*destroy)(struct CUstream_st *) = NULL;
    void *address = NULL;
    struct CUgreenCtx_st *green = NULL;
    struct CUstream_st *native = NULL;
    tcuda_stream *external = NULL;
    tcuda_green_context *context = NULL;
    tcuda_green_context_options options = TCUDA_INIT(tcuda_green_context_options);
    options.sm_count = 8;
    const tcuda_status status
        = tcuda_green_context_create(TCUDA_CURRENT_DEVICE, NULL, &options, &context);
    if (status == TCUDA_STATUS_NOT_SUPPORTED)
        return; /* the driver is older than 12.4 */
    CHECK_EQ(status, TCUDA_STATUS_OK);
    CHECK_OK(tcuda_backend_function("cuGreenCtxStreamCreate", &address));
    memcpy(&create, &address, sizeof create);
    CHECK_OK(tcuda_backend_function("cuStreamDestroy", &address));
    memcpy(&destroy, &address, sizeof destroy);
    CHECK_OK(tcuda_green_context_native(context, &green, NULL));
    CHECK_EQ(create(&native, green, 1, 0), 0);
    CHECK_OK(tcuda_stream_from_external(TCUDA_CURRENT_DEVICE, native, &external));
    if (num_devices() > 1)
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_stream_from_external((current_device() + 1) % num_devices(), native, &external));
    unsigned char *const bytes = allocate(BYTES, TCUDA_CURRENT_DEVICE, external);
    fill_bytes(bytes, 3, BYTES, external);
    CHECK_EQ(count_other_bytes(bytes, 3, BYTES, external), 0);
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(external));
    CHECK_EQ(destroy(native), 0);
    CHECK_OK(tcuda_green_context_destroy(context));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    contexts_are_listed();
    stray_ones_are_found();
    the_environment_decides();
    green_streams_of_the_host();
    return finish();
}
