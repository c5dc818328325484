/* A library that stands in for NCCL on the simulated machine: ranks are threads or processes, and
 * each collective is work in their streams that waits for the other ranks, as NCCL's kernels do.
 * What one rank's work waits for in vain hangs until it is aborted.
 *
 * TCUDA_FAKE_NCCL has faults, with commas between: "ncclAllReduce@2=3" makes the second call of a
 * function give a result, "async@3=6" breaks a communicator's third collective: it ends at once,
 * and ncclCommGetAsyncError tells it. NCCL_COMM_BLOCKING=0 makes calls go on in the background.
 * TCUDA_FAKE_NCCL_VERSION is the version that it says it has. */
#define _GNU_SOURCE
#include "fake_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct fake_driver driver;

static _Thread_local struct {
    int depth, result;
    operation *first, **last;
} group;
static _Thread_local char last_error[256];
static pthread_mutex_t faults_lock = PTHREAD_MUTEX_INITIALIZER;

int fail(int result, const char *why)
{
    snprintf(last_error, sizeof last_error, "fake NCCL: %s", why);
    return result;
}

int fault(const char *function, uint64_t call)
{
    const char *rule = getenv("TCUDA_FAKE_NCCL");
    const size_t length = strlen(function);
    while (rule != NULL && *rule != '\0') {
        unsigned long long nth = 0;
        int result = 0;
        if (strncmp(rule, function, length) == 0 && rule[length] == '@'
            && sscanf(rule + length, "@%llu=%d", &nth, &result) == 2 && nth == call)
            return fail(result, "as the environment wants it");
        rule = strchr(rule, ',');
        rule = rule == NULL ? NULL : rule + 1;
    }
    return SUCCESS;
}

/* Counts a call; returns what the environment wants of it. */
#define CALLED(function) \
    do { \
        static uint64_t calls; \
        pthread_mutex_lock(&faults_lock); \
        const int wanted_ = fault(function, ++calls); \
        pthread_mutex_unlock(&faults_lock); \
        if (wanted_ != SUCCESS) return wanted_; \
    } while (0)

/* ---- The library itself ---- */

/* Marks the library, and tells it where the machine's calls are. */
#ifndef REAL
EXPORT int tcuda_simulated_nccl(void *(*find)(const char *name))
{
    static const struct { const char *name; size_t place; } calls[] = {
#define CALL(name, field) { name, offsetof(__typeof__(driver), field) }
        CALL("cuMemcpyAsync", copy), CALL("cuLaunchHostFunc", host_function),
        CALL("cuMemHostAlloc", pin), CALL("cuMemFreeHost", unpin), CALL("cuEventCreate", create),
        CALL("cuEventDestroy", destroy), CALL("cuEventRecord", record),
        CALL("cuStreamWaitEvent", wait), CALL("cuEventSynchronize", synchronize),
        CALL("cuStreamIsCapturing", is_capturing),
        CALL("cuThreadExchangeStreamCaptureMode", exchange_mode),
        CALL("cuCtxGetDevice", get_device), CALL("cuCtxGetCurrent", get_context),
        CALL("cuCtxSetCurrent", set_context), CALL("cuDevicePrimaryCtxRetain", retain),
        CALL("cuDevicePrimaryCtxRelease", release),
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *address = find(calls[i].name);
        if (address == NULL) return 1;
        memcpy((char *)&driver + calls[i].place, &address, sizeof address);
    }
    return 0;
}
#endif

EXPORT int ncclGetVersion(int *version)
{
    const char *said = getenv("TCUDA_FAKE_NCCL_VERSION");
    *version = said == NULL ? 22703 : atoi(said);
    return SUCCESS;
}

EXPORT const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = { "no error", "unhandled cuda error",
        "unhandled system error", "internal error", "invalid argument", "invalid usage",
        "remote process exited or there was a network error", "NCCL operation in progress" };
    return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

EXPORT const char *ncclGetLastError(const comm *comm)
{
    (void)comm;
    return last_error;
}

EXPORT int ncclGetUniqueId(unique_id *id)
{
    CALLED("ncclGetUniqueId");
    room_name(id);
    return SUCCESS;
}

/* ---- Communicators ---- */

/* The communicators of this process. */
static comm *all;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static void let_go(comm *comm)
{
    while (comm->kept != NULL) {
        operation *next = comm->kept->next;
        free(comm->kept);
        comm->kept = next;
    }
    if (comm->pinned != NULL) driver.unpin(comm->pinned);
    if (comm->event != NULL) driver.destroy(comm->event);
    if (comm->room != NULL) room_leave(comm->room, comm->rank);
    if (comm->has_context) driver.release(comm->device);
    free(comm);
}

/* What a group has in this process goes with its last rank here, as NCCL's does: freeing waits for
 * all devices, on which work of the other ranks may still wait for this one. */
