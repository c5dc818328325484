// Runs a program on both sides and compares them after every operation.

#include "program.h"

#include <algorithm>
#include <cinttypes>
#include <map>
#include <set>

namespace {

constexpr size_t KIB = 1 << 10, MIB = 1 << 20;

struct Block {
    void *torch, *tcuda;
    size_t bytes;
    int device, stream;
    bool is_recorded;
};

size_t rounded(size_t bytes) { return (std::max<size_t>(bytes, 1) + 511) / 512 * 512; }

class Run {
public:
    Run(Side &torch, Side &tcuda, const Settings &settings, Tally &tally)
        : torch(torch), tcuda(tcuda), settings(settings), tally(tally),
          waiting(settings.machine.devices)
    {
        for (int device = settings.machine.devices - 1; device >= 0; device--)
            both([&](Side &side) { side.set_stream(device, 0); });
        current.resize(settings.machine.devices, 0);
    }

    void apply(const Operation &operation)
    {
        switch (operation.kind) {
        case Kind::allocate:
            allocate(operation, operation.bytes);
            break;
        case Kind::allocate_too_much:
            allocate(operation, too_much(operation));
            break;
        case Kind::free:
            free(operation.pick);
            break;
        case Kind::record_stream:
            record_stream(operation);
            break;
        case Kind::hold_events:
        case Kind::release_events:
            are_held = operation.kind == Kind::hold_events && !ages_count();
            both([&](Side &side) { side.hold_events(are_held); });
            if (settings.segments && !are_held)
                look_at_all();
            break;
        case Kind::set_stream: {
            const int stream = std::max(operation.stream, 0);
            both([&](Side &side) { side.set_stream(operation.device, stream); });
            current[operation.device] = stream;
            break;
        }
        case Kind::empty_cache:
            empty_cache();
            break;
        case Kind::reset_peak:
            both([&](Side &side) { side.reset_peak(operation.device); });
            break;
        case Kind::reset_accumulated:
            both([&](Side &side) { side.reset_accumulated(operation.device); });
            break;
        }
        tally.operations++;
    }

    // Every device has the same statistics on both sides.
    std::optional<std::string> compare()
    {
        for (int device = 0; device < settings.machine.devices; device++) {
            Statistics wanted = torch.statistics(device), found = tcuda.statistics(device);
            if (!settings.segments) {
                wanted = wanted.everywhere();
                found = found.everywhere();
            }
            tally.comparisons++;
            if (!(wanted == found))
                return difference(device, wanted, found);
        }
        return std::nullopt;
    }

    void end()
    {
        are_held = false;
        both([](Side &side) { side.hold_events(false); });
        if (settings.segments)
            look_at_all();
        while (!live.empty())
            free(live.size() - 1);
        // On a GPU only where it must be: it takes milliseconds.
        const auto is_clear = [](const auto &arenas) { return arenas.empty(); };
        if (!ON_GPU || !std::all_of(waiting.begin(), waiting.end(), is_clear))
            empty_cache();
    }

    void forget()
    {
        for (int device = 0; device < settings.machine.devices; device++) {
            both([&](Side &side) { side.reset_peak(device); });
            both([&](Side &side) { side.reset_accumulated(device); });
        }
    }

    std::optional<std::string> complaint;

private:
    template <class Body> void both(Body body)
    {
        body(torch);
        body(tcuda);
    }

    int resolve(int device, int stream)
    {
        return stream == CURRENT_STREAM ? current[device] : stream;
    }

    // In which of tcuda's memory a block of a stream is: that up to 64 KiB, or 1 MiB in segments,
    // or the other; there apart whether PyTorch has it in its small pool, so that what is allocated
    // instead counts alike.
    size_t arena(int stream, size_t bytes) const
    {
        const size_t units = rounded(bytes), small = settings.segments ? MIB : 64 * KIB;
        return stream * 3 + (units > small) + (units > MIB && !settings.segments);
    }

    // The least that is in such memory.
    size_t least_of(size_t arena) const
    {
        const size_t line = settings.segments || arena % 3 == 2 ? MIB : 64 * KIB;
        return arena % 3 == 0 ? 1 : line + 1;
    }

