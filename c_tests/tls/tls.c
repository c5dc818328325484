/* usage: tls NEIGHBOUR LIBRARY COPY: opens the library, and a copy of it, beside one that takes
 * most of the static thread-local storage that glibc reserves for dlopen, and uses both. Each has a
 * simulator in its folder: one machine serves one library. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>

#define RECOVERY_NOT_LINKED
#include "check.h"

/* C has no cast from an object's pointer to a function's. */
static void find(void *library, const char *name, void *function)
{
    void *const symbol = dlsym(library, name);
    if (symbol == NULL)
        check_failed(__FILE__, __LINE__, "dlsym", name);
    memcpy(function, &symbol, sizeof symbol);
}

static void *open_library(const char *path)
{
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        check_failed(__FILE__, __LINE__, "dlopen", dlerror());
    return library;
}

static int64_t id_of(void *library, tcuda_stream *stream)
{
    tcuda_status (*stream_id)(tcuda_stream *, int64_t *) = NULL;
    int64_t id = 0;
    find(library, "tcuda_stream_id", &stream_id);
    CHECK_EQ(stream_id(stream, &id), TCUDA_STATUS_OK);
    return id;
}

/* Sets a current stream, which is state of the thread, and returns its id. */
static int64_t use(void *library)
{
    tcuda_status (*stream_create)(int32_t, int32_t, tcuda_stream **) = NULL;
    tcuda_status (*stream_set_current)(tcuda_stream *) = NULL;
    tcuda_status (*stream_synchronize)(tcuda_stream *) = NULL;
    tcuda_status (*allocate)(size_t, int32_t, tcuda_stream *, void **) = NULL;
    tcuda_status (*fill)(void *, const void *, size_t, size_t, tcuda_stream *) = NULL;
    tcuda_status (*copy)(void *, const void *, size_t, tcuda_stream *) = NULL;
    tcuda_status (*release)(void *) = NULL;
    tcuda_stream *stream = NULL;
    void *block = NULL;
    const char value = 7;
    char host[100] = { 0 };

    find(library, "tcuda_stream_create", &stream_create);
    find(library, "tcuda_stream_set_current", &stream_set_current);
    find(library, "tcuda_stream_synchronize", &stream_synchronize);
    find(library, "tcuda_malloc", &allocate);
    find(library, "tcuda_fill", &fill);
    find(library, "tcuda_copy", &copy);
    find(library, "tcuda_free", &release);
    CHECK_EQ(stream_create(0, 0, &stream), TCUDA_STATUS_OK);
    CHECK_EQ(stream_set_current(stream), TCUDA_STATUS_OK);
    CHECK_EQ(allocate(sizeof host, 0, NULL, &block), TCUDA_STATUS_OK);
    CHECK_EQ(fill(block, &value, 1, sizeof host, NULL), TCUDA_STATUS_OK);
    CHECK_EQ(copy(host, block, sizeof host, NULL), TCUDA_STATUS_OK);
    CHECK_EQ(stream_synchronize(NULL), TCUDA_STATUS_OK);
    for (size_t i = 0; i < sizeof host; i++)
        CHECK_EQ(host[i], value);
    CHECK_EQ(release(block), TCUDA_STATUS_OK);
    return id_of(library, stream);
}

static int64_t current(void *library)
{
    tcuda_status (*stream_current)(int32_t, tcuda_stream **) = NULL;
    tcuda_stream *stream = NULL;
    find(library, "tcuda_stream_current", &stream_current);
    CHECK_EQ(stream_current(0, &stream), TCUDA_STATUS_OK);
    return id_of(library, stream);
}

static bool is_available(void *library, const char *path)
{
    tcuda_status (*function)(bool *) = NULL;
    bool available = false;
    char simulator[4096];
    const int folder = (int)(strrchr(path, '/') - path);
    snprintf(simulator, sizeof simulator, "%.*s/libtcuda_sim.so", folder, path);
    CHECK_EQ(setenv("TCUDA_SIM_PATH", simulator, 1), 0);
    find(library, "tcuda_is_available", &function);
    CHECK_EQ(function(&available), TCUDA_STATUS_OK);
    return available;
}

int main(int count, char **arguments)
{
    char *(*neighbour_bytes)(void) = NULL;
    CHECK_EQ(count, 4);
    void *const neighbour = open_library(arguments[1]);
    void *const library = open_library(arguments[2]);
    void *const copy = open_library(arguments[3]);
    CHECK(library != copy);
    if (!is_available(library, arguments[2]) || !is_available(copy, arguments[3]))
        return CHECK_SKIPPED;

    find(neighbour, "neighbour_bytes", &neighbour_bytes);
    memset(neighbour_bytes(), 0x5a, BYTES);
    /* The second stream of one library and the first of the other have different ids. */
    use(library);
    const int64_t first = use(library), second = use(copy);
    CHECK(first != second);
    CHECK_EQ(current(library), first);
    CHECK_EQ(current(copy), second);
    for (size_t i = 0; i < BYTES; i++)
        CHECK_EQ(neighbour_bytes()[i], 0x5a);
    return EXIT_SUCCESS;
}
