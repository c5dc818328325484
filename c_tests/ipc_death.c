/* Processes that share memory, and die. */
#define _POSIX_C_SOURCE 200809L

#include "ipc.h"

enum { MIB = 1 << 20 };

static const size_t bytes = 5 * MIB;

static void never(int line)
{
    nod(line);
    for (;;)
        pause();
}

/* ---- The importer dies ---- */

/* Before it has asked for anything. */
static void dies_with_a_handle(int line)
{
    (void)hear_handle(line);
    never(line);
}

static void dies_with_a_block(int line)
{
    const tcuda_ipc_handle handle = hear_handle(line);
    void *ptr = import_block(&handle, NULL, bytes);
    CHECK_EQ(count_other_bytes(ptr, 1, bytes, NULL), 0);
    never(line);
}

static void dies_at_work(int line)
{
    static gate held;
    const tcuda_ipc_handle handle = hear_handle(line);
    tcuda_stream *stream = create_stream(0);
    void *ptr = import_block(&handle, stream, bytes);
    gate_close(&held, stream);
    fill_bytes(ptr, 2, bytes, stream);
    never(line);
}

static void dies_after_closing(int line)
{
    const tcuda_ipc_handle handle = hear_handle(line);
    CHECK_OK(tcuda_ipc_close(import_block(&handle, NULL, bytes), NULL));
    never(line);
}

/* The child of the importer lives as long as the case, whose end of this goes with it. */
static int orphans[2];

/* A child of the importer, which uses nothing, keeps nothing either. */
static void leaves_a_child(int line)
{
    const tcuda_ipc_handle handle = hear_handle(line);
    (void)import_block(&handle, NULL, bytes);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char word;
        close(line);
        close(orphans[1]);
        _exit(read(orphans[0], &word, 1) == 0 ? 0 : 1);
    }
    never(line);
}

static void survives_an_importer(partner_fn *body, bool is_imported)
{
    int line;
    const pid_t partner = start_partner(body, &line);
    void *block = allocate(bytes, 0, NULL);
    fill_bytes(block, 1, bytes, NULL);
    const size_t files = open_files();
    const tcuda_ipc_handle handle = export_block(block, NULL);
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    CHECK_OK(tcuda_free(block));
    kill_partner(partner, line);
    if (is_imported) {
        collect_until(0);
        for (int i = 0; i < 1000 && open_files() > files + 2; i++) {
            CHECK_OK(tcuda_ipc_collect());
            sleep_ms(1);
        }
        /* The socket that answers, and what ends it; the line is closed. */
        CHECK(open_files() <= files + 2);
    } else {
        CHECK_OK(tcuda_ipc_collect());
        CHECK_EQ(allocated_now(), bytes);
        CHECK_OK(tcuda_ipc_withdraw(&handle));
        CHECK_EQ(allocated_now(), 0);
    }
    /* It goes on: the next one is answered. */
    void *other = allocate(bytes, 0, NULL);
    fill_bytes(other, 1, bytes, NULL);
    const tcuda_ipc_handle again = export_block(other, NULL);
    (void)again;
    CHECK_OK(tcuda_free(other));
    exit(finish());
}

static void importer_dies_with_a_handle(void) { survives_an_importer(dies_with_a_handle, false); }
static void importer_dies_with_a_block(void) { survives_an_importer(dies_with_a_block, true); }
static void importer_dies_at_work(void) { survives_an_importer(dies_at_work, true); }
static void importer_dies_after_closing(void) { survives_an_importer(dies_after_closing, true); }
static void importer_leaves_a_child(void)
{
    CHECK_EQ(pipe(orphans), 0);
    survives_an_importer(leaves_a_child, true);
}

/* ---- The exporter dies ---- */

static void exports_and_dies(int line)
{
    tcuda_ipc_handle handles[2];
    void *blocks[2];
    for (int i = 0; i < 2; i++) {
        blocks[i] = allocate(bytes, 0, NULL);
        fill_bytes(blocks[i], i + 1, bytes, NULL);
        handles[i] = export_block(blocks[i], NULL);
    }
    CHECK_OK(tcuda_device_synchronize(0));
    tell(line, handles, sizeof handles);
    never(line);
}

/* What is written after that is for this process alone, and harms no other. */
static void check_orphan(void *ptr)
{
    CHECK_EQ(count_other_bytes(ptr, 1, bytes, NULL), 0);
    fill_bytes(ptr, 9, bytes, NULL);
    CHECK_EQ(count_other_bytes(ptr, 9, bytes, NULL), 0);
}

static void exporter_dies(void)
{
    int line;
    void *none = NULL;
    const pid_t partner = start_partner(exports_and_dies, &line);
    const tcuda_ipc_handle first = hear_handle(line), second = hear_handle(line);
    wait_for_nod(line);
    /* With what a driver opens for its context. */
    CHECK_OK(tcuda_free(allocate(bytes, 0, NULL)));
    const size_t files = open_files();
    void *ptr = import_block(&first, NULL, bytes);
    kill_partner(partner, line);
    check_orphan(ptr);
    /* Not once more either: what its work was is not known. */
    CHECK_STATUS(TCUDA_STATUS_PEER_GONE, tcuda_ipc_import(&first, NULL, &none, NULL));
    CHECK_STATUS(TCUDA_STATUS_PEER_GONE, tcuda_ipc_import(&second, NULL, &none, NULL));
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
    CHECK_STATUS(TCUDA_STATUS_PEER_GONE, tcuda_ipc_import(&first, NULL, &none, NULL));
    CHECK(none == NULL);
    CHECK(open_files() < files);
    void *block = allocate(bytes, 0, NULL);
    check_orphan((fill_bytes(block, 1, bytes, NULL), block));
    CHECK_OK(tcuda_free(block));
    exit(finish());
}

