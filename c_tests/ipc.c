/* Memory that several processes use. */
#define _POSIX_C_SOURCE 200809L

#include "ipc.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static const size_t large = 5 * MIB + 512, small = 3000;

/* ---- Bytes and order ---- */

static void reads_and_writes(int line)
{
    const tcuda_ipc_handle handle = hear_handle(line);
    tcuda_stream *stream = create_stream(0);
    void *ptr = import_block(&handle, stream, large);
    CHECK_EQ(count_other_bytes(ptr, 0x5a, large, stream), 0);
    fill_bytes(ptr, 0x33, large, stream);
    CHECK_OK(tcuda_ipc_close(ptr, stream));
    nod(line);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void both_see_the_same_bytes(void)
{
    int line;
    const pid_t partner = start_partner(reads_and_writes, &line);
    void *block = allocate(large, 0, NULL);
    fill_bytes(block, 0x5a, large, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    CHECK_EQ(count_other_bytes(block, 0x33, large, NULL), 0);
    end_partner(partner, line);
    CHECK_OK(tcuda_free(block));
    exit(finish());
}

/* Parts of a block begin at these bytes; the block itself is the second. */
static const size_t parts[] = { 512, 0, 77, 5 * MIB };
enum { PARTS = 4 };

static void reads_parts(int line)
{
    char *ptrs[PARTS];
    for (int i = 0; i < PARTS; i++) {
        const tcuda_ipc_handle handle = hear_handle(line);
        ptrs[i] = import_block(&handle, NULL, large - parts[i]);
        /* The same byte: the last two parts were filled with values of their own. */
        CHECK_EQ(count_other_bytes(ptrs[i], (unsigned char)(i < 2 ? 0x40 : 0x40 + i), 16, NULL), 0);
        CHECK(import_block(&handle, NULL, large - parts[i]) == ptrs[i]);
        CHECK_OK(tcuda_ipc_close(ptrs[i], NULL));
    }
    for (int i = 0; i < PARTS; i++)
        CHECK_EQ(ptrs[i] - ptrs[1], (ptrdiff_t)parts[i]);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_ipc_close(ptrs[1] + 1024, NULL));
    /* Each is closed by its own address; the others stay. */
    for (int i = 0; i < PARTS; i++) {
        CHECK_OK(tcuda_ipc_close(ptrs[i], NULL));
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_ipc_close(ptrs[i], NULL));
        if (i + 1 < PARTS)
            fill_bytes(ptrs[PARTS - 1], 0x33, 512, NULL);
    }
    nod(line);
}

/* A part of a block is shared by its own address, as a view of a tensor is. */
static void parts_keep_their_place(void)
{
    int line;
    const pid_t partner = start_partner(reads_parts, &line);
    char *const block = allocate(large, 0, NULL);
    fill_bytes(block, 0x40, large, NULL);
    fill_bytes(block + 77, 0x42, 16, NULL);
    fill_bytes(block + 5 * MIB, 0x43, 512, NULL);
    for (int i = 0; i < PARTS; i++) {
        const tcuda_ipc_handle handle = export_block(block + parts[i], NULL);
        tell(line, &handle, sizeof handle);
    }
    /* Behind what was asked for there is nothing to share. */
    void *const odd = allocate(small, 0, NULL);
    tcuda_ipc_handle none;
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
        tcuda_ipc_export((char *)odd + small, NULL, &none));
    CHECK(strstr(tcuda_last_error(), "behind the bytes of its block") != NULL);
    CHECK_OK(tcuda_free(odd));
    CHECK_OK(tcuda_free(block));
    wait_for_nod(line);
    end_partner(partner, line);
    collect_until(0);
    exit(finish());
}

