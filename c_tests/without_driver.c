/* A machine without a driver: what is still true there, and what is said about the rest. Each case
 * in a process of its own. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

static void has_no_driver(void)
{
    CHECK_EQ(setenv("TCUDA_BACKEND", "cuda", 1), 0);
    CHECK_EQ(setenv("TCUDA_CUDA_DRIVER_PATH", "/nonexistent/libcuda.so.1", 1), 0);
    CHECK_EQ(unsetenv("TCUDA_SIM"), 0);
}

/* torch: a negative device and a stream of None change nothing, and need no CUDA. */
static void guards_of_nothing_change_nothing(void)
{
    int32_t device = 77;
    tcuda_stream *stream = (tcuda_stream *)(void *)&device;
    has_no_driver();
    CHECK_OK(tcuda_device_set(-1));
    CHECK_OK(tcuda_device_set(INT32_MIN));
    CHECK_OK(tcuda_device_exchange(-1, &device));
    CHECK_EQ(device, -1);
    CHECK_OK(tcuda_device_set(device));
    CHECK_OK(tcuda_stream_set_current(NULL));
    device = 77;
    CHECK_OK(tcuda_stream_exchange(NULL, &stream, &device));
    CHECK(stream == NULL);
    CHECK_EQ(device, -1);
    CHECK_OK(tcuda_stream_set_current(stream));
    device = 77;
    CHECK_STATUS(TCUDA_STATUS_NO_DRIVER, tcuda_device_exchange(0, &device));
    CHECK_STATUS(TCUDA_STATUS_NO_DRIVER, tcuda_device_set(0));
    CHECK_STATUS(TCUDA_STATUS_NO_DRIVER, tcuda_device_current(&device));
    CHECK_EQ(device, 77);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_device_exchange(-1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_stream_set_current((void *)&device));
}

static void no_memory_is_on_a_device(void)
{
    const void *const addresses[] = { NULL, &addresses, "text", (void *)(uintptr_t)0x7f0000000000 };
    has_no_driver();
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        int32_t device = 77;
        CHECK_OK(tcuda_device_of(addresses[i], &device));
        CHECK_EQ(device, -1);
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_device_of(NULL, NULL));
}

static void an_event_that_was_never_recorded_is_reached(void)
{
    bool done = false;
    has_no_driver();
    tcuda_event *event = create_event(0);
    CHECK_OK(tcuda_event_query(event, &done));
    CHECK(done);
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_event_wait(event, NULL));
    CHECK_OK(tcuda_stream_wait_event(NULL, event));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_event_wait(event, (void *)&done));
    CHECK_STATUS(TCUDA_STATUS_NO_DRIVER, tcuda_event_record(event, NULL));
    CHECK_OK(tcuda_event_destroy(event));
}

static void nothing_of_that_initialises(void)
{
    bool is = true;
    has_no_driver();
    CHECK_OK(tcuda_random_manual_seed_all(5));
    CHECK_OK(tcuda_is_available(&is));
    CHECK(!is);
    is = true;
    CHECK_OK(tcuda_is_initialized(&is));
    CHECK(!is);
    CHECK_EQ(num_devices(), 0);
    CHECK_STATUS(TCUDA_STATUS_NO_DRIVER, tcuda_init());
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* Setting the options of the simulated machine selects it. */
static void the_simulated_machine_is_named(void)
{
    has_no_driver();
    CHECK_STATUS(TCUDA_STATUS_NO_DRIVER, tcuda_init());
    CHECK(strstr(tcuda_last_error(), "/nonexistent/libcuda.so.1") != NULL);
    CHECK(strstr(tcuda_last_error(), "TCUDA_BACKEND=sim") == NULL);
    CHECK_EQ(setenv("TCUDA_SIM", "devices=2", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_NO_DRIVER, tcuda_init());
    CHECK(strstr(tcuda_last_error(), "TCUDA_SIM is set") != NULL);
    CHECK(strstr(tcuda_last_error(), "TCUDA_BACKEND=sim") != NULL);
}

int main(void)
{
    RUNS(guards_of_nothing_change_nothing);
    RUNS(no_memory_is_on_a_device);
    RUNS(an_event_that_was_never_recorded_is_reached);
    RUNS(nothing_of_that_initialises);
    RUNS(the_simulated_machine_is_named);
    return finish_cases();
}
