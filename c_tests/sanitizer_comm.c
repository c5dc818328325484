/* Collectives and communicators tell the stream sanitizer what they read and write
 * (sanitizer_calls.h). One device is enough for that. */
#define _POSIX_C_SOURCE 200809L

#include "sanitizer_calls.h"

static const int32_t HOST[] = { TCUDA_CPU_DEVICE };
static tcuda_tensor outs[2];

static void release(bool call)
{
    if (call) CHECK_OK(tcuda_tensor_release(&outs[0]));
}

/* What is read, and what is written. */
#define READING(name, call_of_it) \
    static void name##_reads(bool call) \
    { \
        const tcuda_tensor from[] = { floats(src), floats(src) }, to = floats(dst); \
        (void)to; \
        access_some(far, src, BYTES / 4, WRITES); \
        if (call) CHECK_OK(call_of_it); \
        release(call); \
    }
#define WRITING(name, call_of_it) \
    static void name##_writes(bool call) \
    { \
        const tcuda_tensor from[] = { floats(src), floats(src) }, to = floats(dst); \
        access_some(far, dst, BYTES / 4, READS); \
        if (call) CHECK_OK(call_of_it); \
    } \
    static void name##_reads(bool call) \
    { \
        const tcuda_tensor from[] = { floats(src), floats(src) }, to = floats(dst); \
        access_some(far, src, BYTES / 4, WRITES); \
        if (call) CHECK_OK(call_of_it); \
    }

READING(broadcast, tcuda_comm_broadcast(from, HOST, 1, outs))
WRITING(broadcast_into, tcuda_comm_broadcast_into(from, &to, 1))
READING(reduce_add, tcuda_comm_reduce_add(from, 2, 0, outs))
WRITING(reduce_add_into, tcuda_comm_reduce_add_into(from, 2, &to))
READING(reduce_add_coalesced, tcuda_comm_reduce_add_coalesced(from, 2, 1, 0, 0, outs))
READING(scatter, tcuda_comm_scatter(from, HOST, NULL, 1, 0, NULL, outs))
WRITING(scatter_into, tcuda_comm_scatter_into(from, &to, 1, 0, NULL))
READING(gather, tcuda_comm_gather(from, 2, 0, 0, outs))

static void broadcast_coalesced_reads(bool call)
{
    const int32_t devices[] = { 0, TCUDA_CPU_DEVICE };
    const tcuda_tensor from = floats(src);
    access_all(far, src, WRITES);
    if (!call) return;
    CHECK_OK(tcuda_comm_broadcast_coalesced(&from, 1, devices, 2, 0, outs));
    for (int i = 0; i < 2; i++)
        CHECK_OK(tcuda_tensor_release(&outs[i]));
}

static void gather_into(bool call)
{
    static int64_t half[1] = { COUNT / 2 };
    tcuda_tensor from[] = { floats(src), floats(src) };
    const tcuda_tensor to = floats(dst);
    from[0].shape = from[1].shape = half;
    access_some(far, dst + BYTES / 2, 1, READS);
    if (call) CHECK_OK(tcuda_comm_gather_into(from, 2, 0, &to));
}

/* What goes to memory of the host that no device reaches is there when the call comes back. */
static void broadcast_into_waits(bool call)
{
    static float host[COUNT];
    const tcuda_tensor from = floats(src);
    tcuda_tensor to = floats(host);
    to.device.device_type = TCUDA_DEVICE_CPU;
    access_all(own, dst, WRITES);
    if (call) CHECK_OK(tcuda_comm_broadcast_into(&from, &to, 1));
    access_all(far, dst, WRITES);
}

