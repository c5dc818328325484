/* Random numbers: torch's values where they are known, and those of a model of its kernels for
 * other sizes, strides and distributions. */
#define _POSIX_C_SOURCE 200809L

#include "random.h"

/* ---- Values that torch gives on every GPU ---- */

static void expect_words(const uint32_t *expected, size_t count)
{
    fetch(count * sizeof expected[0]);
    for (size_t i = 0; i < count; i++)
        CHECK_EQ(host.u32[i], expected[i]);
}

static void uniform_numbers_are_torchs(void)
{
    static const uint32_t of_0[] = { 0x3ecc4fd2, 0x3f044516, 0x3ccc3acf, 0x3f70a90b, 0x3f72237f,
        0x3f4bf694, 0x3ed47cbb, 0x3f51fc5c };
    static const uint32_t of_42[] = { 0x3f1ceaf0, 0x3c24cdda, 0x3ecbfce1, 0x3d251a6b, 0x3e200464,
        0x3ef706b6, 0x3f3c7ab4, 0x3ecfdcde };
    static const uint32_t next[] = { 0x3f7cdb21, 0x3e03fe45, 0x3f0fe60f, 0x3f05a8df, 0x3f3e9616,
        0x3f18712c, 0x3f76f709, 0x3f65dde9 };
    static const uint64_t doubles[] = { UINT64_C(0x3fddfd537715e0a7), UINT64_C(0x3fc028f483ccdda6),
        UINT64_C(0x3fe0a5cb693e70a6), UINT64_C(0x3fdc8522b0e34d65) };
    seed(0);
    CHECK_OK(tcuda_random_uniform(row(float32, 8), 0, 1, NULL, NULL));
    expect_words(of_0, 8);
    seed(42);
    CHECK_OK(tcuda_random_uniform(row(float32, 8), 0, 1, NULL, NULL));
    expect_words(of_42, 8);
    CHECK_EQ(offset(), 4);
    CHECK_OK(tcuda_random_uniform(row(float32, 8), 0, 1, NULL, NULL));
    expect_words(next, 8);
    /* From a generator of its own, and from a state that was kept. */
    tcuda_generator *generator = NULL;
    uint8_t state[TCUDA_RANDOM_STATE_BYTES];
    CHECK_OK(tcuda_generator_create(TCUDA_CURRENT_DEVICE, &generator));
    CHECK_OK(tcuda_generator_seed_set(generator, 42));
    CHECK_OK(tcuda_random_uniform(row(float32, 8), 0, 1, generator, NULL));
    CHECK_OK(tcuda_generator_state_get(generator, state));
    expect_words(of_42, 8);
    CHECK_OK(tcuda_random_uniform(row(float32, 8), 0, 1, generator, NULL));
    expect_words(next, 8);
    CHECK_OK(tcuda_generator_state_set(generator, state));
    CHECK_OK(tcuda_random_uniform(row(float32, 8), 0, 1, generator, NULL));
    expect_words(next, 8);
    CHECK_EQ(offset(), 8);
    CHECK_OK(tcuda_generator_destroy(generator));
    seed(42);
    CHECK_OK(tcuda_random_uniform(row(float64, 4), 0, 1, NULL, NULL));
    fetch(sizeof doubles);
    CHECK(memcmp(host.u64, doubles, sizeof doubles) == 0);
}

static void others_are_torchs(void)
{
    static const float normal[] = { 0.19402f, 2.16137f, -0.17205f, 0.84906f, -1.92440f, 0.65299f,
        -0.64944f, -0.81752f };
    static const int32_t below_100[] = { 43, 9, 98, 50, 93, 47, 42, 76 };
    static const int32_t around_0[] = { -4, 2, -4, -3, -2, -1, -2, -2 };
    static const int64_t wide[] = { 358494849339, 451513805075, 715198978150, 766418127505 };
    seed(42);
    CHECK_OK(tcuda_random_normal(row(float32, 8), 0, 1, NULL, NULL));
    fetch(32);
    for (int i = 0; i < 8; i++)
        CHECK(fabsf(host.f32[i] - normal[i]) < 1e-5f);
    seed(42);
    CHECK_OK(tcuda_random_integers(row(int32, 8), 0, 100, NULL, NULL));
    fetch(32);
    CHECK(memcmp(&host, below_100, sizeof below_100) == 0);
    seed(0);
    CHECK_OK(tcuda_random_integers(row(int32, 8), -5, 5, NULL, NULL));
    fetch(32);
    CHECK(memcmp(&host, around_0, sizeof around_0) == 0);
    seed(42);
    CHECK_OK(tcuda_random_integers(row(int64, 4), 0, INT64_C(1) << 40, NULL, NULL));
    fetch(32);
    CHECK(memcmp(&host, wide, sizeof wide) == 0);
}

