// tcuda_mr.hpp beside CCCL: its concepts accept the resource, and its wrappers use it. With
// WITH_CCCL_2 by the names of CCCL 2.5 to 3.0.
#ifdef WITH_CCCL_2
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif
#include "adapter.h"

#include "tcuda_mr.hpp"

namespace mr = cuda::mr;
using resource = tcuda::memory_resource;

constexpr std::size_t KIB = 1 << 10;

#ifdef WITH_CCCL_2
static_assert(mr::async_resource_with<resource, mr::device_accessible>);
static_assert(!mr::async_resource_with<resource, mr::host_accessible>);
using resource_ref = mr::async_resource_ref<mr::device_accessible>;

static void *allocate(resource_ref from, CUstream_st *stream, std::size_t bytes,
    std::size_t alignment) {
    return from.allocate_async(bytes, alignment, stream);
}
static void deallocate(resource_ref to, CUstream_st *stream, void *ptr, std::size_t bytes,
    std::size_t alignment) {
    to.deallocate_async(ptr, bytes, alignment, stream);
}
static void *allocate_sync(resource_ref from, std::size_t bytes, std::size_t alignment) {
    return from.allocate(bytes, alignment);
}
static void deallocate_sync(resource_ref to, void *ptr, std::size_t bytes, std::size_t alignment) {
    to.deallocate(ptr, bytes, alignment);
}
#else
static_assert(mr::resource_with<resource, mr::device_accessible>);
static_assert(mr::synchronous_resource_with<resource, mr::device_accessible>);
static_assert(!mr::resource_with<resource, mr::host_accessible>);
using resource_ref = mr::resource_ref<mr::device_accessible>;

static void *allocate(resource_ref from, CUstream_st *stream, std::size_t bytes,
    std::size_t alignment) {
    return from.allocate(stream, bytes, alignment);
}
static void deallocate(resource_ref to, CUstream_st *stream, void *ptr, std::size_t bytes,
    std::size_t alignment) {
    to.deallocate(stream, ptr, bytes, alignment);
}
static void *allocate_sync(resource_ref from, std::size_t bytes, std::size_t alignment) {
    return from.allocate_sync(bytes, alignment);
}
static void deallocate_sync(resource_ref to, void *ptr, std::size_t bytes, std::size_t alignment) {
    to.deallocate_sync(ptr, bytes, alignment);
}

#if CCCL_VERSION >= 3002000
static void wrappers_own_it() {
    mr::any_resource<mr::device_accessible> owner;
    {
        resource dies_first(0);
        owner = mr::any_resource<mr::device_accessible>(dies_first);
    }
    const mr::any_resource<mr::device_accessible> copy(owner);
    CHECK(copy == owner);
    CHECK(owner == mr::any_resource<mr::device_accessible>(resource(0)));
    CHECK(owner != mr::any_resource<mr::device_accessible>(resource(TCUDA_CURRENT_DEVICE)));
    CHECK(!try_get_property(owner, mr::host_accessible{}));
    CHECK(try_get_property(owner, mr::device_accessible{}));
    const std::uint64_t before = live_bytes();
    void *const ptr = owner.allocate_sync(3 * KIB, 256);
    CHECK(live_bytes() >= before + 3 * KIB);
    owner.deallocate_sync(ptr, 3 * KIB, 256);
    CHECK_EQ(live_bytes(), before);

    auto shared = mr::make_shared_resource<resource>(0);
    void *const other = shared.allocate_sync(KIB, 256);
    shared.deallocate_sync(other, KIB, 256);
    mr::synchronous_resource_ref<mr::device_accessible> reference(shared);
    reference.deallocate_sync(reference.allocate_sync(KIB, 256), KIB, 256);
    CHECK_EQ(live_bytes(), before);
}
#endif
#endif

