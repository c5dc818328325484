// tcuda.hpp: tensors and their capsules, collectives over devices and ranks, with exceptions and
// without.

#include "hpp.h"
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

static_assert(moves_only<tcuda::tensor> && moves_only<tcuda::communicator>);
static_assert(!std::is_move_constructible_v<tcuda::communicator_group>);

enum { COUNT = 1000 };

static std::int32_t devices() { return value_of(tcuda::query(tcuda_device_count)); }

static std::vector<std::int32_t> all_devices() {
    std::vector<std::int32_t> all;
    for (std::int32_t device = 0; device < devices(); device++) all.push_back(device);
    return all;
}

// Floats on a device that are all `value`.
struct floats {
    floats(std::int32_t on, float value, std::size_t some = COUNT)
        : device(on), count(some), memory(some * sizeof(float), {}, on) {
        TOOK(tcuda::fill(memory.get(), value, some));
    }
    tcuda::tensor_view<1> view(std::size_t first = 0, std::size_t some = COUNT) const {
        return tcuda::view(
            memory.as<float>() + first, {static_cast<std::int64_t>(some)}, device);
    }

    std::int32_t device;
    std::size_t count;
    tcuda::allocation memory;
};

// Are the elements of a tensor all `value`? Waits for its device's current stream.
static bool are(const tcuda_tensor &tensor, float value) {
    std::int64_t count = 1;
    for (std::int32_t i = 0; i < tensor.ndim; i++) count *= tensor.shape[i];
    std::vector<float> host(static_cast<std::size_t>(count), value + 1);
    TOOK(tcuda::copy(host.data(), static_cast<char *>(tensor.data) + tensor.byte_offset,
        host.size() * sizeof(float)));
    if (tensor.device.device_type == TCUDA_DEVICE_CUDA)
        TOOK(value_of(tcuda::stream_view::current(tensor.device.device_id)).synchronize());
    bool all = !host.empty();
    for (const float found : host) all = all && found == value;
    return all;
}

static bool are(const floats &of, float value) { return are(of.view(0, of.count), value); }

// ---- Tensors ----

static void test_tensors() {
    expect(tcuda::dtype_of<bool>().code == TCUDA_DTYPE_BOOL, "bool");
    expect(tcuda::dtype_of<std::int16_t>().code == TCUDA_DTYPE_INT, "signed integers");
    expect(tcuda::dtype_of<unsigned>().bits == 32, "unsigned ones");
    expect(tcuda::dtype_of<double>().code == TCUDA_DTYPE_FLOAT, "floats");
    float host[6] = {};
    const tcuda::tensor_view<2> view = tcuda::view(host, {2, 3}, TCUDA_CPU_DEVICE), copy = view;
    const tcuda_tensor tensor = copy;
    expect(tensor.ndim == 2 && tensor.shape[0] == 2 && tensor.shape[1] == 3, "its shape");
    expect(tensor.device.device_type == TCUDA_DEVICE_CPU && tensor.data == host, "its memory");
    std::int32_t device = 7;
    TOOK(tcuda::check(tcuda_tensor_device_of(&tensor, &device)));
    expect(device == -1, "of the host");
}

// DLPack 1.0's own structs, written down once more: what consumers are compiled with.
struct dl_managed {
    std::uint32_t major, minor;
    void *context;
    void (*deleter)(dl_managed *self);
    std::uint64_t flags;
    tcuda_tensor tensor; // the layout of DLTensor
};

static int deleted = 0;

static void test_capsules() {
    const std::size_t before = value_of(tcuda::query(tcuda_memory_allocated, 0));
    tcuda::allocation memory(COUNT * sizeof(float), {}, 0), other(512, {}, 0);
    TOOK(tcuda::fill(memory.get(), 2.0F, COUNT));
    void *const where = memory.get();
    const auto view = tcuda::view(memory.as<float>(), {COUNT}, 0);
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda::to_dlpack(std::move(other), view));
    expect(static_cast<bool>(other), "memory that is not the tensor's stays");
    DLManagedTensorVersioned *const managed = value_of(tcuda::to_dlpack(std::move(memory), view));
    expect(managed != nullptr && !memory, "memory moves into a capsule");
    auto *const consumer = reinterpret_cast<dl_managed *>(managed);
    expect(consumer->major == 1 && consumer->tensor.data == where, "which consumers read");
    expect(consumer->tensor.shape[0] == COUNT && consumer->tensor.dtype.bits == 32, "its shape");

    tcuda::tensor tensor = value_of(tcuda::tensor::from_dlpack(managed));
    expect(tensor && tensor.as<void>() == where && tensor.shape()[0] == COUNT, "and back");
    expect(are(tensor, 2), "with its values");
    tcuda::tensor moved = std::move(tensor);
    expect(!tensor && moved, "a tensor moves");
    expect(value_of(moved.to_dlpack()) == managed && !moved, "as the same capsule");
    consumer->deleter(consumer);
    other.reset();
    expect(value_of(tcuda::query(tcuda_memory_allocated, 0)) == before, "its deleter frees it");

    float values[3] = {1, 2, 3};
    std::int64_t shape[1] = {3};
    dl_managed lent = {1, 0, nullptr, [](dl_managed *) { deleted++; }, 0, {}};
    lent.tensor = tcuda::view(values, {3}, TCUDA_CPU_DEVICE);
    lent.tensor.shape = shape;
    {
        const tcuda::tensor borrowed = value_of(
            tcuda::tensor::from_dlpack(reinterpret_cast<DLManagedTensorVersioned *>(&lent)));
        expect(borrowed.as<float>()[2] == 3 && deleted == 0, "a capsule of another library");
    }
    expect(deleted == 1, "is deleted once");
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda::tensor::from_dlpack(nullptr));
}