static const struct row COLLECTIVES[] = {
    RACES(tcuda_comm_broadcast, broadcast_reads),
    RACES(tcuda_comm_broadcast_into, broadcast_into_reads),
    RACES(tcuda_comm_broadcast_into, broadcast_into_writes),
    ORDERS(tcuda_comm_broadcast_into, broadcast_into_waits),
    RACES(tcuda_comm_broadcast_coalesced, broadcast_coalesced_reads),
    RACES(tcuda_comm_reduce_add, reduce_add_reads),
    RACES(tcuda_comm_reduce_add_into, reduce_add_into_reads),
    RACES(tcuda_comm_reduce_add_into, reduce_add_into_writes),
    RACES(tcuda_comm_reduce_add_coalesced, reduce_add_coalesced_reads),
    RACES(tcuda_comm_scatter, scatter_reads),
    RACES(tcuda_comm_scatter_into, scatter_into_reads),
    RACES(tcuda_comm_scatter_into, scatter_into_writes),
    RACES(tcuda_comm_gather, gather_reads),
    RACES(tcuda_comm_gather_into, gather_into),
};

/* ---- Communicators: a rank that is alone ---- */

static tcuda_communicator *alone;

#define RANK(name, call_of_it) WRITING(rank_##name, call_of_it)

RANK(all_reduce, tcuda_communicator_all_reduce(alone, from, &to, TCUDA_REDUCE_SUM, own))
RANK(broadcast, tcuda_communicator_broadcast(alone, from, &to, 0, own))
RANK(reduce, tcuda_communicator_reduce(alone, from, &to, TCUDA_REDUCE_SUM, 0, own))
RANK(all_gather, tcuda_communicator_all_gather(alone, from, &to, own))
RANK(reduce_scatter, tcuda_communicator_reduce_scatter(alone, from, &to, TCUDA_REDUCE_SUM, own))

/* To itself: both sides are queued when the group ends. */
static void exchange(bool call)
{
    const tcuda_tensor from = floats(src), to = floats(dst);
    if (!call) return;
    CHECK_OK(tcuda_communicator_group_begin());
    CHECK_OK(tcuda_communicator_send(alone, &from, 0, own));
    CHECK_OK(tcuda_communicator_recv(alone, &to, 0, own));
    CHECK_EQ(races(), 0);
    CHECK_OK(tcuda_communicator_group_end());
}

static void send(bool call)
{
    access_all(far, src, WRITES);
    exchange(call);
}

static void recv(bool call)
{
    access_all(far, dst, READS);
    exchange(call);
}

static const struct row RANKS[] = {
    RACES(tcuda_communicator_all_reduce, rank_all_reduce_reads),
    RACES(tcuda_communicator_all_reduce, rank_all_reduce_writes),
    RACES(tcuda_communicator_broadcast, rank_broadcast_reads),
    RACES(tcuda_communicator_broadcast, rank_broadcast_writes),
    RACES(tcuda_communicator_reduce, rank_reduce_reads),
    RACES(tcuda_communicator_reduce, rank_reduce_writes),
    RACES(tcuda_communicator_all_gather, rank_all_gather_reads),
    RACES(tcuda_communicator_all_gather, rank_all_gather_writes),
    RACES(tcuda_communicator_reduce_scatter, rank_reduce_scatter_reads),
    RACES(tcuda_communicator_reduce_scatter, rank_reduce_scatter_writes),
    RACES(tcuda_communicator_send, send),
    RACES(tcuda_communicator_recv, recv),
    RACES(tcuda_communicator_group_end, send),
};

static bool has_nccl(void)
{
    int32_t major = 0, minor = 0, patch = 0;
    if (on_simulator() && getenv("TCUDA_NCCL_PATH") == NULL)
        return false;
    return tcuda_nccl_version(&major, &minor, &patch) == TCUDA_STATUS_OK;
}

int main(void)
{
    const int32_t devices[] = { 0 };
    SKIP_WITHOUT_GPU();
    begin();
    CHECK_OK(tcuda_stream_set_current(own));
    RUN(COLLECTIVES);
    if (has_nccl()) {
        CHECK_OK(tcuda_communicator_init_all(devices, 1, &alone));
        RUN(RANKS);
        CHECK_OK(tcuda_communicator_destroy(alone));
    } else {
        printf("NCCL is not there: communicators are left out\n");
    }
    end();
    return finish();
}
