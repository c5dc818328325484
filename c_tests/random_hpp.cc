// tcuda.hpp: generators, and numbers that are torch's, with exceptions and without.

#include "hpp.h"
#include <array>
#include <cmath>
#include <cstdint>

static_assert(moves_only<tcuda::generator>);

enum { COUNT = 8 };

// torch.manual_seed(42); torch.rand(8, device="cuda") on any GPU; and the next 8 numbers.
static const std::array<float, COUNT> of_42 = {0x1.39d5ep-1F, 0x1.499bb4p-7F, 0x1.97f9c2p-2F,
    0x1.4a34d6p-5F, 0x1.4008c8p-3F, 0x1.ee0d6cp-2F, 0x1.78f568p-1F, 0x1.9fb9bcp-2F};
static const std::array<float, COUNT> next_of_42 = {0x1.f9b642p-1F, 0x1.07fc8ap-3F,
    0x1.1fcc1ep-1F, 0x1.0b51bep-1F, 0x1.7d2c2cp-1F, 0x1.30e258p-1F, 0x1.edee12p-1F,
    0x1.cbbbd2p-1F};

// Memory for one tensor of 8 elements, and what is in it.
template <class T> struct eight {
    tcuda::allocation memory = tcuda::allocation(COUNT * sizeof(T), {}, 0);

    tcuda::tensor_view<1> tensor() const { return tcuda::view(memory.as<T>(), {COUNT}, 0); }
    std::array<T, COUNT> values() const {
        std::array<T, COUNT> host{};
        TOOK(tcuda::copy(host.data(), memory.get(), sizeof host));
        TOOK(value_of(tcuda::stream_view::current(0)).synchronize());
        return host;
    }
};

template <class A, class B> static bool are_near(const A &found, const B &expected) {
    bool near = found.size() == expected.size();
    for (std::size_t i = 0; near && i < found.size(); i++)
        near = std::fabs(found[i] - expected[i]) <= 1e-4F * std::fmax(1.0F, std::fabs(expected[i]));
    return near;
}

static void test_generators() {
    const tcuda::generator generator(0);
    expect(value_of(generator.seed()) == 67280421310721, "torch's default seed");
    expect(value_of(generator.offset()) == 0, "at its beginning");
    TOOK(generator.seed(42));
    const auto drawn = value_of(generator.philox_state(5));
    expect(drawn.seed == 42 && drawn.offset == 0 && drawn.seed_ptr == nullptr, "for a kernel");
    expect(value_of(generator.offset()) == 8, "5 words count as 8");
    TOOK(generator.offset(400));
    const tcuda::random_state state = value_of(generator.state());
    const tcuda::random_state expected = {42, 0, 0, 0, 0, 0, 0, 0, 0x90, 1, 0, 0, 0, 0, 0, 0};
    expect(state == expected, "seed and offset, little-endian");
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, generator.offset(3));
    TOOK(generator.seed(1));
    expect(value_of(generator.offset()) == 0, "a seed begins anew");
    TOOK(generator.state(state));
    expect(value_of(generator.offset()) == 400 && value_of(generator.seed()) == 42, "a state");
    tcuda::generator other(0);
    other = tcuda::generator::default_of(0);
    TOOK(other.seed(9));
    other.reset();
    expect(value_of(tcuda::query(tcuda_random_initial_seed, 0)) == 9, "the default one stays");
    FAILS(TCUDA_STATUS_INVALID_DEVICE, tcuda::generator(99));
}

static void test_uniform() {
    const tcuda::generator generator(0);
    const eight<float> floats;
    TOOK(generator.seed(42));
    TOOK(generator.uniform(floats.tensor(), 0, 1));
    expect(floats.values() == of_42, "torch's numbers");
    TOOK(generator.uniform(floats.tensor(), 0, 1));
    expect(floats.values() == next_of_42, "and the next");
    expect(value_of(generator.offset()) == 8, "4 words a call");
    FAILS(TCUDA_STATUS_INVALID_ARGUMENT, generator.uniform(floats.tensor(), 1, 0));
}

