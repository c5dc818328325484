/* A file that the ranks of a group have mapped, threads of a process or processes: which are there,
 * and the messages that are under way. */
#define _GNU_SOURCE
#include "fake_nccl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Sparse: what no message has touched takes no memory. */
static const size_t ROOM_BYTES = (size_t)1 << 30;

struct message {
    size_t next; /* offset; 0: the last */
    int from, to, readers;
    uint64_t number;
    size_t size;
    char bytes[];
};

struct room {
    atomic_int is_ready;
    pthread_mutex_t lock;
    pthread_cond_t change;
    int ranks, joined, present;
    int devices[MOST_RANKS]; /* and the processes, so that none is there twice */
    pid_t processes[MOST_RANKS];
    size_t first, used, messages;
    char name[128];
};

/* A group that was never whole, in a process that ends. */
static char last_made[128];

__attribute__((destructor)) static void forget(void)
{
    if (last_made[0] != '\0') unlink(last_made);
}

void room_name(unique_id *id)
{
    static atomic_int number;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "/dev/shm/tcuda_fake_nccl.%d.%d.%ld", (int)getpid(),
        atomic_fetch_add(&number, 1), now.tv_nsec);
}

static room *map(int file)
{
    void *at = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    return at == MAP_FAILED ? NULL : at;
}

static room *begin(room *room, int ranks, const char *name)
{
    pthread_mutexattr_t of_lock;
    pthread_condattr_t of_change;
    if (room == NULL) return NULL;
    pthread_mutexattr_init(&of_lock);
    pthread_mutexattr_setpshared(&of_lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&room->lock, &of_lock);
    pthread_condattr_init(&of_change);
    pthread_condattr_setpshared(&of_change, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&room->change, &of_change);
    room->ranks = ranks;
    room->used = sizeof *room;
    snprintf(room->name, sizeof room->name, "%s", name);
    atomic_store(&room->is_ready, 1);
    return room;
}

/* The first rank makes it. */
room *room_open(const unique_id *id, int ranks)
{
    if (strncmp(id->bytes, "/dev/shm/tcuda_fake_nccl.", 25) != 0) return NULL;
    int file = open(id->bytes, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0) {
        memcpy(last_made, id->bytes, sizeof last_made);
        if (ftruncate(file, (off_t)ROOM_BYTES) != 0) return NULL;
        return begin(map(file), ranks, id->bytes);
    }
    struct stat facts = { 0 };
    file = open(id->bytes, O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 5000 && file >= 0; i++) {
        if (fstat(file, &facts) == 0 && facts.st_size > 0) break;
        usleep(1000);
    }
    room *found = file < 0 ? NULL : map(file);
    for (int i = 0; i < 5000 && found != NULL && !atomic_load(&found->is_ready); i++)
        usleep(1000);
    return found;
}

int room_enter(room *room, int rank, int device)
{
    int result = SUCCESS;
    pthread_mutex_lock(&room->lock);
    for (int other = 0; other < room->ranks; other++)
        if (room->processes[other] == getpid() && room->devices[other] == device)
            result = WRONG_USE;
    if (rank < 0 || rank >= room->ranks || room->processes[rank] != 0) result = WRONG_ARGUMENT;
    if (result == SUCCESS) {
        room->processes[rank] = getpid();
        room->devices[rank] = device;
        room->present++;
        /* No other rank needs its name. */
        if (++room->joined == room->ranks && room->name[0] != '\0') unlink(room->name);
        pthread_cond_broadcast(&room->change);
    }
    pthread_mutex_unlock(&room->lock);
    return result;
}

bool room_wait_for_all(room *room, const atomic_int *given_up)
{
    pthread_mutex_lock(&room->lock);
    while (room->joined < room->ranks && !atomic_load(given_up))
        pthread_cond_wait(&room->change, &room->lock);
    const bool all = room->joined == room->ranks;
    pthread_mutex_unlock(&room->lock);
    return all;
}

void room_leave(room *room, int rank)
{
    pthread_mutex_lock(&room->lock);
    const bool was_whole = room->joined == room->ranks;
    room->processes[rank] = was_whole ? -1 : 0;
    room->present--;
    if (!was_whole) {
        room->joined--;
        if (room->present == 0 && room->name[0] != '\0') unlink(room->name);
    }
    pthread_cond_broadcast(&room->change);
    pthread_mutex_unlock(&room->lock);
    munmap(room, ROOM_BYTES);
}

void room_wake(room *room)
{
    pthread_mutex_lock(&room->lock);
    pthread_cond_broadcast(&room->change);
    pthread_mutex_unlock(&room->lock);
}

static message *at(room *room, size_t offset)
{
    return (message *)(void *)((char *)room + offset);
}

bool room_put(room *room, int from, int to, uint64_t number, const void *bytes, size_t size,
    int readers)
{
    bool fits = true;
    if (readers == 0) return true;
    pthread_mutex_lock(&room->lock);
    const size_t whole = (sizeof(message) + size + 63) / 64 * 64;
    room->used = (room->used + 63) / 64 * 64;
    if (room->used + whole > ROOM_BYTES) {
        fits = false;
    } else {
        message *made = at(room, room->used);
        *made = (message){ .next = room->first, .from = from, .to = to, .readers = readers,
            .number = number, .size = size };
        if (size > 0) memcpy(made->bytes, bytes, size);
        room->first = room->used;
        room->used += whole;
        room->messages++;
        pthread_cond_broadcast(&room->change);
    }
    pthread_mutex_unlock(&room->lock);
    return fits;
}

static void remove_message(room *room, size_t *place)
{
    *place = at(room, *place)->next;
    if (--room->messages == 0) {
        /* Nothing is under way: the room is empty again, and its memory goes. */
        const size_t start = (sizeof *room + 4095) / 4096 * 4096;
        if (room->used > start) madvise((char *)room + start, room->used - start, MADV_REMOVE);
        room->used = sizeof *room;
    }
}

bool room_get(room *room, int from, int to, uint64_t number, void *bytes, size_t size,
    const atomic_int *given_up)
{
    bool found = false, fits = false;
    pthread_mutex_lock(&room->lock);
    while (!found && !atomic_load(given_up)) {
        for (size_t *place = &room->first; *place != 0; place = &at(room, *place)->next) {
            message *one = at(room, *place);
            if (one->from != from || one->to != to || one->number != number) continue;
            found = true;
            fits = one->size == size;
            if (fits && size > 0) memcpy(bytes, one->bytes, size);
            if (--one->readers == 0) remove_message(room, place);
            break;
        }
        if (!found) pthread_cond_wait(&room->change, &room->lock);
    }
    pthread_mutex_unlock(&room->lock);
    return fits;
}
