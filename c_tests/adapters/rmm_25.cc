// tcuda_mr.hpp beside RMM 25.04, which has a base class for resources and CCCL 2.7.
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#include "adapter.h"

#include <rmm/device_uvector.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/device/statistics_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>

#include "tcuda_mr.hpp"

using upstream = tcuda::basic_memory_resource<rmm::out_of_memory>;
using statistics = rmm::mr::statistics_resource_adaptor<rmm::mr::device_memory_resource>;

static_assert(std::is_constructible_v<rmm::device_async_resource_ref, upstream &>);
static_assert(std::is_constructible_v<rmm::device_resource_ref, upstream &>);

int main() {
    SKIP_WITHOUT_GPU();
    tcuda_stream *const stream = new_stream();
    upstream resource(0);
    statistics counting{rmm::device_async_resource_ref(resource)};
    void *const ptr = counting.allocate_async(1024, 256, native_of(stream));
    CHECK(live_bytes() >= 1024);
    check_usable(ptr, 1024, 3, stream);
    counting.deallocate_async(ptr, 1024, 256, native_of(stream));
    CHECK_EQ(live_bytes(), 0);
    CHECK_EQ(counting.get_bytes_counter().total, 1024);
    if (std::strcmp(tcuda_backend_name(), "cuda") == 0) { // it calls the CUDA runtime
        const rmm::device_uvector<int> values(1000, native_of(stream), resource);
        CHECK(live_bytes() >= 4000);
    }
    CHECK_EQ(live_bytes(), 0);
    try {
        (void)counting.allocate_async(std::size_t(1) << 50, 256, native_of(stream));
        CHECK(!"there is so much memory");
    } catch (const rmm::out_of_memory &error) {
        CHECK(std::strlen(error.what()) > 0);
    }
    CHECK_OK(tcuda_stream_destroy(stream));
    return finish();
}
