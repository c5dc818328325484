/* Blocks come and go all the time, on a device with little memory. */
#include "model.h"

RACE("workload", "memory=48MiB");

static bool run(void)
{
    static const workload plan = { .devices = 1, .streams = 4, .operations = 300, .frees = 60,
        .largest = 2 << 20 };
    return model_run(&plan, race_seed);
}
