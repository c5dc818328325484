/* What a device is doing, as the driver tells it, or the simulated machine. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { MIB = 1 << 20 };

static uint32_t utilization(int32_t device)
{
    uint32_t percent = 777;
    CHECK_OK(tcuda_monitor_utilization(device, &percent));
    CHECK(percent <= 100);
    return percent;
}

static uint64_t memory_used(int32_t device)
{
    uint64_t bytes = 0;
    CHECK_OK(tcuda_monitor_memory_used(device, &bytes));
    return bytes;
}

/* A part of a GPU does not tell how busy it is, a container may hide NVML. */
static bool tells(void)
{
    uint32_t percent = 0;
    const tcuda_status status = tcuda_monitor_utilization(0, &percent);
    if (status == TCUDA_STATUS_NO_LIBRARY || status == TCUDA_STATUS_NOT_SUPPORTED)
        printf("not asked: %s\n", tcuda_last_error());
    else
        CHECK_STATUS(TCUDA_STATUS_OK, status);
    return status == TCUDA_STATUS_OK;
}

static void values_make_sense(void)
{
    for (int32_t device = 0; device < num_devices(); device++) {
        uint32_t memory = 777, power = 0, clock = 0;
        int32_t celsius = -1000;
        (void)utilization(device);
        CHECK_OK(tcuda_monitor_memory_usage(device, &memory));
        CHECK(memory <= 100);
        CHECK_OK(tcuda_monitor_temperature_c(device, &celsius));
        CHECK(celsius > -40 && celsius < 130);
        CHECK_OK(tcuda_monitor_power_draw_mw(device, &power));
        CHECK(power > 1000 && power < 3000000);
        CHECK_OK(tcuda_monitor_clock_rate_mhz(device, &clock));
        CHECK(clock > 50 && clock < 5000);
    }
}

static void memory_in_use_is_seen(void)
{
    const uint64_t before = memory_used(0);
    void *block = allocate(256 * MIB, 0, NULL);
    CHECK(memory_used(0) >= before + 250 * (uint64_t)MIB || !on_simulator());
    CHECK(memory_used(0) >= 256 * (uint64_t)MIB);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK(memory_used(0) <= before || !on_simulator());
}

/* The simulated machine: what it did in the last second. */
static void work_is_seen(void)
{
    uint32_t memory = 0, idle = 0, busy = 0, clock = 0;
    tcuda_stream *stream = create_stream(0);
    char *block = allocate(64 * MIB, 0, stream);
    sleep_ms(1100);
    CHECK_EQ(utilization(0), 0);
    CHECK_OK(tcuda_monitor_power_draw_mw(0, &idle));
    CHECK_OK(tcuda_monitor_clock_rate_mhz(0, &clock));
    for (int i = 0; i < 8; i++)
        fill_bytes(block, i, 64 * MIB, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK(utilization(0) > 0);
    CHECK_OK(tcuda_monitor_memory_usage(0, &memory));
    CHECK(memory > 0 && memory <= 100);
    CHECK_OK(tcuda_monitor_power_draw_mw(0, &busy));
    CHECK(busy > idle);
    if (num_devices() > 1)
        CHECK_EQ(utilization(1), 0);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void bad_arguments_are_refused(void)
{
    uint32_t value = 777;
    uint64_t bytes = 777;
    int32_t celsius = 777;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_monitor_utilization(0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_monitor_utilization(num_devices(), &value));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_monitor_memory_usage(-7, &value));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_monitor_temperature_c(-7, &celsius));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_monitor_power_draw_mw(-7, &value));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_monitor_clock_rate_mhz(-7, &value));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_monitor_memory_used(-7, &bytes));
    CHECK(value == 777 && bytes == 777 && celsius == 777);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    bad_arguments_are_refused();
    if (!tells())
        return finish();
    values_make_sense();
    memory_in_use_is_seen();
    if (on_simulator())
        work_is_seen();
    return finish();
}
