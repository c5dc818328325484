/* Functions that need no context. */
#include "driver.h"

int main(void)
{
    int (*init)(unsigned int flags);
    int (*count)(int *count);
    int (*get)(int *device, int ordinal);
    int devices = 0, device = -1;
    open_the_driver();
    FIND(init, "cuInit");
    FIND(count, "cuDeviceGetCount");
    FIND(get, "cuDeviceGet");
    CHECK_EQ(count(&devices), NOT_INITIALIZED);
    CHECK_EQ(init(0), SUCCESS);
    CHECK_EQ(count(&devices), SUCCESS);
    CHECK(devices > 0);
    CHECK_EQ(get(&device, devices), INVALID_DEVICE);
    CHECK_EQ(get(&device, 0), SUCCESS);
    CHECK_EQ(device, 0);
    return EXIT_SUCCESS;
}
