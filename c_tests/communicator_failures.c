/* Communicators where something goes wrong: wrong arguments, ranks that never come, failures of
 * NCCL's, and ends in the middle of it all. Each case is a process with its own environment. */
#include "communicator.h"

static int n;

static void start(void)
{
    n = num_ranks();
    CHECK(n >= 1);
}

static void done(void)
{
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static bool mentions(const char *text)
{
    return strstr(tcuda_last_error(), text) != NULL;
}

/* ---- Arguments ---- */

static void arguments_are_checked(void)
{
    start();
    tcuda_unique_id id;
    tcuda_communicator *own = NULL, *none = NULL;
    const int32_t twice[] = { 0, 0 }, wrong[] = { 99 };
    int64_t four[] = { 4 }, six[] = { 6 }, square[] = { 2, 2 }, turned[] = { 1, 2 };
    CHECK_OK(tcuda_communicator_unique_id(&id));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_communicator_init_rank(&id, 0, 0, 0, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_communicator_init_rank(&id, 2, 2, 0, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_communicator_init_rank(&id, 2, -1, 0, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_communicator_init_rank(&id, 1, 0, 99, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_communicator_init_all(twice, 0, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_communicator_init_all(twice, 2, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_communicator_init_all(twice, (size_t)-1, &none));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_communicator_init_all(wrong, 1, &none));
    CHECK(none == NULL);
    CHECK_OK(tcuda_communicator_init_rank(&id, 1, 0, 0, &own));

    float *data = allocate(256, 0, default_of(0)), on_host[4] = { 0 };
    tcuda_tensor x = tensor_of(data, 0, TCUDA_DTYPE_FLOAT, 32, four);
    tcuda_tensor y = tensor_of(data + 8, 0, TCUDA_DTYPE_FLOAT, 32, four);
    tcuda_tensor longer = tensor_of(data + 8, 0, TCUDA_DTYPE_FLOAT, 32, six);
    tcuda_tensor beside = tensor_of(data + 2, 0, TCUDA_DTYPE_FLOAT, 32, four);
    tcuda_tensor ints = tensor_of(data + 8, 0, TCUDA_DTYPE_INT, 32, four);
    tcuda_tensor shorts = tensor_of(data, 0, TCUDA_DTYPE_INT, 16, four);
    tcuda_tensor small = tensor_of(data, 0, TCUDA_DTYPE_FLOAT8_E5M2, 8, four);
    tcuda_tensor pairs = tensor_of(data, 0, TCUDA_DTYPE_COMPLEX, 64, four);
    tcuda_tensor host = tensor_of(on_host, 0, TCUDA_DTYPE_FLOAT, 32, four);
    host.device = (tcuda_tensor_device){ TCUDA_DEVICE_CPU, 0 };
    tcuda_tensor strided = tensor_of(data, 0, TCUDA_DTYPE_FLOAT, 32, square);
    strided.ndim = 2;
    strided.strides = turned;
#define REFUSED(status, verb, ...) CHECK_STATUS(status, tcuda_communicator_##verb(own, __VA_ARGS__))
#define WRONG(verb, ...) REFUSED(TCUDA_STATUS_INVALID_ARGUMENT, verb, __VA_ARGS__)
    WRONG(all_reduce, NULL, &y, 0, NULL);
    WRONG(all_reduce, &x, NULL, 0, NULL);
    WRONG(all_reduce, &x, &y, 4, NULL);
    WRONG(all_reduce, &x, &y, -1, NULL);
    WRONG(all_reduce, &x, &ints, 0, NULL);
    WRONG(all_reduce, &x, &longer, 0, NULL);
    CHECK(mentions("input has 4 elements, and output 6"));
    WRONG(all_reduce, &x, &beside, 0, NULL);
    CHECK(mentions("overlap"));
    WRONG(all_reduce, &shorts, &shorts, 0, NULL);
    WRONG(all_reduce, &small, &small, 0, NULL);
    CHECK(mentions("only copies"));
    WRONG(all_reduce, &pairs, &pairs, TCUDA_REDUCE_MAX, NULL);
    WRONG(all_reduce, &host, &x, 0, NULL);
    WRONG(all_reduce, &strided, &y, 0, NULL);
    CHECK(mentions("contiguous"));
    WRONG(broadcast, &x, &y, 1, NULL);
    WRONG(broadcast, NULL, &y, 0, NULL);
    WRONG(reduce, &x, &y, 0, -1, NULL);
    WRONG(reduce, &x, NULL, 0, 0, NULL);
    WRONG(all_gather, &x, &longer, NULL);
    WRONG(reduce_scatter, &longer, &x, 0, NULL);
    WRONG(send, &x, 1, NULL);
    WRONG(send, NULL, 0, NULL);
    WRONG(recv, &x, -1, NULL);
    WRONG(recv, NULL, 0, NULL);
    REFUSED(TCUDA_STATUS_INVALID_HANDLE, all_reduce, &x, &y, 0, (tcuda_stream *)own);
    if (num_devices() > 1) {
        float *far = allocate(256, 1, default_of(1));
        tcuda_tensor other = tensor_of(far, 1, TCUDA_DTYPE_FLOAT, 32, four);
        WRONG(all_reduce, &other, &other, 0, NULL);
        CHECK(mentions("input is of device 1, and the communicator of device 0"));
        WRONG(all_reduce, &x, &y, 0, default_of(1));
        CHECK_OK(tcuda_free(far));
    }
    /* What only moves has no arithmetic; and nothing is fine. */
    CHECK_OK(tcuda_communicator_broadcast(own, &small, &small, 0, NULL));
    CHECK_OK(tcuda_communicator_all_gather(own, &shorts, &shorts, NULL));
    four[0] = 0;
    CHECK_OK(tcuda_communicator_all_reduce(own, &x, &y, 0, NULL));
    CHECK_OK(tcuda_free(data));
    CHECK_OK(tcuda_communicator_destroy(own));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_communicator_query(own));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_communicator_destroy(own));
    CHECK_OK(tcuda_communicator_destroy(NULL));
    done();
}

/* ---- Groups ---- */

static void groups_are_closed_whatever_happens(void)
{
    start();
    tcuda_communicator *own[MOST];
    int64_t shape[] = { 4 };
    join_all(n, own);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_communicator_group_end());
    float *data = allocate(256, 0, default_of(0));
    fill_bytes(data, 1, 256, default_of(0));
    const tcuda_tensor x = tensor_of(data, 0, TCUDA_DTYPE_FLOAT, 32, shape);
    const tcuda_tensor y = tensor_of(data + 8, 0, TCUDA_DTYPE_FLOAT, 32, shape);
    /* A call that fails takes the others of its group along. */
    CHECK_OK(tcuda_communicator_group_begin());
    CHECK_OK(tcuda_communicator_group_begin());
    CHECK_OK(tcuda_communicator_send(own[0], &x, 0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_communicator_recv(own[0], &y, n, NULL));
    CHECK_OK(tcuda_communicator_group_end());
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_communicator_group_end());
    CHECK(mentions("nothing of the group was queued"));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_communicator_group_end());
    CHECK_OK(tcuda_communicator_query(own[0]));
    /* To oneself, in groups within groups; an empty one is fine. */
    for (int depth = 0; depth < 3; depth++)
        CHECK_OK(tcuda_communicator_group_begin());
    CHECK_OK(tcuda_communicator_send(own[0], &x, 0, NULL));
    CHECK_OK(tcuda_communicator_recv(own[0], &y, 0, NULL));
    for (int depth = 0; depth < 3; depth++)
        CHECK_OK(tcuda_communicator_group_end());
    CHECK_EQ(count_other_bytes(data, 1, 48, default_of(0)), 0);
    CHECK_OK(tcuda_communicator_group_begin());
    CHECK_OK(tcuda_communicator_group_end());
    /* A communicator that goes before its group ends. */
    CHECK_OK(tcuda_communicator_group_begin());
    CHECK_OK(tcuda_communicator_send(own[0], &x, 0, NULL));
    CHECK_OK(tcuda_communicator_recv(own[0], &y, 0, NULL));
    CHECK_OK(tcuda_communicator_destroy(own[0]));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_communicator_group_end());
    destroy_all(n - 1, own + 1);
    /* A group that is not ended, and a shutdown. */
    CHECK_OK(tcuda_communicator_group_begin());
    CHECK_OK(tcuda_free(data));
    done();
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_communicator_group_end());
    done();
}