static void every_size_is_as_the_model(void)
{
    static const int64_t sizes[] = { 1, 2, 3, 255, 256, 257, 1000, 65537, 270336, 270337, 1081345 };
    uint64_t taken = 0;
    seed(1234567890123);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const uint64_t n = (uint64_t)sizes[i];
        CHECK_OK(tcuda_random_uniform(row(float32, sizes[i]), 0, 1, NULL, NULL));
        fetch(n * 4);
        for (uint64_t j = 0; j < n; j += 1 + n / 5000)
            CHECK(host.f32[j] == uniform_of(drawn(1234567890123, taken, n, 4, j)));
        taken += increment(n, 4);
        CHECK_EQ(offset(), taken);
        if (n > BYTES / 8)
            continue;
        CHECK_OK(tcuda_random_integers_from(row(int64, sizes[i]), INT64_MIN, NULL, NULL));
        fetch(n * 8);
        for (uint64_t j = 0; j < n; j += 1 + n / 5000)
            CHECK(host.u64[j] == drawn(1234567890123, taken, n, 2, j));
        taken += increment(n, 2);
        CHECK_EQ(offset(), taken);
    }
}

/* The element with these indices, in the order of memory, is the i-th number. */
static void strided_views_are_filled_as_they_lie(void)
{
    enum { ROWS = 30, COLUMNS = 50, WIDTH = 64 };
    int64_t shape[] = { ROWS, COLUMNS }, strides[] = { WIDTH, 1 };
    int64_t turned[] = { COLUMNS, ROWS }, turned_strides[] = { 1, WIDTH };
    for (int turn = 0; turn < 2; turn++) {
        fill_bytes(memory, 0xEE, ROWS * WIDTH * 4, NULL);
        tcuda_tensor view = turn ? tensor_of(memory, float32, 2, turned, turned_strides)
                                 : tensor_of(memory, float32, 2, shape, strides);
        view.byte_offset = 8;
        seed(7);
        CHECK_OK(tcuda_random_uniform(&view, 0, 1, NULL, NULL));
        CHECK_EQ(offset(), increment(ROWS * COLUMNS, 4));
        fetch(ROWS * WIDTH * 4);
        for (uint64_t i = 0; i < ROWS * WIDTH; i++) {
            const uint64_t y = i / WIDTH, x = i % WIDTH - 2;
            if (i % WIDTH < 2 || x >= COLUMNS)
                CHECK_EQ(host.u32[i], 0xEEEEEEEE);
            else
                CHECK(host.f32[i] == uniform_of(drawn(7, 0, ROWS * COLUMNS, 4, y * COLUMNS + x)));
        }
    }
    /* Every other element, of every type. */
    static const tcuda_dtype types[] = { { 0, 8, 1 }, { 0, 16, 1 }, { 0, 32, 1 }, { 0, 64, 1 } };
    int64_t count[] = { 100 }, two[] = { 2 };
    for (int t = 0; t < 4; t++) {
        const size_t size = types[t].bits / 8;
        const tcuda_tensor view = tensor_of(memory, types[t], 1, count, two);
        fill_bytes(memory, 0xEE, 200 * size, NULL);
        seed(8);
        CHECK_OK(tcuda_random_integers(&view, 0, 100, NULL, NULL));
        fetch(200 * size);
        for (uint64_t i = 0; i < 200; i++) {
            uint64_t value = 0, untouched = 0;
            memcpy(&value, host.u8 + i * size, size);
            memset(&untouched, 0xEE, size);
            CHECK_EQ(value, i % 2 ? untouched : drawn(8, 0, 100, 4, i / 2) % 100);
        }
    }
    /* A scalar has one. */
    const tcuda_tensor scalar = tensor_of(memory, float32, 0, NULL, NULL);
    seed(0);
    CHECK_OK(tcuda_random_uniform(&scalar, 0, 1, NULL, NULL));
    fetch(4);
    CHECK_EQ(host.u32[0], 0x3ecc4fd2);
}

