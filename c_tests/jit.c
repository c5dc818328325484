/* Functions of elements: what is accepted, promotion and broadcasting, the disk cache. The table of
 * cases is in jit_cases.c. */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#include "support.h"

#define float32 ((tcuda_dtype){ TCUDA_DTYPE_FLOAT, 32, 1 })
#define float16 ((tcuda_dtype){ TCUDA_DTYPE_FLOAT, 16, 1 })
#define int32 ((tcuda_dtype){ TCUDA_DTYPE_INT, 32, 1 })
#define boolean ((tcuda_dtype){ TCUDA_DTYPE_BOOL, 8, 1 })

enum { NUMBER = 3000, ROOM = NUMBER * 16 };
static float *a, *b, *c;
static float host[NUMBER], other[NUMBER];

static const char *const axpy =
    "template <typename T> T axpy(T x, T y, T alpha) { return alpha * x + y; }";

static tcuda_tensor tensor_of(void *data, tcuda_dtype dtype, int32_t ndim, int64_t *shape,
    int64_t *strides)
{
    return (tcuda_tensor){ .data = data, .device = { TCUDA_DEVICE_CUDA, current_device() },
        .ndim = ndim, .dtype = dtype, .shape = shape, .strides = strides };
}

static tcuda_tensor row(void *data, tcuda_dtype dtype, int64_t numel)
{
    static int64_t shapes[64][1];
    static int next;
    int64_t *shape = shapes[next++ % 64];
    shape[0] = numel;
    return tensor_of(data, dtype, 1, shape, NULL);
}

static tcuda_jit *create(const char *code)
{
    tcuda_jit *jit = NULL;
    CHECK_OK(tcuda_jit_create(code, NULL, &jit));
    return jit;
}

static void put(void *to, const void *from, size_t bytes)
{
    CHECK_OK(tcuda_copy(to, from, bytes, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
}

static void fill(void)
{
    for (int i = 0; i < NUMBER; i++) {
        host[i] = (float)i;
        other[i] = (float)(i % 7);
    }
    put(a, host, sizeof host);
    put(b, other, sizeof other);
}

static void functions_are_called(void)
{
    const tcuda_scalar two = { .name = "alpha", .kind = TCUDA_SCALAR_DOUBLE, .real = 2 };
    const tcuda_scalar three = { .name = "alpha", .kind = TCUDA_SCALAR_INT, .integer = 3 };
    const tcuda_scalar unknown = { .name = "beta", .kind = TCUDA_SCALAR_INT, .integer = 3 };
    const tcuda_scalar odd = { .name = "alpha", .kind = 4 };
    const tcuda_scalar neither = { .name = "alpha", .kind = TCUDA_SCALAR_BOOL, .integer = 2 };
    const tcuda_jit_options options = { sizeof options, &two, 1 };
    tcuda_jit *jit = NULL;
    CHECK_OK(tcuda_jit_create(axpy, &options, &jit));
    const tcuda_tensor inputs[] = { row(a, float32, NUMBER), row(b, float32, NUMBER) };
    const tcuda_tensor output = row(c, float32, NUMBER);
    fill();
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tcuda_jit_call(jit, inputs, 2, &three, i, &output, 1, NULL));
        put(host, c, sizeof host);
        for (int j = 0; j < NUMBER; j++)
            CHECK(host[j] == (float)((2 + i) * j + j % 7));
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, inputs, 2, &unknown, 1, &output, 1, NULL));
    CHECK_STR(tcuda_last_error(), "the function has no extra argument beta; declare it in the "
        "options with which it is created");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, inputs, 2, &odd, 1, &output, 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, inputs, 2, &neither, 1, &output, 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, inputs, 1, NULL, 0, &output, 1, NULL));
    CHECK_OK(tcuda_jit_destroy(jit));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE,
        tcuda_jit_call(jit, inputs, 2, NULL, 0, &output, 1, NULL));
}

