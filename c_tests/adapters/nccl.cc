// tcuda_nccl.hpp: what is registered is the memory that tcuda has, at any time. The functions of
// NCCL are those below, which count; WITH_NCCL: NVIDIA's, on GPUs.
#include "adapter.h"

#include <map>
#include <memory>
#include <mutex>

#include "tcuda_nccl.hpp"

constexpr std::size_t MIB = 1 << 20;
#ifndef WITH_NCCL
using bytes = std::map<std::uintptr_t, std::uintptr_t>; // ranges that do not touch: first, behind

static void join(bytes &to, std::uintptr_t first, std::uintptr_t behind) {
    auto at = to.upper_bound(first);
    if (at != to.begin() && std::prev(at)->second >= first) {
        --at;
        first = at->first;
        if (at->second > behind) behind = at->second;
        at = to.erase(at);
    }
    while (at != to.end() && at->first <= behind) {
        if (at->second > behind) behind = at->second;
        at = to.erase(at);
    }
    to[first] = behind;
}

struct ncclComm {
    int device;
    std::mutex mutex;
    bytes registered;
    int fails_at; // the call that fails, counted down; 0: none
};

extern "C" ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    *device = comm->device;
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size,
    void **handle) {
    const std::lock_guard<std::mutex> lock(comm->mutex);
    if (comm->fails_at > 0 && --comm->fails_at == 0) return ncclUnhandledCudaError;
    const auto first = reinterpret_cast<std::uintptr_t>(buff);
    CHECK(size > 0);
    for (const auto &[start, behind] : comm->registered)
        CHECK(first + size <= start || behind <= first);
    comm->registered[first] = first + size;
    *handle = buff;
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    const std::lock_guard<std::mutex> lock(comm->mutex);
    CHECK_EQ(comm->registered.erase(reinterpret_cast<std::uintptr_t>(handle)), 1);
    return ncclSuccess;
}

// The segments of device 0, of a pool or of all.
static bytes segments_of(tcuda_mem_pool *pool) {
    tcuda_memory_snapshot *snapshot = nullptr;
    std::size_t segments = 0, blocks = 0;
    std::uint64_t id0 = 0, id1 = 0;
    bytes found;
    if (pool != nullptr) CHECK_OK(tcuda_mem_pool_id(pool, &id0, &id1));
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    for (std::size_t i = 0; i < segments; i++) {
        tcuda_segment_info segment = TCUDA_INIT(tcuda_segment_info);
        CHECK_OK(tcuda_memory_snapshot_segment(snapshot, i, &segment));
        const auto first = reinterpret_cast<std::uintptr_t>(segment.ptr);
        const bool is_its = segment.pool_id0 == id0 && segment.pool_id1 == id1;
        if (segment.device == 0 && (pool == nullptr || is_its))
            join(found, first, first + segment.total_bytes);
    }
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    return found;
}

static void check_complete(const ncclComm &comm, tcuda_mem_pool *pool) {
    bytes joined;
    for (const auto &[first, behind] : comm.registered) join(joined, first, behind);
    CHECK(joined == segments_of(pool));
}

static void *allocate(std::size_t size, tcuda_stream *stream, tcuda_mem_pool *pool = nullptr) {
    void *ptr = nullptr;
    if (pool != nullptr) CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_OK(tcuda_malloc(size, 0, stream, &ptr));
    if (pool != nullptr) CHECK_OK(tcuda_mem_pool_end(pool, 0));
    return ptr;
}

static void memory_of_a_pool(tcuda_stream *stream) {
    ncclComm comm{};
    tcuda_mem_pool *pool = nullptr;
    CHECK_OK(tcuda_graph_pool_handle(&pool));
    void *const first = allocate(4 * MIB, stream, pool), *const other = allocate(4 * MIB, stream);
    {
        const tcuda::nccl_registration registration(&comm, pool);
        CHECK(registration.count() >= 1);
        check_complete(comm, pool);
        const auto at = reinterpret_cast<std::uintptr_t>(first);
        CHECK(comm.registered.count(reinterpret_cast<std::uintptr_t>(other)) == 0);
        CHECK(std::prev(comm.registered.upper_bound(at))->second >= at + 4 * MIB);

        void *const second = allocate(64 * MIB, stream, pool);
        const std::size_t count = registration.count();
        CHECK(count >= 2);
        check_complete(comm, pool);
        CHECK_OK(tcuda_free(allocate(64 * MIB, stream))); // not of the pool
        CHECK_EQ(registration.count(), count);
        CHECK_OK(tcuda_free(second));
        CHECK_OK(tcuda_memory_empty_cache()); // the pool keeps its memory
        CHECK_EQ(registration.count(), count);
        check_complete(comm, pool);
        CHECK_OK(tcuda_free(first));
        CHECK_OK(tcuda_mem_pool_destroy(pool));
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_EQ(registration.count(), 0);
        CHECK_EQ(registration.last_error(), ncclSuccess);
    }
    CHECK(comm.registered.empty());
    CHECK_OK(tcuda_free(other));
}

// A part of what was registered as one goes back: the rest stays registered.
static void a_part_goes_back(tcuda_stream *stream) {
    ncclComm comm{};
    void *blocks[4];
    for (void *&block : blocks) block = allocate(32 * MIB, stream);
    const tcuda::nccl_registration registration(&comm);
    check_complete(comm, nullptr);
    for (const int i : {1, 3, 0, 2}) {
        CHECK_OK(tcuda_free(blocks[i]));
        CHECK_OK(tcuda_memory_empty_cache());
        check_complete(comm, nullptr);
        CHECK_EQ(registration.last_error(), ncclSuccess);
    }
}

