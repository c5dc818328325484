/* What processes do with the driver alone, without the library's exports and imports: what grows
 * here as well is the driver's. */
#include <sys/socket.h>

#include "../ipc.h"
#include "soak.h"

/* As in cuda.h. */
typedef struct native_handle {
    char bytes[64];
} native_handle;

typedef struct memory_properties {
    int type, handle_types, location_type, device;
    void *win32;
    char flags[8];
} memory_properties;

typedef struct memory_access {
    int location_type, device, flags;
} memory_access;

enum { PINNED = 1, DESCRIPTOR = 1, ON_DEVICE = 1, READ_WRITE = 3, NO_TIMING = 2, INTERPROCESS = 4,
    BYTES = 2 * MIB };

/* One name for the functions of the driver that are called here. */
static struct {
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*get_event_handle)(native_handle *handle, void *event);
    int (*open_event_handle)(void **event, native_handle handle);
    int (*create)(uint64_t *memory, size_t bytes, const memory_properties *properties,
        uint64_t flags);
    int (*release)(uint64_t memory);
    int (*to_descriptor)(void *descriptor, uint64_t memory, int type, uint64_t flags);
    int (*of_descriptor)(uint64_t *memory, void *descriptor, int type);
    int (*reserve)(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted,
        uint64_t flags);
    int (*give_back)(uint64_t address, size_t bytes);
    int (*map)(uint64_t address, size_t bytes, size_t offset, uint64_t memory, uint64_t flags);
    int (*unmap)(uint64_t address, size_t bytes);
    int (*set_access)(uint64_t address, size_t bytes, const memory_access *access, size_t count);
} cu;

static void find(const char *name, void *place)
{
    void *address = NULL;
    CHECK_OK(tcuda_backend_function(name, &address));
    memcpy(place, &address, sizeof address);
}

static void find_functions(void)
{
    CHECK_OK(tcuda_init());
    CHECK_OK(tcuda_device_set(0));
    find("cuEventCreate", &cu.event_create);
    find("cuEventDestroy", &cu.event_destroy);
    find("cuIpcGetEventHandle", &cu.get_event_handle);
    find("cuIpcOpenEventHandle", &cu.open_event_handle);
    find("cuMemCreate", &cu.create);
    find("cuMemRelease", &cu.release);
    find("cuMemExportToShareableHandle", &cu.to_descriptor);
    find("cuMemImportFromShareableHandle", &cu.of_descriptor);
    find("cuMemAddressReserve", &cu.reserve);
    find("cuMemAddressFree", &cu.give_back);
    find("cuMemMap", &cu.map);
    find("cuMemUnmap", &cu.unmap);
    find("cuMemSetAccess", &cu.set_access);
}

static void send_event(int to)
{
    void *event = NULL;
    native_handle handle;
    CHECK_EQ(cu.event_create(&event, NO_TIMING | INTERPROCESS), 0);
    CHECK_EQ(cu.get_event_handle(&handle, event), 0);
    tell(to, &handle, sizeof handle);
    wait_for_nod(to);
    CHECK_EQ(cu.event_destroy(event), 0);
}

static void open_event(int from)
{
    native_handle handle;
    void *event = NULL;
    hear(from, &handle, sizeof handle);
    CHECK_EQ(cu.open_event_handle(&event, handle), 0);
    CHECK_EQ(cu.event_destroy(event), 0);
    nod(from);
}

/* A byte, and a descriptor besides. */
typedef union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
} control;

static void send_memory(int to)
{
    const memory_properties properties = { PINNED, DESCRIPTOR, ON_DEVICE, 0, NULL, "" };
    uint64_t memory = 0;
    int descriptor = -1;
    char word = '!';
    control control = { 0 };
    struct iovec part = { &word, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
        .msg_controllen = sizeof control };
    CHECK_EQ(cu.create(&memory, BYTES, &properties, 0), 0);
    CHECK_EQ(cu.to_descriptor(&descriptor, memory, DESCRIPTOR, 0), 0);
    struct cmsghdr *const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    CHECK_EQ(sendmsg(to, &message, 0), 1);
    CHECK_EQ(close(descriptor), 0);
    wait_for_nod(to);
    CHECK_EQ(cu.release(memory), 0);
}

static void map_memory(int from)
{
    const memory_access access = { ON_DEVICE, 0, READ_WRITE };
    uint64_t memory = 0, address = 0;
    int descriptor = -1;
    char word = 0;
    control control = { 0 };
    struct iovec part = { &word, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
        .msg_controllen = sizeof control };
    CHECK_EQ(recvmsg(from, &message, 0), 1);
    CHECK(CMSG_FIRSTHDR(&message) != NULL);
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    CHECK_EQ(cu.of_descriptor(&memory, (void *)(intptr_t)descriptor, DESCRIPTOR), 0);
    CHECK_EQ(close(descriptor), 0);
    CHECK_EQ(cu.reserve(&address, BYTES, 0, 0, 0), 0);
    CHECK_EQ(cu.map(address, BYTES, 0, memory, 0), 0);
    CHECK_EQ(cu.set_access(address, BYTES, &access, 1), 0);
    CHECK_EQ(cu.unmap(address, BYTES), 0);
    CHECK_EQ(cu.give_back(address, BYTES), 0);
    CHECK_EQ(cu.release(memory), 0);
    nod(from);
}

static void (*sends)(int to);
static int line;
static pid_t partner;

/* The partner never uses the driver itself: it forks processes that do, one for each round. */
static void start_senders(void (*how)(int to))
{
    int ends[2];
    char word = 0;
    sends = how;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    partner = fork();
    CHECK(partner >= 0);
    if (partner > 0) {
        close(ends[1]);
        line = ends[0];
        find_functions();
        return;
    }
    close(ends[0]);
    while (read(ends[1], &word, 1) == 1) {
        int status = 0;
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            find_functions();
            sends(ends[1]);
            _exit(finish());
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
        nod(ends[1]);
    }
    _exit(0);
}

static void start_events(void)
{
    start_senders(send_event);
}

static void start_memory(void)
{
    start_senders(send_memory);
}

static void end_senders(void)
{
    int status = 0;
    close(line);
    CHECK_EQ(waitpid(partner, &status, 0), partner);
    CHECK_EQ(status, 0);
}

static void event_round(int64_t number)
{
    (void)number;
    nod(line);
    open_event(line);
    wait_for_nod(line);
}

static void memory_round(int64_t number)
{
    (void)number;
    nod(line);
    map_memory(line);
    wait_for_nod(line);
}

const kind driver_kinds[] = {
    { "driver: events", event_round, .share = 50, .begin = start_events, .end = end_senders,
        .is_comparison = true },
    { "driver: memory", memory_round, .share = 50, .begin = start_memory, .end = end_senders,
        .is_comparison = true },
    { NULL, NULL, .share = 0 },
};
