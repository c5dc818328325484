/* CUDA_VISIBLE_DEVICES decides what a process sees; it is the driver's, which reads it when it
 * starts. With nothing visible the library loads, counts no devices, and says so. */
#define _POSIX_C_SOURCE 200809L

#include "check.h"

int main(void)
{
    CHECK(setenv("CUDA_VISIBLE_DEVICES", "", 1) == 0);
    int32_t count = -1;
    bool available = true;
    CHECK_OK(tcuda_device_count(&count));
    CHECK_OK(tcuda_is_available(&available));
    CHECK_EQ(count, 0);
    CHECK(!available);
    tcuda_status status = tcuda_init();
    CHECK(status == TCUDA_STATUS_NO_DEVICE || status == TCUDA_STATUS_NO_DRIVER);
    CHECK(tcuda_last_error()[0] != '\0');
    void *ptr = &count;
    CHECK_STATUS(status, tcuda_malloc(1, TCUDA_CURRENT_DEVICE, NULL, &ptr));
    CHECK(ptr == &count);
    return finish();
}