/* ---- Ranks that do not come ---- */

static tcuda_unique_id name;
static tcuda_communicator *waiting;
static tcuda_status outcome;
static atomic_int is_waiting;

/* A collective of a group of two, whose other rank queues nothing. */
static void *one_side(void *argument)
{
    int64_t shape[] = { 4 };
    const tcuda_tensor x = tensor_of(argument, 0, TCUDA_DTYPE_FLOAT, 32, shape);
    atomic_store(&is_waiting, 1);
    outcome = tcuda_communicator_all_reduce(waiting, &x, &x, 0, NULL);
    atomic_store(&is_waiting, 2);
    return NULL;
}

/* Work that hangs, in its stream or in the call itself, ends with an abort on another thread. */
static void work_that_hangs_is_aborted(void)
{
    start();
    tcuda_communicator *own[MOST];
    if (n < 2) return;
    join_all(2, own);
    void *data = allocate(256, 0, default_of(0));
    CHECK_OK(tcuda_device_synchronize(0));
    waiting = own[0];
    pthread_t thread = start_thread(one_side, data);
    while (!atomic_load(&is_waiting))
        sleep_ms(1);
    sleep_ms(50);
    CHECK_OK(tcuda_communicator_query(own[0]));
    CHECK_OK(tcuda_communicator_abort(own[0]));
    CHECK_OK(tcuda_communicator_abort(own[0]));
    join_thread(thread);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_communicator_query(own[0]));
    CHECK(mentions("was aborted"));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_communicator_abort(own[1]));
    destroy_all(2, own);
    CHECK_OK(tcuda_free(data));
    done();
}

