// tcuda_ggml.hpp as the pool of ggml's own classes: ggml_interface.h has ggml_cuda_pool and
// ggml_cuda_pool_alloc as ggml's common.cuh declares them (run.py).
#include "adapter.h"

#include <memory>

#define GGML_ASSERT(condition) CHECK(condition)
#include "ggml_interface.h"

#include "tcuda_ggml.hpp"

using pool_on_tcuda = tcuda::ggml_pool<ggml_cuda_pool>;

constexpr std::size_t KIB = 1 << 10, MIB = 1 << 20;

static void blocks_come_and_go(ggml_cuda_pool &pool, tcuda_stream *stream) {
    const std::uint64_t before = live_bytes();
    {
        ggml_cuda_pool_alloc<float> first(pool, 1000);
        CHECK(first.actual_size >= 4000);
        CHECK(live_bytes() >= before + first.actual_size);
        check_usable(first.get(), first.actual_size, 1, stream); // all of it
        ggml_cuda_pool_alloc<char> second(pool);
        second.alloc(3 * MIB + 1);
        check_usable(second.get(), second.actual_size, 2, stream);
    }
    CHECK_EQ(live_bytes(), before);

    // In an order that is not last in, first out.
    std::vector<std::unique_ptr<ggml_cuda_pool_alloc<char>>> blocks;
    for (std::size_t i = 1; i <= 20; i++)
        blocks.push_back(std::make_unique<ggml_cuda_pool_alloc<char>>(pool, i * 10 * KIB));
    for (std::size_t i = 0; i < blocks.size(); i += 2) blocks[i].reset();
    for (std::size_t i = 1; i < blocks.size(); i += 2) {
        check_usable(blocks[i]->get(), blocks[i]->actual_size, 3, stream);
        blocks[i].reset();
    }
    CHECK_EQ(live_bytes(), before);
}

static std::uint64_t reserved_bytes() {
    std::uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, "reserved_bytes.all.current", &value));
    return value;
}

// A block that was freed stays the pool's: replays of graphs may write it.
static void memory_is_the_pools(ggml_cuda_pool &pool, tcuda_stream *stream) {
    std::size_t bytes = 0;
    void *const ptr = pool.alloc(4 * MIB, &bytes);
    pool.free(ptr, bytes);
    std::vector<void *> others;
    for (int i = 0; i < 10; i++) {
        void *other = nullptr;
        CHECK_OK(tcuda_malloc(4 * MIB, 0, stream, &other));
        CHECK(other != ptr);
        others.push_back(other);
    }
    for (void *other : others) CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK(reserved_bytes() >= 4 * MIB);
    void *const again = pool.alloc(4 * MIB, &bytes);
    CHECK(again == ptr);
    pool.free(again, bytes);
}

static void failures_are_exceptions(ggml_cuda_pool &pool) {
    std::size_t bytes = 7;
    try {
        (void)pool.alloc(std::size_t(1) << 50, &bytes);
        CHECK(!"there is so much memory");
    } catch (const std::bad_alloc &) {
        CHECK_EQ(bytes, 7);
    }
    // This thread's other allocations do not come from the pool.
    void *ptr = nullptr;
    uint64_t before = 0, after = 0;
    CHECK_OK(tcuda_memory_stat(0, "allocated_bytes.all.current", &before));
    CHECK_OK(tcuda_malloc(KIB, 0, nullptr, &ptr));
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_memory_stat(0, "allocated_bytes.all.current", &after));
    CHECK_EQ(before, after);
    try {
        (void)pool_on_tcuda(1000, nullptr).alloc(KIB, &bytes);
        CHECK(!"there is such a device");
    } catch (const std::runtime_error &error) {
        CHECK(std::strlen(error.what()) > 0);
    }
}

int main() {
    SKIP_WITHOUT_GPU();
    tcuda_stream *const stream = new_stream();
    {
        std::unique_ptr<ggml_cuda_pool> pool =
            std::make_unique<pool_on_tcuda>(0, native_of(stream));
        blocks_come_and_go(*pool, stream);
        memory_is_the_pools(*pool, stream);
        failures_are_exceptions(*pool);
    }
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved_bytes(), 0);
    CHECK_OK(tcuda_stream_destroy(stream));
    return finish();
}