    // No allocator can serve it: it is more than what the live blocks leave of the memory.
    size_t too_much(const Operation &operation)
    {
        size_t left = settings.machine.megabytes * MIB;
        for (const Block &block : live)
            left -= block.device == operation.device ? rounded(block.bytes) : 0;
        return left + 1 + operation.bytes;
    }

    // Both sides look at all blocks of a device that wait for streams. What this allocates is no
    // larger than what becomes free, so that no peak moves.
    void look_at_waiting(int device, size_t but)
    {
        std::set<size_t> arenas = waiting[device];
        if (settings.segments)
            return;
        // What was recorded is over by now, so that each query finds the same.
        if (!arenas.empty())
            both([](Side &side) { side.settle(); });
        if (settings.strict || are_held || (arenas.size() == 1 && arenas.contains(but)))
            return;
        for (const size_t one : arenas) {
            const size_t bytes = least_of(one);
            both([&](Side &side) { side.free(side.allocate(bytes, device, int(one / 3))); });
        }
        waiting[device].clear();
    }

    // In segments more depends on when blocks that waited become free: what the free blocks beside
    // them count in between. So one is looked at as soon as it waits, and where several did, what
    // they came to on the way is forgotten.
    void look_at_all()
    {
        for (int device = 0; device < settings.machine.devices; device++) {
            for (const size_t one : waiting[device]) {
                const size_t bytes = least_of(one);
                both([&](Side &side) {
                    give_back(side, side.allocate(bytes, device, int(one / 3)));
                });
            }
            note_order(device);
        }
    }

    // Garbage is older where a block that waited became free earlier.
    bool ages_count() const
    {
        return settings.options.find("garbage_collection_threshold") != std::string::npos;
    }

    static void give_back(Side &side, void *block)
    {
        if (block != nullptr)
            side.free(block);
    }

    // What waited on a device does so no longer, and in whatever order it ceased to.
    void note_order(int device)
    {
        const bool any = !waiting[device].empty();
        waiting[device].clear();
        if (any && settings.segments)
            forget();
    }

    void allocate(const Operation &operation, size_t bytes)
    {
        const int device = operation.device, stream = resolve(device, operation.stream);
        if (bytes != 0)
            look_at_waiting(device, arena(stream, bytes));
        const bool counts = settings.tight || settings.segments;
        const int64_t retries = counts ? torch.statistics(device).num_alloc_retries : 0;
        Block block{torch.allocate(bytes, device, operation.stream),
            tcuda.allocate(bytes, device, operation.stream), bytes, device, stream, false};
        if (!are_held && bytes != 0 && !settings.segments)
            waiting[device].erase(arena(stream, bytes));
        if (bytes == 0) {
            if (block.torch != nullptr || block.tcuda != nullptr)
                complaint = "a block of no bytes is not NULL";
        } else if (block.torch != nullptr && block.tcuda != nullptr) {
            tally.blocks++;
            live.push_back(block);
            if (live.size() > settings.most_blocks)
                free(operation.pick);
        } else if (block.torch == nullptr && block.tcuda == nullptr) {
            tally.ooms++;
            // What waited was waited for.
            if (settings.segments && are_held)
                note_order(device);
            else
                waiting[device].clear();
        } else {
            disagree(block);
        }
        if (counts)
            note_retries(device, retries);
    }

    // Which side has to reclaim first depends on the layout, and what waits is waited for then.
    void note_retries(int device, int64_t before)
    {
        const int64_t theirs = torch.statistics(device).num_alloc_retries,
                      ours = tcuda.statistics(device).num_alloc_retries;
        if (theirs == ours) {
            if (theirs != before && settings.segments)
                note_order(device);
            else if (theirs != before)
                waiting[device].clear();
            return;
        }
        (ours > theirs ? tally.retries_of_tcuda : tally.retries_of_torch)++;
        empty_cache();
        forget();
    }

    void disagree(const Block &block)
    {
        // In segments the two fail together, unless what waited lay beside what was free: tcuda
        // looks there once more.
        const bool is_known = settings.segments && are_held && block.tcuda != nullptr;
        if (settings.segments ? !is_known : !settings.tight) {
            complaint = std::to_string(block.bytes) + " bytes of device "
                + std::to_string(block.device) + " could be had from "
                + (block.torch != nullptr ? torch.name() : tcuda.name()) + " only";
        }
        (block.torch != nullptr ? tally.only_torch : tally.only_tcuda)++;
        if (block.torch != nullptr)
            torch.free(block.torch);
        else
            tcuda.free(block.tcuda);
        // What they have is the same again, but not how they came to have it.
        empty_cache();
        forget();
    }