static void memory_comes_and_goes(tcuda_stream *stream) {
    resource of_device(0);
    CHECK_EQ(of_device.device(), 0);
    const std::uint64_t before = live_bytes();
    for (const std::size_t alignment : {1, 16, 256, 512}) {
        void *const ptr = allocate(of_device, native_of(stream), 100 * KIB, alignment);
        CHECK_EQ(reinterpret_cast<std::uintptr_t>(ptr) % alignment, 0);
        CHECK(live_bytes() >= before + 100 * KIB);
        check_usable(ptr, 100 * KIB, 7, stream);
        deallocate(of_device, native_of(stream), ptr, 100 * KIB, alignment);
        CHECK_EQ(live_bytes(), before);
    }
    // Memory of allocate_sync is any stream's.
    void *const ptr = allocate_sync(of_device, 5 * KIB, 256);
    check_usable(ptr, 5 * KIB, 9, stream);
    deallocate_sync(of_device, ptr, 5 * KIB, 256);
    CHECK_EQ(live_bytes(), before);
    CHECK(allocate(of_device, native_of(stream), 0, 256) == nullptr);
    deallocate(of_device, native_of(stream), nullptr, 0, 256);
    CHECK(resource(0) == of_device);
    CHECK(resource(TCUDA_CURRENT_DEVICE) != of_device);
}

// A block that is freed on another stream is not reused here before the work there is done.
static void a_free_is_in_the_order_of_its_stream(tcuda_stream *here, tcuda_stream *there) {
    resource of_device(0);
    void *const ptr = allocate(of_device, native_of(here), 700 * KIB, 256);
    CHECK_OK(tcuda_stream_wait_stream(there, here));
    gate held(there);
    deallocate(of_device, native_of(there), ptr, 700 * KIB, 256);
    void *const next = allocate(of_device, native_of(here), 700 * KIB, 256);
    if (runs_late()) CHECK(next != ptr);
    held.open();
    deallocate(of_device, native_of(here), next, 700 * KIB, 256);
    CHECK_OK(tcuda_stream_synchronize(there));
}

template <class Error, class Call> static bool throws(Call call) {
    try {
        call();
    } catch (const Error &error) {
        return std::strlen(error.what()) > 0;
    }
    return false;
}

static void failures_are_exceptions(CUstream_st *stream) {
    resource of_device(0), of_none(1000);
    const auto too_large = [&] { (void)allocate(of_device, stream, std::size_t(1) << 50, 256); };
    CHECK(throws<std::bad_alloc>(too_large));
    CHECK(throws<tcuda::bad_alloc>(too_large));
    CHECK(throws<std::bad_alloc>([&] { (void)allocate_sync(of_device, std::size_t(1) << 50, 8); }));
    CHECK(throws<std::invalid_argument>([&] { (void)allocate(of_device, stream, KIB, 24); }));
    CHECK(throws<std::invalid_argument>([&] { (void)allocate(of_device, stream, KIB, KIB); }));
    CHECK(throws<std::runtime_error>([&] { (void)allocate_sync(of_none, KIB, 256); }));
}

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
// Stream 0 is each thread's own: what a thread frees there, another does not get at once.
static void stream_0_belongs_to_the_thread() {
    resource of_device(0);
    CUstream_st *const stream_0 = nullptr;
    void *const ptr = allocate(of_device, stream_0, 700 * KIB, 256);
    deallocate(of_device, stream_0, ptr, 700 * KIB, 256);
    std::thread([&] {
        void *const other = allocate(of_device, stream_0, 700 * KIB, 256);
        CHECK(other != ptr);
        deallocate(of_device, stream_0, other, 700 * KIB, 256);
    }).join();
    void *const again = allocate(of_device, stream_0, 700 * KIB, 256);
    CHECK(again == ptr);
    deallocate(of_device, stream_0, again, 700 * KIB, 256);
}
#endif

int main() {
    SKIP_WITHOUT_GPU();
    tcuda_stream *const here = new_stream(), *const there = new_stream();
    memory_comes_and_goes(here);
    a_free_is_in_the_order_of_its_stream(here, there);
    failures_are_exceptions(native_of(here));
#if CCCL_VERSION >= 3002000
    wrappers_own_it();
#endif
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    stream_0_belongs_to_the_thread();
#endif
    CHECK_OK(tcuda_stream_destroy(here));
    CHECK_OK(tcuda_stream_destroy(there));
    return finish();
}
