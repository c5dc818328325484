/* tcuda_call: functions by their names, and errors in objects that any thread may read. */
#include "support.h"

enum { THREADS = 8, CALLS = 300 };

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static uint64_t address_of(const void *ptr) { return (uint64_t)(uintptr_t)ptr; }

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A call that succeeds; the object says so. */
static void call_ok(const char *function, const uint64_t *arguments, size_t count)
{
    tcuda_error error = TCUDA_INIT(tcuda_error);
    memset(error.message, 'x', sizeof error.message);
    error.status = TCUDA_STATUS_INTERNAL, error.native_code = 5;
    const tcuda_status status = tcuda_call(function, arguments, count, &error);
    if (status != TCUDA_STATUS_OK)
        fprintf(stderr, "%s: %s\n", function, error.message);
    CHECK(status == TCUDA_STATUS_OK && error.status == TCUDA_STATUS_OK);
    CHECK(error.native_code == 0 && strcmp(error.message, "") == 0);
    CHECK(error.struct_size == sizeof error);
}

/* A call that fails; the object and this thread's last error say why. */
static void call_fails(tcuda_status expected, const char *word, const char *function,
    const uint64_t *arguments, size_t count)
{
    tcuda_error error = TCUDA_INIT(tcuda_error);
    memset(error.message, 'x', sizeof error.message);
    const tcuda_status status = tcuda_call(function, arguments, count, &error);
    if (status != expected || strstr(error.message, word) == NULL)
        fprintf(stderr, "%s: %s, %s\n", function, tcuda_status_name(status), error.message);
    CHECK(status == expected && error.status == expected);
    CHECK(strstr(error.message, word) != NULL);
    CHECK(strcmp(error.message, tcuda_last_error()) == 0);
    CHECK(error.native_code == tcuda_last_error_native());
}

static void test_arguments(void)
{
    void *ptr = NULL;
    const uint64_t malloc_current[] = { 4096, (uint64_t)-1, 0, address_of(&ptr) };
    call_ok("tcuda_malloc", malloc_current, 4);
    CHECK(ptr != NULL);
    const uint64_t free_it[] = { address_of(ptr) };
    call_ok("tcuda_free", free_it, 1);
    /* A host that extends 32 bits with zeros. */
    const uint64_t malloc_zeros[] = { 4096, UINT32_MAX, 0, address_of(&ptr) };
    call_ok("tcuda_malloc", malloc_zeros, 4);

    const uint32_t value = 0x12345678;
    uint32_t host[1024] = { 0 };
    const uint64_t fill[] = { address_of(ptr), address_of(&value), 4, 1024, 0 };
    call_ok("tcuda_fill", fill, COUNT(fill));
    const uint64_t copy[] = { address_of(host), address_of(ptr), sizeof host, 0 };
    call_ok("tcuda_copy", copy, COUNT(copy));
    const uint64_t no_stream[] = { 0 };
    call_ok("tcuda_stream_synchronize", no_stream, 1);
    CHECK(host[0] == value && host[1023] == value);
    CHECK_OK(tcuda_free(ptr));

    double fraction = 0;
    const uint64_t set[] = { 0, bits_of(0.75) }, get[] = { 0, address_of(&fraction) };
    call_ok("tcuda_memory_fraction_set", set, 2);
    call_ok("tcuda_memory_fraction_get", get, 2);
    CHECK(fraction == 0.75);
    CHECK_OK(tcuda_memory_fraction_set(0, 1.0));

    call_ok("tcuda_init", NULL, 0);
}