// ---- Collectives of one process ----

static void test_comm() {
    const std::vector<std::int32_t> all = all_devices();
    const std::size_t count = all.size();
    const std::size_t before = value_of(tcuda::query(tcuda_memory_allocated, all.back()));
    {
        const floats source(0, 3);
        std::vector<tcuda::tensor> copies(count);
        TOOK(tcuda::comm::broadcast(source.view(), all, copies));
        expect(copies[0].as<void>() == source.memory.get(), "on its device, the tensor itself");
        for (const tcuda::tensor &copy : copies) expect(are(copy, 3), "a copy on each device");
        FAILS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda::comm::broadcast(source.view(), all, copies));
        std::vector<tcuda::tensor> too_many(count + 1);
        FAILS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda::comm::broadcast(source.view(), all, too_many));

        const tcuda::tensor sum = value_of(tcuda::comm::reduce_add(copies, all.back()));
        expect(sum.get()->device.device_id == all.back(), "at its destination");
        expect(are(sum, 3.0F * static_cast<float>(count)), "the sum over devices");
        const floats into(0, 0);
        TOOK(tcuda::comm::reduce_add_into({source.view(), source.view()}, into.view()));
        expect(are(into, 6), "the sum of a list");
        TOOK(tcuda::comm::broadcast_into(sum, {into.view()}));
        expect(are(into, 3.0F * static_cast<float>(count)), "copies into a list");
    }
    {
        const floats first(0, 1), second(0, 2);
        std::vector<tcuda::tensor> copies(2 * count), sums(2);
        TOOK(tcuda::comm::broadcast_coalesced({first.view(), second.view()}, all, copies));
        for (std::size_t i = 0; i < copies.size(); i++)
            expect(are(copies[i], i % 2 == 0 ? 1 : 2), "device by device");
        TOOK(tcuda::comm::reduce_add_coalesced(copies, sums, 0));
        expect(are(sums[0], static_cast<float>(count)), "the sum of the first of each list");
        expect(are(sums[1], 2.0F * static_cast<float>(count)), "and of the second");
        std::array<tcuda::tensor, 1> odd;
        copies.pop_back();
        if (count > 1) {
            std::array<tcuda::tensor, 2> two;
            FAILS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda::comm::reduce_add_coalesced(copies, two));
        }
        copies.clear();
        FAILS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda::comm::reduce_add_coalesced(copies, odd));
    }
    {
        // Elements 0 to 249 are 1, the others 4.
        floats source(0, 1);
        TOOK(tcuda::fill(source.memory.as<float>() + 250, 4.0F, COUNT - 250));
        const std::array<std::int32_t, 2> places = {0, all.back()};
        std::array<tcuda::tensor, 2> parts;
        TOOK(tcuda::comm::scatter(source.view(), places, parts, 0, {250, 750}));
        expect(parts[0].shape()[0] == 250 && parts[1].shape()[0] == 750, "parts of these sizes");
        expect(are(parts[0], 1) && are(parts[1], 4), "in their order");
        std::array<tcuda::tensor, 2> none;
        FAILS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda::comm::scatter(source.view(), places, none, 0, {1000}));
        FAILS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda::comm::scatter(source.view(), places, none, 0, {}, {nullptr}));
        const tcuda::tensor joined =
            value_of(tcuda::comm::gather(parts, 0, TCUDA_CPU_DEVICE));
        expect(joined.shape()[0] == COUNT && joined.as<float>()[249] == 1
                && joined.as<float>()[250] == 4,
            "joined on the host");
        const floats again(0, 0), halves(all.back(), 0, 500);
        TOOK(tcuda::comm::gather_into(parts, again.view()));
        expect(are(again.view(250, 750), 4), "joined into a tensor");
        TOOK(tcuda::comm::scatter_into(
            again.view(), {halves.view(0, 250), halves.view(250, 250), again.view(500, 500)}));
        expect(are(halves.view(0, 250), 1) && are(halves.view(250, 250), 4), "and split into some");
    }
    TOOK(tcuda::check(tcuda_device_synchronize(all.back())));
    expect(value_of(tcuda::query(tcuda_memory_allocated, all.back())) == before,
        "outputs are released");
}

// ---- Ranks ----

template <class Each>
static void on_each(const std::vector<tcuda::communicator> &ranks, Each each) {
    tcuda::communicator_group group;
    for (std::size_t rank = 0; rank < ranks.size(); rank++) each(ranks[rank], rank);
    TOOK(group.end());
    TOOK(group.end()); // once is enough
}