static void what_is_no_function_is_refused(void)
{
    tcuda_jit *jit = NULL;
    const char *const nothing = "T f(T x) { return x; }";
    const char *const out_of_it = "template <typename T> void f(T x, T &y) { y = x; }";
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_jit_create(nothing, NULL, &jit));
    CHECK(strstr(tcuda_last_error(), "couldn't parse code") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_jit_create(out_of_it, NULL, &jit));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_jit_create_multi(out_of_it, 0, NULL, &jit));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_jit_create_multi(out_of_it, 9, NULL, &jit));
    CHECK(jit == NULL);
    /* The user's own lines are named. */
    jit = create("template <typename T> T f(T x)\n{\n    return nowhere(x);\n}\n");
    const tcuda_tensor input = row(a, float32, 4), output = row(c, float32, 4);
    CHECK_STATUS(TCUDA_STATUS_COMPILE_ERROR,
        tcuda_jit_call(jit, &input, 1, NULL, 0, &output, 1, NULL));
    CHECK(strstr(tcuda_last_error(), "nowhere") != NULL);
    CHECK(strstr(tcuda_last_error(), "code(3)") != NULL
        || strstr(tcuda_last_error(), "code:3") != NULL);
    CHECK_OK(tcuda_jit_destroy(jit));
}

/* Whatever a user calls things, also as the kernel around the function does. */
static void names_are_the_users(void)
{
    tcuda_jit *jit = create("template <typename T> struct vector { T at; };\n"
        "template <typename T> struct raw { T at; };\n"
        "struct shape { int size; };\n"
        "enum { N = 1, U = 2, V = 1'0, THREADS = 3, MOST = 4, SIDE = 5 };\n"
        "template <typename T> T least(T a, T b) { return a < b ? a : b; }\n"
        "template <typename T> T apply(T a, T b, T c) { return a + b + c; }\n"
        "template <typename T> T to(T a) { return least(a, T(2000)); }\n"
        "template <typename T> T cast(T x, T y) { // not yet \\\n }\n"
        "    const vector<T> sum = { apply(to(x), y, T(N + U)) };\n"
        "    const raw<T> of = { sum.at };\n"
        "    const shape q = { V + THREADS + MOST + SIDE };\n"
        "    return of.at + T(q.size - 22);\n}\n");
    int64_t square[] = { 50, 50 }, turned[] = { 1, 50 }, apart[] = { 52, 1 };
    tcuda_tensor inputs[] = { tensor_of(a, float32, 2, square, NULL),
        tensor_of(b, float32, 2, square, NULL) };
    const tcuda_tensor output = tensor_of(c, float32, 2, square, NULL);
    fill();
    for (int form = 0; form < 3; form++) {
        inputs[0].strides = form == 1 ? apart : NULL;
        inputs[1].strides = form == 2 ? turned : NULL;
        CHECK_OK(tcuda_jit_call(jit, inputs, 2, NULL, 0, &output, 1, NULL));
        put(host, c, 2500 * sizeof *host);
        for (int i = 0; i < 2500; i++) {
            const int x = form == 1 ? i / 50 * 52 + i % 50 : i;
            const int y = form == 2 ? i % 50 * 50 + i / 50 : i;
            CHECK(host[i] == (float)((x < 2000 ? x : 2000) + y % 7 + 3));
        }
    }
    CHECK_OK(tcuda_jit_destroy(jit));
}

