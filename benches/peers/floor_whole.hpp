// The same best fit with what tcuda's interface and its statistics ask for beside it.
#pragma once

#include "floor_fit.hpp"

#include <cstring>
#include <vector>

namespace bench {

/// Calls of C by address: a block is looked up in a table; counts, bytes and requested bytes of
/// blocks and of free ones are exact with their peaks and totals, of each class and of all; other
/// streams that use a block are noted, and it waits for them. Still one thread, one arena, no check
/// of the arguments, and no stream is queried (floor_waits.hpp does): what waits is free when the
/// device was waited for.
struct Whole : BestFit {
    static void start()
    {
        BestFit::start();
        if (heads.empty()) heads.resize(size_t(1) << (32 - shift));
    }

    static Stream new_stream() { return ++streams % 16; }

    static void *allocate(size_t bytes, Stream)
    {
        void *block = nullptr;
        return c_malloc(bytes, &block) == 0 ? block : nullptr;
    }

    static void release(void *block, size_t, Stream)
    {
        if (c_free(block) != 0) [[unlikely]]
            fail("there is no such block");
    }

    static void record(void *block, Stream, Stream stream)
    {
        if (c_record(block, stream) != 0) [[unlikely]]
            fail("there is no such block");
    }

    static void synchronize() { is_over = true; }

protected:
    /// Asks the streams of these bits before what waits for them is free.
    static inline void (*ask)(uint32_t streams) = [](uint32_t) {};

private:
    static constexpr uint64_t BASE = uint64_t(1) << 45;
    static constexpr size_t LARGE = MIB;

    // ---- Counts ----

    enum Lane { BLOCKS, BYTES, REQUESTED, SPLIT, SPLIT_BYTES, WAITING, WAITING_BYTES, LANES };

    /// How far each is below its peak, and what went in all.
    struct Counts {
        int64_t room[LANES], peak[LANES], gone[3];
    };

    using Change = int64_t[LANES];

    static void count(Counts &counts, const Change &change)
    {
        int64_t signs = 0;
        for (int lane = 0; lane < LANES; lane++) signs |= counts.room[lane] -= change[lane];
        if (signs < 0) [[unlikely]]
            raise(counts);
    }

    [[gnu::noinline]] static void raise(Counts &counts)
    {
        for (int lane = 0; lane < LANES; lane++) {
            if (counts.room[lane] >= 0) continue;
            counts.peak[lane] -= counts.room[lane];
            counts.room[lane] = 0;
        }
    }

    static void count(size_t bytes, const Change &change)
    {
        count(all, change);
        count(classes[bytes > LARGE], change);
    }

    // ---- From an address to its block ----

    /// A list for each hash, four times as many as blocks.
    static uint32_t &head_of(uint32_t start)
    {
        return heads[(start * 0x9e3779b1u) >> shift];
    }

    static void note(uint32_t id)
    {
        if (++noted * 4 > heads.size()) [[unlikely]]
            grow();
        uint32_t &head = head_of(blocks[id].start);
        blocks[id].hash_next = std::exchange(head, id);
    }

    /// The block at an address, which is in no list afterwards where that is asked for.
    template <bool FORGET> static uint32_t look(const void *block)
    {
        const uint32_t start = start_of(block);
        uint32_t *link = &head_of(start);
        while (*link != NONE && blocks[*link].start != start) link = &blocks[*link].hash_next;
        const uint32_t id = *link;
        if (FORGET && id != NONE) {
            *link = blocks[id].hash_next;
            noted--;
        }
        return id;
    }

    [[gnu::noinline]] static void grow()
    {
        const std::vector<uint32_t> old =
            std::exchange(heads, std::vector<uint32_t>(heads.size() * 2));
        shift--;
        for (uint32_t id : old)
            while (id != NONE) {
                uint32_t &head = head_of(blocks[id].start);
                id = std::exchange(blocks[id].hash_next, std::exchange(head, id));
            }
    }

    static uint32_t start_of(const void *block)
    {
        return uint32_t((reinterpret_cast<uint64_t>(block) - BASE) / UNIT);
    }

    // ---- The calls ----

    [[gnu::noinline]] static int c_malloc(size_t bytes, void **out)
    {
        if (is_over) [[unlikely]]
            end_waiting();
        const int64_t free_before = free_blocks;
        auto *block = static_cast<Block *>(BestFit::allocate(bytes, 0));
        if (block == nullptr) [[unlikely]]
            return 1;
        note(uint32_t(block - blocks));
        const int64_t size = int64_t(block->units * UNIT);
        count(bytes, {1, size, int64_t(bytes), free_blocks - free_before, -size, 0, 0});
        *out = reinterpret_cast<void *>(BASE + block->start * UNIT);
        return 0;
    }

    [[gnu::noinline]] static int c_free(void *address)
    {
        const uint32_t id = look<true>(address);
        if (id == NONE) [[unlikely]]
            return 1;
        const int64_t size = int64_t(blocks[id].units * UNIT);
        const int64_t requested = int64_t(blocks[id].requested);
        if (blocks[id].users != 0) {
            awaited |= std::exchange(blocks[id].users, uint16_t(0));
            waiting.push_back(id);
            went(size_t(requested), {-1, -size, -requested, 0, 0, 1, size});
            return 0;
        }
        const int64_t free_before = free_blocks;
        BestFit::release(&blocks[id], 0, 0);
        went(size_t(requested), {-1, -size, -requested, free_blocks - free_before, size, 0, 0});
        return 0;
    }

    static void went(size_t bytes, const Change &change)
    {
        count(bytes, change);
        for (int lane = BLOCKS; lane <= REQUESTED; lane++) {
            all.gone[lane] -= change[lane];
            classes[bytes > LARGE].gone[lane] -= change[lane];
        }
    }

    [[gnu::noinline]] static int c_record(void *address, Stream stream)
    {
        const uint32_t id = look<false>(address);
        if (id == NONE) [[unlikely]]
            return 1;
        blocks[id].users |= uint16_t(1 << stream);
        return 0;
    }

    [[gnu::noinline]] static void end_waiting()
    {
        is_over = false;
        ask(std::exchange(awaited, 0));
        for (const uint32_t id : waiting) {
            const int64_t size = int64_t(blocks[id].units * UNIT), free_before = free_blocks;
            const size_t requested = blocks[id].requested;
            BestFit::release(&blocks[id], 0, 0);
            count(requested, {0, 0, 0, free_blocks - free_before, size, -1, -size});
        }
        waiting.clear();
    }

    static inline Counts all, classes[2];
    static inline std::vector<uint32_t> heads;
    static inline size_t noted;
    static inline int shift = 32 - 12, streams;
    static inline std::vector<uint32_t> waiting;
    /// Bits of the streams for which they wait.
    static inline uint32_t awaited;
    static inline bool is_over;
};

} // namespace bench
