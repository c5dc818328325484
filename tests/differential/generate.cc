// How random programs are chosen and written down.

#include "program.h"

#include <iterator>
#include <random>

namespace {

constexpr size_t KIB = 1 << 10, MIB = 1 << 20;

class Choice {
public:
    Choice(uint64_t seed, uint64_t number) : random(seed * 0x9e3779b97f4a7c15 + number) {}

    // std::uniform_int_distribution differs from one library to the next.
    size_t below(size_t end) { return random() % end; }
    size_t between(size_t low, size_t high) { return low + below(high - low + 1); }
    bool once_in(size_t n) { return below(n) == 0; }

private:
    std::mt19937_64 random;
};

size_t choose_bytes(Choice &choice)
{
    switch (choice.below(16)) {
    case 0: return 0;
    case 1: case 2: case 3: return choice.between(1, 2 * KIB);
    case 4: case 5: return choice.between(510, 514);
    case 6: case 7: case 8: return choice.between(1, MIB);
    case 9: case 10: return choice.between(MIB - 520, MIB + 520);
    case 11: return choice.between(2 * MIB - 520, 2 * MIB + 520);
    case 12: return choice.between(10 * MIB - 520, 10 * MIB + 520);
    case 13: case 14: return choice.between(MIB, 12 * MIB);
    default: return choice.between(12 * MIB, (ON_GPU ? 20 : 80) * MIB);
    }
}

// A GPU's events cannot be held, its memory is shared, and giving it back takes milliseconds.
Kind as_on_gpu(Choice &choice, Kind kind, bool records)
{
    switch (kind) {
    case Kind::allocate_too_much: return Kind::allocate;
    case Kind::hold_events: return Kind::free;
    case Kind::release_events: return Kind::reset_peak;
    case Kind::record_stream: return records ? kind : Kind::free;
    case Kind::empty_cache: return choice.once_in(50) ? kind : Kind::allocate;
    default: return kind;
    }
}

Kind choose_kind(Choice &choice)
{
    static constexpr struct { unsigned weight; Kind kind; } table[] = {
        {430, Kind::allocate}, {390, Kind::free}, {100, Kind::record_stream},
        {3, Kind::allocate_too_much}, {8, Kind::hold_events}, {16, Kind::release_events},
        {20, Kind::set_stream}, {5, Kind::empty_cache}, {15, Kind::reset_peak},
        {10, Kind::reset_accumulated},
    };
    size_t sum = 0;
    for (const auto &row : table)
        sum += row.weight;
    size_t at = choice.below(sum);
    for (const auto &row : table) {
        if (at < row.weight)
            return row.kind;
        at -= row.weight;
    }
    return Kind::free;
}

} // namespace

std::vector<Operation> make_program(const Settings &settings, uint64_t number)
{
    Choice choice(settings.seed, number);
    std::vector<Operation> program(choice.between(1, 4000));
    // Few streams make reuse frequent, few devices make them crowded.
    const size_t streams = choice.between(1, STREAMS);
    const size_t devices = choice.between(1, settings.machine.devices);
    // Few sizes let what is freed fit again, and counts meet their peaks together; waves of
    // allocating and freeing take them away from there.
    std::vector<size_t> sizes(choice.below(3));
    for (auto &size : sizes)
        size = choice.between(1, 3 * MIB);
    const size_t wave = choice.between(8, 200);
    const bool records = choice.once_in(2);
    for (size_t i = 0; i < program.size(); i++) {
        Operation &operation = program[i];
        operation.kind = choose_kind(choice);
        if (choice.once_in(3) && operation.kind <= Kind::free)
            operation.kind = i / wave % 2 == 0 ? Kind::allocate : Kind::free;
        if (ON_GPU)
            operation.kind = as_on_gpu(choice, operation.kind, records);
        operation.device = int(choice.below(devices));
        operation.stream = choice.once_in(5) ? int(CURRENT_STREAM) : int(choice.below(streams));
        operation.bytes = sizes.empty() ? choose_bytes(choice) : sizes[choice.below(sizes.size())];
        operation.pick = choice.below(SIZE_MAX);
        // Not beyond what tcuda refuses at a glance: PyTorch empties its cache first even then.
        if (operation.kind == Kind::allocate_too_much && choice.once_in(2))
            operation.bytes = settings.machine.megabytes * MIB / 4;
    }
    return program;
}

std::string describe(const Operation &operation)
{
    const std::string device = std::to_string(operation.device);
    const std::string stream = operation.stream == CURRENT_STREAM
        ? "the current stream"
        : "stream " + std::to_string(operation.stream);
    const std::string place = stream + " of device " + device;
    const std::string bytes = std::to_string(operation.bytes);
    const std::string block = "block " + std::to_string(operation.pick) + " (modulo those alive)";
    switch (operation.kind) {
    case Kind::allocate: return "allocate " + bytes + " bytes on " + place;
    case Kind::allocate_too_much: return "allocate " + bytes + " bytes too much on " + place;
    case Kind::free: return "free " + block;
    case Kind::record_stream: return "record " + place + " for " + block;
    case Kind::hold_events: return "hold events";
    case Kind::release_events: return "release events";
    case Kind::set_stream: return "set " + place;
    case Kind::empty_cache: return "empty the cache";
    case Kind::reset_peak: return "reset the peaks of device " + device;
    case Kind::reset_accumulated: return "reset the totals of device " + device;
    }
    return "nothing";
}