// Seed 42, each: the spec's numbers, or its formula of the uniform ones above.
static void test_distributions() {
    const tcuda::generator generator(0);
    const auto seeded = [&]() -> const tcuda::generator & {
        TOOK(generator.seed(42));
        return generator;
    };
    const eight<float> floats;
    const eight<std::int32_t> integers;
    const eight<std::int64_t> wide;
    const eight<bool> bools;
    const std::array<float, COUNT> normal = {
        0.19402F, 2.16137F, -0.17205F, 0.84906F, -1.92440F, 0.65299F, -0.64944F, -0.81752F};
    std::array<float, COUNT> expected = normal;
    TOOK(seeded().normal(floats.tensor(), 0, 1));
    expect(are_near(floats.values(), normal), "normal numbers");
    for (float &value : expected) value = std::exp(value * 0.5F + 1);
    TOOK(seeded().log_normal(floats.tensor(), 1, 0.5));
    expect(are_near(floats.values(), expected), "their exponentials");
    TOOK(seeded().exponential(floats.tensor(), 2));
    for (std::size_t i = 0; i < COUNT; i++) expected[i] = -std::log(of_42[i]) / 2;
    expect(are_near(floats.values(), expected), "exponential numbers");
    TOOK(seeded().cauchy(floats.tensor(), 1, 2));
    for (std::size_t i = 0; i < COUNT; i++)
        expected[i] = 1 + 2 * std::tan(3.14159265F * (of_42[i] - 0.5F));
    expect(are_near(floats.values(), expected), "Cauchy's numbers");
    TOOK(seeded().geometric(floats.tensor(), 0.25));
    for (std::size_t i = 0; i < COUNT; i++)
        expected[i] = std::ceil(std::log(of_42[i]) / std::log1p(-0.25F));
    expect(floats.values() == expected, "numbers of trials");
    TOOK(seeded().bernoulli(bools.tensor(), 0.4));
    const std::array<bool, COUNT> below = {false, true, true, true, true, false, false, false};
    expect(bools.values() == below, "those below 0.4");
    TOOK(tcuda::fill(integers.memory.get(), 7, COUNT));
    TOOK(tcuda::fill(floats.memory.get(), 1.0F, COUNT));
    TOOK(generator.bernoulli(integers.tensor(), floats.tensor()));
    expect(integers.values() == std::array<std::int32_t, COUNT>{1, 1, 1, 1, 1, 1, 1, 1}, "all");

    const std::array<std::int32_t, COUNT> below_100 = {43, 9, 98, 50, 93, 47, 42, 76};
    TOOK(seeded().integers(integers.tensor(), 0, 100));
    expect(integers.values() == below_100, "integers below 100");
    TOOK(seeded().integers(wide.tensor(), 0, std::int64_t{1} << 40));
    const auto found = wide.values();
    expect(found[0] == 358494849339 && found[1] == 451513805075 && found[2] == 715198978150
            && found[3] == 766418127505,
        "integers of 64 bits");
    // The first words of threads 0 and 5, of which the spec has the first: 9ceaf053 mod 2^31.
    TOOK(seeded().integers_all(integers.tensor()));
    expect(integers.values()[0] == 0x1ceaf053, "all integers that are not negative");
    TOOK(seeded().integers_from(wide.tensor(), INT64_MIN));
    // The words x and y of thread 0.
    expect(static_cast<std::uint64_t>(wide.values()[0]) == 0x9ceaf05377f5493b, "all of 64 bits");
}

// Each replay draws the next numbers, as if it were queued again.
static void test_graphs() {
    const tcuda::generator generator(0);
    const eight<float> floats;
    tcuda::graph graph;
    TOOK(generator.seed(42));
    TOOK(graph.register_generator(generator));
    {
        const tcuda::device_guard guard(0);
        tcuda::graph_capture capture(graph);
        TOOK(generator.uniform(floats.tensor(), 0, 1, capture.stream()));
        TOOK(capture.end());
    }
    TOOK(graph.replay());
    expect(floats.values() == of_42, "the first replay");
    TOOK(graph.replay());
    expect(floats.values() == next_of_42, "the second");
}

int main() {
    begin_test();
    test_generators();
    test_uniform();
    test_distributions();
    test_graphs();
    return finish_test();
}
