/* Random workloads with correct waits, beside a model that does the same in sequence: whatever a
 * schedule does, the bytes must be those of the model. */
#ifndef MODEL_H
#define MODEL_H

#include "race.h"

typedef struct workload {
    int32_t devices;
    int streams;          /* 2 to 8, one device after the other */
    bool default_streams; /* the first two are the default and the per-thread one of device 0 */
    int operations;
    int frees;            /* of 100 operations, how many free a block and allocate another */
    size_t largest;       /* block in bytes */
} workload;

/* Runs one; the same seed gives the same calls. Any number of threads can. */
bool model_run(const workload *plan, uint64_t seed);

#endif /* MODEL_H */
