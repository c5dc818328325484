/* Devices: counting, the current one, properties, peers. */
#define _POSIX_C_SOURCE 200809L

#include <stddef.h>

#include "support.h"

static bool is_initialized(void)
{
    bool initialized = true;
    CHECK_OK(tcuda_is_initialized(&initialized));
    return initialized;
}

static void asking_initialises_nothing(void)
{
    bool available = false;
    CHECK(!is_initialized());
    CHECK_OK(tcuda_is_available(&available));
    CHECK(available);
    CHECK(num_devices() >= 1);
    CHECK(!is_initialized());
    CHECK_EQ(calls_of("cuDevicePrimaryCtxRetain"), 0);

    CHECK_OK(tcuda_init());
    CHECK(is_initialized());
    CHECK_OK(tcuda_init());
    /* Contexts cost hundreds of megabytes each: none before it is needed. */
    CHECK_EQ(calls_of("cuDevicePrimaryCtxRetain"), 0);
    CHECK_EQ(current_device(), 0);
}

static void set_and_exchange_the_current_device(void)
{
    int32_t previous = 77;
    CHECK_OK(tcuda_device_set(0));
    CHECK_EQ(current_device(), 0);
    CHECK_OK(tcuda_device_set(-1));
    CHECK_OK(tcuda_device_set(INT32_MIN));
    CHECK_EQ(current_device(), 0);
    CHECK_OK(tcuda_device_exchange(-5, &previous));
    CHECK_EQ(previous, 0);
    previous = 77;
    CHECK_OK(tcuda_device_exchange(0, &previous));
    CHECK_EQ(previous, 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_device_exchange(0, NULL));
    CHECK_EQ(current_device(), 0);
}

static void tells_number(int32_t device)
{
    char number[16];
    snprintf(number, sizeof number, "%d", (int)device);
    CHECK(strstr(tcuda_last_error(), number) != NULL);
}

static void refuses_ordinal(int32_t device)
{
    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    int32_t major = 77, minor = 77;
    char name[8] = "before";
    bool possible = true;
    size_t needed = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_capability(device, &major, &minor));
    tells_number(device);
    CHECK(major == 77 && minor == 77);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_device_name(device, name, sizeof name, &needed));
    tells_number(device);
    CHECK_STR(name, "before");
    CHECK_EQ(needed, 77);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_properties(device, &info));
    tells_number(device);
    CHECK_EQ(info.name[0], 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_synchronize(device));
    tells_number(device);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_can_access_peer(0, device, &possible));
    tells_number(device);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_can_access_peer(device, 0, &possible));
    CHECK(possible);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_enable_peer_access(0, device));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_enable_peer_access(device, 0));
    tells_number(device);
    if (device >= 0) {
        int32_t previous = 77;
        CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_set(device));
        tells_number(device);
        CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_device_exchange(device, &previous));
        tells_number(device);
        CHECK_EQ(previous, 77);
    }
    CHECK_EQ(current_device(), 0);
}

static void bad_ordinals_are_refused_by_number(void)
{
    refuses_ordinal(num_devices());
    refuses_ordinal(99);
    refuses_ordinal(INT32_MAX);
    refuses_ordinal(TCUDA_CPU_DEVICE);
    refuses_ordinal(INT32_MIN);
}