static void end(comm *ended)
{
    comm *gone = NULL;
    bool is_last = true;
    pthread_mutex_lock(&all_lock);
    ended->has_ended = true;
    for (comm *one = all; one != NULL; one = one->next)
        if (memcmp(&one->id, &ended->id, sizeof one->id) == 0 && !one->has_ended) is_last = false;
    for (comm **place = &all; is_last && *place != NULL;) {
        comm *one = *place;
        if (memcmp(&one->id, &ended->id, sizeof one->id) != 0) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        one->next = gone;
        gone = one;
    }
    pthread_mutex_unlock(&all_lock);
    while (gone != NULL) {
        comm *next = gone->next;
        let_go(gone);
        gone = next;
    }
}

static comm *make(const unique_id *id, int rank, int ranks, int *result)
{
    room *room = room_open(id, ranks);
    comm *made = calloc(1, sizeof *made);
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    *result = CUDA_FAILED;
    if (made == NULL || room == NULL) {
        *result = fail(SYSTEM_FAILED, "no room for the ranks, or no unique id of this library");
        free(made);
        return NULL;
    }
    made->rank = rank;
    made->ranks = ranks;
    made->is_blocking = blocking == NULL || *blocking != '0';
    if (driver.get_device(&made->device) != 0 || driver.get_context(&made->context) != 0
        || driver.pin((void **)&made->pinned, PINNED_BYTES, 0) != 0
        || driver.create(&made->event, 2) != 0) {
        fail(CUDA_FAILED, "a call of the driver failed");
    } else {
        *result = room_enter(room, rank, made->device);
        if (*result != SUCCESS)
            fail(*result, "the rank is none, or it or its device is there already");
    }
    if (*result == SUCCESS) {
        made->room = room;
        made->id = *id;
        pthread_mutex_lock(&all_lock);
        made->next = all;
        all = made;
        pthread_mutex_unlock(&all_lock);
        return made;
    }
    let_go(made);
    return NULL;
}

/* ncclConfig_t of 2.14. */
struct config { size_t size; unsigned magic, version; int blocking; };

static void *wait_in_background(void *data)
{
    comm *comm = data;
    const bool all = room_wait_for_all(comm->room, &comm->given_up);
    atomic_store(&comm->result, all ? SUCCESS : INTERNAL);
    return NULL;
}

static int join_room(comm **out, int ranks, const unique_id *id, int rank, bool may_go_on)
{
    int result = SUCCESS;
    if (ranks < 1 || ranks > MOST_RANKS) return fail(WRONG_ARGUMENT, "too many ranks");
    comm *made = make(id, rank, ranks, &result);
    if (made == NULL) return result;
    *out = made;
    if (made->is_blocking || !may_go_on) {
        room_wait_for_all(made->room, &made->given_up);
        return SUCCESS;
    }
    atomic_store(&made->result, IN_PROGRESS);
    made->has_background = pthread_create(&made->background, NULL, wait_in_background, made) == 0;
    return IN_PROGRESS;
}

/* As NCCL's, it waits for the others also where calls go on in the background. */
EXPORT int ncclCommInitRank(comm **out, int ranks, unique_id id, int rank)
{
    CALLED("ncclCommInitRank");
    return join_room(out, ranks, &id, rank, false);
}

#ifndef WITHOUT_RECV
EXPORT int ncclCommInitRankConfig(comm **out, int ranks, unique_id id, int rank,
    const struct config *config)
{
    CALLED("ncclCommInitRank");
    if (config->size < sizeof *config || config->magic != 0xcafebeef || config->version < 21400
        || config->blocking != 1)
        return fail(WRONG_ARGUMENT, "no configuration");
    return join_room(out, ranks, &id, rank, true);
}
#endif

EXPORT int ncclCommAbort(comm *comm);

EXPORT int ncclCommInitAll(comm **out, int count, const int *devices)
{
    CALLED("ncclCommInitAll");
    int result = SUCCESS;
    unique_id id;
    void *before = NULL, *context = NULL;
    room_name(&id);
    driver.get_context(&before);
    for (int i = 0; i < count; i++) {
        out[i] = NULL;
        if (result != SUCCESS) continue;
        if (driver.retain(&context, devices[i]) != 0 || driver.set_context(context) != 0) {
            result = fail(CUDA_FAILED, "no context of a device");
            continue;
        }
        out[i] = make(&id, i, count, &result);
        if (out[i] != NULL) out[i]->has_context = true;
        else driver.release(devices[i]);
    }
    driver.set_context(before);
    for (int i = 0; i < count && result != SUCCESS; i++) {
        if (out[i] != NULL) ncclCommAbort(out[i]);
        out[i] = NULL;
    }
    return result;
}

static void join_background(comm *comm)
{
    if (comm->has_background) pthread_join(comm->background, NULL);
    comm->has_background = false;
}

EXPORT int ncclCommDestroy(comm *comm)
{
    CALLED("ncclCommDestroy");
    join_background(comm);
    if (comm->last != NULL) driver.synchronize(comm->event);
    end(comm);
    return SUCCESS;
}

EXPORT int ncclCommAbort(comm *comm)
{
    CALLED("ncclCommAbort");
    atomic_store(&comm->given_up, 1);
    room_wake(comm->room);
    while (atomic_load(&comm->inside) > 0)
        usleep(100);
    join_background(comm);
    if (comm->last != NULL) driver.synchronize(comm->event);
    end(comm);
    return SUCCESS;
}