    void free(size_t pick)
    {
        if (live.empty())
            return;
        std::swap(live[pick % live.size()], live.back());
        const Block block = live.back();
        live.pop_back();
        torch.free(block.torch);
        tcuda.free(block.tcuda);
        if (!block.is_recorded)
            return;
        const size_t own = arena(block.stream, block.bytes);
        waiting[block.device].insert(own);
        if (settings.segments && !are_held) {
            const size_t bytes = least_of(own);
            both([&](Side &side) {
                give_back(side, side.allocate(bytes, block.device, block.stream));
            });
            waiting[block.device].clear();
        }
    }

    void record_stream(const Operation &operation)
    {
        if (live.empty())
            return;
        Block &block = live[operation.pick % live.size()];
        const int stream = resolve(operation.device, operation.stream);
        // PyTorch takes the default streams of two devices, both NULL, for the same one and lets
        // the memory go too early; tcuda waits.
        if (block.device != operation.device && block.stream == 0 && stream == 0)
            return;
        torch.record_stream(block.torch, block.device, operation.device, operation.stream);
        tcuda.record_stream(block.tcuda, block.device, operation.device, operation.stream);
        block.is_recorded |= block.device != operation.device || block.stream != stream;
    }

    void empty_cache()
    {
        both([](Side &side) { side.empty_cache(); });
        for (int device = 0; device < settings.machine.devices; device++)
            note_order(device);
    }

    static std::string difference(int device, const Statistics &wanted, const Statistics &found)
    {
        std::string text = "device " + std::to_string(device) + ", torch and tcuda:";
        const auto add = [&](const std::string &name, int64_t left, int64_t right) {
            if (left != right)
                text += "\n    " + name + " " + std::to_string(left) + " " + std::to_string(right);
        };
        for (size_t i = 0; i < wanted.stats.size(); i++) {
            for (size_t pool = 0; pool < 3; pool++) {
                const std::string name = std::string(stat_names[i]) + "." + pool_names[pool];
                const Stat &left = wanted.stats[i][pool], &right = found.stats[i][pool];
                add(name + ".current", left.current, right.current);
                add(name + ".peak", left.peak, right.peak);
                add(name + ".allocated", left.allocated, right.allocated);
                add(name + ".freed", left.freed, right.freed);
            }
        }
        add("num_ooms", wanted.num_ooms, found.num_ooms);
        add("num_alloc_retries", wanted.num_alloc_retries, found.num_alloc_retries);
        add("num_sync_all_streams", wanted.num_sync_all_streams, found.num_sync_all_streams);
        add("num_device_alloc", wanted.num_device_alloc, found.num_device_alloc);
        add("num_device_free", wanted.num_device_free, found.num_device_free);
        add("max_split_size", wanted.max_split_size, found.max_split_size);
        add("oversize_allocations", wanted.oversize_allocations.current,
            found.oversize_allocations.current);
        add("oversize_allocations.peak", wanted.oversize_allocations.peak,
            found.oversize_allocations.peak);
        add("oversize_segments", wanted.oversize_segments.current, found.oversize_segments.current);
        return text;
    }

    Side &torch, &tcuda;
    const Settings &settings;
    Tally &tally;
    std::vector<Block> live;
    std::vector<int> current;
    // By device: streams and size classes with blocks that tcuda has not looked at since they were
    // freed.
    std::vector<std::set<size_t>> waiting;
    bool are_held = false;
};

} // namespace

std::optional<std::string> run_program(Side &torch, Side &tcuda, const Settings &settings,
    const std::vector<Operation> &program, Tally &tally)
{
    Run run(torch, tcuda, settings, tally);
    run.forget();
    for (size_t i = 0; i < program.size(); i++) {
        run.apply(program[i]);
        auto wrong = run.complaint ? run.complaint : run.compare();
        if (wrong)
            return "after operation " + std::to_string(i) + ": " + *wrong;
    }
    run.end();
    auto wrong = run.complaint ? run.complaint : run.compare();
    if (wrong)
        return "at the end: " + *wrong;
    return std::nullopt;
}
