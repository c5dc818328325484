#include "table.h"

#include <algorithm>

bool Table::agrees() const
{
    return std::all_of(rows.begin(), rows.end(), [](const Row &row) { return row.agrees; });
}

void Table::print(const Settings &settings) const
{
    std::printf("%-16s %8s %10s %10s %6s %11s %8s  %s\n", "", "programs", "operations", "blocks",
        "OOMs", "compared", "seconds", "");
    for (const Row &row : rows) {
        const Tally &tally = row.tally;
        std::printf("%-16s %8ld %10ld %10ld %6ld %11ld %8.1f  %s\n", row.name.c_str(), row.programs,
            tally.operations, tally.blocks, tally.ooms, tally.comparisons, row.seconds,
            row.agrees ? "equal" : "FAILED");
    }
    const unsigned long long seed = settings.seed;
    if (settings.segments)
        std::printf("Compared: every statistic of every device after every operation, in "
                    "segments of cudaMalloc.\n--seed %llu\n",
            seed);
    else
        std::printf("Compared: allocation, allocated_bytes, active, active_bytes and "
                    "requested_bytes in 3 pools,\n"
                    "each current, peak, allocated and freed; num_ooms and "
                    "num_alloc_retries; of every device\nafter every operation. --seed %llu\n",
            seed);
    if (settings.tight) {
        const Tally &tally = rows.front().tally;
        std::printf("Memory was short: %ld requests only tcuda could serve, %ld only PyTorch; %ld "
                    "times only tcuda reclaimed first, %ld times only PyTorch\n",
            tally.only_tcuda, tally.only_torch, tally.retries_of_tcuda, tally.retries_of_torch);
    }
    if (!agrees())
        return;
    Tally sum;
    for (const Row &row : rows)
        sum.operations += row.tally.operations;
    std::printf("differential: %ld operations agree with PyTorch's allocator\n", sum.operations);
}

bool Table::write_json(const std::string &path, const Settings &settings) const
{
    std::FILE *file = std::fopen(path.c_str(), "w");
    if (file == nullptr) {
        std::perror(path.c_str());
        return false;
    }
    std::fprintf(file, "{\"backend\": \"%s\", \"seed\": %llu, \"rows\": [",
        ON_GPU ? "cuda" : "sim", static_cast<unsigned long long>(settings.seed));
    const char *separator = "";
    for (const Row &row : rows) {
        const Tally &tally = row.tally;
        std::fprintf(file,
            "%s\n  {\"name\": \"%s\", \"programs\": %ld, \"operations\": %ld, \"blocks\": %ld, "
            "\"ooms\": %ld, \"compared\": %ld, \"seconds\": %.1f, \"equal\": %s}",
            separator, row.name.c_str(), row.programs, tally.operations, tally.blocks, tally.ooms,
            tally.comparisons, row.seconds,
            row.agrees ? "true" : "false");
        separator = ",";
    }
    std::fprintf(file, "\n]}\n");
    const bool is_written = std::fclose(file) == 0;
    if (!is_written)
        std::perror(path.c_str());
    return is_written;
}