static void test_communicators() {
    const std::vector<std::int32_t> all = all_devices();
    const auto count = static_cast<float>(all.size());
    const std::int32_t root = all.back();
    std::vector<tcuda::communicator> ranks;
    TOOK(tcuda::communicator::init_all(all, std::back_inserter(ranks)));
    expect(ranks.size() == all.size(), "a rank for each device");
    std::vector<floats> in, out;
    for (const std::int32_t device : all) {
        in.emplace_back(device, static_cast<float>(device) + 1); // 1, 2, 3, 4
        out.emplace_back(device, 0.0F, all.size() * COUNT);
    }
    const float sum = count * (count + 1) / 2;
    on_each(ranks, [&](const tcuda::communicator &rank, std::size_t i) {
        TOOK(rank.all_reduce(in[i].view(), out[i].view()));
    });
    for (const floats &found : out) expect(are(found.view(), sum), "the sum over ranks");
    on_each(ranks, [&](const tcuda::communicator &rank, std::size_t i) {
        TOOK(rank.all_reduce(in[i].view(), out[i].view(), TCUDA_REDUCE_MAX));
    });
    for (const floats &found : out) expect(are(found.view(), count), "the largest");
    on_each(ranks, [&](const tcuda::communicator &rank, std::size_t i) {
        TOOK(rank.reduce(in[i].view(), out[i].view(), TCUDA_REDUCE_SUM, root));
    });
    expect(are(out.back().view(), sum), "the sum on one rank");
    on_each(ranks, [&](const tcuda::communicator &rank, std::size_t i) {
        TOOK(rank.broadcast(in[i].view(), out[i].view(), root));
    });
    for (const floats &found : out) expect(are(found.view(), count), "the root's");
    on_each(ranks, [&](const tcuda::communicator &rank, std::size_t i) {
        TOOK(rank.all_gather(in[i].view(), out[i].view(0, all.size() * COUNT)));
    });
    for (const floats &found : out)
        for (std::size_t i = 0; i < all.size(); i++)
            expect(are(found.view(i * COUNT), static_cast<float>(i) + 1), "in the order of ranks");
    on_each(ranks, [&](const tcuda::communicator &rank, std::size_t i) {
        TOOK(rank.reduce_scatter(out[i].view(0, all.size() * COUNT), in[i].view()));
    });
    for (std::size_t i = 0; i < all.size(); i++)
        expect(are(in[i], count * (static_cast<float>(i) + 1)), "each rank's part of the sum");
    // Round a ring: each rank sends to the next.
    const auto size = static_cast<std::int32_t>(all.size());
    on_each(ranks, [&](const tcuda::communicator &rank, std::size_t i) {
        const auto own = static_cast<std::int32_t>(i);
        TOOK(rank.send(in[i].view(), (own + 1) % size));
        TOOK(rank.recv(out[i].view(), (own + size - 1) % size));
    });
    for (std::size_t i = 0; i < all.size(); i++)
        expect(are(out[i].view(), count * static_cast<float>(i == 0 ? all.size() : i)),
            "what the rank before sent");
    // In place.
    on_each(ranks, [&](const tcuda::communicator &rank, std::size_t i) {
        TOOK(rank.broadcast(in[i].view(), 0));
    });
    for (const floats &found : in) expect(are(found, count), "in place");
    on_each(ranks, [&](const tcuda::communicator &rank, std::size_t i) {
        TOOK(rank.reduce(in[i].view(), TCUDA_REDUCE_SUM, 0));
    });
    expect(are(in[0], count * count), "a sum in place");

    for (const tcuda::communicator &rank : ranks) TOOK(rank.query());
    TOOK(ranks[0].abort());
    FAILS(TCUDA_STATUS_INVALID_STATE, ranks[0].query());
    for (const tcuda::communicator &rank : ranks) TOOK(rank.abort());
    FAILS(TCUDA_STATUS_INVALID_STATE, tcuda::check(tcuda_communicator_group_end()));
    {
        const tcuda::communicator_group left;
        expect(left.status() == TCUDA_STATUS_OK, "a group that is left");
    }
    FAILS(TCUDA_STATUS_INVALID_STATE, tcuda::check(tcuda_communicator_group_end()));
    const tcuda::communicator alone(value_of(tcuda::communicator::unique_id()), 1, 0, 0);
    TOOK(alone.all_reduce(in[0].view(), in[0].view()));
    expect(alone && are(in[0], count * count), "a group of one rank");
    FAILS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda::communicator::init_all({99}, std::back_inserter(ranks)));
}

int main() {
    begin_test();
    test_tensors();
    test_capsules();
    test_comm();
    std::int32_t major = 0, minor = 0, patch = 0;
    const bool has_nccl = tcuda_nccl_version(&major, &minor, &patch) == TCUDA_STATUS_OK;
    if (has_nccl) test_communicators();
    else std::fprintf(stderr, "without communicators: %s\n", tcuda_last_error());
    return finish_test();
}
