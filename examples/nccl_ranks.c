/* One process for each GPU, on one machine or on many: all_reduce and all_gather over NCCL, with
 * every value checked.
 *
 *   nccl_ranks [N]                      one process for each GPU of this machine, or N of them
 *   mpirun -n 16 nccl_ranks             one for each of mpirun's, of srun's or of torchrun's ranks;
 *   srun --ntasks-per-node=8 nccl_ranks   NCCL_RANKS_FILE names a file in a folder that all of them
 *                                         share, and that is not there yet
 *
 * A process that has used CUDA cannot fork: the one that starts the others uses none of it. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tcuda.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1 << 16, MOST_RANKS = 64 };

static int own_rank;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "rank %d: %s: %s\n", own_rank, what, why);
    exit(EXIT_FAILURE);
}

#define CHECK(call) \
    do { \
        if ((call) != TCUDA_STATUS_OK) fail(#call, tcuda_last_error()); \
    } while (0)

/* ---- What a rank does, once it knows its place ---- */

static float value_of(int rank, int i)
{
    return (float)(i % 1000 + rank);
}

static void work(const tcuda_unique_id *id, int rank, int num_ranks, int32_t device)
{
    tcuda_communicator *communicator;
    tcuda_stream *stream;
    int64_t part[] = { COUNT }, whole[] = { (int64_t)COUNT * num_ranks };
    tcuda_tensor own = { .device = { TCUDA_DEVICE_CUDA, device }, .ndim = 1,
        .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = part };
    tcuda_tensor sum = own, all = own;
    const size_t bytes = COUNT * sizeof(float);
    float *host = malloc(bytes * (size_t)num_ranks);
    if (host == NULL) fail("malloc", strerror(errno));
    all.shape = whole;

    CHECK(tcuda_device_set(device));
    CHECK(tcuda_communicator_init_rank(id, num_ranks, rank, device, &communicator));
    CHECK(tcuda_stream_create(device, 0, &stream));
    CHECK(tcuda_malloc(bytes, device, stream, &own.data));
    CHECK(tcuda_malloc(bytes, device, stream, &sum.data));
    CHECK(tcuda_malloc(bytes * (size_t)num_ranks, device, stream, &all.data));

    for (int i = 0; i < COUNT; i++)
        host[i] = value_of(rank, i);
    CHECK(tcuda_copy(own.data, host, bytes, stream));
    CHECK(tcuda_communicator_all_reduce(communicator, &own, &sum, TCUDA_REDUCE_SUM, stream));
    CHECK(tcuda_communicator_all_gather(communicator, &own, &all, stream));

    CHECK(tcuda_copy(host, sum.data, bytes, stream));
    CHECK(tcuda_stream_synchronize(stream));
    for (int i = 0; i < COUNT; i++)
        if (host[i] != (float)(num_ranks * (i % 1000) + num_ranks * (num_ranks - 1) / 2))
            fail("all_reduce", "a wrong sum");
    CHECK(tcuda_copy(host, all.data, bytes * (size_t)num_ranks, stream));
    CHECK(tcuda_stream_synchronize(stream));
    for (int i = 0; i < COUNT * num_ranks; i++)
        if (host[i] != value_of(i / COUNT, i % COUNT)) fail("all_gather", "a wrong value");

    if (rank == 0) printf("%d ranks: all_reduce and all_gather are right\n", num_ranks);
    CHECK(tcuda_free(own.data));
    CHECK(tcuda_free(sum.data));
    CHECK(tcuda_free(all.data));
    CHECK(tcuda_stream_destroy(stream));
    CHECK(tcuda_communicator_destroy(communicator));
    CHECK(tcuda_shutdown(NULL));
    free(host);
}

static int32_t count_devices(void)
{
    int32_t count = 0;
    CHECK(tcuda_device_count(&count));
    return count;
}

/* ---- Started by a launcher: mpirun, srun, torchrun ---- */

/* A number of the environment, by the first of these names; -1: there is none. */
static int number_of(const char *const *names)
{
    for (; *names != NULL; names++) {
        const char *value = getenv(*names);
        if (value != NULL && *value != '\0') return atoi(value);
    }
    return -1;
}

