// PyTorch's allocator: its own libc10_cuda.so, on a GPU or over the stub runtime of
// benches/c10_without_gpu.

#include "side.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;
namespace c10::cuda::_internal { void setHasPrimaryContext(bool (*function)(c10::DeviceIndex)); }
#ifdef DIFFERENTIAL_ON_GPU
static void stub_hold_events(int) {}
#else
extern "C" void stub_hold_events(int held);
#endif

namespace {

class Torch final : public Side {
public:
    explicit Torch(const Machine &machine)
    {
        if (ON_GPU && cudaFree(nullptr) != cudaSuccess) { // creates the context
            std::fprintf(stderr, "differential: no GPU\n");
            std::exit(2);
        }
        c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
        allocator::init(machine.devices);
        for (int device = 0; device < machine.devices; device++) {
            if (machine.fraction < 1)
                allocator::setMemoryFraction(machine.fraction, c10::DeviceIndex(device));
            auto &known = streams.emplace_back();
            known.push_back(c10::cuda::getDefaultCUDAStream(device));
            while (known.size() < STREAMS)
                known.push_back(c10::cuda::getStreamFromPool(false, device));
        }
        c10::cuda::set_device(0);
    }

    void *allocate(size_t bytes, int device, int stream) override
    {
        const c10::cuda::CUDAGuard guard(device);
        try {
            if (stream == CURRENT_STREAM)
                return allocator::raw_alloc(bytes);
            return allocator::raw_alloc_with_stream(bytes, streams[device][stream].stream());
        } catch (const c10::OutOfMemoryError &) {
            return nullptr;
        }
    }

    void free(void *block) override { allocator::raw_delete(block); }

    void record_stream(void *block, int block_device, int device, int stream) override
    {
        c10::DataPtr data(block, block, allocator::get()->raw_deleter(),
            c10::Device(c10::DeviceType::CUDA, block_device));
        const auto target = stream == CURRENT_STREAM ? c10::cuda::getCurrentCUDAStream(device)
                                                     : streams[device][stream];
        allocator::recordStream(data, target);
        data.release_context();
    }

    void empty_cache() override { allocator::emptyCache(); }
    void reset_peak(int device) override { allocator::resetPeakStats(device); }
    void reset_accumulated(int device) override { allocator::resetAccumulatedStats(device); }

    void set_stream(int device, int stream) override
    {
        c10::cuda::setCurrentCUDAStream(streams[device][stream]);
        c10::cuda::set_device(device);
    }

    void hold_events(bool held) override { stub_hold_events(held); }

    void settle() override
    {
        if (ON_GPU && cudaDeviceSynchronize() != cudaSuccess) {
            std::fprintf(stderr, "differential: the GPU cannot be waited for\n");
            std::exit(2);
        }
    }

    Statistics statistics(int device) const override
    {
        const auto found = allocator::getDeviceStats(device);
        const c10::CachingAllocator::StatArray *const sources[] = {&found.allocation,
            &found.allocated_bytes, &found.active, &found.active_bytes, &found.requested_bytes,
            &found.segment, &found.reserved_bytes, &found.inactive_split,
            &found.inactive_split_bytes};
        Statistics result;
        for (size_t i = 0; i < result.stats.size(); i++) {
            for (size_t pool = 0; pool < 3; pool++)
                result.stats[i][pool] = convert((*sources[i])[pool]);
        }
        result.oversize_allocations = convert(found.oversize_allocations);
        result.oversize_segments = convert(found.oversize_segments);
        result.num_ooms = found.num_ooms;
        result.num_alloc_retries = found.num_alloc_retries;
        result.num_sync_all_streams = found.num_sync_all_streams;
        result.num_device_alloc = found.num_device_alloc;
        result.num_device_free = found.num_device_free;
        result.max_split_size = found.max_split_size;
        return result;
    }

    const char *name() const override { return "torch"; }

private:
    static Stat convert(const c10::CachingAllocator::Stat &stat)
    {
        return {stat.current, stat.peak, stat.allocated, stat.freed};
    }

    std::vector<std::vector<c10::cuda::CUDAStream>> streams;
};

} // namespace

std::unique_ptr<Side> make_torch(const Machine &machine)
{
    return std::make_unique<Torch>(machine);
}
