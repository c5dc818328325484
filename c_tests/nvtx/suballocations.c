/* nvtx_suballocations: a tool knows segments and blocks, and nothing else. */
#include <dlfcn.h>
#include <stdlib.h>

#include "../support.h"
#include "tool.h"

static tool_look_fn look;

static tool_view view_now(void)
{
    tool_view view;
    look(&view);
    CHECK_EQ(view.num_errors, 0);
    return view;
}

static bool knows(const void *ptr, size_t bytes)
{
    const tool_view view = view_now();
    for (size_t i = 0; i < view.num_regions; i++)
        if (view.regions[i].address == (uintptr_t)ptr)
            return view.regions[i].bytes == bytes;
    return false;
}

static void segments_and_blocks_are_known(void)
{
    tcuda_stream *stream = create_stream(0);
    void *small = allocate(1000, 0, stream);
    tool_view view = view_now();
    CHECK_EQ(view.num_heaps, 1);
    CHECK_EQ(view.heaps[0].address, (uintptr_t)small);
    CHECK_EQ(view.heaps[0].bytes, 2 << 20);
    CHECK_EQ(view.num_regions, 1);
    CHECK(knows(small, 1000));
    void *next = allocate(7, 0, stream);
    void *large = allocate(3 << 20, 0, stream);
    CHECK((char *)next == (char *)small + 1024);
    CHECK(knows(next, 7) && knows(large, 3 << 20));
    view = view_now();
    CHECK_EQ(view.num_heaps, 2);
    CHECK_EQ(view.num_regions, 3);
    CHECK_OK(tcuda_free(small));
    CHECK(!knows(small, 1000));
    CHECK_EQ(view_now().num_regions, 2);
    void *again = allocate(513, 0, stream);
    CHECK(again == small && knows(again, 513));
    CHECK_OK(tcuda_free(again));
    CHECK_OK(tcuda_free(next));
    CHECK_OK(tcuda_free(large));
    view = view_now();
    CHECK_EQ(view.num_regions, 0);
    CHECK_EQ(view.num_heaps, 2);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(view_now().num_heaps, 0);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* What other streams still use is a block. */
static void blocks_wait_for_their_streams(void)
{
    gate held = { 0 };
    tcuda_stream *own = create_stream(0), *other = create_stream(0);
    void *block = allocate(5000, 0, own);
    CHECK_OK(tcuda_record_stream(block, other));
    gate_close(&held, other);
    CHECK_OK(tcuda_free(block));
    CHECK(knows(block, 5000));
    gate_open(&held);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(view_now().num_heaps, 0);
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* A shutdown leaves nothing behind, and forgets the setting. */
static void nothing_is_left_behind(void)
{
    (void)allocate(100, 0, NULL);
    CHECK_EQ(view_now().num_regions, 1);
    CHECK_OK(tcuda_shutdown(NULL));
    const tool_view view = view_now();
    CHECK_EQ(view.num_heaps, 0);
    CHECK_EQ(view.num_regions, 0);
}

static void it_is_off_unless_asked_for(void)
{
    CHECK_OK(tcuda_allocator_config_set("nvtx_suballocations:False"));
    void *block = allocate(100, 0, NULL);
    CHECK_EQ(view_now().num_heaps, 0);
    /* Segments that are there already stay unknown, and so do their blocks. */
    CHECK_OK(tcuda_allocator_config_set("nvtx_suballocations:True"));
    void *second = allocate(100, 0, NULL);
    CHECK_EQ(view_now().num_regions, 0);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_free(second));
    CHECK_OK(tcuda_memory_empty_cache());
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    void *const tool = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_NOW);
    CHECK(tool != NULL);
    *(void **)&look = dlsym(tool, "tool_look");
    CHECK(look != NULL);
    it_is_off_unless_asked_for();
    segments_and_blocks_are_known();
    blocks_wait_for_their_streams();
    nothing_is_left_behind();
    return finish();
}
