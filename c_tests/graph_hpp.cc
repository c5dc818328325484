// tcuda.hpp: captures of graphs, with exceptions and without.

#include "hpp.h"
#include <memory>

static_assert(std::is_nothrow_move_constructible_v<tcuda::graph>);
static_assert(!std::is_copy_constructible_v<tcuda::graph>);
static_assert(!std::is_move_constructible_v<tcuda::graph_capture>);

static std::int64_t id_of(tcuda::stream_view stream) {
    return value_of(stream.id());
}

static std::int64_t current_id() { return id_of(value_of(tcuda::stream_view::current())); }

static bool is_capturing(tcuda::stream_view stream) { return value_of(stream.is_capturing()); }

static int byte_at(const tcuda::allocation &memory) {
    unsigned char byte = 0;
    TOOK(tcuda::copy(&byte, memory.get(), 1));
    TOOK(value_of(tcuda::stream_view::current()).synchronize());
    return byte;
}

static void test_capture() {
    const std::int64_t outside = current_id();
    tcuda::allocation memory(4096);
    TOOK(tcuda::fill<unsigned char>(memory.get(), 1, 4096));
    tcuda::graph graph, second(true);
    std::int64_t side = 0;
    {
        tcuda::graph_capture capture(graph);
        expect(capture.status() == TCUDA_STATUS_OK, "a capture begins");
        side = current_id();
        expect(side != outside && side == id_of(capture.stream()), "its stream is current");
        expect(is_capturing(capture.stream()), "and captured");
        TOOK(tcuda::fill<unsigned char>(memory.get(), 2, 4096));
        TOOK(capture.end());
        expect(current_id() == outside, "the end restores the stream");
    }
    expect(current_id() == outside && byte_at(memory) == 1, "nothing has run");
    TOOK(graph.replay());
    expect(byte_at(memory) == 2, "a replay runs it");
    {
        tcuda::graph_capture capture(second);
        expect(current_id() == side, "the side stream is the same each time");
        TOOK(tcuda::fill<unsigned char>(memory.get(), 3, 4096));
        TOOK(capture.end());
    }
    TOOK(graph.update(second));
    TOOK(second.instantiate());
    TOOK(graph.replay());
    expect(byte_at(memory) == 3, "an update takes over what another runs");
    TOOK(graph.clear());
    expect(static_cast<bool>(graph), "a graph that was cleared has a handle");
}

static void test_bodies() {
    const std::int64_t outside = current_id();
    tcuda::graph graph;
    const tcuda::allocation predicate(1), memory(4096);
    TOOK(tcuda::fill<unsigned char>(memory.get(), 1, 4096));
    TOOK(tcuda::fill<unsigned char>(predicate.get(), 0, 1));
    {
        tcuda::graph_capture capture(graph);
        const std::int64_t side = current_id();
        {
            tcuda::graph_body body(graph, TCUDA_CONDITION_WHILE, predicate.get());
            expect(body.status() == TCUDA_STATUS_OK, "a body begins");
            expect(current_id() == id_of(body.stream()) && current_id() != side,
                "its stream is current");
            TOOK(tcuda::fill<unsigned char>(memory.get(), 2, 4096));
            TOOK(tcuda::fill<unsigned char>(predicate.get(), 0, 1));
            TOOK(body.set(predicate.get()));
            TOOK(body.end());
            expect(current_id() == side, "the end restores the stream");
        }
        {
            const tcuda::graph_body empty(graph, TCUDA_CONDITION_IF, predicate.get());
        }
        expect(current_id() == side, "so does a scope that is left");
        TOOK(capture.end());
    }
    expect(current_id() == outside, "as before the capture");
    TOOK(graph.replay());
    expect(byte_at(memory) == 1, "a body without its condition does not run");
    TOOK(tcuda::fill<unsigned char>(predicate.get(), 1, 1));
    TOOK(graph.replay());
    expect(byte_at(memory) == 2, "with it, it does");
}