static void tensors_are_checked(void)
{
    tcuda_jit *jit = create("template <typename T> T sum(T x, T y) { return x + y; }");
    int64_t twice[] = { 2, 10 }, falling[] = { -10, 1 }, same[] = { 0, 1 };
    const tcuda_tensor x = row(a, float32, 10), y = row(b, float32, 10), z = row(c, float32, 10);
    tcuda_tensor pair[] = { x, y };
    const struct { tcuda_tensor first, second, output; } wrong[] = {
        { x, row(b, float32, 9), z },
        { x, y, row(c, float32, 11) },
        { x, y, row(c, float16, 10) },
        { x, row(b, int32, 10), row(c, int32, 10) },
        { x, y, row(a + 1, float32, 10) },
        { x, tensor_of(b + 10, float32, 2, twice, falling), tensor_of(c, float32, 2, twice, NULL) },
        { x, y, tensor_of(c, float32, 2, twice, same) },
        { x, row((char *)b + 2, float32, 10), z },
        { x, row(b, (tcuda_dtype){ TCUDA_DTYPE_INT, 4, 1 }, 10), z },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        pair[0] = wrong[i].first;
        pair[1] = wrong[i].second;
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_jit_call(jit, pair, 2, NULL, 0, &wrong[i].output, 1, NULL));
    }
    pair[0] = x;
    pair[1] = row(host, float32, 10);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
        tcuda_jit_call(jit, pair, 2, NULL, 0, &z, 1, NULL));
    pair[1].device.device_type = TCUDA_DEVICE_CPU;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, pair, 2, NULL, 0, &z, 1, NULL));
    pair[1] = y;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, pair, 0, NULL, 0, &z, 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, pair, 9, NULL, 0, &z, 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, pair, 2, NULL, 0, &z, 2, NULL));
    /* In place, and nothing at all. */
    CHECK_OK(tcuda_jit_call(jit, pair, 2, NULL, 0, &x, 1, NULL));
    pair[0] = row(NULL, float32, 0);
    pair[1] = row(b, float32, 1);
    const tcuda_tensor empty = row(NULL, float32, 0);
    CHECK_OK(tcuda_jit_call(jit, pair, 2, NULL, 0, &empty, 1, NULL));
    CHECK_OK(tcuda_jit_destroy(jit));
}

/* What depends on addresses is looked at in each of a hundred calls of the same shapes. */
static void calls_like_the_last_are_checked(void)
{
    tcuda_jit *jit = NULL;
    tcuda_scalar alpha = { .name = "alpha", .kind = TCUDA_SCALAR_DOUBLE, .real = 1 };
    tcuda_jit_options options = { sizeof options, &alpha, 1 };
    CHECK_OK(tcuda_jit_create("template <typename T> T scaled(T x, T alpha) { return x * alpha; }",
        &options, &jit));
    float *mine = NULL, found[64];
    tcuda_stream *stream = create_stream(0);
    for (int caching = 1; caching >= 0; caching--) {
        CHECK_OK(tcuda_memory_caching_enable(caching));
        CHECK_OK(tcuda_malloc(64 * sizeof *mine, 0, NULL, (void **)&mine));
        CHECK_OK(tcuda_memory_caching_enable(1));
        put(mine, host, 64 * sizeof *mine);
        const tcuda_tensor input = row(mine, float32, 60), output = row(c, float32, 60);
        for (int i = 0; i < 100; i++) {
            alpha.real = i;
            tcuda_stream *own = i % 3 ? stream : NULL;
            CHECK_OK(tcuda_jit_call(jit, &input, 1, &alpha, i != 0, &output, 1, own));
            CHECK_OK(tcuda_stream_synchronize(own));
            put(found, c, sizeof found);
            for (int k = 0; k < 60; k++)
                CHECK(found[k] == host[k] * (i == 0 ? 1 : (float)i));
        }
        const tcuda_tensor too_far = row(mine + 8, float32, 60);
        const tcuda_tensor shared = row(mine + 4, float32, 60);
        const tcuda_tensor nobodys = row((char *)c + ((size_t)1 << 40), float32, 60);
        /* Without the cache nothing is known of the inside of a block. */
        if (caching)
            CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
                tcuda_jit_call(jit, &too_far, 1, NULL, 0, &output, 1, NULL));
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_jit_call(jit, &input, 1, NULL, 0, &shared, 1, NULL));
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
            tcuda_jit_call(jit, &nobodys, 1, NULL, 0, &output, 1, NULL));
        CHECK_OK(tcuda_jit_call(jit, &input, 1, NULL, 0, &input, 1, NULL));
        CHECK_OK(tcuda_stream_synchronize(NULL));
        CHECK_OK(tcuda_free(mine));
        if (on_simulator())
            CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
                tcuda_jit_call(jit, &input, 1, NULL, 0, &output, 1, NULL));
    }
    alpha.name = "beta";
    const tcuda_tensor input = row(a, float32, 60), output = row(c, float32, 60);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, &input, 1, &alpha, 1, &output, 1, NULL));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_jit_destroy(jit));
}