/* The first rank writes the id to a file, whole or not at all; the others wait for it. */
static void exchange(tcuda_unique_id *id, int rank, const char *path)
{
    char fresh[4096];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    if (rank == 0) {
        CHECK(tcuda_communicator_unique_id(id));
        FILE *file = fopen(fresh, "wb");
        if (file == NULL || fwrite(id, sizeof *id, 1, file) != 1 || fclose(file) != 0
            || rename(fresh, path) != 0)
            fail(path, strerror(errno));
        return;
    }
    const struct timespec pause = { 0, 10000000 };
    for (int i = 0; i < 6000; i++) {
        FILE *file = fopen(path, "rb");
        const bool found = file != NULL && fread(id, sizeof *id, 1, file) == 1;
        if (file != NULL) fclose(file);
        if (found) return;
        nanosleep(&pause, NULL);
    }
    fail(path, "the first rank has not written it for a minute");
}

static int one_of_many(int rank, int num_ranks)
{
    static const char *const locals[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
        "SLURM_LOCALID", "LOCAL_RANK", NULL };
    const char *path = getenv("NCCL_RANKS_FILE");
    const int local = number_of(locals);
    tcuda_unique_id id;
    if (path == NULL) fail("NCCL_RANKS_FILE", "name a file in a folder that all ranks share");
    exchange(&id, rank, path);
    const int32_t devices = count_devices();
    if (devices == 0) fail("tcuda_device_count", "no GPU");
    work(&id, rank, num_ranks, (local >= 0 ? local : rank) % devices);
    /* All have joined, and so have read it. */
    if (rank == 0) unlink(path);
    return EXIT_SUCCESS;
}

/* ---- Started by hand: a process for each GPU ---- */

/* In a process of its own, because it starts CUDA. */
static int ask_for_devices(void)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) _exit(count_devices());
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 0;
    return WEXITSTATUS(status);
}

static bool transfer(ssize_t (*move)(int, void *, size_t), int file, tcuda_unique_id *id)
{
    for (size_t done = 0; done < sizeof *id;) {
        const ssize_t moved = move(file, (char *)id + done, sizeof *id - done);
        if (moved <= 0) return false;
        done += (size_t)moved;
    }
    return true;
}

static ssize_t put(int file, void *bytes, size_t size)
{
    return write(file, bytes, size);
}

/* The first rank names the group, and writes the name once for each of the others. */
static void rank_of_a_pipe(int rank, int num_ranks, const int ends[2])
{
    tcuda_unique_id id;
    if (rank == 0) {
        CHECK(tcuda_communicator_unique_id(&id));
        for (int other = 1; other < num_ranks; other++)
            if (!transfer(put, ends[1], &id)) fail("write", strerror(errno));
    }
    close(ends[1]);
    if (rank > 0 && !transfer(read, ends[0], &id)) fail("read", "the first rank is gone");
    close(ends[0]);
    work(&id, rank, num_ranks, rank);
}

static int all_of_this_machine(int num_ranks)
{
    pid_t ranks[MOST_RANKS];
    int ends[2], result = EXIT_SUCCESS;
    if (num_ranks < 1 || num_ranks > MOST_RANKS) {
        fprintf(stderr, "nccl_ranks: no GPU, or more than %d ranks\n", MOST_RANKS);
        return EXIT_FAILURE;
    }
    /* Reads of so few bytes are whole: no rank gets a part of another's. */
    if (pipe(ends) != 0) fail("pipe", strerror(errno));
    for (int rank = 0; rank < num_ranks; rank++) {
        ranks[rank] = fork();
        if (ranks[rank] == 0) {
            own_rank = rank;
            rank_of_a_pipe(rank, num_ranks, ends);
            exit(EXIT_SUCCESS);
        }
    }
    close(ends[0]);
    close(ends[1]);
    for (int rank = 0; rank < num_ranks; rank++) {
        int status = 0;
        if (ranks[rank] < 0 || waitpid(ranks[rank], &status, 0) < 0 || status != 0)
            result = EXIT_FAILURE;
    }
    return result;
}

int main(int argc, char **argv)
{
    static const char *const ranks[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK",
        NULL };
    static const char *const sizes[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS",
        "WORLD_SIZE", NULL };
    const int size = number_of(sizes);
    own_rank = number_of(ranks);
    if (own_rank >= 0 && size > 0) return one_of_many(own_rank, size);
    own_rank = 0;
    return all_of_this_machine(argc > 1 ? atoi(argv[1]) : ask_for_devices());
}