static void test_refused(void)
{
    int32_t count = 77;
    const uint64_t good[] = { address_of(&count), 0, 0, 0, 0, 0, 0, 0, 0 };
    const char *const unknown[] = { "tcuda_nothing", "", "malloc", "tcuda_device_coun",
        "tcuda_device_count_", "tcuda_call", "tcuda_version", "TCUDA_DEVICE_COUNT" };
    for (size_t i = 0; i < COUNT(unknown); i++)
        call_fails(TCUDA_STATUS_INVALID_ARGUMENT, unknown[i], unknown[i], good, 1);
    call_fails(TCUDA_STATUS_INVALID_ARGUMENT, "function is NULL", NULL, good, 1);
    call_fails(TCUDA_STATUS_INVALID_ARGUMENT, "count is 0", "tcuda_device_count", good, 0);
    call_fails(TCUDA_STATUS_INVALID_ARGUMENT, "count is 9", "tcuda_device_count", good, 9);
    call_fails(TCUDA_STATUS_INVALID_ARGUMENT, "arguments is NULL", "tcuda_device_count", NULL, 1);
    CHECK(count == 77);

    /* Not cut to device 0. */
    void *ptr = &count;
    uint64_t wide[] = { 4096, UINT64_C(1) << 32, 0, address_of(&ptr) };
    call_fails(TCUDA_STATUS_INVALID_ARGUMENT, "arguments[1] is 4294967296;", "tcuda_malloc", wide,
        4);
    wide[1] = (uint64_t)INT32_MIN - 1;
    call_fails(TCUDA_STATUS_INVALID_ARGUMENT, "-2147483649", "tcuda_malloc", wide, 4);
    wide[1] = (uint64_t)INT32_MIN;
    call_fails(TCUDA_STATUS_INVALID_DEVICE, "-2147483648", "tcuda_malloc", wide, 4);
    CHECK(ptr == &count);
}

/* The error object itself. */
static void test_objects(void)
{
    int32_t count = 77;
    const uint64_t arguments[] = { address_of(&count) };
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_call("tcuda_device_count", arguments, 1, NULL));
    CHECK(strstr(tcuda_last_error(), "error is NULL") != NULL);
    tcuda_error error = TCUDA_INIT(tcuda_error);
    error.struct_size = 0;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_call("tcuda_device_count", arguments, 1, &error));
    CHECK(strstr(tcuda_last_error(), "struct_size") != NULL);
    CHECK(count == 77);

    /* A smaller struct, without the message. */
    memset(&error, 0x55, sizeof error);
    const tcuda_error before = error;
    error.struct_size = offsetof(tcuda_error, message);
    CHECK(tcuda_call("tcuda_nothing", NULL, 0, &error) == TCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(error.status == TCUDA_STATUS_INVALID_ARGUMENT && error.native_code == 0);
    CHECK(memcmp(error.message, before.message, sizeof error.message) == 0);
}

static tcuda_error errors[THREADS][CALLS];

static void *fail_often(void *thread)
{
    const int first = *(const int *)thread * CALLS;
    for (int i = 0; i < CALLS; i++) {
        tcuda_error *error = &errors[*(const int *)thread][i];
        void *ptr = NULL;
        const uint64_t arguments[] = { 64, (uint64_t)(1000 + first + i), 0, address_of(&ptr) };
        error->struct_size = sizeof *error;
        CHECK(tcuda_call("tcuda_malloc", arguments, 4, error) == TCUDA_STATUS_INVALID_DEVICE);
        CHECK(ptr == NULL);
    }
    return NULL;
}

/* Each text is that of its call, although another thread reads it after the one that called has
 * failed again and ended. */
static void test_threads(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, fail_often, &numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < THREADS * CALLS; i++) {
        char number[16];
        snprintf(number, sizeof number, " %d ", 1000 + i);
        const tcuda_error *error = &errors[i / CALLS][i % CALLS];
        char text[sizeof error->message + 2];
        snprintf(text, sizeof text, " %s ", error->message);
        if (strstr(text, number) == NULL)
            fprintf(stderr, "%s: %s\n", number, error->message);
        CHECK(error->status == TCUDA_STATUS_INVALID_DEVICE && strstr(text, number) != NULL);
    }
}

int main(void)
{
    skip_without_gpu_before_forks();
    test_arguments();
    test_refused();
    test_objects();
    test_threads();
    return finish();
}