/* Nothing is known beyond a block: not in its own slot of the addresses that are reserved, not in
 * one that holds nothing, not outside. */
static void addresses_of_nobody_are_refused(void)
{
    tcuda_jit *jit = create("template <typename T> T same(T x) { return x; }");
    float *mine = NULL;
    CHECK_OK(tcuda_malloc(64 * sizeof *mine, TCUDA_CURRENT_DEVICE, NULL, (void **)&mine));
    const tcuda_tensor input = row(mine, float32, 60), output = row(c, float32, 60);
    for (int i = 0; i < 2; i++) {
        for (int shift = 30; shift < 47; shift++) {
            char *const beyond = (char *)mine + ((size_t)1 << shift);
            const tcuda_tensor nobodys = row(beyond, float32, 60);
            const tcuda_status read = tcuda_jit_call(jit, &nobodys, 1, NULL, 0, &output, 1, NULL);
            const tcuda_status written = tcuda_jit_call(jit, &input, 1, NULL, 0, &nobodys, 1, NULL);
            /* On a GPU something else may be there. */
            CHECK(read != TCUDA_STATUS_OK && written != TCUDA_STATUS_OK);
            if (on_simulator()) {
                CHECK_EQ(read, TCUDA_STATUS_INVALID_POINTER);
                CHECK_EQ(written, TCUDA_STATUS_INVALID_POINTER);
            }
            CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(beyond));
            CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_record_stream(beyond, NULL));
        }
        /* And where a call like the last could be repeated. */
        CHECK_OK(tcuda_jit_call(jit, &input, 1, NULL, 0, &output, 1, NULL));
    }
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_OK(tcuda_free(mine));
    CHECK_OK(tcuda_jit_destroy(jit));
}

static void a_function_has_several_outputs(void)
{
    tcuda_jit *jit = NULL;
    const tcuda_scalar by = { .name = "by", .kind = TCUDA_SCALAR_DOUBLE, .real = 10 };
    const tcuda_jit_options options = { sizeof options, &by, 1 };
    CHECK_OK(tcuda_jit_create_multi("template <typename T> T one_more(T x) { return x + T(1); }\n"
        "template <typename T> void both(T x, T by, T &more, T &times)\n"
        "{ more = one_more(x); times = x * by; }", 2, &options, &jit));
    const tcuda_tensor input = row(a, float32, NUMBER);
    const tcuda_tensor outputs[] = { row(b, float32, NUMBER), row(c, float32, NUMBER) };
    fill();
    CHECK_OK(tcuda_jit_call(jit, &input, 1, NULL, 0, outputs, 2, NULL));
    put(host, b, sizeof host);
    put(other, c, sizeof other);
    for (int i = 0; i < NUMBER; i++)
        CHECK(host[i] == (float)(i + 1) && other[i] == (float)(10 * i));
    const tcuda_tensor twice[] = { outputs[0], outputs[0] };
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_jit_call(jit, &input, 1, NULL, 0, twice, 2, NULL));
    CHECK_OK(tcuda_jit_destroy(jit));
}

