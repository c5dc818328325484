/* What the parts of the stand-in for NCCL share; see fake_nccl.c. */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { MOST_RANKS = 16, SUCCESS = 0, CUDA_FAILED = 1, SYSTEM_FAILED = 2, INTERNAL = 3,
    WRONG_ARGUMENT = 4, WRONG_USE = 5, REMOTE = 6, IN_PROGRESS = 7 };

typedef struct { char bytes[128]; } unique_id;

/* ---- fake_nccl_room.c: what ranks of threads and processes share ---- */

/* A message in the room: of a rank to one, or to all. */
typedef struct message message;
typedef struct room room;

room *room_open(const unique_id *id, int ranks);
void room_name(unique_id *id);
/* Takes a place in it; a result of NCCL's. */
int room_enter(room *room, int rank, int device);
/* Waits until all are there, or `given_up`. */
bool room_wait_for_all(room *room, const atomic_int *given_up);
void room_leave(room *room, int rank);
/* Wakes the ranks that wait, so that they check whether they have given up. */
void room_wake(room *room);
/* A copy of some bytes for one rank, or (-1) for `readers` of them; false: no room is left. */
bool room_put(room *room, int from, int to, uint64_t number, const void *bytes, size_t size,
    int readers);
/* Waits for a message and copies it; false: given up, or it has another size. */
bool room_get(room *room, int from, int to, uint64_t number, void *bytes, size_t size,
    const atomic_int *given_up);

/* ---- fake_nccl_math.c ---- */

size_t size_of_type(int type);
/* into = into op other, `count` elements. */
void combine(void *into, const void *other, size_t count, int type, int op);

/* ---- fake_nccl.c, fake_nccl_work.c ---- */

enum { PINNED_BYTES = 8 << 20 };
enum verb { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

/* The simulated machine's own calls. */
extern struct fake_driver {
    int (*copy)(unsigned long long to, unsigned long long from, size_t bytes, void *stream);
    int (*host_function)(void *stream, void (*function)(void *), void *data);
    int (*pin)(void **memory, size_t bytes, unsigned flags);
    int (*unpin)(void *memory);
    int (*create)(void **event, unsigned flags);
    int (*destroy)(void *event);
    int (*record)(void *event, void *stream);
    int (*wait)(void *stream, void *event, unsigned flags);
    int (*synchronize)(void *event);
    int (*is_capturing)(void *stream, int *status);
    int (*exchange_mode)(int *mode);
    int (*get_device)(int *device);
    int (*get_context)(void **context);
    int (*set_context)(void *context);
    int (*retain)(void **context, int device);
    int (*release)(int device);
} driver;

typedef struct comm {
    struct comm *next;
    unique_id id;
    bool has_ended;
    room *room;
    int rank, ranks, device;
    atomic_int given_up, result, failing;
    char *pinned;
    size_t used;
    atomic_int under_way, captured;
    uint64_t collectives, sent[MOST_RANKS], received[MOST_RANKS];
    void *event, *last, *context;
    struct operation *kept; /* captured: graphs refer to them */
    atomic_int inside; /* threads in a call that works with it */
    bool is_blocking, has_background, has_context;
    pthread_t background;
} comm;

typedef struct operation {
    comm *comm;
    enum verb verb;
    int type, op, peer;
    size_t count, in_bytes, out_bytes;
    void *from, *to, *stream;
    char *in, *out;
    uint64_t number;
    bool is_captured;
    struct operation *next;
} operation;

/* Notes what went wrong. */
int fail(int result, const char *why);
/* The result that the environment wants of the next call of a function; SUCCESS: its own. */
int fault(const char *function, uint64_t call);
/* Queues operations, all at once. */
int launch(operation *first);

#endif /* FAKE_NCCL_H */
