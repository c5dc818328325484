// tcuda_nccl.hpp: registers tcuda's memory with an NCCL communicator (ncclCommRegister), so that
// collectives may work on it without copies.
//
//   tcuda_mem_pool *pool = nullptr;
//   tcuda_graph_pool_handle(&pool);               // keeps its memory while it exists
//   {
//       tcuda::nccl_registration registration(comm, pool); // now and from now on
//       tcuda_mem_pool_begin(pool, device);       // buffers of collectives
//       tcuda_malloc(bytes, device, stream, &buffer);
//       tcuda_mem_pool_end(pool, device);
//       ncclAllReduce(buffer, buffer, count, ncclFloat, ncclSum, comm, native_stream);
//   }                                             // before ncclCommDestroy
//
// What is registered: the memory that the pool has, one registration a segment, and memory that it
// gets later, one registration for each growth. With NULL for the pool: all device memory of
// tcuda on the communicator's device. NCCL uses a registration for buffers that lie within it.
//
// When memory has gone back to the driver, its registration ends, and what remains of the segment
// is registered anew. NCCL demands that no collective uses that registration at that time. Memory
// of a pool of tcuda_graph_pool_handle does not go back while the pool exists; that of other pools
// goes back when memory is short.
//
// Ownership. It does not own the communicator, which must outlive it, and must be a blocking one.
// All registrations end with the object, or with tcuda_shutdown, if that is earlier.
//
// Threads. NCCL lets one thread at a time use a communicator, and tcuda registers on the thread
// that allocates or frees: where other threads use the communicator meanwhile, they hold mutex(),
// and make no call of tcuda while they hold it.
//
// Errors. The constructor throws std::runtime_error. Later failures leave memory unregistered,
// which NCCL allows: last_error() has the latest one.

#ifndef TCUDA_NCCL_HPP
#define TCUDA_NCCL_HPP

