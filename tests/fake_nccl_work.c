/* What collectives are: the input is copied to pinned memory, a host function gives it to the other
 * ranks, another one waits for theirs, and the output is copied back. */
#define _GNU_SOURCE
#include "fake_nccl.h"

#include <stdlib.h>
#include <string.h>

/* In its stream, where the input has been copied: gives the other ranks what they need. */
static void arrive(void *data)
{
    operation *op = data;
    comm *comm = op->comm;
    const int n = comm->ranks;
    bool fits = true;
    const bool is_message = op->verb == SEND || op->verb == RECV;
    if (!is_message) {
        op->number = ++comm->collectives;
        const int wanted = fault("async", op->number);
        if (wanted != SUCCESS) {
            atomic_store(&comm->failing, wanted);
            atomic_store(&comm->given_up, 1);
        }
    }
    /* As a kernel that fails: nothing comes from here any more. */
    if (atomic_load(&comm->given_up)) return;
    switch (op->verb) {
    case SEND:
        op->number = ++comm->sent[op->peer];
        fits = room_put(comm->room, comm->rank, op->peer, op->number, op->in, op->in_bytes, 1);
        break;
    case RECV:
        op->number = ++comm->received[op->peer];
        break;
    case BROADCAST:
        if (comm->rank == op->peer)
            fits = room_put(comm->room, comm->rank, -1, op->number, op->in, op->in_bytes, n);
        break;
    case REDUCE:
        fits = room_put(comm->room, comm->rank, -1, op->number, op->in, op->in_bytes, 1);
        break;
    default:
        fits = room_put(comm->room, comm->rank, -1, op->number, op->in, op->in_bytes, n);
    }
    if (!fits) atomic_store(&comm->failing, SYSTEM_FAILED);
}

/* Reads what all ranks gave, one after the other; into `op->out`, from `offset` on, or side by
 * side. */
static bool collect(operation *op, bool reduces, size_t offset, size_t bytes)
{
    comm *comm = op->comm;
    char *one = malloc(op->in_bytes + 1);
    bool fits = one != NULL;
    for (int rank = 0; rank < comm->ranks && fits; rank++) {
        fits = room_get(comm->room, rank, -1, op->number, one, op->in_bytes, &comm->given_up);
        if (!fits) break;
        if (!reduces) memcpy(op->out + (size_t)rank * op->in_bytes, one, op->in_bytes);
        else if (rank == 0) memcpy(op->out, one + offset, bytes);
        else combine(op->out, one + offset, bytes / size_of_type(op->type), op->type, op->op);
    }
    free(one);
    return fits;
}

/* In its stream: waits for the other ranks. */
static void finish(void *data)
{
    operation *op = data;
    comm *comm = op->comm;
    const size_t out = op->out_bytes;
    bool fits = true;
    if (atomic_load(&comm->given_up)) return;
    switch (op->verb) {
    case SEND: break;
    case RECV:
        fits = room_get(comm->room, op->peer, comm->rank, op->number, op->out, out,
            &comm->given_up);
        break;
    case BROADCAST:
        fits = room_get(comm->room, op->peer, -1, op->number, op->out, out, &comm->given_up);
        break;
    case REDUCE:
        if (comm->rank == op->peer) fits = collect(op, true, 0, out);
        break;
    case ALL_REDUCE: fits = collect(op, true, 0, out); break;
    case ALL_GATHER: fits = collect(op, false, 0, out); break;
    case REDUCE_SCATTER: fits = collect(op, true, (size_t)comm->rank * out, out); break;
    }
    /* Ranks that do not agree on how much it is. */
    if (!fits && !atomic_load(&comm->given_up)) atomic_store(&comm->failing, WRONG_USE);
}

static void done(void *data)
{
    operation *op = data;
    atomic_fetch_sub(&op->comm->under_way, 1);
    free(op);
}

static char *take(comm *comm, size_t bytes)
{
    /* Nothing is under way: all of it is free again. */
    if (atomic_load(&comm->under_way) == 0 && !atomic_load(&comm->captured)) comm->used = 0;
    char *taken = comm->pinned + comm->used;
    const size_t whole = (bytes + 255) / 256 * 256;
    if (comm->used + whole > PINNED_BYTES) return NULL;
    comm->used += whole;
    return taken;
}

/* Has a communicator's work run in its order, on whatever streams. */
static int follow(operation *op)
{
    comm *comm = op->comm;
    if (op->is_captured || comm->last == NULL || comm->last == op->stream) return 0;
    return driver.wait(op->stream, comm->event, 0);
}

static int begin_work(operation *op)
{
    comm *comm = op->comm;
    int status = 0, result;
    if (driver.set_context(comm->context) != 0) return 1;
    if (driver.is_capturing(op->stream, &status) != 0) return 1;
    op->is_captured = status != 0;
    if (op->is_captured) atomic_store(&comm->captured, 1);
    op->in = take(comm, op->in_bytes);
    op->out = op->in == NULL ? NULL : take(comm, op->out_bytes);
    if (op->out == NULL) return fail(INTERNAL, "too much is under way");
    if (!op->is_captured) atomic_fetch_add(&comm->under_way, 1);
    result = follow(op);
    if (result == 0 && op->in_bytes > 0)
        result = driver.copy((uintptr_t)op->in, (uintptr_t)op->from, op->in_bytes, op->stream);
    return result != 0 ? result : driver.host_function(op->stream, arrive, op);
}

static int end_work(operation *op)
{
    comm *comm = op->comm;
    void *stream = op->stream;
    const bool is_captured = op->is_captured;
    int result = driver.set_context(comm->context);
    if (result == 0) result = driver.host_function(stream, finish, op);
    if (result == 0 && op->out_bytes > 0)
        result = driver.copy((uintptr_t)op->to, (uintptr_t)op->out, op->out_bytes, stream);
    if (is_captured) {
        op->next = comm->kept;
        comm->kept = op;
    }
    if (is_captured || result != 0) return result;
    /* From here on it may be gone. */
    result = driver.host_function(stream, done, op);
    if (result == 0) result = driver.record(comm->event, stream);
    comm->last = stream == NULL ? (void *)1 : stream;
    return result;
}

/* First all give what they have, then all wait: so one thread may work for several ranks. */
int launch(operation *first)
{
    int result = 0, mode = 2;
    void *context = NULL;
    driver.get_context(&context);
    for (operation *op = first; op != NULL; op = op->next)
        atomic_fetch_add(&op->comm->inside, 1);
    driver.exchange_mode(&mode);
    for (operation *op = first; op != NULL && result == 0; op = op->next)
        result = begin_work(op);
    for (operation *op = first, *next; op != NULL; op = next) {
        comm *comm = op->comm;
        next = op->next;
        if (result == 0) result = end_work(op);
        atomic_fetch_sub(&comm->inside, 1);
    }
    driver.exchange_mode(&mode);
    driver.set_context(context);
    return result == 0 ? SUCCESS : fail(CUDA_FAILED, "a call of the driver failed");
}