static void probabilities_may_differ(void)
{
    enum { ROWS = 40, COLUMNS = 33 };
    int64_t shape[] = { ROWS, COLUMNS }, once[] = { 1, 0 }, turned[] = { 1, ROWS };
    float p[ROWS];
    for (int i = 0; i < ROWS; i++)
        p[i] = (float)i / (ROWS - 1);
    char *const other = memory + (1 << 20);
    CHECK_OK(tcuda_copy(other, p, sizeof p, NULL));
    const tcuda_tensor rows = tensor_of(other, float32, 2, shape, once);
    for (int turn = 0; turn < 2; turn++) {
        const tcuda_tensor view = tensor_of(memory, uint8, 2, shape, turn ? turned : NULL);
        seed(3);
        CHECK_OK(tcuda_random_bernoulli_tensor(&view, &rows, NULL, NULL));
        CHECK_EQ(offset(), 12);
        fetch(ROWS * COLUMNS);
        for (uint64_t i = 0; i < ROWS * COLUMNS; i++) {
            const uint64_t y = turn ? i % ROWS : i / COLUMNS, x = turn ? i / ROWS : i % COLUMNS;
            /* The strides of the two disagree where turned: then row by row, however it lies. */
            const uint64_t number = y * COLUMNS + x;
            uint32_t words[4];
            philox(3, 0, number / 4, words);
            const float u = fmaf((float)words[number % 4], 0x1p-32f, 0x1p-33f);
            CHECK_EQ(host.u8[i], u <= p[y]);
        }
    }
    /* One for all: a number of its own kind, drawn in another way. */
    seed(3);
    CHECK_OK(tcuda_random_bernoulli(row(int16, 1000), 0.25, NULL, NULL));
    fetch(2000);
    for (uint64_t i = 0; i < 1000; i++) {
        const float u = fmaf((float)(uint32_t)drawn(3, 0, 1000, 4, i), 0x1p-32f, 0x1p-33f);
        CHECK_EQ(host.u8[2 * i] | host.u8[2 * i + 1] << 8, u < 0.25f);
    }
}

static void every_distribution_fills(void)
{
    const tcuda_dtype floats[] = { float16, bfloat16, float32, float64 };
    const tcuda_dtype all[] = { boolean, uint8, int8, int16, int32, int64, float16, bfloat16,
        float32, float64 };
    seed(1);
    uint64_t before = 0;
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        const tcuda_dtype type = floats[i];
        CHECK_OK(tcuda_random_uniform(row(type, 1000), -2, 3, NULL, NULL));
        CHECK_OK(tcuda_random_normal(row(type, 1000), 1, 0, NULL, NULL));
        CHECK_OK(tcuda_random_exponential(row(type, 1000), 0.5, NULL, NULL));
        CHECK_OK(tcuda_random_log_normal(row(type, 1000), 0, 0.25, NULL, NULL));
        CHECK_OK(tcuda_random_cauchy(row(type, 1000), 0, 1, NULL, NULL));
        CHECK_OK(tcuda_random_geometric(row(type, 1000), 0.5, NULL, NULL));
        CHECK_EQ(offset(), before + 6 * increment(1000, type.bits == 64 ? 2 : 4));
        before = offset();
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        CHECK_OK(tcuda_random_integers(row(all[i], 1000), 0, 2, NULL, NULL));
        CHECK_OK(tcuda_random_integers_from(row(all[i], 1000), 1, NULL, NULL));
        CHECK_OK(tcuda_random_integers_all(row(all[i], 1000), NULL, NULL));
        CHECK_OK(tcuda_random_bernoulli(row(all[i], 1000), 0.5, NULL, NULL));
        const bool is_double = all[i].code == TCUDA_DTYPE_FLOAT && all[i].bits == 64;
        const bool is_wide = all[i].bits == 64;
        CHECK_EQ(offset(), before + increment(1000, 4) + increment(1000, is_double ? 2 : 4)
            + increment(1000,
                is_wide || (all[i].code == TCUDA_DTYPE_INT && all[i].bits == 32) ? 2 : 4)
            + increment(1000, is_wide ? 2 : 4));
        before = offset();
    }
    CHECK_OK(tcuda_random_integers(row(uint32, 1000), 0, INT64_C(1) << 32, NULL, NULL));
    /* Of no numbers there is one, of a distribution that is one. */
    CHECK_OK(tcuda_random_normal(row(float32, 100), 1.5, 0, NULL, NULL));
    fetch(400);
    for (int i = 0; i < 100; i++)
        CHECK(host.f32[i] == 1.5f);
    CHECK_OK(tcuda_random_uniform(row(float32, 100), 2.5, 2.5, NULL, NULL));
    fetch(400);
    for (int i = 0; i < 100; i++)
        CHECK(host.f32[i] == 2.5f);
    /* The parts of complex numbers. */
    float floats_of[64];
    seed(42);
    CHECK_OK(tcuda_random_uniform(row(float32, 64), 0, 1, NULL, NULL));
    fetch(256);
    memcpy(floats_of, &host, 256);
    seed(42);
    CHECK_OK(tcuda_random_uniform(row(complex64, 32), 0, 1, NULL, NULL));
    fetch(256);
    CHECK(memcmp(&host, floats_of, 256) == 0);
    seed(42);
    CHECK_OK(tcuda_random_normal(row(complex64, 32), 0, 1, NULL, NULL));
    fetch(4);
    CHECK(fabsf(host.f32[0] - 0.19402f / sqrtf(2)) < 1e-5f);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    begin_random();
    uniform_numbers_are_torchs();
    others_are_torchs();
    every_size_is_as_the_model();
    strided_views_are_filled_as_they_lie();
    probabilities_may_differ();
    every_distribution_fills();
    return finish_random();
}
