/* The default stream, the per-thread stream and three of the pools. */
#include "model.h"

RACE("workload", MACHINE);

static bool run(void)
{
    static const workload plan = { .devices = 1, .streams = 5, .default_streams = true,
        .operations = 200, .frees = 5, .largest = 100000 };
    return model_run(&plan, race_seed);
}
