// Random programs: what is done to both allocators, and what is compared after each operation.
#pragma once

#include "side.h"

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

enum class Kind {
    allocate,
    allocate_too_much, // more than the memory that the program has left
    free,
    record_stream,
    hold_events,
    release_events,
    set_stream,
    empty_cache,
    reset_peak,
    reset_accumulated
};

struct Operation {
    Kind kind;
    int device, stream;
    size_t bytes, pick; // `pick` chooses a block, modulo those that there are
};

// How a run is to go.
struct Settings {
    Machine machine{3, 32768};
    uint64_t seed = 1;
    // Memory is short, so that the two run out of it at different times; see `Tally`.
    bool tight = false;
    // tcuda looks at the blocks that wait for other streams of a stream and size class when these
    // are next allocated from, PyTorch at all of the device whenever anything of it is. Without
    // this, what waits is made to be looked at on both sides before it is compared.
    bool strict = false;
    // Both have segments of cudaMalloc, so that every statistic has one right value.
    bool segments = false;
    // Of the allocators, beside expandable_segments.
    std::string options;
    // Live blocks; an allocation beyond them frees one.
    size_t most_blocks = 64;
};

struct Tally {
    long operations = 0, comparisons = 0, blocks = 0, ooms = 0;
    // In tight runs: requests that one side could serve and the other could not, and those for
    // which one had to reclaim and the other had not.
    long only_tcuda = 0, only_torch = 0, retries_of_tcuda = 0, retries_of_torch = 0;
};

std::vector<Operation> make_program(const Settings &settings, uint64_t number);
std::string describe(const Operation &operation);
// The allocations of a real program, from a file of data/traces that was unpacked.
std::vector<Operation> read_trace(const char *path);
// Both sides run it, from nothing to nothing; the first difference is given as a sentence.
std::optional<std::string> run_program(Side &torch, Side &tcuda, const Settings &settings,
    const std::vector<Operation> &program, Tally &tally);