/* Tensors of which memory lies in pieces: larger than what is mapped at a time. */
static void large_tensors_are_whole(void)
{
    enum { LARGE = 24 << 20 };
    static float many[LARGE];
    float *blocks[6], *large = NULL;
    for (int i = 0; i < 6; i++)
        CHECK_OK(tcuda_malloc((size_t)(3 + i) << 20, TCUDA_CURRENT_DEVICE, NULL,
            (void **)&blocks[i]));
    CHECK_OK(tcuda_free(blocks[1]));
    CHECK_OK(tcuda_free(blocks[3]));
    CHECK_OK(tcuda_malloc(sizeof many, TCUDA_CURRENT_DEVICE, NULL, (void **)&large));
    for (int i = 0; i < LARGE; i++)
        many[i] = (float)i;
    put(large, many, sizeof many);
    tcuda_jit *jit = create("template <typename T> T add_one(T x) { return x + T(1); }");
    const tcuda_tensor whole = row(large, float32, LARGE);
    CHECK_OK(tcuda_jit_call(jit, &whole, 1, NULL, 0, &whole, 1, NULL));
    put(many, large, sizeof many);
    for (int i = 0; i < LARGE; i++)
        CHECK(many[i] == (float)i + 1);
    CHECK_OK(tcuda_jit_destroy(jit));
    CHECK_OK(tcuda_free(large));
    for (int i = 0; i < 6; i++)
        if (i != 1 && i != 3)
            CHECK_OK(tcuda_free(blocks[i]));
}

/* ---- The disk cache ---- */

static char folder[512];

static int files(char *path, size_t len)
{
    int count = 0;
    DIR *open = opendir(folder);
    CHECK(open != NULL);
    for (struct dirent *entry; (entry = readdir(open)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, len, "%s/%s", folder, entry->d_name);
        count++;
    }
    closedir(open);
    return count;
}

/* Calls a function of its own after the library forgot everything but what is on disk. */
static void call_anew(void)
{
    size_t live = 0;
    float found = 0;
    CHECK_OK(tcuda_free(a));
    CHECK_OK(tcuda_free(b));
    CHECK_OK(tcuda_free(c));
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 0);
    CHECK_OK(tcuda_malloc(ROOM, TCUDA_CURRENT_DEVICE, NULL, (void **)&a));
    CHECK_OK(tcuda_malloc(ROOM, TCUDA_CURRENT_DEVICE, NULL, (void **)&b));
    CHECK_OK(tcuda_malloc(ROOM, TCUDA_CURRENT_DEVICE, NULL, (void **)&c));
    fill();
    tcuda_jit *jit = create("template <typename T> T cached(T x) { return x * T(5); }");
    const tcuda_tensor input = row(a, float32, 100), output = row(c, float32, 100);
    CHECK_OK(tcuda_jit_call(jit, &input, 1, NULL, 0, &output, 1, NULL));
    put(&found, c + 99, sizeof found);
    CHECK(found == 99 * 5);
    CHECK_OK(tcuda_jit_destroy(jit));
}

static void spoil(const char *path, long at, int byte, long length)
{
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL);
    if (at >= 0) {
        CHECK_EQ(fseek(file, at, SEEK_SET), 0);
        fputc(byte, file);
    }
    fclose(file);
    if (length >= 0)
        CHECK_EQ(truncate(path, length), 0);
}

