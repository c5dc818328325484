/* The simulator as the driver of a program, by a link named libcuda.so.1 as other programs find it,
 * and of tcuda in the same process: both use one machine, which outlives tcuda_shutdown. */
#include "check.h"
#include "driver.h"

/* CUdriverProcAddressQueryResult */
enum { FOUND = 0, NO_SYMBOL = 1, NEWER_ONLY = 2 };

static struct {
    int (*init)(unsigned int flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*set_current)(void *context);
    int (*allocate)(address *pointer, size_t bytes);
    int (*free)(address pointer);
    int (*fill)(address pointer, unsigned char value, size_t count, void *stream);
    int (*copy)(address to, address from, size_t bytes, void *stream);
    int (*synchronize)(void *stream);
    int (*find)(const char *name, void **function, int version, uint64_t flags, int *status);
} driver;

static void find_the_functions(void)
{
    FIND(driver.init, "cuInit");
    FIND(driver.version, "cuDriverGetVersion");
    FIND(driver.count, "cuDeviceGetCount");
    FIND(driver.retain, "cuDevicePrimaryCtxRetain");
    FIND(driver.release, "cuDevicePrimaryCtxRelease_v2");
    FIND(driver.set_current, "cuCtxSetCurrent");
    FIND(driver.allocate, "cuMemAlloc_v2");
    FIND(driver.free, "cuMemFree_v2");
    FIND(driver.fill, "cuMemsetD8Async");
    FIND(driver.copy, "cuMemcpyAsync");
    FIND(driver.synchronize, "cuStreamSynchronize");
    FIND(driver.find, "cuGetProcAddress_v2");
}

static void functions_have_names_and_versions(void)
{
    void *function = NULL;
    int status = -1;
    CHECK_EQ(driver.find("cuMemAlloc", &function, 12000, 0, &status), SUCCESS);
    CHECK_EQ(status, FOUND);
    CHECK(function == symbol("cuMemAlloc_v2"));
    /* The first signature, of CUDA 2.0, had 32-bit sizes. */
    CHECK_EQ(driver.find("cuMemAlloc", &function, 2000, 0, &status), NOT_FOUND);
    CHECK_EQ(status, NEWER_ONLY);
    CHECK(function == NULL);
    CHECK_EQ(driver.find("cuMemAllocate", &function, 12000, 0, &status), NOT_FOUND);
    CHECK_EQ(status, NO_SYMBOL);
    CHECK_EQ(driver.find("cuInit", &function, 12000, 0, NULL), SUCCESS);
    CHECK(function == symbol("cuInit"));
    CHECK_EQ(driver.find(NULL, &function, 12000, 0, NULL), INVALID_VALUE);
    CHECK_EQ(driver.find("cuInit", NULL, 12000, 0, NULL), INVALID_VALUE);
}

static void bytes_are(address memory, unsigned char expected)
{
    unsigned char bytes[64] = { 0 };
    CHECK_EQ(driver.copy((address)(uintptr_t)bytes, memory, sizeof bytes, NULL), SUCCESS);
    CHECK_EQ(driver.synchronize(NULL), SUCCESS);
    for (size_t i = 0; i < sizeof bytes; i++)
        CHECK_EQ(bytes[i], expected);
}

int main(void)
{
    int count = 0, version = 0;
    int32_t devices = 0;
    void *context = NULL, *block = NULL;
    address memory = 0;
    open_the_driver();
    find_the_functions();
    functions_have_names_and_versions();
    CHECK_EQ(driver.version(&version), SUCCESS);
    CHECK_EQ(version, 12090);
    CHECK_EQ(driver.init(1), INVALID_VALUE);
    /* Nothing is on after that, or tcuda could not choose its machine. */
    CHECK_OK(tcuda_init());
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(driver.init(0), SUCCESS);
    /* TCUDA_SIM's options are those of this machine, too. */
    CHECK_EQ(driver.count(&count), SUCCESS);
    CHECK_EQ(count, 3);
    CHECK_EQ(driver.retain(&context, 0), SUCCESS);
    CHECK_EQ(driver.set_current(context), SUCCESS);
    CHECK_EQ(driver.allocate(&memory, 64), SUCCESS);
    CHECK_EQ(driver.fill(memory, 7, 64, NULL), SUCCESS);

    for (int round = 0; round < 2; round++) {
        CHECK_OK(tcuda_init());
        CHECK_OK(tcuda_device_count(&devices));
        CHECK_EQ(devices, 3);
        CHECK_OK(tcuda_malloc(4096, 0, NULL, &block));
        /* A block of tcuda's is memory of the driver, and the reverse. */
        CHECK_EQ(driver.copy((address)(uintptr_t)block, memory, 64, NULL), SUCCESS);
        bytes_are((address)(uintptr_t)block, 7);
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_shutdown(NULL));
        /* The program goes on. */
        CHECK_EQ(driver.set_current(context), SUCCESS);
        bytes_are(memory, 7);
    }
    /* Other options are another machine, of which there can be only one. */
    CHECK_OK(tcuda_backend_select("sim", "devices=2"));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_init());
    CHECK(strstr(tcuda_last_error(), "already on") != NULL);
    CHECK_EQ(driver.free(memory), SUCCESS);
    CHECK_EQ(driver.release(0), SUCCESS);
    return EXIT_SUCCESS;
}
