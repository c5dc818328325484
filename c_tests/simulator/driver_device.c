/* What a driver says of its devices, and which of them CUDA_VISIBLE_DEVICES shows. */
#define _POSIX_C_SOURCE 200809L

#include "driver.h"

#include <unistd.h>

static struct {
    int (*init)(unsigned int flags);
    int (*count)(int *count);
    int (*get)(int *device, int ordinal);
    int (*name)(char *name, int len, int device);
    int (*uuid)(unsigned char *uuid, int device);
    int (*first_uuid)(unsigned char *uuid, int device);
    int (*attribute)(int *value, unsigned int attribute, int device);
    int (*bytes)(size_t *bytes, int device);
    int (*pci)(char *id, int len, int device);
    int (*by_pci)(int *device, const char *id);
    int (*luid)(char *luid, unsigned int *mask, int device);
    int (*between)(int *value, unsigned int attribute, int device, int peer);
    int (*capability)(int *major, int *minor, int device);
    int (*properties)(int *properties, int device);
    int (*affinity)(int *supported, unsigned int kind, int device);
    int (*table)(const void **table, const unsigned char *id);
} driver;

static void find_the_functions(void)
{
    open_the_driver();
    FIND(driver.init, "cuInit");
    FIND(driver.count, "cuDeviceGetCount");
    FIND(driver.get, "cuDeviceGet");
    FIND(driver.name, "cuDeviceGetName");
    FIND(driver.uuid, "cuDeviceGetUuid_v2");
    FIND(driver.first_uuid, "cuDeviceGetUuid");
    FIND(driver.attribute, "cuDeviceGetAttribute");
    FIND(driver.bytes, "cuDeviceTotalMem_v2");
    FIND(driver.pci, "cuDeviceGetPCIBusId");
    FIND(driver.by_pci, "cuDeviceGetByPCIBusId");
    FIND(driver.luid, "cuDeviceGetLuid");
    FIND(driver.between, "cuDeviceGetP2PAttribute");
    FIND(driver.capability, "cuDeviceComputeCapability");
    FIND(driver.properties, "cuDeviceGetProperties");
    FIND(driver.affinity, "cuDeviceGetExecAffinitySupport");
    FIND(driver.table, "cuGetExportTable");
}

static int attribute(unsigned int number)
{
    int value = -1;
    CHECK_EQ(driver.attribute(&value, number, 0), SUCCESS);
    return value;
}

static void a_device_has_a_place(void)
{
    char id[32] = "", text[40];
    int device = -5;
    CHECK_EQ(driver.pci(id, sizeof id, 0), SUCCESS);
    CHECK_EQ(strlen(id), 12);
    unsigned int domain = 0, bus = 0, slot = 0;
    CHECK_EQ(sscanf(id, "%4x:%2x:%2x.0", &domain, &bus, &slot), 3);
    CHECK_EQ(domain, attribute(50));
    CHECK_EQ(bus, attribute(33));
    CHECK_EQ(slot, attribute(34));
    CHECK_EQ(driver.by_pci(&device, id), SUCCESS);
    CHECK_EQ(device, 0);
    /* Without the function, with a longer domain, in capitals; the domain 0 may be left out. */
    snprintf(text, sizeof text, "%.10s", id);
    CHECK_EQ(driver.by_pci(&device, text), SUCCESS);
    snprintf(text, sizeof text, "00%s", id);
    CHECK_EQ(driver.by_pci(&device, text), SUCCESS);
    snprintf(text, sizeof text, "%04X:%02X:%02X.0", domain, bus, slot);
    CHECK_EQ(driver.by_pci(&device, text), SUCCESS);
    if (domain == 0)
        CHECK_EQ(driver.by_pci(&device, id + 5), SUCCESS);
    device = -5;
    CHECK_EQ(driver.by_pci(&device, ""), INVALID_VALUE);
    CHECK_EQ(driver.by_pci(&device, "zz"), INVALID_VALUE);
    CHECK_EQ(driver.by_pci(&device, id + 4), INVALID_VALUE);
    CHECK_EQ(driver.by_pci(&device, NULL), INVALID_VALUE);
    CHECK_EQ(driver.by_pci(&device, "ffff:ff:1f.0"), INVALID_DEVICE);
    CHECK_EQ(device, -5);
    /* Too short: what fits is written. */
    CHECK_EQ(driver.pci(text, 12, 0), INVALID_VALUE);
    CHECK_EQ(strncmp(text, id, 11), 0);
    CHECK_EQ(strlen(text), 11);
    CHECK_EQ(driver.pci(NULL, 32, 0), INVALID_VALUE);
}

