// What a workload asks of an allocator.
//
// A peer is a struct of static functions, so that a call of it is a direct call: what is measured
// is the peer, and not this interface. `start` comes first, once; `enter_thread` first on every
// further thread. `allocate` gives a null pointer where memory is short, and fails otherwise.
#pragma once

#include "measure.hpp"

#include <concepts>
#include <utility>

namespace bench {

/// Bytes that a peer has from the driver, and the most that its host had of them; 0: unknown.
struct Usage {
    uint64_t reserved = 0, peak_reserved = 0, peak_allocated = 0, peak_requested = 0;
};

template <class P>
concept Peer = requires(typename P::Stream stream, void *block, size_t bytes) {
    P::start();
    P::enter_thread();
    { P::default_stream() } -> std::same_as<typename P::Stream>;
    { P::new_stream() } -> std::same_as<typename P::Stream>;
    /// The driver's handle of a stream.
    { P::native(stream) } -> std::convertible_to<void *>;
    { P::allocate(bytes, stream) } -> std::same_as<void *>;
    /// Block, bytes and stream are those of `allocate`: some peers need them.
    P::release(block, bytes, stream);
    /// Another stream, the last, uses a block: before it is allocated again its work is over.
    P::record(block, stream, stream);
    P::synchronize();
    /// Gives what is unused back to the driver, if the peer can: `empties`.
    P::empty_cache();
    { P::empties } -> std::convertible_to<bool>;
    P::reset_peaks();
    { P::usage() } -> std::same_as<Usage>;
    { P::memory_bytes() } -> std::same_as<size_t>;
};

/// The peer keeps what it reserves below a limit.
template <class P>
concept Limits = requires(double fraction) { P::limit(fraction); };

/// The peer counts its calls of the driver, or those for memory.
template <class P>
concept Counts = requires { P::driver_calls(); };

/// The peer knows how long the driver took for memory.
template <class P>
concept Times = requires { P::driver_ns(); };

[[noreturn, gnu::cold, gnu::noinline]] inline void out_of_memory() { fail("out of memory"); }

template <Peer P> void *must_allocate(size_t bytes, typename P::Stream stream)
{
    void *block = P::allocate(bytes, stream);
    if (block == nullptr) [[unlikely]]
        out_of_memory();
    return block;
}

/// Blocks of a stream with their sizes. Those that are left go at the end, also after a failure, so
/// that the next group finds its memory.
template <Peer P> struct Blocks {
    using Block = std::pair<void *, size_t>;
    typename P::Stream stream;
    std::vector<Block> list{};

    ~Blocks() { release_all(); }

    void allocate(size_t bytes) { list.emplace_back(must_allocate<P>(bytes, stream), bytes); }

    void release_last()
    {
        const auto [block, bytes] = list.back();
        if (block != nullptr) P::release(block, bytes, stream);
        list.pop_back();
    }

    void release_all()
    {
        while (!list.empty()) release_last();
    }
};

} // namespace bench