static void reads_what_is_not_written_yet(int line)
{
    const tcuda_ipc_handle handle = hear_handle(line);
    tcuda_stream *stream = create_stream(0);
    void *ptr = import_block(&handle, stream, large);
    unsigned char *host = NULL;
    CHECK_OK(tcuda_host_malloc(large, (void **)&host));
    memset(host, 0, large);
    CHECK_OK(tcuda_copy(host, ptr, large, stream));
    if (runs_late()) {
        bool done = true;
        CHECK_OK(tcuda_stream_query(stream, &done));
        CHECK(!done);
    }
    nod(line);
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (size_t i = 0; i < large; i++)
        CHECK(host[i] == 0x42);
    CHECK_OK(tcuda_host_free(host));
    CHECK_OK(tcuda_ipc_close(ptr, stream));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void work_comes_after_what_was_queued(void)
{
    int line;
    gate held;
    const pid_t partner = start_partner(reads_what_is_not_written_yet, &line);
    tcuda_stream *stream = create_stream(0);
    void *block = allocate(large, 0, stream);
    fill_bytes(block, 0x11, large, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    gate_close(&held, stream);
    fill_bytes(block, 0x42, large, stream);
    const tcuda_ipc_handle handle = export_block(block, stream);
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    gate_open(&held);
    end_partner(partner, line);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
    exit(finish());
}

static void *open_later(void *held)
{
    sleep_ms(30);
    gate_open(held);
    return NULL;
}

static void closes_while_it_works(int line)
{
    static gate held;
    const tcuda_ipc_handle handle = hear_handle(line);
    tcuda_stream *stream = create_stream(0);
    void *ptr = import_block(&handle, stream, large);
    gate_close(&held, stream);
    fill_bytes(ptr, 0x21, large, stream);
    const pthread_t opener = start_thread(open_later, &held);
    CHECK_OK(tcuda_ipc_close(ptr, stream));
    if (runs_late())
        CHECK(atomic_load(&held.is_open));
    join_thread(opener);
    nod(line);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void closing_comes_after_the_work(void)
{
    int line;
    const pid_t partner = start_partner(closes_while_it_works, &line);
    void *block = allocate(large, 0, NULL);
    fill_bytes(block, 0x20, large, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    CHECK_EQ(count_other_bytes(block, 0x21, large, NULL), 0);
    end_partner(partner, line);
    CHECK_OK(tcuda_free(block));
    exit(finish());
}

/* ---- Handles and counts ---- */

static void imports_neighbours(int line)
{
    void *blocks[2];
    ptrdiff_t distance;
    const tcuda_ipc_handle first = hear_handle(line), second = hear_handle(line);
    hear(line, &distance, sizeof distance);
    blocks[0] = import_block(&first, NULL, small);
    const uint64_t maps = calls_of("cuMemMap") + calls_of("cuIpcOpenMemHandle");
    blocks[1] = import_block(&second, NULL, small);
    /* One mapping serves both. */
    CHECK_EQ(calls_of("cuMemMap") + calls_of("cuIpcOpenMemHandle"), maps);
    CHECK_EQ((char *)blocks[1] - (char *)blocks[0], distance);
    CHECK_EQ(count_other_bytes(blocks[0], 1, small, NULL), 0);
    CHECK_OK(tcuda_ipc_close(blocks[0], NULL));
    CHECK_EQ(count_other_bytes(blocks[1], 2, small, NULL), 0);
    CHECK_OK(tcuda_ipc_close(blocks[1], NULL));
    CHECK_EQ(calls_of("cuMemMap") + calls_of("cuIpcOpenMemHandle"), maps);
}

static void neighbours_share_a_mapping(void)
{
    int line;
    const pid_t partner = start_partner(imports_neighbours, &line);
    void *first = allocate(small, 0, NULL), *second = allocate(small, 0, NULL);
    fill_bytes(first, 1, small, NULL);
    fill_bytes(second, 2, small, NULL);
    const ptrdiff_t distance = (char *)second - (char *)first;
    const tcuda_ipc_handle handles[2] = { export_block(first, NULL), export_block(second, NULL) };
    tell(line, handles, sizeof handles);
    tell(line, &distance, sizeof distance);
    end_partner(partner, line);
    CHECK_OK(tcuda_free(first));
    CHECK_OK(tcuda_free(second));
    collect_until(0);
    exit(finish());
}

static void imports_twice(int line)
{
    const tcuda_ipc_handle handle = hear_handle(line);
    void *ptr = import_block(&handle, NULL, large), *again = NULL;
    CHECK(import_block(&handle, NULL, large) == ptr);
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
    CHECK_EQ(count_other_bytes(ptr, 9, large, NULL), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_ipc_export(ptr, NULL, &(tcuda_ipc_handle){ 0 }));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(ptr));
    CHECK(strstr(tcuda_last_error(), "memory of another process; tcuda_ipc_close takes") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_ipc_close((char *)ptr + 512, NULL));
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_ipc_close(ptr, NULL));
    /* No process has it any more, so that the owner may use it for something else. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_import(&handle, NULL, &again, NULL));
    CHECK(again == NULL);
    nod(line);
}

static void imports_are_counted(void)
{
    int line;
    void *none = NULL;
    const pid_t partner = start_partner(imports_twice, &line);
    void *block = allocate(large, 0, NULL);
    fill_bytes(block, 9, large, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_ipc_import(&handle, NULL, &none, NULL));
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    end_partner(partner, line);
    CHECK_OK(tcuda_free(block));
    collect_until(0);
    exit(finish());
}

static void keeps_for_a_while(int line)
{
    const tcuda_ipc_handle handle = hear_handle(line);
    void *ptr = import_block(&handle, NULL, large);
    nod(line);
    wait_for_nod(line);
    CHECK_EQ(count_other_bytes(ptr, 7, large, NULL), 0);
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
    nod(line);
}

static void what_others_have_is_not_reused(void)
{
    int line;
    const pid_t partner = start_partner(keeps_for_a_while, &line);
    void *block = allocate(large, 0, NULL);
    fill_bytes(block, 7, large, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    CHECK_OK(tcuda_free(block));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(block));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
        tcuda_ipc_export(block, NULL, &(tcuda_ipc_handle){ 0 }));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_ipc_collect());
    void *other = allocate(large, 0, NULL);
    CHECK(other != block);
    fill_bytes(other, 8, large, NULL);
    nod(line);
    wait_for_nod(line);
    end_partner(partner, line);
    CHECK_OK(tcuda_free(other));
    collect_until(0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(block));
    exit(finish());
}

static void imports_what_was_changed(int line)
{
    tcuda_ipc_handle handle = hear_handle(line);
    void *ptr = NULL;
    for (size_t i = 0; i < sizeof handle.bytes; i++) {
        for (int bit = 0; bit < 8; bit += 3) {
            handle.bytes[i] ^= (uint8_t)(1 << bit);
            const tcuda_status status = tcuda_ipc_import(&handle, NULL, &ptr, NULL);
            CHECK(status == TCUDA_STATUS_INVALID_ARGUMENT || status == TCUDA_STATUS_NO_DEVICE
                || status == TCUDA_STATUS_PEER_GONE);
            CHECK(ptr == NULL);
            handle.bytes[i] ^= (uint8_t)(1 << bit);
        }
    }
    const tcuda_ipc_handle zeros = { { 0 } };
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_import(&zeros, NULL, &ptr, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_import(NULL, NULL, &ptr, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_import(&handle, NULL, NULL, NULL));
    ptr = import_block(&handle, NULL, large);
    CHECK_EQ(count_other_bytes(ptr, 3, large, NULL), 0);
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
}

static void changed_handles_are_refused(void)
{
    int line;
    const pid_t partner = start_partner(imports_what_was_changed, &line);
    void *block = allocate(large, 0, NULL);
    fill_bytes(block, 3, large, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    tell(line, &handle, sizeof handle);
    end_partner(partner, line);
    CHECK_OK(tcuda_free(block));
    exit(finish());
}

/* Many handles behind one block come in several parts. */
static void imports_many_handles(int line)
{
    const size_t bytes = (size_t)512 * MIB;
    const tcuda_ipc_handle handle = hear_handle(line);
    void *ptr = import_block(&handle, NULL, bytes);
    CHECK_EQ(count_other_bytes((char *)ptr + bytes - MIB, 6, MIB, NULL), 0);
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
}

static void a_block_has_many_handles(void)
{
    int line;
    const size_t bytes = (size_t)512 * MIB;
    void *none = NULL;
    const pid_t partner = start_partner(imports_many_handles, &line);
    CHECK_OK(tcuda_memory_fraction_set(0, 0.2));
    /* What has run short once is taken in small handles. */
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc((size_t)1 << 50, 0, NULL, &none));
    void *block = allocate(bytes, 0, NULL);
    fill_bytes((char *)block + bytes - MIB, 6, MIB, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    tell(line, &handle, sizeof handle);
    end_partner(partner, line);
    CHECK_OK(tcuda_free(block));
    exit(finish());
}

static void cycles(int line)
{
    size_t files = 0;
    for (int i = 0; i < 100; i++) {
        const tcuda_ipc_handle handle = hear_handle(line);
        void *ptr = import_block(&handle, NULL, i % 2 ? large : small);
        CHECK_EQ(count_other_bytes(ptr, i, 100, NULL), 0);
        CHECK_OK(tcuda_ipc_close(ptr, NULL));
        nod(line);
        if (i == 10)
            files = open_files();
    }
    /* Less where what another thread had open is closed by now. */
    CHECK(open_files() <= files);
}

static void a_hundred_times_leak_nothing(void)
{
    int line;
    size_t files = 0;
    const pid_t partner = start_partner(cycles, &line);
    for (int i = 0; i < 100; i++) {
        void *block = allocate(i % 2 ? large : small, 0, NULL);
        fill_bytes(block, i, 100, NULL);
        const tcuda_ipc_handle handle = export_block(block, NULL);
        CHECK_OK(tcuda_free(block));
        tell(line, &handle, sizeof handle);
        wait_for_nod(line);
        collect_until(0);
        if (i == 10)
            files = open_files();
    }
    end_partner(partner, line);
    for (int i = 0; i < 1000 && open_files() > files; i++) {
        CHECK_OK(tcuda_ipc_collect());
        sleep_ms(1);
    }
    CHECK(open_files() <= files);
    exit(finish());
}

static void wrong_arguments_are_refused(void)
{
    tcuda_ipc_handle handle;
    char host[16];
    void *block = allocate(small, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_export(NULL, NULL, &handle));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_export(block, NULL, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_ipc_export(host, NULL, &handle));
    CHECK_OK(tcuda_ipc_close(NULL, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_ipc_close(block, NULL));
    CHECK_OK(tcuda_free(block));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_ipc_export(block, NULL, &handle));
    CHECK_OK(tcuda_ipc_collect());
    /* What no process has imported stays here until the shutdown: a receiver may be on its way. */
    block = allocate(small, 0, NULL);
    handle = export_block(block, NULL);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_ipc_collect());
    CHECK_EQ(allocated_now(), 3072);
    tcuda_ipc_handle changed = handle;
    changed.bytes[511] ^= 1;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_withdraw(&changed));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_withdraw(NULL));
    CHECK_OK(tcuda_ipc_withdraw(&handle));
    CHECK_EQ(allocated_now(), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_ipc_withdraw(&handle));
    exit(finish());
}

static void only_the_cache_is_shared(void)
{
    tcuda_ipc_handle handle;
    CHECK_OK(tcuda_memory_caching_enable(0));
    void *block = allocate(small, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_ipc_export(block, NULL, &handle));
    CHECK_OK(tcuda_free(block));
    exit(finish());
}

int main(void)
{
    if (is_without_gpu())
        return CHECK_SKIPPED;
    CASE(both_see_the_same_bytes);
    CASE(parts_keep_their_place);
    CASE(work_comes_after_what_was_queued);
    CASE(closing_comes_after_the_work);
    CASE(neighbours_share_a_mapping);
    CASE(imports_are_counted);
    CASE(what_others_have_is_not_reused);
    CASE(changed_handles_are_refused);
    CASE(a_block_has_many_handles);
    CASE(a_hundred_times_leak_nothing);
    CASE(wrong_arguments_are_refused);
    CASE(only_the_cache_is_shared);
    return finish_cases();
}