static void a_device_has_attributes(void)
{
    int value = -5, device = -1, major = 0, minor = 0, properties[10];
    size_t bytes = 0;
    unsigned char uuid[16] = { 0 }, first[16] = { 0 };
    char name[256] = "";
    const int least[]
        = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 36, 37, 38, 39, 75, 81, 82, 97 };
    CHECK_EQ(driver.get(&device, 0), SUCCESS);
    CHECK_EQ(device, 0);
    for (size_t i = 0; i < sizeof least / sizeof *least; i++)
        CHECK(attribute((unsigned)least[i]) > 0);
    CHECK_EQ(attribute(10), 32);
    CHECK_EQ(attribute(41), 1);
    CHECK(attribute(97) <= attribute(81));
    CHECK_EQ(driver.attribute(&value, 0, 0), INVALID_VALUE);
    CHECK_EQ(driver.attribute(&value, 9999, 0), INVALID_VALUE);
    CHECK_EQ(driver.attribute(&value, 1, 99), INVALID_DEVICE);
    CHECK_EQ(driver.attribute(NULL, 1, 0), INVALID_VALUE);
    CHECK_EQ(value, -5);
    CHECK_EQ(driver.capability(&major, &minor, 0), SUCCESS);
    CHECK_EQ(major, attribute(75));
    CHECK_EQ(minor, attribute(76));
    CHECK_EQ(driver.properties(properties, 0), SUCCESS);
    CHECK_EQ(properties[0], attribute(1));
    CHECK_EQ(properties[4], attribute(5));
    CHECK_EQ(properties[9], attribute(10));
    CHECK_EQ(driver.name(name, sizeof name, 0), SUCCESS);
    CHECK(name[0] != '\0');
    CHECK_EQ(driver.uuid(uuid, 0), SUCCESS);
    CHECK_EQ(driver.first_uuid(first, 0), SUCCESS);
    CHECK_EQ(memcmp(first, uuid, sizeof uuid), 0);
    CHECK_EQ(driver.first_uuid(NULL, 0), INVALID_VALUE);
    CHECK_EQ(driver.first_uuid(first, 99), INVALID_DEVICE);
    CHECK_EQ(driver.bytes(&bytes, 0), SUCCESS);
    CHECK(bytes >= (size_t)1 << 21);
    CHECK_EQ(driver.affinity(&value, 0, 0), SUCCESS);
    CHECK_EQ(value, 0);
    unsigned int mask = 7;
    CHECK_EQ(driver.luid(name, &mask, 0), NOT_SUPPORTED);
    CHECK_EQ(mask, 7);
    value = -5;
    CHECK_EQ(driver.between(&value, 2, 0, 0), INVALID_DEVICE);
    CHECK_EQ(driver.between(&value, 2, 0, 99), INVALID_DEVICE);
    CHECK_EQ(value, -5);
}

/* The driver cannot be used in the child of a process that uses it. */
static void a_child_cannot_use_it(void)
{
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_EQ(driver.init(0), NOT_INITIALIZED);
        exit(EXIT_SUCCESS);
    }
    int ended = 0;
    CHECK_EQ(waitpid(child, &ended, 0), child);
    CHECK_EQ(ended, 0);
}

/* In a process of its own, since the driver reads the list once. */
static void with_list(const char *list, int status, int devices)
{
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int count = -1;
        CHECK_EQ(setenv("CUDA_VISIBLE_DEVICES", list, 1), 0);
        find_the_functions();
        const int given = driver.init(0);
        if (given != status) {
            fprintf(stderr, "CUDA_VISIBLE_DEVICES=\"%s\" gave %d, not %d\n", list, given, status);
            exit(EXIT_FAILURE);
        }
        if (status == SUCCESS) {
            CHECK_EQ(driver.count(&count), SUCCESS);
            CHECK_EQ(count, devices);
        } else {
            CHECK_EQ(driver.count(&count), NOT_INITIALIZED);
            CHECK_EQ(count, -1);
        }
        exit(EXIT_SUCCESS);
    }
    int ended = 0;
    CHECK_EQ(waitpid(child, &ended, 0), child);
    CHECK_EQ(ended, 0);
}

/* The UUID of the first device, found by a child, since children of a process that uses the driver
 * cannot use it. */
static void find_uuid(unsigned char *uuid)
{
    int ends[2], ended = 0;
    CHECK_EQ(pipe(ends), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        find_the_functions();
        CHECK_EQ(driver.init(0), SUCCESS);
        CHECK_EQ(driver.uuid(uuid, 0), SUCCESS);
        CHECK_EQ(write(ends[1], uuid, 16), 16);
        exit(EXIT_SUCCESS);
    }
    CHECK_EQ(read(ends[0], uuid, 16), 16);
    CHECK_EQ(waitpid(child, &ended, 0), child);
    CHECK_EQ(ended, 0);
}

/* NVRTC and CUDA's runtime look for tables of undocumented functions by their IDs. */
static void an_unknown_table_is_refused(void)
{
    static const unsigned char unknown[16] = { 0x7c, 0x75, 0xda };
    const void *table = unknown;
    CHECK_EQ(driver.table(&table, unknown), INVALID_VALUE);
    CHECK_EQ(driver.table(NULL, unknown), INVALID_VALUE);
    CHECK_EQ(driver.table(&table, NULL), INVALID_VALUE);
}

int main(void)
{
    int devices = 0;
    with_list("", NO_DEVICE, 0);
    with_list("-1", NO_DEVICE, 0);
    with_list("none", NO_DEVICE, 0);
    with_list(",0", NO_DEVICE, 0);
    with_list("0", SUCCESS, 1);
    with_list(" 0 ", SUCCESS, 1);
    with_list("0,-1", SUCCESS, 1);
    with_list("0,99", SUCCESS, 1);
    with_list("0x1", SUCCESS, 1);
    with_list("0,0", INVALID_DEVICE, 0);

    /* A device is visible by its UUID, also in capitals, and by the beginning of it. */
    unsigned char uuid[16];
    char text[41] = "GPU-", *at = text + 4;
    find_uuid(uuid);
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02X", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    with_list(text, SUCCESS, 1);
    text[12] = '\0';
    with_list(text, SUCCESS, 1);

    find_the_functions();
    CHECK_EQ(driver.count(&devices), NOT_INITIALIZED);
    CHECK_EQ(driver.init(0), SUCCESS);
    an_unknown_table_is_refused();
    CHECK_EQ(driver.count(&devices), SUCCESS);
    CHECK(devices > 0);
    CHECK_EQ(driver.get(&devices, devices), INVALID_DEVICE);
    a_device_has_attributes();
    a_device_has_a_place();
    a_child_cannot_use_it();
    return EXIT_SUCCESS;
}