static void kernels_are_on_disk(void)
{
    char path[1024], again[1024];
    struct stat status, before;
    snprintf(folder, sizeof folder, "/tmp/tcuda-jit-%d/a/b", (int)getpid());
    setenv("TCUDA_KERNEL_CACHE_PATH", folder, 1);
    call_anew();
    CHECK_EQ(files(path, sizeof path), 1);
    CHECK_EQ(stat(path, &before), 0);
    CHECK_EQ(before.st_mode & 0777, 0600);
    CHECK_EQ(stat(folder, &status), 0);
    CHECK_EQ(status.st_mode & 0777, 0700);
    call_anew();
    CHECK_EQ(files(again, sizeof again), 1);
    CHECK_EQ(stat(path, &status), 0);
    CHECK_EQ(status.st_ino, before.st_ino);
    /* What is spoiled, cut, empty, another's or no file is as if it were not there. */
    const long length = (long)before.st_size;
    const struct { long at; int byte; long length; } harms[] = { { 0, 'X', -1 }, { 16, 1, -1 },
        { length / 2, 0x5A, -1 }, { length - 1, 0x77, -1 }, { -1, 0, length / 2 }, { -1, 0, 0 } };
    for (size_t i = 0; i < sizeof harms / sizeof harms[0]; i++) {
        spoil(path, harms[i].at, harms[i].byte, harms[i].length);
        CHECK_EQ(stat(path, &before), 0);
        call_anew();
        CHECK_EQ(stat(path, &status), 0);
        CHECK(status.st_ino != before.st_ino || status.st_mtim.tv_nsec != before.st_mtim.tv_nsec);
        CHECK_EQ(status.st_size, length);
    }
    CHECK_EQ(chmod(path, 0666), 0);
    call_anew();
    CHECK_EQ(stat(path, &status), 0);
    CHECK_EQ(status.st_mode & 0777, 0600);
    CHECK_EQ(unlink(path), 0);
    setenv("TCUDA_KERNEL_CACHE", "0", 1);
    call_anew();
    CHECK_EQ(files(path, sizeof path), 0);
    unsetenv("TCUDA_KERNEL_CACHE");
    CHECK_EQ(rmdir(folder), 0);
    /* A path where nothing can be. */
    setenv("TCUDA_KERNEL_CACHE_PATH", "/proc/nowhere", 1);
    call_anew();
    *strrchr(folder, '/') = '\0';
    CHECK_EQ(rmdir(folder), 0);
    *strrchr(folder, '/') = '\0';
    CHECK_EQ(rmdir(folder), 0);
}

/* Several threads call one function for the first time. */
static void *call_from_a_thread(void *argument)
{
    const tcuda_tensor input = tensor_of(a, float32, 1, (int64_t[]){ 64 }, NULL);
    for (int i = 0; i < 20; i++) {
        const tcuda_tensor output = tensor_of(c, float32, 1, (int64_t[]){ 64 }, NULL);
        CHECK_OK(tcuda_jit_call(argument, &input, 1, NULL, 0, &output, 1, NULL));
    }
    return NULL;
}

static void threads_share_a_function(void)
{
    pthread_t threads[4];
    tcuda_jit *jit = create("template <typename T> T shared(T x) { return x * x; }");
    CHECK_OK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    for (int i = 0; i < 4; i++)
        threads[i] = start_thread(call_from_a_thread, jit);
    for (int i = 0; i < 4; i++)
        join_thread(threads[i]);
    put(host, c, 64 * sizeof(float));
    for (int i = 0; i < 64; i++)
        CHECK(host[i] == (float)(i * i));
    CHECK_OK(tcuda_jit_destroy(jit));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    CHECK_OK(tcuda_malloc(ROOM, TCUDA_CURRENT_DEVICE, NULL, (void **)&a));
    CHECK_OK(tcuda_malloc(ROOM, TCUDA_CURRENT_DEVICE, NULL, (void **)&b));
    CHECK_OK(tcuda_malloc(ROOM, TCUDA_CURRENT_DEVICE, NULL, (void **)&c));
    functions_are_called();
    what_is_no_function_is_refused();
    names_are_the_users();
    tensors_are_checked();
    calls_like_the_last_are_checked();
    addresses_of_nobody_are_refused();
    a_function_has_several_outputs();
    large_tensors_are_whole();
    fill();
    /* What is compiled meanwhile takes longer than what comes from disk. */
    setenv("TCUDA_KERNEL_CACHE", "0", 1);
    threads_share_a_function();
    unsetenv("TCUDA_KERNEL_CACHE");
    kernels_are_on_disk();
    CHECK_OK(tcuda_free(a));
    CHECK_OK(tcuda_free(b));
    CHECK_OK(tcuda_free(c));
    return finish();
}
