/* Five streams of one device. */
#include "model.h"

RACE("workload", MACHINE);

static bool run(void)
{
    static const workload plan = { .devices = 1, .streams = 5, .operations = 200, .frees = 5,
        .largest = 3 << 20 };
    return model_run(&plan, race_seed);
}
