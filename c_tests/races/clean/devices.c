/* Six streams of three devices, whose memory only two can reach directly. */
#include "model.h"

RACE("workload", "memory=64MiB,devices=3,peers=pairs");

static bool run(void)
{
    static const workload plan = { .devices = 3, .streams = 6, .operations = 200, .frees = 5,
        .largest = 3 << 20 };
    return model_run(&plan, race_seed);
}