// Registrations begin, and some end, while threads allocate: each is complete in the end.
static void threads_allocate_meanwhile() {
    constexpr std::size_t COUNT = 60;
    std::vector<ncclComm> comms(COUNT);
    std::vector<std::unique_ptr<tcuda::nccl_registration>> registrations;
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; number++) {
        threads.emplace_back([&is_over, number] {
            tcuda_stream *const stream = new_stream();
            for (int i = number; !is_over; i++) {
                void *const ptr = allocate(static_cast<std::size_t>(i % 7 + 1) * 3 * MIB, stream);
                CHECK_OK(tcuda_free(ptr));
                CHECK_OK(tcuda_memory_empty_cache());
            }
            CHECK_OK(tcuda_stream_destroy(stream));
        });
    }
    for (std::size_t i = 0; i < COUNT; i++) {
        registrations.push_back(std::make_unique<tcuda::nccl_registration>(&comms[i]));
        if (i % 10 == 9) registrations[i - 4].reset();
    }
    is_over = true;
    for (std::thread &thread : threads) thread.join();
    void *const last = allocate(5 * MIB, nullptr);
    for (std::size_t i = 0; i < COUNT; i++) {
        if (registrations[i] == nullptr) {
            CHECK(comms[i].registered.empty());
            continue;
        }
        check_complete(comms[i], nullptr);
        CHECK_EQ(registrations[i]->last_error(), ncclSuccess);
    }
    CHECK_OK(tcuda_free(last));
}

static void failures_are_kept(tcuda_stream *stream) {
    ncclComm comm{};
    void *const first = allocate(4 * MIB, stream);
    comm.fails_at = 1;
    try {
        const tcuda::nccl_registration registration(&comm);
        CHECK(!"NCCL registers it");
    } catch (const std::runtime_error &) {
    }
    CHECK(comm.registered.empty());
    const tcuda::nccl_registration registration(&comm);
    const std::size_t count = registration.count();
    comm.fails_at = 1;
    void *const second = allocate(64 * MIB, stream);
    CHECK_EQ(registration.last_error(), ncclUnhandledCudaError);
    CHECK_EQ(registration.count(), count);
    CHECK_OK(tcuda_free(first));
    CHECK_OK(tcuda_free(second));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK(comm.registered.empty());
}

static int ends_with_the_library() {
    ncclComm comm{};
    std::size_t live = 0;
    CHECK(allocate(4 * MIB, nullptr) != nullptr);
    const tcuda::nccl_registration registration(&comm);
    CHECK(registration.count() > 0);
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(registration.count(), 0);
    CHECK(comm.registered.empty());
    return EXIT_SUCCESS;
}

int main() {
    SKIP_WITHOUT_GPU();
    tcuda_stream *const stream = new_stream();
    memory_of_a_pool(stream);
    a_part_goes_back(stream);
    threads_allocate_meanwhile();
    failures_are_kept(stream);
    CHECK_OK(tcuda_stream_destroy(stream));
    return ends_with_the_library();
}
#else
// A collective of one rank on memory that is registered.
int main() {
    SKIP_WITHOUT_GPU();
    ncclComm_t comm = nullptr;
    const int device = 0;
    tcuda_mem_pool *pool = nullptr;
    void *ptr = nullptr;
    tcuda_stream *const stream = new_stream();
    CUstream_st *native = nullptr;
    CHECK_OK(tcuda_stream_native(stream, &native));
    CHECK_OK(tcuda_device_set(0));
    CHECK_EQ(ncclCommInitAll(&comm, 1, &device), ncclSuccess);
    CHECK_OK(tcuda_graph_pool_handle(&pool));
    {
        const tcuda::nccl_registration registration(comm, pool);
        CHECK_EQ(registration.count(), 0);
        CHECK_OK(tcuda_mem_pool_begin(pool, 0));
        CHECK_OK(tcuda_malloc(4 * MIB, 0, stream, &ptr));
        CHECK_OK(tcuda_mem_pool_end(pool, 0));
        CHECK(registration.count() > 0);
        CHECK_EQ(registration.last_error(), ncclSuccess);
        const unsigned char value = 1;
        CHECK_OK(tcuda_fill(ptr, &value, 1, 4 * MIB, stream));
        CHECK_EQ(ncclAllReduce(ptr, ptr, 4 * MIB, ncclUint8, ncclSum, comm, native), ncclSuccess);
        unsigned char last = 0;
        CHECK_OK(tcuda_copy(&last, static_cast<char *>(ptr) + 4 * MIB - 1, 1, stream));
        CHECK_OK(tcuda_stream_synchronize(stream));
        CHECK_EQ(last, 1);
        CHECK_OK(tcuda_free(ptr));
        CHECK_OK(tcuda_mem_pool_destroy(pool));
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_EQ(registration.count(), 0);
        CHECK_EQ(registration.last_error(), ncclSuccess);
    }
    CHECK_EQ(ncclCommDestroy(comm), ncclSuccess);
    CHECK_OK(tcuda_stream_destroy(stream));
    return finish();
}
#endif