static void the_same_in_the_background(void)
{
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    work_that_hangs_is_aborted();
}

/* A destroy that waits for work which hangs ends with the abort. */
static void *destroy_it(void *argument)
{
    atomic_store(&is_waiting, 1);
    outcome = tcuda_communicator_destroy(argument);
    atomic_store(&is_waiting, 2);
    return NULL;
}

/* NCCL connects ranks at their first collective, in the call. */
static void connect(tcuda_communicator *const *own, void *data)
{
    int64_t shape[] = { 4 };
    void *other = allocate(256, 1, default_of(1));
    const tcuda_tensor x = tensor_of(data, 0, TCUDA_DTYPE_FLOAT, 32, shape);
    const tcuda_tensor y = tensor_of(other, 1, TCUDA_DTYPE_FLOAT, 32, shape);
    CHECK_OK(tcuda_communicator_group_begin());
    CHECK_OK(tcuda_communicator_all_reduce(own[0], &x, &x, 0, NULL));
    CHECK_OK(tcuda_communicator_all_reduce(own[1], &y, &y, 0, NULL));
    CHECK_OK(tcuda_communicator_group_end());
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_device_synchronize(1));
    CHECK_OK(tcuda_free(other));
}

static void a_destroy_that_waits_is_aborted(void)
{
    start();
    tcuda_communicator *own[MOST];
    if (n < 2 || !runs_late()) return;
    join_all(2, own);
    void *data = allocate(256, 0, default_of(0));
    connect(own, data);
    waiting = own[0];
    one_side(data);
    CHECK_EQ(outcome, TCUDA_STATUS_OK);
    atomic_store(&is_waiting, 0);
    pthread_t thread = start_thread(destroy_it, own[0]);
    while (!atomic_load(&is_waiting))
        sleep_ms(1);
    sleep_ms(100);
    CHECK_EQ(atomic_load(&is_waiting), 1);
    /* One destroy is enough. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_communicator_destroy(own[0]));
    CHECK_OK(tcuda_communicator_abort(own[0]));
    join_thread(thread);
    CHECK_EQ(outcome, TCUDA_STATUS_OK);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_communicator_query(own[0]));
    CHECK_OK(tcuda_communicator_destroy(own[1]));
    CHECK_OK(tcuda_free(data));
    done();
}

/* While one rank waits for the others to join, nothing else does: not memory that it used, nor a
 * shutdown. */
static void *join_first(void *argument)
{
    void *block = allocate(1000, 0, default_of(0));
    CHECK_OK(tcuda_free(block));
    atomic_store(&is_waiting, 1);
    outcome = tcuda_communicator_init_rank(&name, 2, 0, 0, argument);
    atomic_store(&is_waiting, 2);
    return NULL;
}

static void nobody_waits_for_who_joins(void)
{
    start();
    tcuda_communicator *first = NULL, *second = NULL;
    CHECK_OK(tcuda_communicator_unique_id(&name));
    pthread_t thread = start_thread(join_first, &first);
    while (!atomic_load(&is_waiting))
        sleep_ms(1);
    sleep_ms(20);
    for (int i = 0; i < 100; i++) {
        void *block = allocate(1000, 0, default_of(0));
        fill_bytes(block, i, 1000, NULL);
        CHECK_OK(tcuda_free(block));
        tcuda_event *event = create_event(0);
        CHECK_OK(tcuda_event_destroy(event));
    }
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(atomic_load(&is_waiting), 1);
    if (n < 2) {
        CHECK_EQ(finish(), EXIT_SUCCESS);
        return; /* and its thread goes with the process */
    }
    CHECK_OK(tcuda_communicator_init_rank(&name, 2, 1, 1, &second));
    join_thread(thread);
    CHECK_EQ(outcome, TCUDA_STATUS_OK);
    CHECK_OK(tcuda_communicator_destroy(first));
    CHECK_OK(tcuda_communicator_destroy(second));
    done();
}

static void a_shutdown_ends_who_joins(void)
{
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    start();
    tcuda_communicator *first = NULL;
    CHECK_OK(tcuda_communicator_unique_id(&name));
    pthread_t thread = start_thread(join_first, &first);
    while (!atomic_load(&is_waiting))
        sleep_ms(1);
    sleep_ms(20);
    done();
    join_thread(thread);
    CHECK_EQ(outcome, TCUDA_STATUS_INVALID_STATE);
    CHECK(first == NULL);
    start();
    done();
}

/* ---- Failures of NCCL's ---- */

static void nccl_fails(const char *function)
{
    char rule[64];
    tcuda_communicator *own[MOST] = { NULL };
    int64_t shape[] = { 4 };
    start();
    if (!on_simulator()) return;
    snprintf(rule, sizeof rule, "%s@1=3", function);
    setenv("TCUDA_FAKE_NCCL", rule, 1);
    const int32_t devices[] = { 0, 1, 2, 3 };
    const tcuda_status joined = tcuda_communicator_init_all(devices, (size_t)n, own);
    if (joined != TCUDA_STATUS_OK) {
        CHECK_EQ(joined, TCUDA_STATUS_NCCL_ERROR);
        CHECK_EQ(tcuda_last_error_native(), 3);
        CHECK(own[0] == NULL && mentions("internal error")
            && mentions("as the environment wants it"));
        CHECK_OK(tcuda_communicator_init_all(devices, (size_t)n, own));
    }
    void *data[MOST];
    for (int round = 0; round < 3; round++) {
        CHECK_OK(tcuda_communicator_group_begin());
        for (int rank = 0; rank < n; rank++) {
            data[rank] = round == 0 ? put(shape, sizeof shape, rank, default_of(rank)) : data[rank];
            const tcuda_tensor x = tensor_of(data[rank], rank, TCUDA_DTYPE_UINT, 8, shape);
            CHECK_OK(tcuda_communicator_all_reduce(own[rank], &x, &x, 0, NULL));
        }
        const tcuda_status ended = tcuda_communicator_group_end();
        CHECK(ended == TCUDA_STATUS_OK || (round == 0 && ended == TCUDA_STATUS_NCCL_ERROR));
    }
    for (int rank = 0; rank < n; rank++)
        CHECK_OK(tcuda_free(data[rank]));
    for (int rank = 0; rank < n; rank++) {
        const tcuda_status left = tcuda_communicator_destroy(own[rank]);
        CHECK(left == TCUDA_STATUS_OK || left == TCUDA_STATUS_NCCL_ERROR);
        CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_communicator_destroy(own[rank]));
    }
    done();
}

