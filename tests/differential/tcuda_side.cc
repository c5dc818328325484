// tcuda's allocator, through its C interface, on a GPU or on the simulated machine.

#include "side.h"

#include <tcuda.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

enum { NOT_READY = 600 }; // CUDA_ERROR_NOT_READY

void check(tcuda_status status, const char *call)
{
    if (status == TCUDA_STATUS_OK)
        return;
    std::fprintf(stderr, "differential: %s: %s: %s\n", call, tcuda_status_name(status),
        tcuda_last_error());
    std::exit(2);
}
#define CHECK(call) check((call), #call)

class Tcuda final : public Side {
public:
    explicit Tcuda(const Machine &machine)
    {
        const std::string options = "schedule=immediate,devices=" + std::to_string(machine.devices)
            + ",memory=" + std::to_string(machine.megabytes) + "MiB";
        CHECK(tcuda_backend_select(ON_GPU ? "cuda" : "sim", ON_GPU ? nullptr : options.c_str()));
        for (int device = 0; device < machine.devices; device++) {
            CHECK(tcuda_memory_fraction_set(device, machine.fraction));
            auto &known = streams.emplace_back(STREAMS);
            CHECK(tcuda_stream_default(device, &known[0]));
            for (int i = 1; i < STREAMS; i++)
                CHECK(tcuda_stream_create(device, 0, &known[i]));
        }
    }

    ~Tcuda() override
    {
        for (auto &known : streams) {
            for (int i = 1; i < STREAMS; i++)
                check(tcuda_stream_destroy(known[i]), "tcuda_stream_destroy");
        }
        size_t live = 0;
        CHECK(tcuda_shutdown(&live));
        if (live != 0) {
            std::fprintf(stderr, "differential: %zu live handles at the end\n", live);
            std::exit(1);
        }
    }

    void *allocate(size_t bytes, int device, int stream) override
    {
        void *block = nullptr;
        const tcuda_status status = tcuda_malloc(bytes, device, find(device, stream), &block);
        if (status == TCUDA_STATUS_OUT_OF_MEMORY)
            return nullptr;
        check(status, "tcuda_malloc");
        return block;
    }

    void free(void *block) override { check(tcuda_free(block), "tcuda_free"); }

    void record_stream(void *block, int block_device, int device, int stream) override
    {
        tcuda_stream *target = find(device, stream);
        // NULL would be the current stream of the block's device.
        if (target == nullptr && device != block_device)
            CHECK(tcuda_stream_current(device, &target));
        CHECK(tcuda_record_stream(block, target));
    }

    void empty_cache() override { CHECK(tcuda_memory_empty_cache()); }
    void reset_peak(int device) override { CHECK(tcuda_memory_reset_peak(device)); }
    void reset_accumulated(int device) override { CHECK(tcuda_memory_reset_accumulated(device)); }

    void set_stream(int device, int stream) override
    {
        CHECK(tcuda_stream_set_current(streams[device][stream]));
    }

    void hold_events(bool held) override
    {
        for (const char *question : {"cuEventQuery", "cuStreamQuery"})
            CHECK(tcuda_backend_inject(question, held ? 1 : 0, NOT_READY, held));
    }

    // PyTorch has waited for the context, which is its as well. tcuda asks streams for a small part
    // of the time only, unless the host has heard from it that work is over.
    void settle() override
    {
        if (ON_GPU)
            CHECK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    }

    Statistics statistics(int device) const override
    {
        tcuda_memory_statistics found = TCUDA_INIT(tcuda_memory_statistics);
        CHECK(tcuda_memory_stats(device, &found));
        const tcuda_stat_by_pool *const sources[] = {&found.allocation, &found.allocated_bytes,
            &found.active, &found.active_bytes, &found.requested_bytes, &found.segment,
            &found.reserved_bytes, &found.inactive_split, &found.inactive_split_bytes};
        Statistics result;
        for (size_t i = 0; i < result.stats.size(); i++) {
            const tcuda_stat *const pools[]
                = {&sources[i]->all, &sources[i]->small_pool, &sources[i]->large_pool};
            for (size_t pool = 0; pool < 3; pool++)
                result.stats[i][pool] = convert(*pools[pool]);
        }
        result.oversize_allocations = convert(found.oversize_allocations);
        result.oversize_segments = convert(found.oversize_segments);
        result.num_ooms = int64_t(found.num_ooms);
        result.num_alloc_retries = int64_t(found.num_alloc_retries);
        result.num_sync_all_streams = int64_t(found.num_sync_all_streams);
        result.num_device_alloc = int64_t(found.num_device_alloc);
        result.num_device_free = int64_t(found.num_device_free);
        result.max_split_size = int64_t(found.max_split_size);
        return result;
    }

    const char *name() const override { return "tcuda"; }

private:
    static Stat convert(const tcuda_stat &stat)
    {
        return {int64_t(stat.current), int64_t(stat.peak), int64_t(stat.allocated),
            int64_t(stat.freed)};
    }

    tcuda_stream *find(int device, int stream)
    {
        return stream == CURRENT_STREAM ? nullptr : streams[device][stream];
    }

    std::vector<std::vector<tcuda_stream *>> streams;
};

} // namespace

std::unique_ptr<Side> make_tcuda(const Machine &machine)
{
    return std::make_unique<Tcuda>(machine);
}
