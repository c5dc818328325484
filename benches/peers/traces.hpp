// Traces of real programs: time of a cold and of a warm pass, peak of what is reserved, calls of
// the driver, memory over time, and the smallest limit at which a trace completes.
#pragma once

#include "measure.hpp"
#include "peer.hpp"

#include <fstream>
#include <sstream>
#include <unordered_map>

namespace bench {

/// 16 bytes; a free has the bytes and the stream too, because some peers want them.
struct Event {
    uint64_t bytes;
    uint32_t slot; ///< where the pointer lives; used again after the free
    uint16_t stream, is_alloc;
};

struct Trace {
    std::string name;
    std::vector<Event> events;
    uint32_t slots = 0;
    int streams = 1;
    /// The most bytes that are live at once, each block rounded up to 512: what an allocator that
    /// wastes nothing reserves.
    uint64_t peak_allocated = 0;
};

inline Trace read_trace(const std::string &path)
{
    std::ifstream in(path);
    if (!in) fail(path + ": cannot be opened");
    Trace trace;
    trace.name = path.substr(path.find_last_of('/') + 1);
    if (const size_t end = trace.name.find(".trace"); end != std::string::npos)
        trace.name.resize(end);
    struct Live {
        uint32_t slot;
        uint16_t stream;
        uint64_t bytes;
    };
    std::unordered_map<uint64_t, Live> live;
    std::vector<uint32_t> free_slots;
    uint64_t allocated = 0;
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream fields(line);
        char kind = 0;
        uint64_t id = 0;
        Event event{};
        fields >> kind >> id;
        if (kind == 'a') {
            fields >> event.bytes >> event.stream;
            event.is_alloc = 1;
            if (free_slots.empty()) {
                event.slot = trace.slots++;
            } else {
                event.slot = free_slots.back();
                free_slots.pop_back();
            }
            live[id] = {event.slot, event.stream, event.bytes};
            trace.streams = std::max(trace.streams, event.stream + 1);
            allocated += (event.bytes + 511) / 512 * 512;
            trace.peak_allocated = std::max(trace.peak_allocated, allocated);
        } else if (const auto place = live.find(id); kind == 'f' && place != live.end()) {
            event = {place->second.bytes, place->second.slot, place->second.stream, 0};
            free_slots.push_back(event.slot);
            allocated -= (event.bytes + 511) / 512 * 512;
            live.erase(place);
        } else {
            fields.setstate(std::ios::failbit);
        }
        if (!fields) fail(path + ": wrong line '" + line + "'");
        trace.events.push_back(event);
    }
    return trace;
}

/// A trace on the streams and blocks of a peer.
template <Peer P> class Player {
public:
    explicit Player(const Trace &what) : trace(what), live(what.slots)
    {
        streams.push_back(P::default_stream());
        while (int(streams.size()) < trace.streams) streams.push_back(P::new_stream());
    }

    ~Player() { release_all(); }

    /// False: memory was short. `look(i)` comes before event i.
    template <class Look> bool pass(Look look)
    {
        for (size_t i = 0; i < trace.events.size(); i++) {
            const Event &event = trace.events[i];
            look(i);
            void *&block = live[event.slot];
            if (event.is_alloc) {
                block = P::allocate(event.bytes, streams[event.stream]);
                if (block == nullptr) [[unlikely]]
                    return played = i, false;
            } else {
                P::release(block, event.bytes, streams[event.stream]);
                block = nullptr;
            }
        }
        played = trace.events.size();
        return true;
    }

    bool pass()
    {
        return pass([](size_t) {});
    }

    /// What the last pass left.
    void release_all()
    {
        std::vector<const Event *> last(trace.slots);
        for (size_t i = 0; i < played; i++)
            if (trace.events[i].is_alloc) last[trace.events[i].slot] = &trace.events[i];
        for (size_t slot = 0; slot < live.size(); slot++) {
            if (live[slot] != nullptr)
                P::release(live[slot], last[slot]->bytes, streams[last[slot]->stream]);
            live[slot] = nullptr;
        }
    }

private:
    const Trace &trace;
    std::vector<void *> live;
    std::vector<typename P::Stream> streams;
    size_t played = 0;
};

/// An allocator that does nothing: what the loop, its events and its pointers cost alone.
template <Peer P> struct Nothing : P {
    static void *allocate(size_t bytes, typename P::Stream)
    {
        asm volatile("" : "+r"(bytes));
        return reinterpret_cast<void *>(bytes | 1);
    }
    static void release(void *block, size_t, typename P::Stream)
    {
        asm volatile("" ::"r"(block));
    }
};

/// Time of an event in the best of some passes in which nothing is allocated.
template <Peer P> double loop_ns(const Trace &trace, int passes)
{
    Player<Nothing<P>> player(trace);
    double best = 0;
    for (int i = 0; i <= passes; i++) {
        const auto start = Clock::now();
        player.pass();
        const double ns = ns_since(start) / double(trace.events.size());
        best = i < 2 ? ns : std::min(best, ns);
        player.release_all();
    }
    return best;
}

template <Peer P> uint64_t calls()
{
    if constexpr (Counts<P>) return P::driver_calls();
    return 0;
}

template <Peer P> uint64_t driver_ns()
{
    if constexpr (Times<P>) return P::driver_ns();
    return 0;
}

