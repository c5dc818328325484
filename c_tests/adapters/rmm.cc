// tcuda_mr.hpp beside RMM, with its library: adaptors, and what is built on them, get their memory
// from tcuda. RMM links the CUDA runtime, which does not start on the simulated machine; what calls
// it runs on GPUs only.
#include "adapter.h"

#include <rmm/aligned.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/aligned_resource_adaptor.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/fixed_size_memory_resource.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/logging_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/polymorphic_allocator.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/mr/thread_safe_resource_adaptor.hpp>
#include <rmm/mr/tracking_resource_adaptor.hpp>
#include <sstream>

#include "tcuda_mr.hpp"

using upstream = tcuda::basic_memory_resource<rmm::out_of_memory>;
using any = cuda::mr::any_resource<cuda::mr::device_accessible>;

constexpr std::size_t KIB = 1 << 10;

static_assert(std::is_constructible_v<rmm::device_async_resource_ref, upstream &>);
static_assert(std::is_constructible_v<rmm::device_resource_ref, upstream &>);

// What comes through a resource is tcuda's, usable, and goes back.
static void comes_and_goes(rmm::device_async_resource_ref resource, tcuda_stream *stream) {
    const std::uint64_t before = live_bytes();
    void *const ptr = resource.allocate(native_of(stream), 100 * KIB, 256);
    CHECK(live_bytes() >= before + 100 * KIB);
    void *base = nullptr;
    std::size_t bytes = 0;
    CHECK_OK(tcuda_memory_base(ptr, &base, &bytes));
    check_usable(ptr, 100 * KIB, 3, stream);
    resource.deallocate(native_of(stream), ptr, 100 * KIB, 256);
    CHECK_EQ(live_bytes(), before);
}

static void adaptors(tcuda_stream *stream) {
    CUstream_st *const native = native_of(stream);
    upstream resource(0);
    comes_and_goes(resource, stream);

    rmm::mr::statistics_resource_adaptor statistics(resource);
    comes_and_goes(statistics, stream);
    CHECK_EQ(statistics.get_bytes_counter().value, 0);
    CHECK_EQ(statistics.get_bytes_counter().peak, 100 * KIB);
    CHECK_EQ(statistics.get_allocations_counter().total, 1);

    rmm::mr::tracking_resource_adaptor tracking(statistics);
    comes_and_goes(tracking, stream);
    void *const ptr = tracking.allocate(native, KIB, 256);
    CHECK_EQ(tracking.get_outstanding_allocations().size(), 1);
    CHECK_EQ(tracking.get_allocated_bytes(), KIB);
    tracking.deallocate(native, ptr, KIB, 256);
    CHECK_EQ(tracking.get_allocated_bytes(), 0);

    rmm::mr::limiting_resource_adaptor limiting(resource, 150 * KIB);
    comes_and_goes(limiting, stream);
    try {
        (void)limiting.allocate(native, 200 * KIB, 256);
        CHECK(!"the limit holds");
    } catch (const rmm::out_of_memory &) {
    }

    rmm::mr::thread_safe_resource_adaptor thread_safe(resource);
    comes_and_goes(thread_safe, stream);

    rmm::mr::aligned_resource_adaptor aligned(resource, 4096, 0);
    comes_and_goes(aligned, stream);
    void *const page = aligned.allocate(native, 100, 256);
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(page) % 4096, 0);
    aligned.deallocate(native, page, 100, 256);

    std::ostringstream log;
    rmm::mr::logging_resource_adaptor logging(resource, log);
    comes_and_goes(logging, stream);
    CHECK(log.str().find(",102400,") != std::string::npos);

    // Its copies, and resources made of references, share it.
    any owner(statistics);
    comes_and_goes(owner, stream);
    CHECK_EQ(statistics.get_allocations_counter().total, 4);
}

static bool free_and_count(std::size_t, void *calls) {
    return ++*static_cast<int *>(calls) < 3;
}

// Out of memory is RMM's exception: its adaptor for failures catches it and tries again.
static void out_of_memory_is_theirs(tcuda_stream *stream) {
    int calls = 0;
    upstream resource(0);
    rmm::mr::failure_callback_resource_adaptor<> retrying(resource, free_and_count, &calls);
    comes_and_goes(retrying, stream);
    CHECK_EQ(calls, 0);
    try {
        (void)retrying.allocate(native_of(stream), std::size_t(1) << 50, 256);
        CHECK(!"there is so much memory");
    } catch (const rmm::out_of_memory &error) {
        CHECK(std::strlen(error.what()) > 0);
    }
    CHECK_EQ(calls, 3);
}

static void allocator_of_elements(tcuda_stream *stream) {
    const std::uint64_t before = live_bytes();
    rmm::mr::polymorphic_allocator<std::int64_t> allocator{any(upstream(0))};
    std::int64_t *const values = allocator.allocate(1000, native_of(stream));
    CHECK(live_bytes() >= before + 8000);
    check_usable(values, 8000, 5, stream);
    allocator.deallocate(values, 1000, native_of(stream));
    CHECK_EQ(live_bytes(), before);
}

static void containers(tcuda_stream *stream) {
    CUstream_st *const native = native_of(stream);
    const std::uint64_t before = live_bytes();
    rmm::mr::set_current_device_resource(upstream(0));
    comes_and_goes(rmm::mr::get_current_device_resource_ref(), stream);
    {
        const rmm::device_uvector<int> values(1000, native); // of the current resource
        CHECK(live_bytes() >= before + 4000);
        check_usable(const_cast<int *>(values.data()), 4000, 2, stream);
        rmm::device_buffer buffer(4000, native, any(upstream(0)));
        CHECK(live_bytes() >= before + 8000);
        const rmm::device_buffer moved(std::move(buffer));
        CHECK_EQ(moved.size(), 4000);
    }
    CHECK_EQ(live_bytes(), before);
    rmm::mr::reset_current_device_resource();
}

// What calls the CUDA runtime.
static void pools_and_copies(tcuda_stream *stream) {
    CUstream_st *const native = native_of(stream);
    const std::uint64_t before = live_bytes();
    {
        const rmm::device_buffer buffer(4000, native, any(upstream(0)));
        const rmm::device_buffer copy(buffer.data(), 4000, native, any(upstream(0)));
        CHECK(live_bytes() >= before + 8000);
        rmm::mr::pool_memory_resource pool(upstream(0), 1 << 20, 1 << 24);
        CHECK(live_bytes() >= before + (1 << 20));
        void *const ptr = pool.allocate(native, 100 * KIB, 256);
        check_usable(ptr, 100 * KIB, 4, stream);
        pool.deallocate(native, ptr, 100 * KIB, 256);
        rmm::mr::fixed_size_memory_resource blocks(upstream(0), 64 * KIB, 4);
        blocks.deallocate(native, blocks.allocate(native, 64 * KIB, 256), 64 * KIB, 256);
    }
    CHECK_EQ(live_bytes(), before);
}

int main() {
    SKIP_WITHOUT_GPU();
    tcuda_stream *const stream = new_stream();
    adaptors(stream);
    out_of_memory_is_theirs(stream);
    allocator_of_elements(stream);
    containers(stream);
    if (std::strcmp(tcuda_backend_name(), "cuda") == 0) pools_and_copies(stream);
    CHECK_OK(tcuda_stream_destroy(stream));
    return finish();
}