static void properties_make_sense(int32_t device)
{
    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    char name[256];
    int32_t major = 0, minor = -1;
    unsigned char uuid_bits = 0;
    CHECK_OK(tcuda_device_properties(device, &info));
    CHECK_EQ(info.struct_size, sizeof info);
    CHECK_OK(tcuda_device_name(device, name, sizeof name, NULL));
    CHECK(name[0] != 0);
    CHECK_STR(info.name, name);
    CHECK_OK(tcuda_device_capability(device, &major, &minor));
    CHECK_EQ(info.major, major);
    CHECK_EQ(info.minor, minor);
    CHECK(major >= 5 && minor >= 0 && minor <= 9);

    /* The same on all devices that CUDA 12 supports. */
    CHECK_EQ(info.warp_size, 32);
    CHECK_EQ(info.max_threads_per_block, 1024);
    CHECK_EQ(info.max_block_dim[0], 1024);
    CHECK_EQ(info.max_block_dim[1], 1024);
    CHECK_EQ(info.max_block_dim[2], 64);
    CHECK_EQ(info.max_grid_dim[0], INT32_MAX);
    CHECK_EQ(info.max_grid_dim[1], 65535);
    CHECK_EQ(info.max_grid_dim[2], 65535);
    CHECK_EQ(info.shared_memory_per_block_bytes, 48 << 10);
    CHECK(info.shared_memory_per_block_optin_bytes >= info.shared_memory_per_block_bytes);
    CHECK(info.shared_memory_per_multiprocessor_bytes >= info.shared_memory_per_block_bytes);
    CHECK_EQ(info.regs_per_multiprocessor, 65536);
    CHECK(info.multi_processor_count >= 1);
    CHECK(info.total_memory_bytes >= 64 << 20);
    CHECK(info.driver_version >= 11000);
    CHECK(info.numa_node >= -1);
    for (size_t i = 0; i < sizeof info.uuid; i++)
        uuid_bits |= info.uuid[i];
    CHECK(uuid_bits != 0);

    const int32_t flags[] = { info.is_integrated, info.is_multi_gpu_board, info.is_mig,
        info.has_ecc, info.has_cooperative_launch, info.has_gpu_direct_rdma,
        info.has_fabric_handles, info.has_managed_memory, info.has_concurrent_managed_access,
        info.has_virtual_memory, info.has_memory_pools };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        CHECK(flags[i] == 0 || flags[i] == 1);
}

/* A host that was compiled with a shorter or a longer header. */
static void properties_respect_the_size_of_the_struct(void)
{
    struct { tcuda_device_info info; unsigned char later[64]; } longer;
    tcuda_device_info whole = TCUDA_INIT(tcuda_device_info), part;
    const size_t cut = offsetof(tcuda_device_info, total_memory_bytes);
    const size_t sizes[] = { sizeof(size_t), sizeof(size_t) + 5, cut, sizeof whole - 4 };
    CHECK_OK(tcuda_device_properties(0, &whole));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memset(&part, 0xAA, sizeof part);
        part.struct_size = sizes[i];
        CHECK_OK(tcuda_device_properties(0, &part));
        CHECK_EQ(part.struct_size, sizes[i]);
        CHECK(memcmp((char *)&part + sizeof(size_t), (char *)&whole + sizeof(size_t),
            sizes[i] - sizeof(size_t)) == 0);
        for (size_t at = sizes[i]; at < sizeof part; at++)
            CHECK_EQ(((unsigned char *)&part)[at], 0xAA);
    }

    memset(&longer, 0xAA, sizeof longer);
    longer.info.struct_size = sizeof longer;
    CHECK_OK(tcuda_device_properties(0, &longer.info));
    CHECK_STR(longer.info.name, whole.name);
    CHECK_EQ(longer.info.has_memory_pools, whole.has_memory_pools);
    for (size_t at = 0; at < sizeof longer.later; at++)
        CHECK_EQ(longer.later[at], 0xAA);

    const size_t bad[] = { 0, 1, sizeof(size_t) - 1, SIZE_MAX };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memset(&part, 0xAA, sizeof part);
        part.struct_size = bad[i];
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_device_properties(0, &part));
        CHECK(strstr(tcuda_last_error(), "struct_size") != NULL);
        CHECK_EQ((unsigned char)part.name[0], 0xAA);
    }
}

