/* A libnvidia-ml.so.1 with one GPU, which is a part of one where its environment says so:
 *   FAKE_NVML_KNOWS    "uuid", "pci" or "mig": by what it knows the GPU
 *   FAKE_NVML_GIVES    a function and what it gives: "nvmlDeviceGetPowerUsage 3"
 * Utilization is not a part's, and heat, power and clocks are asked of the whole GPU. */
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static char whole_gpu, part_of_gpu;

static int knows(const char *what)
{
    const char *known = getenv("FAKE_NVML_KNOWS");
    return strcmp(known != NULL ? known : "uuid", what) == 0;
}

/* What the environment wants a function to give. */
static int wanted(const char *name)
{
    const char *gives = getenv("FAKE_NVML_GIVES");
    const size_t length = strlen(name);
    if (gives == NULL || strncmp(gives, name, length) != 0 || gives[length] != ' ')
        return OK;
    return atoi(gives + length);
}

static int check(const char *name, const char *at, int of_parts)
{
    if (at != &whole_gpu && at != &part_of_gpu)
        return INVALID_ARGUMENT;
    if (at == &part_of_gpu && !of_parts)
        return NOT_SUPPORTED;
    return wanted(name);
}

API int nvmlInit_v2(void) { return wanted("nvmlInit_v2"); }

API int nvmlDeviceGetHandleByUUID(const char *uuid, void **at)
{
    if (knows("uuid") && strcmp(uuid, "GPU-00000000-0000-0000-0000-000000000000") == 0)
        return *at = &whole_gpu, OK;
    if (knows("mig") && strcmp(uuid, "MIG-00000000-0000-0000-0000-000000000000") == 0)
        return *at = &part_of_gpu, OK;
    const int code = wanted("nvmlDeviceGetHandleByUUID");
    return code != OK ? code : NOT_FOUND;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **at)
{
    if (knows("pci") && strcmp(address, "00000001:01:01.0") == 0)
        return *at = &whole_gpu, OK;
    return NOT_FOUND;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *at, void **whole)
{
    if (at != &part_of_gpu)
        return INVALID_ARGUMENT;
    return *whole = &whole_gpu, OK;
}

API int nvmlDeviceGetIndex(void *at, unsigned *index)
{
    (void)at;
    return *index = 3, OK;
}

API int nvmlDeviceGetUtilizationRates(void *at, unsigned rates[2])
{
    const int code = check("nvmlDeviceGetUtilizationRates", at, 0);
    if (code == OK)
        rates[0] = 83, rates[1] = 41;
    return code;
}

API int nvmlDeviceGetMemoryInfo(void *at, unsigned long long memory[3])
{
    const int code = check("nvmlDeviceGetMemoryInfo", at, 1);
    if (code == OK)
        memory[0] = 100ull << 30, memory[1] = 93ull << 30, memory[2] = 7ull << 30;
    return code;
}

API int nvmlDeviceGetTemperature(void *at, unsigned sensor, unsigned *celsius)
{
    const int code = check("nvmlDeviceGetTemperature", at, 0);
    if (code == OK)
        *celsius = sensor == 0 ? 54 : 1000;
    return code;
}

API int nvmlDeviceGetPowerUsage(void *at, unsigned *milliwatts)
{
    const int code = check("nvmlDeviceGetPowerUsage", at, 0);
    if (code == OK)
        *milliwatts = 123456;
    return code;
}

#ifndef WITHOUT_CLOCKS
API int nvmlDeviceGetClockInfo(void *at, unsigned which, unsigned *megahertz)
{
    const int code = check("nvmlDeviceGetClockInfo", at, 0);
    if (code == OK)
        *megahertz = which == 1 ? 1980 : 1;
    return code;
}
#endif
