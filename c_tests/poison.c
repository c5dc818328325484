/* poison_on_free: what is read after its end is seen. */
#include "support.h"

enum { BYTES = 5000, ROUNDED = 5120, POISON = 0xff };

static tcuda_stream *own, *other;

static void set_poison(bool on)
{
    CHECK_OK(tcuda_allocator_config_set(on ? "poison_on_free:True" : "poison_on_free:False"));
}

static void settle(void)
{
    CHECK_OK(tcuda_device_synchronize(0));
}

/* A block between two others, so that it is free by itself. */
static void freed_memory_is_poison(void)
{
    void *before = allocate(BYTES, 0, own);
    void *block = allocate(BYTES, 0, own);
    void *after = allocate(BYTES, 0, own);
    fill_bytes(before, 1, ROUNDED, own);
    fill_bytes(block, 2, ROUNDED, own);
    fill_bytes(after, 3, ROUNDED, own);
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(count_other_bytes(block, POISON, ROUNDED, own), 0);
    CHECK_EQ(count_other_bytes(before, 1, ROUNDED, own), 0);
    CHECK_EQ(count_other_bytes(after, 3, ROUNDED, own), 0);
    /* It is what the next holder finds, and whose it is. */
    void *again = allocate(BYTES, 0, own);
    CHECK(again == block);
    CHECK_EQ(count_other_bytes(again, POISON, ROUNDED, own), 0);
    fill_bytes(again, 4, ROUNDED, own);
    settle();
    CHECK_EQ(count_other_bytes(again, 4, ROUNDED, own), 0);
    CHECK_OK(tcuda_free(before));
    CHECK_OK(tcuda_free(again));
    CHECK_OK(tcuda_free(after));
}

/* Work that is queued before the free still sees what was there. */
static void earlier_work_is_not_disturbed(void)
{
    gate held = { 0 };
    void *block = allocate(BYTES, 0, own);
    void *copy = allocate(BYTES, 0, own);
    fill_bytes(block, 5, BYTES, own);
    settle();
    gate_close(&held, own);
    CHECK_OK(tcuda_copy(copy, block, BYTES, own));
    CHECK_OK(tcuda_free(block));
    gate_open(&held);
    CHECK_EQ(count_other_bytes(copy, 5, BYTES, own), 0);
    CHECK_EQ(count_other_bytes(block, POISON, BYTES, own), 0);
    CHECK_OK(tcuda_free(copy));
}

/* Nor is that of a stream that was recorded: poison comes when it is done. */
static void recorded_streams_come_first(void)
{
    gate held = { 0 };
    void *block = allocate(BYTES, 0, own);
    void *copy = allocate(BYTES, 0, other);
    fill_bytes(block, 6, BYTES, own);
    settle();
    CHECK_OK(tcuda_record_stream(block, other));
    gate_close(&held, other);
    CHECK_OK(tcuda_copy(copy, block, BYTES, other));
    CHECK_OK(tcuda_free(block));
    /* Allocating looks for freed blocks whose streams are done; this one's is not. */
    void *early = allocate(BYTES, 0, own);
    CHECK(early != block || !runs_late());
    gate_open(&held);
    CHECK_EQ(count_other_bytes(copy, 6, BYTES, other), 0);
    settle();
    if (early == block)
        CHECK_OK(tcuda_free(early));
    /* What was freed before it may come before it. */
    enum { MOST = 8 };
    void *sooner[MOST];
    int count = 0;
    void *late = allocate(BYTES, 0, own);
    for (; late != block && count < MOST; count++) {
        sooner[count] = late;
        late = allocate(BYTES, 0, own);
    }
    CHECK(late == block);
    CHECK_EQ(count_other_bytes(late, POISON, BYTES, own), 0);
    if (early != block)
        CHECK_OK(tcuda_free(early));
    while (count > 0)
        CHECK_OK(tcuda_free(sooner[--count]));
    CHECK_OK(tcuda_free(late));
    CHECK_OK(tcuda_free(copy));
}

static void it_can_be_turned_off(void)
{
    void *stays = allocate(BYTES, 0, own);
    void *block = allocate(BYTES, 0, own);
    fill_bytes(block, 7, BYTES, own);
    set_poison(false);
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(count_other_bytes(block, 7, BYTES, own), 0);
    CHECK_OK(tcuda_free(stays));
    set_poison(true);
}

/* A free does not fail because its poison does. */
static void failures_are_none(void)
{
    void *block = allocate(BYTES, 0, own);
    fill_bytes(block, 8, BYTES, own);
    settle();
    CHECK_OK(tcuda_backend_inject("cuMemsetD8Async", 1, 1, false));
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(count_other_bytes(block, 8, BYTES, own), 0);
    CHECK_OK(tcuda_backend_inject(NULL, 0, 0, false));
}

int main(void)
{
    char text[2048];
    size_t needed = 0;
    SKIP_WITHOUT_GPU();
    set_poison(true);
    CHECK_OK(tcuda_allocator_config_get(text, sizeof text, &needed));
    CHECK(strstr(text, ",poison_on_free:True") != NULL);
    own = create_stream(0);
    other = create_stream(0);
    freed_memory_is_poison();
    earlier_work_is_not_disturbed();
    recorded_streams_come_first();
    it_can_be_turned_off();
    if (on_simulator())
        failures_are_none();
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(other));
    return finish();
}