static void name_follows_the_rules_for_text(void)
{
    char whole[256], buf[260];
    size_t needed = 0;
    CHECK_OK(tcuda_device_name(0, NULL, 0, &needed));
    CHECK(needed > 0 && needed < sizeof whole);
    CHECK_OK(tcuda_device_name(0, NULL, 0, NULL));
    CHECK_OK(tcuda_device_name(0, whole, sizeof whole, NULL));
    CHECK_EQ(strlen(whole), needed);
    for (size_t len = 1; len <= needed + 2; len++) {
        size_t told = 0;
        memset(buf, 0x55, sizeof buf);
        CHECK_OK(tcuda_device_name(0, buf, len, &told));
        CHECK_EQ(told, needed);
        const size_t kept = len <= needed ? len - 1 : needed;
        CHECK_EQ(strlen(buf), kept);
        CHECK(memcmp(buf, whole, kept) == 0);
        CHECK_EQ(buf[len], 0x55);
    }
    needed = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_device_name(0, NULL, 5, &needed));
    CHECK_EQ(needed, 77);
}

/* torch: entries as sm_80 or compute_90; each flag "-gencode compute=compute_A,code=KIND_A". */
static void architectures_have_torchs_form(void)
{
    char list[1024], flags[4096], expected[4096] = "";
    size_t needed = 0;
    CHECK_OK(tcuda_arch_list(list, sizeof list, &needed));
    CHECK_EQ(needed, strlen(list));
    CHECK_OK(tcuda_gencode_flags(flags, sizeof flags, NULL));
    for (char *entry = strtok(list, " "); entry != NULL; entry = strtok(NULL, " ")) {
        const char *number = strchr(entry, '_');
        CHECK(number != NULL);
        CHECK(strncmp(entry, "sm_", 3) == 0 || strncmp(entry, "compute_", 8) == 0);
        const size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, "%s-gencode compute=compute%s,code=%s",
            used > 0 ? " " : "", number, entry);
    }
    CHECK(strlen(expected) > 0);
    CHECK_STR(flags, expected);
}

static void addresses_have_devices(int32_t device)
{
    int on_the_stack = 0;
    int32_t found = 77;
    unsigned char *block = allocate(3000000, device, NULL);
    unsigned char *small = allocate(1, device, NULL);
    void *on_the_heap = malloc(100);
    CHECK_OK(tcuda_device_of(block, &found));
    CHECK_EQ(found, device);
    found = 77;
    CHECK_OK(tcuda_device_of(block + 2999999, &found));
    CHECK_EQ(found, device);
    found = 77;
    CHECK_OK(tcuda_device_of(small, &found));
    CHECK_EQ(found, device);
    const void *const others[] = { NULL, &on_the_stack, on_the_heap, "text" };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        found = 77;
        CHECK_OK(tcuda_device_of(others[i], &found));
        CHECK_EQ(found, -1);
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_device_of(block, NULL));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_free(small));
    free(on_the_heap);
}

static void synchronize_waits_for_all_streams(int32_t device)
{
    tcuda_stream *first = create_stream(device), *second = create_stream(device);
    bool done = false;
    void *block = allocate(8 << 20, device, first);
    CHECK_OK(tcuda_record_stream(block, second));
    for (int i = 0; i < 8; i++) {
        fill_bytes(block, i, 4 << 20, first);
        fill_bytes((char *)block + (4 << 20), i, 4 << 20, second);
    }
    CHECK_OK(tcuda_device_synchronize(device));
    CHECK_OK(tcuda_stream_query(first, &done));
    CHECK(done);
    done = false;
    CHECK_OK(tcuda_stream_query(second, &done));
    CHECK(done);
    CHECK_OK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

static void no_device_is_its_own_peer(void)
{
    bool possible = true;
    CHECK_OK(tcuda_device_can_access_peer(0, 0, &possible));
    CHECK(!possible);
    possible = true;
    CHECK_OK(tcuda_device_can_access_peer(TCUDA_CURRENT_DEVICE, 0, &possible));
    CHECK(!possible);
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_device_enable_peer_access(0, 0));
}

/* ---- With several devices ---- */

static void *sees_device_0(void *unused)
{
    (void)unused;
    CHECK_EQ(current_device(), 0);
    CHECK_OK(tcuda_device_set(num_devices() - 1));
    CHECK_EQ(current_device(), num_devices() - 1);
    return NULL;
}

