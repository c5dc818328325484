/* Marks and ranges, as a tool receives them. */
#include <dlfcn.h>
#include <stdlib.h>

#include "../support.h"
#include "listener.h"

static listener_take_fn take;
static listener_view view;

/* What the tool has received since the last call, but of the library's own ranges. */
static size_t told_now(void)
{
    take(&view);
    CHECK_EQ(view.num_errors, 0);
    CHECK_EQ(view.num_tools, 1);
    size_t count = 0;
    for (size_t i = 0; i < view.count; i++)
        if (view.events[i].kind < EVENT_OWN_PUSH)
            view.events[count++] = view.events[i];
    return count;
}

static void check_event(size_t index, event_kind kind, const char *message)
{
    CHECK_EQ(view.events[index].kind, kind);
    CHECK_STR(view.events[index].message, message);
}

static int32_t push(const char *message)
{
    int32_t depth = -1;
    CHECK_OK(tcuda_nvtx_range_push(message, &depth));
    return depth;
}

static int32_t pop(void)
{
    int32_t depth = -1;
    CHECK_OK(tcuda_nvtx_range_pop(&depth));
    return depth;
}

static void *push_elsewhere(void *unused)
{
    (void)unused;
    CHECK_EQ(push("elsewhere"), 0);
    CHECK_EQ(pop(), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_nvtx_range_pop(NULL));
    return NULL;
}

static void marks_and_nested_ranges_arrive(void)
{
    CHECK_OK(tcuda_nvtx_mark("a mark"));
    CHECK_EQ(push("outer"), 0);
    CHECK_EQ(push("inner \xff"), 1); /* whatever bytes */
    run_on_thread(push_elsewhere, NULL);
    CHECK_EQ(pop(), 1);
    CHECK_EQ(pop(), 0);
    CHECK_EQ(told_now(), 7);
    check_event(0, EVENT_MARK, "a mark");
    check_event(1, EVENT_PUSH, "outer");
    check_event(2, EVENT_PUSH, "inner \xff");
    check_event(3, EVENT_PUSH, "elsewhere");
    check_event(4, EVENT_POP, "");
    check_event(6, EVENT_POP, "");
    CHECK(view.events[3].thread != view.events[2].thread);
    CHECK(view.events[5].thread == view.events[0].thread);
}

static void what_makes_no_sense_is_not_told(void)
{
    int32_t depth = 77;
    uint64_t id = 77;
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_nvtx_range_pop(&depth));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_mark(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_range_push(NULL, &depth));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_range_start(NULL, &id));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_range_start("nowhere", NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_device_range_start(NULL, NULL, &id));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_device_range_end(4711, NULL));
    CHECK(depth == 77 && id == 77);
    CHECK_EQ(told_now(), 0);
}

static void *end_it(void *id)
{
    CHECK_OK(tcuda_nvtx_range_end(*(uint64_t *)id));
    return NULL;
}

static void ranges_end_on_any_thread(void)
{
    uint64_t first = 0, second = 0;
    CHECK_OK(tcuda_nvtx_range_start("first", &first));
    CHECK_OK(tcuda_nvtx_range_start("second", &second));
    run_on_thread(end_it, &first);
    CHECK_OK(tcuda_nvtx_range_end(second));
    CHECK_EQ(told_now(), 4);
    check_event(0, EVENT_START, "first");
    check_event(1, EVENT_START, "second");
    /* The numbers are the tool's. */
    CHECK(view.events[0].id == first && view.events[1].id == second);
    CHECK(view.events[2].kind == EVENT_END && view.events[2].id == first);
    CHECK(view.events[3].kind == EVENT_END && view.events[3].id == second);
}

