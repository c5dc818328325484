/* Telemetry of a management library that says what one wants: each case in a process of its own,
 * with a driver that is none. The devices' UUIDs are 0, and their place on the bus is 1:1:1. */
#include <stdlib.h>

#include "../support.h"

static void set(const char *name, const char *value)
{
    CHECK_EQ(setenv(name, value, 1), 0);
}

static void check_board(void)
{
    uint32_t power = 0, clock = 0;
    int32_t celsius = 0;
    uint64_t bytes = 0;
    CHECK_OK(tcuda_monitor_temperature_c(0, &celsius));
    CHECK_OK(tcuda_monitor_power_draw_mw(0, &power));
    CHECK_OK(tcuda_monitor_clock_rate_mhz(0, &clock));
    CHECK_OK(tcuda_monitor_memory_used(0, &bytes));
    CHECK(celsius == 54 && power == 123456 && clock == 1980 && bytes == 7ull << 30);
}

static void check_all(void)
{
    uint32_t percent = 0, memory = 0;
    CHECK_OK(tcuda_monitor_utilization(0, &percent));
    CHECK_OK(tcuda_monitor_memory_usage(0, &memory));
    CHECK(percent == 83 && memory == 41);
    check_board();
}

static void a_gpu_is_found_by_its_uuid(void)
{
    set("FAKE_NVML_KNOWS", "uuid");
    check_all();
}

static void and_by_its_place(void)
{
    set("FAKE_NVML_KNOWS", "pci");
    check_all();
}

static void a_part_of_a_gpu_has_the_values_of_its_board(void)
{
    uint32_t percent = 77;
    set("FAKE_NVML_KNOWS", "mig");
    check_board();
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_monitor_utilization(0, &percent));
    CHECK_EQ(percent, 77);
    CHECK_EQ(tcuda_last_error_native(), 3);
    CHECK_STR(tcuda_last_error(),
        "nvmlDeviceGetUtilizationRates is not supported here: this GPU does not tell");
}

static void a_gpu_that_is_not_found_is_told(void)
{
    uint64_t bytes = 77;
    set("FAKE_NVML_KNOWS", "nothing");
    CHECK_STATUS(TCUDA_STATUS_NVML_ERROR, tcuda_monitor_memory_used(0, &bytes));
    CHECK_EQ(tcuda_last_error_native(), 6);
    CHECK_EQ(bytes, 77);
    /* What was wrong with it says more. */
    set("FAKE_NVML_GIVES", "nvmlDeviceGetHandleByUUID 15");
    CHECK_STATUS(TCUDA_STATUS_NVML_ERROR, tcuda_monitor_memory_used(0, &bytes));
    CHECK_EQ(tcuda_last_error_native(), 15);
    set("FAKE_NVML_KNOWS", "pci");
    CHECK_OK(tcuda_monitor_memory_used(0, &bytes));
}

static void each_value_fails_for_itself(void)
{
    uint32_t power = 77, percent = 0;
    set("FAKE_NVML_GIVES", "nvmlDeviceGetPowerUsage 4");
    CHECK_STATUS(TCUDA_STATUS_NVML_ERROR, tcuda_monitor_power_draw_mw(0, &power));
    CHECK_EQ(tcuda_last_error_native(), 4);
    CHECK_STR(tcuda_last_error(), "nvmlDeviceGetPowerUsage failed: NVML error 4: this user may "
        "not ask; ask the administrator");
    CHECK_EQ(power, 77);
    CHECK_OK(tcuda_monitor_utilization(0, &percent));
    set("FAKE_NVML_GIVES", "nvmlDeviceGetPowerUsage 3");
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_monitor_power_draw_mw(0, &power));
}

static void what_fails_to_start_is_tried_again(void)
{
    set("FAKE_NVML_GIVES", "nvmlInit_v2 18");
    uint32_t percent = 77;
    CHECK_STATUS(TCUDA_STATUS_NVML_ERROR, tcuda_monitor_utilization(0, &percent));
    CHECK_EQ(tcuda_last_error_native(), 18);
    set("FAKE_NVML_GIVES", "none 0");
    check_all();
}

/* Of a driver of years ago. */
static void a_function_may_be_missing(void)
{
    uint32_t clock = 77, percent = 0;
    set("TCUDA_NVML_PATH", getenv("TCUDA_TEST_OLD_NVML"));
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_monitor_clock_rate_mhz(0, &clock));
    CHECK_EQ(clock, 77);
    CHECK_OK(tcuda_monitor_utilization(0, &percent));
}

static void the_library_may_be_missing(void)
{
    uint32_t percent = 77;
    set("TCUDA_NVML_PATH", "/nonexistent/libnvidia-ml.so.1");
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_monitor_utilization(0, &percent));
    CHECK_EQ(percent, 77);
    CHECK(strstr(tcuda_last_error(), "TCUDA_NVML_PATH") != NULL);
}

int main(void)
{
    RUNS(a_gpu_is_found_by_its_uuid);
    RUNS(and_by_its_place);
    RUNS(a_part_of_a_gpu_has_the_values_of_its_board);
    RUNS(a_gpu_that_is_not_found_is_told);
    RUNS(each_value_fails_for_itself);
    RUNS(what_fails_to_start_is_tried_again);
    RUNS(a_function_may_be_missing);
    RUNS(the_library_may_be_missing);
    return finish_cases();
}
