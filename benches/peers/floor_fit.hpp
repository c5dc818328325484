// A best fit and no more: what churn and steps take at least.
#pragma once

#include "measure.hpp"
#include "peer.hpp"

#include <bit>
#include <cstdlib>
#include <utility>

namespace bench {

inline constexpr size_t UNIT = 512;

/// What both have that the workloads ask for, and nothing happens in.
struct Bare {
    using Stream = int;
    static constexpr bool empties = false;
    static void enter_thread() {}
    static Stream default_stream() { return 0; }
    static Stream new_stream() { return 0; }
    static void *native(Stream) { return nullptr; }
    static void record(void *, Stream, Stream) {}
    static void synchronize() {}
    static void empty_cache() {}
    static void reset_peaks() {}
    static Usage usage() { return {}; }
    static size_t memory_bytes() { return 141 * GIB; }
};

/// Best fit: bins 0.8 % wide under two levels of bits, the rest split off, neighbours joined at
/// once. The host gets the block's record itself, so that none is looked up; one thread, one
/// stream, and nothing is counted.
struct BestFit : Bare {
    struct Block {
        uint32_t start, units, previous, next, bin_previous, bin_next;
        /// Of those in use (floor_whole.hpp).
        uint32_t hash_next;
        uint64_t requested;
        bool is_free;
        /// A bit for each other stream that uses it.
        uint16_t users;
    };

    /// Once more changes nothing.
    static void start()
    {
        if (blocks != nullptr) return;
        blocks = static_cast<Block *>(std::calloc(MOST_BLOCKS, sizeof(Block)));
        if (blocks == nullptr) fail("there is no host memory");
        blocks[1] = {0, uint32_t(memory_bytes() / UNIT), 0, 0, 0, 0, 0, 0, true, 0};
        used = 2;
        insert(1);
    }

    static void *allocate(size_t bytes, Stream)
    {
        const uint32_t units = uint32_t((bytes + UNIT - 1) / UNIT), id = find(units);
        if (id == NONE) return nullptr;
        remove(id);
        Block &block = blocks[id];
        block.is_free = false;
        block.requested = bytes;
        if (block.units > units) {
            const uint32_t rest = take();
            if (rest == NONE) return nullptr;
            blocks[rest] = {block.start + units, block.units - units, id, block.next, 0, 0, 0, 0,
                true, 0};
            blocks[block.next].previous = rest;
            block.next = rest;
            block.units = units;
            insert(rest);
        }
        return &block;
    }

    static void release(void *memory, size_t, Stream)
    {
        uint32_t id = uint32_t(static_cast<Block *>(memory) - blocks);
        blocks[id].is_free = true;
        const uint32_t previous = blocks[id].previous;
        if (blocks[previous].is_free) {
            remove(previous);
            join(previous, id);
            id = previous;
        }
        const uint32_t next = blocks[id].next;
        if (blocks[next].is_free) {
            remove(next);
            join(id, next);
        }
        insert(id);
    }

protected:
    static constexpr uint32_t NONE = 0, SUB_BITS = 7, BINS = 1 << 12, MOST_BLOCKS = 1 << 20;

    static uint32_t bin_of(uint32_t units)
    {
        const uint32_t width = uint32_t(std::bit_width(units | 1 << SUB_BITS)) - 1 - SUB_BITS;
        return (width << SUB_BITS) + (units >> width);
    }

    static void insert(uint32_t id)
    {
        free_blocks++;
        const uint32_t bin = bin_of(blocks[id].units), head = heads[bin];
        bits[bin / 64] |= uint64_t(1) << bin % 64;
        words |= uint64_t(1) << bin / 64;
        heads[bin] = id;
        blocks[id].bin_previous = NONE;
        blocks[id].bin_next = head;
        blocks[head].bin_previous = id;
    }

    static void remove(uint32_t id)
    {
        free_blocks--;
        const uint32_t below = blocks[id].bin_previous, above = blocks[id].bin_next;
        blocks[above].bin_previous = below;
        blocks[below].bin_next = above;
        if (below != NONE) return;
        const uint32_t bin = bin_of(blocks[id].units);
        heads[bin] = above;
        if (above != NONE) return;
        bits[bin / 64] &= ~(uint64_t(1) << bin % 64);
        if (bits[bin / 64] == 0) words &= ~(uint64_t(1) << bin / 64);
    }

    /// The first block of the first bin from this one on that has any.
    static uint32_t first_from(uint32_t bin)
    {
        uint32_t word = bin / 64;
        uint64_t here = bits[word] & ~uint64_t(0) << bin % 64;
        if (here == 0) {
            const uint64_t above = words & ~uint64_t(1) << word;
            if (above == 0) return NONE;
            word = uint32_t(std::countr_zero(above));
            here = bits[word];
        }
        return heads[word * 64 + uint32_t(std::countr_zero(here))];
    }

    static uint32_t find(uint32_t units)
    {
        // Every block of a later bin is large enough.
        for (const uint32_t bin : {bin_of(units), bin_of(units) + 1}) {
            uint32_t best = NONE, least = ~uint32_t(0);
            for (uint32_t id = first_from(bin); id != NONE; id = blocks[id].bin_next) {
                if (blocks[id].units < units || blocks[id].units >= least) continue;
                least = blocks[id].units;
                best = id;
                if (least == units) break;
            }
            if (best != NONE) return best;
        }
        return NONE;
    }

    static uint32_t take()
    {
        if (spare == NONE) return used < MOST_BLOCKS ? used++ : NONE;
        return std::exchange(spare, blocks[spare].next);
    }

    /// The upper one of two neighbours becomes part of the lower one.
    static void join(uint32_t below, uint32_t above)
    {
        blocks[below].units += blocks[above].units;
        blocks[below].next = blocks[above].next;
        blocks[blocks[above].next].previous = below;
        blocks[above].is_free = false;
        blocks[above].next = spare;
        spare = above;
    }

    static inline Block *blocks;
    static inline int64_t free_blocks;
    static inline uint32_t used, spare;
    static inline uint64_t words, bits[BINS / 64];
    static inline uint32_t heads[BINS];
};

} // namespace bench