static void test_abandoned() {
    const std::int64_t outside = current_id();
    tcuda::graph graph;
    tcuda::stream own;
    {
        const tcuda::graph_capture capture(graph, nullptr, own, TCUDA_CAPTURE_THREAD_LOCAL);
        expect(is_capturing(own) && current_id() == id_of(own), "a stream of one's own");
    }
    expect(!is_capturing(own) && current_id() == outside, "a scope that is left aborts");
#ifdef TCUDA_NO_EXCEPTIONS
    expect(graph.replay() == TCUDA_STATUS_INVALID_STATE, "nothing was captured");
#else
    try {
        const tcuda::graph_capture capture(graph);
        throw 7;
    } catch (int) {
        expect(current_id() == outside, "an exception aborts");
    }
    try {
        tcuda::graph_capture capture(graph);
        tcuda::stream_view stream = capture.stream();
        try {
            stream.synchronize();
            expect(false, "waiting for a captured stream throws");
        } catch (const tcuda::error &error) {
            expect(error.status() == TCUDA_STATUS_CAPTURING, error.what());
        }
        capture.end();
        expect(false, "a broken capture throws");
    } catch (const tcuda::error &error) {
        expect(error.status() == TCUDA_STATUS_CAPTURE_INVALIDATED, error.what());
        expect(current_id() == outside, "the stream is restored");
    }
    try {
        graph.replay();
        expect(false, "nothing was captured");
    } catch (const tcuda::error &error) {
        expect(error.status() == TCUDA_STATUS_INVALID_STATE, error.what());
    }
#endif
    // And then it works.
    tcuda::graph_capture capture(graph);
    TOOK(capture.end());
    TOOK(graph.replay());
}

// Hooks of one graph and of all, and annotations in a scope.
static void test_hooks() {
    tcuda::allocation memory(4096);
    tcuda::graph graph(true);
    int of_one = 0;
    const auto count = std::make_shared<int>(0);
    char json[4096] = "";
    {
        tcuda::graph_hook one(TCUDA_GRAPH_CAPTURE_ENDED | TCUDA_GRAPH_DESTROYED,
            [&](tcuda_graph_event, tcuda_graph *seen, CUgraph_st *, CUgraphExec_st *) {
                expect(seen == graph.get(), "a hook sees its graph");
                of_one++;
            },
            &graph);
        const tcuda::graph_hook all(TCUDA_GRAPH_CAPTURE_BEGUN | TCUDA_GRAPH_CAPTURE_ENDED,
            [count](auto...) { ++*count; });
        expect(one && all && count.use_count() == 2, "both are registered");
        tcuda::graph_capture capture(graph);
        {
            const tcuda::graph_annotation annotation("a scope", capture.stream());
            expect(annotation.status() == TCUDA_STATUS_OK, "it begins");
            TOOK(tcuda::fill<unsigned char>(memory.get(), 2, 4096));
        }
        TOOK(tcuda::fill<unsigned char>(memory.get(), 3, 4096));
        TOOK(capture.end());
        expect(of_one == 1 && *count == 2, "they were called");
        TOOK(tcuda::check(tcuda_graph_data_json(graph.get(), json, sizeof json, nullptr)));
        const char *const found = std::strstr(json, "\"a scope\"");
        expect(found != nullptr && std::strstr(found + 1, "\"a scope\"") == nullptr,
            "the annotation is on one node");
        one = tcuda::graph_hook(TCUDA_GRAPH_DESTROYED, [](auto...) {}, &graph);
        TOOK(graph.clear());
    }
    expect(of_one == 1 && count.use_count() == 1, "hooks that ended are not called");
#ifdef TCUDA_NO_EXCEPTIONS
    const tcuda::graph_hook none(0, [count](auto...) {});
    expect(none.status() == TCUDA_STATUS_INVALID_ARGUMENT && !none, "no event");
#else
    try {
        const tcuda::graph_hook none(0, [count](auto...) {});
        expect(false, "no event throws");
    } catch (const tcuda::error &error) {
        expect(error.status() == TCUDA_STATUS_INVALID_ARGUMENT, error.what());
    }
#endif
    expect(count.use_count() == 1, "a hook that was refused is destroyed");
}

int main() {
    begin_test();
    test_capture();
    test_bodies();
    test_abandoned();
    test_hooks();
    return finish_test();
}