EXPORT int ncclCommGetAsyncError(comm *comm, int *result)
{
    CALLED("ncclCommGetAsyncError");
    const int failing = atomic_load(&comm->failing);
    *result = failing != SUCCESS ? failing : atomic_load(&comm->result);
    return SUCCESS;
}

/* ---- Calls ---- */

static void *launch_in_background(void *data)
{
    operation *first = data;
    comm *comm = first->comm;
    driver.set_context(comm->context);
    atomic_store(&comm->result, launch(first));
    return NULL;
}

EXPORT int ncclGroupStart(void)
{
    CALLED("ncclGroupStart");
    if (group.depth++ == 0) {
        group.first = NULL;
        group.last = &group.first;
        group.result = SUCCESS;
    }
    return SUCCESS;
}

static int end_group(void)
{
    if (--group.depth > 0) return SUCCESS;
    operation *first = group.first;
    if (group.result != SUCCESS) {
        while (first != NULL) {
            operation *next = first->next;
            free(first);
            first = next;
        }
        return group.result;
    }
    if (first == NULL) return SUCCESS;
    if (first->comm->is_blocking) return launch(first);
    /* In the background for the first of them; the others follow it. */
    comm *comm = first->comm;
    join_background(comm);
    atomic_store(&comm->result, IN_PROGRESS);
    comm->has_background =
        pthread_create(&comm->background, NULL, launch_in_background, first) == 0;
    return IN_PROGRESS;
}

EXPORT int ncclGroupEnd(void)
{
    CALLED("ncclGroupEnd");
    return end_group();
}

static int note(operation wanted, int result)
{
    const bool is_alone = group.depth == 0;
    if (is_alone) {
        group.depth = 1;
        group.first = NULL;
        group.last = &group.first;
        group.result = SUCCESS;
    }
    operation *op = result == SUCCESS ? malloc(sizeof *op) : NULL;
    if (op != NULL) {
        *op = wanted;
        *group.last = op;
        group.last = &op->next;
    } else {
        group.result = result;
    }
    const int ended = is_alone ? end_group() : SUCCESS;
    return result != SUCCESS ? result : ended;
}

#define BYTES(count, type) ((count) * size_of_type(type))
#define NOTE(function, ...) \
    do { \
        static uint64_t calls; \
        pthread_mutex_lock(&faults_lock); \
        const int wanted_ = fault(function, ++calls); \
        pthread_mutex_unlock(&faults_lock); \
        return note((operation){ .comm = comm, .stream = stream, .type = type, .count = count, \
            __VA_ARGS__ }, wanted_); \
    } while (0)

EXPORT int ncclAllReduce(void *from, void *to, size_t count, int type, int op, comm *comm,
    void *stream)
{
    const size_t bytes = BYTES(count, type);
    NOTE("ncclAllReduce", .verb = ALL_REDUCE, .op = op, .from = from, .to = to, .in_bytes = bytes,
        .out_bytes = bytes);
}

EXPORT int ncclBroadcast(void *from, void *to, size_t count, int type, int root, comm *comm,
    void *stream)
{
    const size_t bytes = BYTES(count, type);
    NOTE("ncclBroadcast", .verb = BROADCAST, .peer = root, .from = from, .to = to,
        .in_bytes = comm->rank == root ? bytes : 0, .out_bytes = bytes);
}

EXPORT int ncclReduce(void *from, void *to, size_t count, int type, int op, int root, comm *comm,
    void *stream)
{
    const size_t bytes = BYTES(count, type);
    NOTE("ncclReduce", .verb = REDUCE, .op = op, .peer = root, .from = from, .to = to,
        .in_bytes = bytes, .out_bytes = comm->rank == root ? bytes : 0);
}

EXPORT int ncclAllGather(void *from, void *to, size_t count, int type, comm *comm, void *stream)
{
    const size_t bytes = BYTES(count, type);
    NOTE("ncclAllGather", .verb = ALL_GATHER, .from = from, .to = to, .in_bytes = bytes,
        .out_bytes = bytes * (size_t)comm->ranks);
}

EXPORT int ncclReduceScatter(void *from, void *to, size_t count, int type, int op, comm *comm,
    void *stream)
{
    const size_t bytes = BYTES(count, type);
    NOTE("ncclReduceScatter", .verb = REDUCE_SCATTER, .op = op, .from = from, .to = to,
        .in_bytes = bytes * (size_t)comm->ranks, .out_bytes = bytes);
}

EXPORT int ncclSend(void *from, size_t count, int type, int peer, comm *comm, void *stream)
{
    NOTE("ncclSend", .verb = SEND, .peer = peer, .from = from, .in_bytes = BYTES(count, type));
}

#ifndef WITHOUT_RECV
EXPORT int ncclRecv(void *to, size_t count, int type, int peer, comm *comm, void *stream)
{
    NOTE("ncclRecv", .verb = RECV, .peer = peer, .to = to, .out_bytes = BYTES(count, type));
}
#endif
