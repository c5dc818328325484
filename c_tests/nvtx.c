/* NVTX where no tool listens, which is how most programs run, and the profiler's start and stop. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

static void ranges_are_counted(void)
{
    int32_t depth = 77;
    CHECK_OK(tcuda_nvtx_mark("a mark"));
    for (int32_t i = 0; i < 5; i++) {
        CHECK_OK(tcuda_nvtx_range_push("range", &depth));
        CHECK_EQ(depth, i);
    }
    for (int32_t i = 5; i-- > 0;) {
        CHECK_OK(tcuda_nvtx_range_pop(&depth));
        CHECK_EQ(depth, i);
    }
    depth = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_nvtx_range_pop(&depth));
    CHECK_EQ(depth, 77);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_range_push(NULL, &depth));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_mark(NULL));
}

static void ranges_have_numbers_of_their_own(void)
{
    uint64_t first = 0, second = 0;
    CHECK_OK(tcuda_nvtx_range_start("first", &first));
    CHECK_OK(tcuda_nvtx_range_start("second", &second));
    CHECK(first != second);
    CHECK_OK(tcuda_nvtx_range_end(first));
    CHECK_OK(tcuda_nvtx_range_end(second));
}

/* Nothing is queued: no driver call is made. */
static void ranges_of_streams_cost_nothing(void)
{
    uint64_t id = 0, before = 0, after = 0;
    CHECK_OK(tcuda_backend_call_count("cuLaunchHostFunc", &before));
    CHECK_OK(tcuda_nvtx_device_range_start("range", NULL, &id));
    CHECK_OK(tcuda_nvtx_device_range_end(id, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_device_range_end(id, NULL));
    CHECK_OK(tcuda_backend_call_count("cuLaunchHostFunc", &after));
    CHECK_EQ(after - before, 0);
}

static void the_profiler_is_told(void)
{
    uint64_t starts = 0, stops = 0;
    CHECK_OK(tcuda_profiler_start());
    CHECK_OK(tcuda_profiler_start());
    CHECK_OK(tcuda_profiler_stop());
    CHECK_OK(tcuda_backend_call_count("cuProfilerStart", &starts));
    CHECK_OK(tcuda_backend_call_count("cuProfilerStop", &stops));
    CHECK(starts == 2 && stops == 1);
}

int main(void)
{
    ranges_are_counted(); /* also without a GPU */
    ranges_have_numbers_of_their_own();
    SKIP_WITHOUT_GPU();
    ranges_of_streams_cost_nothing();
    the_profiler_is_told();
    return finish();
}