static void exporter_dies_unheard(void)
{
    int line;
    void *none = NULL;
    const pid_t partner = start_partner(exports_and_dies, &line);
    const tcuda_ipc_handle first = hear_handle(line);
    kill_partner(partner, line);
    CHECK_STATUS(TCUDA_STATUS_PEER_GONE, tcuda_ipc_import(&first, NULL, &none, NULL));
    exit(finish());
}

/* Its child answers no process, and is not waited for. */
static void exports_and_leaves_a_child(int line)
{
    void *block = allocate(bytes, 0, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char word;
        close(line);
        close(orphans[1]);
        _exit(read(orphans[0], &word, 1) == 0 ? 0 : 1);
    }
    tell(line, &handle, sizeof handle);
    never(line);
}

static void exporter_leaves_a_child(void)
{
    int line;
    void *none = NULL;
    CHECK_EQ(pipe(orphans), 0);
    const pid_t partner = start_partner(exports_and_leaves_a_child, &line);
    const tcuda_ipc_handle handle = hear_handle(line);
    wait_for_nod(line);
    kill_partner(partner, line);
    /* At once, not after ten seconds without an answer. */
    alarm(8);
    CHECK_STATUS(TCUDA_STATUS_PEER_GONE, tcuda_ipc_import(&handle, NULL, &none, NULL));
    alarm(60);
    exit(finish());
}

static void exports_and_is_shut_down(int line)
{
    size_t live = 0;
    void *block = allocate(bytes, 0, NULL);
    fill_bytes(block, 1, bytes, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    CHECK_OK(tcuda_device_synchronize(0));
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    CHECK_OK(tcuda_shutdown(&live));
    nod(line);
    wait_for_nod(line);
    /* And begins anew, under another name. */
    block = allocate(bytes, 0, NULL);
    fill_bytes(block, 1, bytes, NULL);
    const tcuda_ipc_handle again = export_block(block, NULL);
    tell(line, &again, sizeof again);
    wait_for_nod(line);
    CHECK_OK(tcuda_free(block));
}

static void exporter_is_shut_down(void)
{
    int line;
    void *none = NULL;
    const pid_t partner = start_partner(exports_and_is_shut_down, &line);
    const tcuda_ipc_handle handle = hear_handle(line);
    void *ptr = import_block(&handle, NULL, bytes);
    nod(line);
    wait_for_nod(line);
    check_orphan(ptr);
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
    CHECK_STATUS(TCUDA_STATUS_PEER_GONE, tcuda_ipc_import(&handle, NULL, &none, NULL));
    nod(line);
    const tcuda_ipc_handle again = hear_handle(line);
    ptr = import_block(&again, NULL, bytes);
    check_orphan(ptr);
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
    nod(line);
    end_partner(partner, line);
    exit(finish());
}

/* Nothing that is still imported survives a shutdown. */
static void keeps_until_the_shutdown(int line)
{
    size_t live = 0;
    const tcuda_ipc_handle handle = hear_handle(line);
    (void)import_block(&handle, NULL, bytes);
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 0);
    nod(line);
    wait_for_nod(line);
}

static void importer_is_shut_down(void)
{
    int line;
    const pid_t partner = start_partner(keeps_until_the_shutdown, &line);
    void *block = allocate(bytes, 0, NULL);
    fill_bytes(block, 1, bytes, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    CHECK_OK(tcuda_free(block));
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    collect_until(0);
    nod(line);
    end_partner(partner, line);
    exit(finish());
}

/* Of another user. */
static void imports_as_another(int line)
{
    void *none = NULL;
    CHECK_EQ(setuid(65534), 0);
    const tcuda_ipc_handle handle = hear_handle(line);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_import(&handle, NULL, &none, NULL));
    nod(line);
}

static void other_users_are_refused(void)
{
    int line;
    const pid_t partner = start_partner(imports_as_another, &line);
    void *block = allocate(bytes, 0, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    end_partner(partner, line);
    exit(finish());
}

int main(void)
{
    if (is_without_gpu())
        return CHECK_SKIPPED;
    CASE(importer_dies_with_a_handle);
    CASE(importer_dies_with_a_block);
    CASE(importer_dies_at_work);
    CASE(importer_dies_after_closing);
    CASE(importer_leaves_a_child);
    CASE(exporter_dies);
    CASE(exporter_dies_unheard);
    CASE(exporter_leaves_a_child);
    CASE(exporter_is_shut_down);
    CASE(importer_is_shut_down);
    if (geteuid() == 0)
        CASE(other_users_are_refused);
    return finish_cases();
}
