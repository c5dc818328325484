// Work that needs a GPU to mean anything: steps on streams in rotation, and giving everything back
// and getting it again; and the small operations of streams and events.
#pragma once

#include "gpu.hpp"
#include "measure.hpp"
#include "peer.hpp"
#include "small.hpp"

namespace bench {

/// A training step on a stream: layers that leave activations and have workspaces, then backwards,
/// with a gradient each. How long the sequences are changes from step to step.
template <Peer P> class Step {
public:
    Step(typename P::Stream stream, int number) : activations{stream}, workspace{stream}
    {
        static constexpr int LENGTHS[] = {100, 93, 78, 100, 85, 64, 97, 71};
        length = size_t(LENGTHS[number % 8]);
    }

    void forward()
    {
        for (int layer = 0; layer < LAYERS; layer++) {
            for (const size_t mib : {16, 4, 32}) take(activations, mib * MIB * length / 100);
            take(activations, 64 * KIB * length / 100);
            take(workspace, 48 * MIB * length / 100);
            drop(workspace);
        }
    }

    void backward()
    {
        for (int layer = LAYERS; layer-- > 0;) {
            take(workspace, 32 * MIB * length / 100);
            for (int i = 0; i < 4; i++) drop(activations);
            take(workspace, 8 * MIB);
            drop(workspace);
            drop(workspace);
        }
    }

    uint64_t peak = 0;

private:
    static constexpr int LAYERS = 24;
    Blocks<P> activations, workspace;
    size_t length;
    uint64_t live = 0;

    void take(Blocks<P> &blocks, size_t bytes)
    {
        blocks.allocate(bytes);
        live += (bytes + 511) / 512 * 512;
        peak = std::max(peak, live);
    }

    void drop(Blocks<P> &blocks)
    {
        live -= (blocks.list.back().second + 511) / 512 * 512;
        blocks.release_last();
    }
};

/// Step after step on one stream after the other, each with a kernel of 1 ms; the host is four
/// steps ahead. Its blocks are freed before their step has run, so that a stream may take
/// another one's memory only behind an event.
template <Peer P> void rotation(const std::string &how = "")
{
    if (simulated) return skipped("rotation", "skipped", "needs a GPU");
    constexpr size_t AHEAD = 4;
    const int steps = quick ? 60 : 120;
    Gpu gpu;
    for (const size_t count : {size_t(4), size_t(8)}) {
        std::vector<typename P::Stream> streams;
        for (size_t i = 0; i < count; i++) streams.push_back(P::new_stream());
        std::vector<CUevent> ends;
        for (size_t i = 0; i < AHEAD; i++) ends.push_back(gpu.new_event());
        P::synchronize();
        P::empty_cache();
        P::reset_peaks();
        uint64_t allocated = 0, reserved = 0;
        // Once while memory grows, and once more.
        double ms[2];
        for (double &time : ms) {
            const auto start = Clock::now();
            for (int i = 0; i < steps; i++) {
                const auto stream = streams[size_t(i) % count];
                const CUevent end = ends[size_t(i) % AHEAD];
                if (size_t(i) >= AHEAD) gpu.wait(end);
                Step<P> step(stream, i);
                step.forward();
                gpu.spin(P::native(stream), 1000000);
                step.backward();
                gpu.record(end, P::native(stream));
                allocated = std::max(allocated, step.peak);
                reserved = std::max(reserved, P::usage().reserved);
            }
            P::synchronize();
            time = ns_since(start) / 1e6;
        }
        reserved = std::max(reserved, P::usage().peak_reserved);
        Row row("rotation", "streams_" + std::to_string(count) + how);
        row.figure("ms", ms[0]).figure("again_ms", ms[1]);
        if (reserved != 0)
            row.figure("reserved_over_allocated", double(reserved) / double(allocated));
    }
    P::empty_cache();
    if constexpr (requires { P::share_always(true); }) {
        if (!how.empty()) return;
        P::share_always(true);
        rotation<P>("_shared");
        P::share_always(false);
    }
}

/// 40 GiB, or half of the device, in blocks of 64 MiB: given back to the driver, and got again.
template <Peer P> void regrow()
{
    if (simulated) return skipped("regrow", "skipped", "needs a GPU");
    if constexpr (P::empties) {
        const size_t bytes = 64 * MIB, half = P::memory_bytes() / 2;
        const size_t count = std::min(40 * GIB, half) / bytes;
        Blocks<P> blocks{P::new_stream()};
        double grow = 0, empty = 0;
        for (int round = 0; round < 3; round++) {
            P::synchronize();
            P::empty_cache();
            auto start = Clock::now();
            for (size_t i = 0; i < count; i++) blocks.allocate(bytes);
            P::synchronize();
            const double grown = ns_since(start) / 1e6;
            blocks.release_all();
            P::synchronize();
            start = Clock::now();
            P::empty_cache();
            const double emptied = ns_since(start) / 1e6;
            // The first round is on addresses that are new to the driver.
            grow = round < 2 ? grown : std::min(grow, grown);
            empty = round < 2 ? emptied : std::min(empty, emptied);
        }
        const std::string size = std::to_string(count / 16) + "_GiB";
        Row("regrow", "grow_" + size).figure("ms", grow);
        Row("regrow", "empty_cache_" + size).figure("ms", empty);
        Row("regrow", "both_" + size).figure("ms", grow + empty);
    } else {
        skipped("regrow", "skipped", "it gives nothing back");
    }
}

// ---- Streams and events ----

template <Peer P> void events()
{
    if constexpr (requires { typename P::Event; }) {
        const auto stream = P::new_stream();
        const auto row = [](const char *name, auto operation) {
            Row("events", name).figure("ns", best_ns([&](long) { operation(); }));
        };
        typename P::Event event;
        row("event_record", [&] { event.record(stream); });
        P::synchronize();
        row("event_query", [&] { event.query(); });
        row("event_create_record_destroy", [&] {
            typename P::Event fresh;
            fresh.record(stream);
        });
        P::synchronize();
        row("stream_query", [&] { P::stream_query(stream); });
        if constexpr (requires { P::current_stream(); }) {
            row("current_stream", [] { P::current_stream(); });
            row("stream_exchange_restore", [&] { P::exchange_stream(stream); });
        }
    } else {
        skipped("events", "skipped", "it has no streams and events of its own");
    }
}

} // namespace bench