static void joining_fails(void) { nccl_fails("ncclCommInitAll"); }
static void a_collective_fails(void) { nccl_fails("ncclAllReduce"); }
static void a_group_fails_to_begin(void) { nccl_fails("ncclGroupStart"); }
static void asking_fails(void) { nccl_fails("ncclCommGetAsyncError"); }

static void ranks_must_differ(void)
{
    start();
    tcuda_communicator *none = NULL;
    setenv("TCUDA_FAKE_NCCL", "ncclCommInitRank@1=6,ncclGetUniqueId@2=2", 1);
    if (!on_simulator()) return;
    CHECK_OK(tcuda_communicator_unique_id(&name));
    CHECK_STATUS(TCUDA_STATUS_PEER_GONE, tcuda_communicator_init_rank(&name, 1, 0, 0, &none));
    CHECK_STATUS(TCUDA_STATUS_NCCL_ERROR, tcuda_communicator_unique_id(&name));
    CHECK_EQ(tcuda_last_error_native(), 2);
    memset(&name, 1, sizeof name);
    CHECK_STATUS(TCUDA_STATUS_NCCL_ERROR, tcuda_communicator_init_rank(&name, 1, 0, 0, &none));
    CHECK(none == NULL);
    done();
}

/* Query reports work that failed, and its destroy does not wait for what never comes. */
static void what_failed_meanwhile_is_told(void)
{
    start();
    tcuda_communicator *own = NULL;
    int64_t shape[] = { 8 };
    if (!on_simulator()) return;
    setenv("TCUDA_FAKE_NCCL", "async@2=6", 1);
    CHECK_OK(tcuda_communicator_unique_id(&name));
    CHECK_OK(tcuda_communicator_init_rank(&name, 1, 0, 0, &own));
    void *data = put(shape, sizeof shape, 0, default_of(0));
    const tcuda_tensor x = tensor_of(data, 0, TCUDA_DTYPE_UINT, 8, shape);
    for (int round = 0; round < 2; round++) {
        CHECK_OK(tcuda_communicator_query(own));
        CHECK_OK(tcuda_communicator_all_reduce(own, &x, &x, 0, NULL));
        CHECK_OK(tcuda_device_synchronize(0));
    }
    CHECK_STATUS(TCUDA_STATUS_PEER_GONE, tcuda_communicator_query(own));
    CHECK_EQ(tcuda_last_error_native(), 6);
    CHECK_OK(tcuda_communicator_destroy(own));
    CHECK_OK(tcuda_free(data));
    done();
}

