/* What several processes share, forks, and ranks of a group. */
#include <sys/socket.h>

#include "../ipc.h"
#include "soak.h"

static int line;
static pid_t partner;

/* Imports what the other process sends, reads it, and closes it. */
static void import_all(int from)
{
    tcuda_ipc_handle handle;
    char word = '!';
    while (read(from, &handle, sizeof handle) == (ssize_t)sizeof handle) {
        void *ptr = NULL;
        size_t bytes = 0;
        CHECK_OK(tcuda_ipc_import(&handle, NULL, &ptr, &bytes));
        CHECK_OK(tcuda_ipc_close(ptr, NULL));
        tell(from, &word, 1);
    }
}

static void start_importer(void)
{
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    partner = fork();
    CHECK(partner >= 0);
    if (partner == 0) {
        close(ends[0]);
        import_all(ends[1]);
        _exit(finish());
    }
    close(ends[1]);
    line = ends[0];
}

static void end_importer(void)
{
    int status = 0;
    close(line);
    CHECK_EQ(waitpid(partner, &status, 0), partner);
    CHECK_EQ(status, 0);
}

static void export_round(int64_t number)
{
    begin_steps();
    void *const block = allocate(number % 2 == 0 ? 1000 : 3 * MIB, 0, NULL);
    end_step("allocate");
    const tcuda_ipc_handle handle = export_block(block, NULL);
    end_step("export");
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    end_step("the other imports and closes");
    CHECK_OK(tcuda_free(block));
    end_step("free");
    CHECK_OK(tcuda_ipc_collect());
    end_step("collect");
}

/* The same block all the time, which the other process has besides: only the event is new. */
static void *shared_block;
static tcuda_ipc_handle shared_handle;

static void begin_shared(void)
{
    start_importer();
    CHECK_OK(tcuda_init());
    shared_block = allocate(1000, 0, NULL);
    shared_handle = export_block(shared_block, NULL); /* not imported: the memory stays shared */
}

static void end_shared(void)
{
    CHECK_OK(tcuda_ipc_withdraw(&shared_handle));
    CHECK_OK(tcuda_free(shared_block));
    end_importer();
}

static void shared_round(int64_t number)
{
    (void)number;
    begin_steps();
    const tcuda_ipc_handle handle = export_block(shared_block, NULL);
    end_step("export");
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    end_step("the other imports and closes");
    CHECK_OK(tcuda_ipc_collect());
    end_step("collect");
}

/* Exported, and never imported. */
static void withdraw_round(int64_t number)
{
    (void)number;
    void *const block = allocate(1000, 0, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    CHECK_OK(tcuda_ipc_withdraw(&handle));
    CHECK_OK(tcuda_free(block));
}

/* This process imports, from one that exports a block for each round. */
static void export_all(int to)
{
    char word = 0;
    void *block = NULL;
    while (read(to, &word, 1) == 1) {
        CHECK_OK(tcuda_free(block));
        block = allocate(1000, 0, NULL);
        const tcuda_ipc_handle handle = export_block(block, NULL);
        tell(to, &handle, sizeof handle);
    }
    CHECK_OK(tcuda_free(block));
}

static void start_exporter(void)
{
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    partner = fork();
    CHECK(partner >= 0);
    if (partner == 0) {
        close(ends[0]);
        export_all(ends[1]);
        _exit(finish());
    }
    close(ends[1]);
    line = ends[0];
}

static void import_round(int64_t number)
{
    (void)number;
    void *ptr = NULL;
    size_t bytes = 0;
    begin_steps();
    nod(line);
    const tcuda_ipc_handle handle = hear_handle(line);
    end_step("the other exports");
    CHECK_OK(tcuda_ipc_import(&handle, NULL, &ptr, &bytes));
    end_step("import");
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
    end_step("close");
}

/* A process for each round, which exports a block and ends when it has been read. */
static void export_by_children(int to)
{
    char word = 0;
    while (read(to, &word, 1) == 1) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            void *const block = allocate(1000, 0, NULL);
            const tcuda_ipc_handle handle = export_block(block, NULL);
            tell(to, &handle, sizeof handle);
            wait_for_nod(to);
            CHECK_OK(tcuda_free(block));
            _exit(finish());
        }
        int status = 0;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
        tell(to, &word, 1);
    }
}

static void start_children(void)
{
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    partner = fork();
    CHECK(partner >= 0);
    if (partner == 0) {
        close(ends[0]);
        export_by_children(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    line = ends[0];
}

static void exporter_round(int64_t number)
{
    import_round(number);
    nod(line);
    wait_for_nod(line);
}

static void fork_round(int64_t number)
{
    (void)number;
    CHECK_OK(tcuda_init());
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(tcuda_init() == TCUDA_STATUS_FORKED ? 0 : 1);
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static void begin_ranks(void)
{
    int32_t major = 0, minor = 0, patch = 0;
    if (getenv("TCUDA_BACKEND") != NULL && strcmp(getenv("TCUDA_BACKEND"), "sim") == 0
        && getenv("TCUDA_NCCL_PATH") == NULL)
        leave_out("TCUDA_NCCL_PATH names nothing that stands in for NCCL");
    if (tcuda_nccl_version(&major, &minor, &patch) != TCUDA_STATUS_OK)
        leave_out("there is no NCCL");
}

static void rank_round(int64_t number)
{
    (void)number;
    const int32_t devices[] = { 0 };
    tcuda_communicator *communicator = NULL;
    CHECK_OK(tcuda_communicator_init_all(devices, 1, &communicator));
    CHECK_OK(tcuda_communicator_destroy(communicator));
}

const kind process_kinds[] = {
    { "exports", export_round, .share = 10, .begin = start_importer, .end = end_importer },
    { "exports, one block", shared_round, .share = 10, .begin = begin_shared, .end = end_shared },
    { "exports, withdrawn", withdraw_round, .share = 4 },
    { "imports", import_round, .share = 10, .begin = start_exporter, .end = end_importer },
    { "exporting processes", exporter_round, .share = 50, .begin = start_children,
        .end = end_importer },
    { "forks", fork_round, .share = 20 },
    { "communicators", rank_round, .share = 20, .begin = begin_ranks },
    { NULL, NULL, .share = 0 },
};