static void the_current_device_is_the_threads(void)
{
    int32_t previous = 77, found = 77;
    CHECK_OK(tcuda_device_set(1));
    CHECK_EQ(current_device(), 1);
    run_on_thread(sees_device_0, NULL);
    CHECK_EQ(current_device(), 1);
    CHECK_OK(tcuda_device_set(-1));
    CHECK_EQ(current_device(), 1);

    /* TCUDA_CURRENT_DEVICE means it in every call. */
    void *block = allocate(4096, TCUDA_CURRENT_DEVICE, NULL);
    CHECK_OK(tcuda_device_of(block, &found));
    CHECK_EQ(found, 1);
    CHECK_OK(tcuda_free(block));

    /* Calls for other devices leave it alone. */
    block = allocate(4096, 0, NULL);
    fill_bytes(block, 1, 4096, NULL);
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(current_device(), 1);

    CHECK_OK(tcuda_device_exchange(-1, &previous));
    CHECK_EQ(previous, 1);
    CHECK_EQ(current_device(), 1);
    CHECK_OK(tcuda_device_exchange(0, &previous));
    CHECK_EQ(previous, 1);
    CHECK_EQ(current_device(), 0);
}

static void devices_differ(void)
{
    tcuda_device_info first = TCUDA_INIT(tcuda_device_info);
    tcuda_device_info second = TCUDA_INIT(tcuda_device_info);
    CHECK_OK(tcuda_device_properties(0, &first));
    CHECK_OK(tcuda_device_properties(1, &second));
    CHECK(memcmp(first.uuid, second.uuid, sizeof first.uuid) != 0);
}

static void peers_can_be_enabled(void)
{
    bool possible = false, back = false;
    CHECK_OK(tcuda_device_can_access_peer(0, 1, &possible));
    CHECK_OK(tcuda_device_can_access_peer(1, 0, &back));
    CHECK_EQ(possible, back);
    void *before = allocate(4096, 1, NULL);
    const tcuda_status expected = possible ? TCUDA_STATUS_OK : TCUDA_STATUS_NOT_SUPPORTED;
    if (possible) {
        CHECK_OK(tcuda_backend_inject("cuCtxEnablePeerAccess", 1, 999, 0));
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_device_enable_peer_access(0, 1));
        CHECK_EQ(tcuda_last_error_native(), 999);
    }
    CHECK_STATUS(expected, tcuda_device_enable_peer_access(0, 1));
    CHECK_STATUS(expected, tcuda_device_enable_peer_access(0, 1));
    CHECK_STATUS(expected, tcuda_device_enable_peer_access(1, 0));
    if (possible) {
        /* Work of device 0 on memory of device 1, from before and after; 3 bytes: by a kernel. */
        void *after = allocate(64 << 20, 1, NULL);
        tcuda_stream *stream = create_stream(0);
        CHECK_OK(tcuda_device_synchronize(1));
        CHECK_OK(tcuda_fill(before, "abc", 3, 1000, stream));
        CHECK_OK(tcuda_fill(after, "xxx", 3, 1000, stream));
        CHECK_EQ(count_other_bytes(after, 'x', 3000, stream), 0);
        CHECK_EQ(count_other_bytes(before, 'b', 3000, stream), 2000);
        CHECK_OK(tcuda_stream_destroy(stream));
        CHECK_OK(tcuda_free(after));
    }
    CHECK_OK(tcuda_free(before));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    asking_initialises_nothing();
    set_and_exchange_the_current_device();
    bad_ordinals_are_refused_by_number();
    properties_respect_the_size_of_the_struct();
    name_follows_the_rules_for_text();
    architectures_have_torchs_form();
    no_device_is_its_own_peer();
    for (int32_t device = 0; device < num_devices(); device++) {
        properties_make_sense(device);
        addresses_have_devices(device);
        synchronize_waits_for_all_streams(device);
    }
    if (num_devices() >= 2) {
        the_current_device_is_the_threads();
        devices_differ();
        peers_can_be_enabled();
    }
    return finish();
}