/* ---- Ends in the middle ---- */

static void *use_it(void *argument)
{
    int64_t shape[] = { 4 };
    const tcuda_tensor x = tensor_of(argument, 0, TCUDA_DTYPE_FLOAT, 32, shape);
    for (;;) {
        const tcuda_status status = tcuda_communicator_all_reduce(waiting, &x, &x, 0, NULL);
        if (status == TCUDA_STATUS_OK) continue;
        CHECK(status == TCUDA_STATUS_INVALID_STATE || status == TCUDA_STATUS_INVALID_HANDLE);
        return NULL;
    }
}

static void a_destroy_races_calls(void)
{
    start();
    void *data = allocate(256, 0, default_of(0));
    for (int round = 0; round < 10; round++) {
        pthread_t threads[3];
        CHECK_OK(tcuda_communicator_unique_id(&name));
        CHECK_OK(tcuda_communicator_init_rank(&name, 1, 0, 0, &waiting));
        for (int i = 0; i < 3; i++)
            threads[i] = start_thread(use_it, data);
        sleep_ms(round);
        if (round & 1) CHECK_OK(tcuda_communicator_abort(waiting));
        CHECK_OK(tcuda_communicator_destroy(waiting));
        for (int i = 0; i < 3; i++)
            join_thread(threads[i]);
    }
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_free(data));
    done();
}

static void what_is_forgotten_is_counted(void)
{
    start();
    size_t live = 0;
    tcuda_communicator *own[MOST];
    join_all(n, own);
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, n);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_communicator_query(own[0]));
    start();
    join_all(n, own);
    destroy_all(n, own);
    done();
}

int main(void)
{
    /* Asked for without CUDA: the parent of processes that use it must not. */
    skip_without_nccl();
    RUNS(arguments_are_checked);
    RUNS(groups_are_closed_whatever_happens);
    RUNS(work_that_hangs_is_aborted);
    RUNS(the_same_in_the_background);
    RUNS(a_destroy_that_waits_is_aborted);
    RUNS(nobody_waits_for_who_joins);
    RUNS(a_shutdown_ends_who_joins);
    RUNS(joining_fails);
    RUNS(a_collective_fails);
    RUNS(a_group_fails_to_begin);
    RUNS(asking_fails);
    RUNS(ranks_must_differ);
    RUNS(what_failed_meanwhile_is_told);
    RUNS(a_destroy_races_calls);
    RUNS(what_is_forgotten_is_counted);
    return finish_cases();
}
