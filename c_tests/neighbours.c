/* Other libraries use the driver in the same process: their contexts say which device is current,
 * and their memory has a device. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

static struct {
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*set_current)(void *context);
    int (*allocate)(unsigned long long *address, size_t bytes);
    int (*free)(unsigned long long address);
} driver;

/* As dlsym, it gives an object pointer, and C has no cast from one to a function. */
static void find(const char *name, void *function)
{
    void *address = NULL;
    CHECK_OK(tcuda_backend_function(name, &address));
    memcpy(function, &address, sizeof address);
}

static void find_driver(void)
{
    CHECK_OK(tcuda_init());
    find("cuDevicePrimaryCtxRetain", &driver.retain);
    find("cuDevicePrimaryCtxRelease", &driver.release);
    find("cuCtxSetCurrent", &driver.set_current);
    find("cuMemAlloc", &driver.allocate);
    find("cuMemFree", &driver.free);
}

/* As the CUDA runtime makes a device current, and before tcuda has anything to do with that. */
static void the_context_of_another_says_which_device_is_current(void)
{
    const int32_t device = num_devices() - 1;
    void *context = NULL;
    CHECK_EQ(driver.retain(&context, device), 0);
    CHECK_EQ(driver.set_current(context), 0);
    /* It is unknown which device it belongs to: then it says nothing. */
    CHECK_OK(tcuda_backend_inject("cuDevicePrimaryCtxGetState", 1, 999, 1));
    CHECK_EQ(current_device(), 0);
    CHECK_OK(tcuda_backend_inject("cuDevicePrimaryCtxGetState", 0, 0, 0));
    CHECK_EQ(current_device(), device);
    void *block = allocate(4096, TCUDA_CURRENT_DEVICE, NULL);
    int32_t found = 77;
    CHECK_OK(tcuda_device_of(block, &found));
    CHECK_EQ(found, device);
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(driver.set_current(NULL), 0);
    CHECK_EQ(current_device(), 0);
    CHECK_EQ(driver.release(device), 0);
}

/* Also when the current device, which answers for all, is lost. */
static void the_memory_of_another_has_a_device(void)
{
    const int32_t device = num_devices() - 1;
    unsigned long long address = 0;
    int32_t found = 77;
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_OK(tcuda_device_set(device));
    CHECK_EQ(driver.allocate(&address, 4096), 0);
    const void *theirs = (const void *)(uintptr_t)address;
    CHECK_OK(tcuda_device_of(theirs, &found));
    CHECK_EQ(found, device);
    CHECK_OK(tcuda_device_set(0));
    found = 77;
    CHECK_OK(tcuda_device_of(theirs, &found));
    CHECK_EQ(found, device);
    if (device > 0) {
        CHECK_OK(tcuda_backend_inject("cuPointerGetAttribute", 1, 700, 0));
        found = 77;
        CHECK_OK(tcuda_device_of(theirs, &found));
        CHECK_EQ(found, device);
    }
    CHECK_OK(tcuda_device_set(device));
    CHECK_EQ(driver.free(address), 0);
    CHECK_OK(tcuda_device_set(0));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    find_driver();
    if (num_devices() >= 2)
        the_context_of_another_says_which_device_is_current();
    the_memory_of_another_has_a_device();
    return finish();
}