#include <tcuda.h>

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace tcuda {

class nccl_registration {
public:
    explicit nccl_registration(ncclComm_t comm, tcuda_mem_pool *pool = nullptr)
        : table_(std::make_shared<table>()) {
        int device = -1;
        table_->comm = comm;
        if (ncclCommCuDevice(comm, &device) != ncclSuccess)
            throw std::runtime_error("ncclCommCuDevice failed");
        table_->device = device;
        table_->has_pool = pool != nullptr;
        if (pool != nullptr) check(tcuda_mem_pool_id(pool, &table_->pool0, &table_->pool1));
        auto *const shared = new std::shared_ptr<table>(table_);
        const tcuda_status status = tcuda_memory_on_event(on_event, shared, on_end, &observer_);
        if (status != TCUDA_STATUS_OK) delete shared;
        check(status);
        try {
            add_segments();
        } catch (...) {
            stop();
            throw;
        }
    }
    nccl_registration(const nccl_registration &) = delete;
    nccl_registration &operator=(const nccl_registration &) = delete;
    ~nccl_registration() { stop(); }

    // Hold it while another thread may allocate and this one calls NCCL with the communicator.
    std::mutex &mutex() const noexcept { return table_->mutex; }

    // Number of registrations.
    std::size_t count() const {
        const std::lock_guard<std::mutex> lock(table_->mutex);
        return table_->entries.size();
    }

    // The latest failure of a registration or its end; ncclSuccess: there was none.
    ncclResult_t last_error() const {
        const std::lock_guard<std::mutex> lock(table_->mutex);
        return table_->error;
    }

private:
    using range = std::pair<std::uintptr_t, std::uintptr_t>; // first byte, and the one behind
    using ranges = std::vector<range>;

    static void check(tcuda_status status) {
        if (status != TCUDA_STATUS_OK) throw std::runtime_error(tcuda_last_error());
    }

    static ranges without(const ranges &from, range cut) {
        ranges rest;
        for (const range &part : from) {
            if (cut.second <= part.first || part.second <= cut.first) {
                rest.push_back(part);
                continue;
            }
            if (part.first < cut.first) rest.emplace_back(part.first, cut.first);
            if (cut.second < part.second) rest.emplace_back(cut.second, part.second);
        }
        return rest;
    }

    struct table {
        std::mutex mutex;
        ncclComm_t comm = nullptr;
        std::int32_t device = -1;
        bool has_pool = false;
        std::uint64_t pool0 = 0, pool1 = 0;
        bool is_collecting = true; // `gone`, because the first segments are not added yet
        bool has_ended = false;
        ranges gone;
        std::map<std::uintptr_t, std::pair<std::uintptr_t, void *>> entries; // end, handle
        ncclResult_t error = ncclSuccess;

        bool is_about(std::int32_t of, std::uint64_t id0, std::uint64_t id1) const noexcept {
            return of == device && (!has_pool || (id0 == pool0 && id1 == pool1));
        }

        void add(ranges parts) {
            if (has_ended) return;
            for (const auto &[start, entry] : entries) parts = without(parts, {start, entry.first});
            for (const range &part : parts) {
                auto &entry = entries[part.first] = {part.second, nullptr};
                const ncclResult_t result = ncclCommRegister(comm,
                    reinterpret_cast<void *>(part.first), part.second - part.first, &entry.second);
                if (result == ncclSuccess) continue;
                entries.erase(part.first);
                error = result;
            }
        }

        void remove(range cut) {
            ranges rest;
            for (auto at = entries.begin(); at != entries.end();) {
                const range whole(at->first, at->second.first);
                if (cut.second <= whole.first || whole.second <= cut.first) {
                    ++at;
                    continue;
                }
                end(at->second.second);
                at = entries.erase(at);
                for (const range &part : without({whole}, cut)) rest.push_back(part);
            }
            add(std::move(rest));
        }

        void end(void *handle) noexcept {
            const ncclResult_t result = ncclCommDeregister(comm, handle);
            if (result != ncclSuccess) error = result;
        }

        void clear() noexcept {
            const std::lock_guard<std::mutex> lock(mutex);
            has_ended = true;
            for (const auto &[start, entry] : entries) end(entry.second);
            entries.clear();
        }
    };

    static void on_event(void *user_data, const tcuda_memory_event *event) {
        table &to = **static_cast<std::shared_ptr<table> *>(user_data);
        const bool comes = event->action == TCUDA_ACTION_SEGMENT_ALLOC
            || event->action == TCUDA_ACTION_SEGMENT_MAP;
        const bool goes = event->action == TCUDA_ACTION_SEGMENT_FREE
            || event->action == TCUDA_ACTION_SEGMENT_UNMAP;
        if ((!comes && !goes) || !to.is_about(event->device, event->pool_id0, event->pool_id1))
            return;
        const auto start = reinterpret_cast<std::uintptr_t>(event->ptr);
        const range bytes(start, start + static_cast<std::uintptr_t>(event->bytes));
        const std::lock_guard<std::mutex> lock(to.mutex);
        try {
            if (comes) {
                to.add({bytes});
            } else {
                to.remove(bytes);
                if (to.is_collecting) to.gone.push_back(bytes);
            }
        } catch (...) { // of the table, for want of memory
            to.error = ncclSystemError;
        }
    }

    static void on_end(void *user_data) {
        auto *const shared = static_cast<std::shared_ptr<table> *>(user_data);
        (*shared)->clear();
        delete shared;
    }

    // Registers the segments that were there before the events began.
    void add_segments() {
        tcuda_memory_snapshot *made = nullptr;
        check(tcuda_memory_snapshot_create(0, &made));
        const std::unique_ptr<tcuda_memory_snapshot, tcuda_status (*)(tcuda_memory_snapshot *)>
            snapshot(made, tcuda_memory_snapshot_destroy);
        std::size_t segments = 0, blocks = 0;
        check(tcuda_memory_snapshot_counts(made, &segments, &blocks));
        ranges found;
        for (std::size_t i = 0; i < segments; i++) {
            tcuda_segment_info segment = TCUDA_INIT(tcuda_segment_info);
            check(tcuda_memory_snapshot_segment(made, i, &segment));
            const auto start = reinterpret_cast<std::uintptr_t>(segment.ptr);
            if (table_->is_about(segment.device, segment.pool_id0, segment.pool_id1))
                found.emplace_back(start, start + static_cast<std::uintptr_t>(segment.total_bytes));
        }
        const std::lock_guard<std::mutex> lock(table_->mutex);
        for (const range &gone : table_->gone) found = without(found, gone);
        table_->is_collecting = false;
        table_->add(std::move(found));
        if (table_->error != ncclSuccess) throw std::runtime_error("ncclCommRegister failed");
    }

    void stop() noexcept {
        (void)tcuda_observer_destroy(observer_); // stale after tcuda_shutdown
        table_->clear();
    }

    std::shared_ptr<table> table_;
    tcuda_observer *observer_ = nullptr;
};

} // namespace tcuda

#endif // TCUDA_NCCL_HPP
