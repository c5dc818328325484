// tcuda.hpp: captures of graphs, with exceptions and without.

#include "hpp.h"
#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

static_assert(moves_only<tcuda::graph> && moves_only<tcuda::graphed_callable>);
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

// Pools that graphs share, and objects that they keep.
static void test_pools() {
    const tcuda::mem_pool shared = tcuda::mem_pool::for_graphs();
    const auto held = std::make_shared<int>(0);
    tcuda::graph first, second(true);
    {
        tcuda::graph_capture capture(first, shared);
        const tcuda::allocation inside(4096);
        TOOK(tcuda::fill<unsigned char>(inside.get(), 1, 4096));
        TOOK(first.retain(held, false));
        TOOK(capture.end());
    }
    const tcuda::mem_pool pool = first.pool();
    expect(value_of(pool.id()) == value_of(shared.id()), "a graph has the pool of its capture");
    std::vector<tcuda::mem_pool> pools;
    TOOK(first.pools(std::back_inserter(pools)));
    expect(pools.size() == 1 && value_of(pools[0].id()) == value_of(shared.id()), "just that");
    FAILS(TCUDA_STATUS_INVALID_STATE, second.pool());
    expect(held.use_count() == 2, "a graph keeps an object");
    TOOK(first.clear());
    expect(held.use_count() == 1, "until it is cleared");
    {
        tcuda::graph_capture capture(second);
        TOOK(second.retain(held, true));
        TOOK(capture.end());
    }
    std::string dot;
    TOOK(tcuda::read_into(dot, tcuda_graph_data_dot, second));
    expect(dot.find("digraph") != std::string::npos, "a text of a graph");
    second.reset();
    expect(held.use_count() == 1, "or destroyed");
}

// Fills its output with its input, which is 64 bytes, and writes a mark at its beginning.
struct layer {
    std::shared_ptr<int> runs;
    unsigned char mark;

    std::int32_t operator()(tcuda::list<tcuda_tensor> inputs, tcuda::stream_view stream,
        tcuda_tensor *outputs) const {
        static std::int64_t shape[] = {64};
        ++*runs;
        void *data = nullptr;
        if (inputs.size() != 1 || tcuda_malloc(64, -1, stream.get(), &data) != TCUDA_STATUS_OK)
            return 5;
        const bool queued = tcuda_copy(data, inputs[0].data, 64, stream.get()) == TCUDA_STATUS_OK
            && tcuda_fill(data, &mark, 1, 1, stream.get()) == TCUDA_STATUS_OK;
        outputs[0] = inputs[0];
        outputs[0].data = data;
        outputs[0].shape = shape;
        outputs[0].strides = nullptr;
        return queued ? 0 : 6;
    }
};

static std::array<unsigned char, 64> bytes_of(const tcuda_tensor &tensor) {
    std::array<unsigned char, 64> host{};
    TOOK(tcuda::copy(host.data(), tensor.data, host.size()));
    TOOK(value_of(tcuda::stream_view::current()).synchronize());
    return host;
}

static void test_callables() {
    const tcuda::allocation memory(64);
    const tcuda::tensor_view<1> input = tcuda::view(memory.as<unsigned char>(), {64}, 0);
    const std::array<tcuda_tensor, 1> samples = {input};
    TOOK(tcuda::fill<unsigned char>(memory.get(), 3, 64));
    const auto runs = std::make_shared<int>(0), other = std::make_shared<int>(0);
    {
        const tcuda::graphed_callable forward(tcuda::callable(layer{runs, 7}, samples, 1));
        // Three runs to warm up, and the capture.
        expect(*runs == 4 && runs.use_count() == 2, "a callable is captured");
        tcuda_tensor output = {};
        TOOK(tcuda::fill<unsigned char>(memory.get(), 4, 64));
        TOOK(forward({input}, &output, 1));
        const auto bytes = bytes_of(output);
        expect(bytes[0] == 7 && bytes[1] == 4 && bytes[63] == 4, "a replay has the new input");
        expect(*runs == 4, "and runs no code of the host");
        FAILS(TCUDA_STATUS_INVALID_ARGUMENT, forward({}, &output, 1));
        FAILS(TCUDA_STATUS_INVALID_STATE, forward.backward({output}, &output, 1));
    }
    expect(runs.use_count() == 1, "its function object ends with it");
    {
        auto options = tcuda_graphed_callable_options(TCUDA_INIT(tcuda_graphed_callable_options));
        options.warmup_iterations = 1;
        std::vector<tcuda::callable> callables;
        callables.emplace_back(layer{runs, 1}, layer{other, 2}, samples, 1);
        callables.emplace_back(layer{runs, 3}, layer{other, 4}, samples, 1);
        std::vector<tcuda::graphed_callable> graphed;
        TOOK(tcuda::graphed_callable::create_all(callables, std::back_inserter(graphed), &options));
        callables.clear();
        expect(graphed.size() == 2 && *runs == 8 && *other == 4, "two, forward and backward");
        tcuda_tensor outputs[2] = {}, gradients[2] = {};
        TOOK(graphed[0]({input}, &outputs[0], 1));
        TOOK(graphed[1]({outputs[0]}, &outputs[1], 1));
        TOOK(graphed[1].backward({outputs[1]}, &gradients[1], 1));
        TOOK(graphed[0].backward({gradients[1]}, &gradients[0], 1));
        expect(bytes_of(outputs[1])[0] == 3 && bytes_of(gradients[0])[0] == 2, "marks of each");
        expect(bytes_of(gradients[0])[63] == 4, "and the input's last byte");
    }
    expect(runs.use_count() == 1 && other.use_count() == 1, "all function objects end");
    const auto fails = [runs](auto...) { return std::int32_t{77}; };
    FAILS(TCUDA_STATUS_CALLBACK_FAILED,
        tcuda::graphed_callable(tcuda::callable(fails, samples, 1)));
    expect(tcuda_last_error_native() == 77 && runs.use_count() == 2, "its code; it is destroyed");
}

int main() {
    begin_test();
    test_capture();
    test_bodies();
    test_abandoned();
    test_hooks();
    test_pools();
    test_callables();
    return finish_test();
}