/// What is reserved and allocated, looked at 400 times in a cold pass and a warm one; gives the
/// peak of what was reserved, for peers that keep none.
template <Peer P> uint64_t memory_over_time(const Trace &trace)
{
    const size_t every = std::max(trace.events.size() / 200, size_t(1));
    std::vector<uint64_t> reserved, allocated;
    uint64_t live = 0, peak = 0;
    Player<P> player(trace);
    P::empty_cache();
    for (int i = 0; i < 2; i++) {
        const bool fits = player.pass([&](size_t at) {
            const Event &event = trace.events[at];
            const uint64_t bytes = (event.bytes + 511) / 512 * 512;
            live += event.is_alloc ? bytes : -bytes;
            if (at % every == 0) {
                const uint64_t now = P::usage().reserved;
                peak = std::max(peak, now);
                reserved.push_back(now);
                allocated.push_back(live);
            }
        });
        if (!fits) fail("out of memory");
        player.release_all();
        live = 0;
    }
    Row("memory", trace.name).list("reserved", reserved).list("allocated", allocated);
    return peak;
}

template <Peer P> void replay(const Trace &trace)
{
    constexpr int warm_passes = 8;
    double cold = 0, cold_driver = 0, warm = 0;
    uint64_t cold_calls = 0, warm_calls = 0;
    Usage usage;
    {
        Player<P> player(trace);
        // Threads that its streams start are not bound.
        QuietCore core;
        P::synchronize();
        P::empty_cache();
        P::reset_peaks();
        for (int i = 0; i <= warm_passes; i++) {
            core.look();
            const uint64_t calls_before = calls<P>(), driver_before = driver_ns<P>();
            const auto start = Clock::now();
            const bool fits = player.pass();
            const double ns = ns_since(start) / double(trace.events.size());
            if (!fits) fail("out of memory");
            const uint64_t calls_made = calls<P>() - calls_before;
            if (i == 0) {
                cold = ns;
                cold_driver
                    = double(driver_ns<P>() - driver_before) / double(trace.events.size());
                cold_calls = calls_made;
            } else {
                warm = i == 1 ? ns : std::min(warm, ns);
                warm_calls += calls_made;
            }
            player.release_all();
        }
        usage = P::usage();
    }
    uint64_t peak = usage.peak_reserved;
    if (usage.reserved != 0 || peak != 0) peak = std::max(peak, memory_over_time<P>(trace));
    Row row("traces", trace.name);
    row.figure("cold_ns", cold).figure("warm_ns", warm);
    if (cold_driver != 0) row.figure("cold_driver_ns", cold_driver);
    row.figure("loop_ns", loop_ns<P>(trace, warm_passes));
    if (peak != 0)
        row.figure("reserved_over_allocated", double(peak) / double(trace.peak_allocated));
    if (usage.peak_requested != 0)
        row.figure("peak_allocated", double(usage.peak_allocated))
            .figure("peak_requested", double(usage.peak_requested));
    if (cold_calls != 0)
        row.figure("calls_cold", double(cold_calls)).figure("calls_warm", double(warm_calls));
}

template <Peer P> void traces(const std::vector<Trace> &all)
{
    for (const Trace &trace : all) replay<P>(trace);
    P::empty_cache();
}

/// Six passes at a limit.
struct Limited {
    bool fits = true;
    /// Of the best of the repeated passes.
    double ns = 0;
    /// Of the driver, in all repeated passes.
    uint64_t calls = 0;
};

template <Peer P> Limited limited(const Trace &trace, int thousandths)
{
    P::synchronize();
    P::empty_cache();
    const double wanted = double(trace.peak_allocated) * thousandths / 1000;
    P::limit(std::min(1.0, wanted / double(P::memory_bytes())));
    Player<P> player(trace);
    Limited found;
    for (int i = 0; i < 6 && found.fits; i++) {
        const uint64_t calls_before = calls<P>();
        const auto start = Clock::now();
        found.fits = player.pass();
        const double ns = ns_since(start);
        if (i == 1 || (i > 1 && ns < found.ns)) found.ns = ns;
        if (i > 0) found.calls += calls<P>() - calls_before;
        player.release_all();
    }
    return found;
}

/// The smallest limit, in thousandths of what the trace allocates, at which six passes complete;
/// and what a limit of 1.05 times that costs a repeated pass, beside one at which nothing is short.
template <Peer P> void limits(const std::vector<Trace> &all)
{
    if constexpr (Limits<P>) {
        const auto completes = [](const Trace &trace, int thousandths) {
            return limited<P>(trace, thousandths).fits;
        };
        for (const Trace &trace : all) {
            int fails = 999, fits = 2000;
            if (!completes(trace, fits)) fail(trace.name + " does not fit into twice its memory");
            while (fits - fails > 1) {
                const int middle = (fails + fits) / 2;
                (completes(trace, middle) ? fits : fails) = middle;
            }
            Row row("limits", trace.name);
            row.figure("limit_over_allocated", fits / 1000.0);
            const Limited tight = limited<P>(trace, 1050), wide = limited<P>(trace, 4000);
            if (!tight.fits) continue;
            row.figure("lost_ms", (tight.ns - wide.ns) / 1e6);
            if (Counts<P>) row.figure("calls_limited", double(tight.calls));
        }
        P::limit(1.0);
        P::empty_cache();
    } else {
        skipped("limits", "skipped", "it has no limit");
    }
}

} // namespace bench