static void ranges_of_a_stream_are_in_its_order(void)
{
    gate held = { 0 };
    uint64_t id = 0;
    tcuda_stream *stream = create_stream(0);
    char message[] = "of the stream";
    gate_close(&held, stream);
    CHECK_OK(tcuda_nvtx_device_range_start(message, stream, &id));
    memset(message, 'x', sizeof message - 1); /* it was copied */
    CHECK_OK(tcuda_nvtx_device_range_end(id, stream));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_device_range_end(id, stream));
    if (runs_late())
        CHECK_EQ(told_now(), 0);
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(told_now(), 2);
    check_event(0, EVENT_START, "of the stream");
    CHECK(view.events[1].kind == EVENT_END && view.events[1].id == view.events[0].id);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* An end that comes first closes the range as it opens. CUDA runs the callbacks of all streams on
 * one thread, so that what holds back one there holds back the other. */
static void streams_that_are_not_in_order(void)
{
    if (!runs_late() || !on_simulator())
        return;
    gate held = { 0 };
    uint64_t id = 0;
    tcuda_stream *late = create_stream(0), *early = create_stream(0);
    gate_close(&held, late);
    CHECK_OK(tcuda_nvtx_device_range_start("late", late, &id));
    CHECK_OK(tcuda_nvtx_device_range_end(id, early));
    CHECK_OK(tcuda_stream_synchronize(early));
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(late));
    CHECK_EQ(told_now(), 2);
    CHECK(view.events[0].kind == EVENT_START && view.events[1].kind == EVENT_END);
    CHECK_OK(tcuda_stream_destroy(late));
    CHECK_OK(tcuda_stream_destroy(early));
}

static void ranges_of_a_graph_come_with_each_replay(void)
{
    uint64_t id = 0;
    tcuda_graph *graph = NULL;
    tcuda_stream *stream = create_stream(0);
    void *block = allocate(4096, 0, stream);
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_THREAD_LOCAL));
    CHECK_OK(tcuda_nvtx_device_range_start("replay", stream, &id));
    fill_bytes(block, 1, 4096, stream);
    CHECK_OK(tcuda_nvtx_device_range_end(id, stream));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_EQ(told_now(), 0);
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_graph_replay(graph, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(told_now(), 6);
    for (size_t i = 0; i < 6; i += 2) {
        check_event(i, EVENT_START, "replay");
        CHECK(view.events[i + 1].kind == EVENT_END && view.events[i + 1].id == view.events[i].id);
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* With TCUDA_NVTX=1 each call of the library is a range of its own domain. */
static void calls_are_ranges_where_that_is_wanted(void)
{
    const char *wanted = getenv("TCUDA_NVTX");
    take(&view);
    tcuda_stream *stream = create_stream(0);
    void *block = allocate(100, 0, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_free(block));
    /* A range that fails ends, too. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
    take(&view);
    CHECK_EQ(view.num_errors, 0);
    if (wanted == NULL) {
        CHECK_EQ(view.count, 0);
        return;
    }
    static const char *const calls[] = { "tcuda_stream_create", "tcuda_malloc",
        "tcuda_stream_synchronize", "tcuda_free", "tcuda_free", "tcuda_stream_destroy" };
    CHECK_EQ(view.count, 12);
    for (size_t i = 0; i < 6; i++) {
        check_event(2 * i, EVENT_OWN_PUSH, calls[i]);
        check_event(2 * i + 1, EVENT_OWN_POP, "");
    }
}

static void a_shutdown_forgets_ranges_of_streams(void)
{
    uint64_t id = 0;
    CHECK_OK(tcuda_nvtx_device_range_start("left open", NULL, &id));
    CHECK_EQ(push("over the shutdown"), 0);
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_nvtx_device_range_end(id, NULL));
    CHECK_EQ(pop(), 0);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    void *const tool = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_NOW);
    CHECK(tool != NULL);
    *(void **)&take = dlsym(tool, "listener_take");
    CHECK(take != NULL);
    marks_and_nested_ranges_arrive(); /* also before the library is initialised */
    CHECK_OK(tcuda_init());
    (void)told_now();
    what_makes_no_sense_is_not_told();
    ranges_end_on_any_thread();
    ranges_of_a_stream_are_in_its_order();
    streams_that_are_not_in_order();
    ranges_of_a_graph_come_with_each_replay();
    calls_are_ranges_where_that_is_wanted();
    a_shutdown_forgets_ranges_of_streams();
    return finish();
}
