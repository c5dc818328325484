/* Files by cuFile on the simulated machine, with a stand-in that counts what it is asked for. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "../file.h"
#include "cufile.h"

static stand_in_state_fn look;
static stand_in_fail_fn fail;
static tcuda_stream *stream;

static void *find(const char *name)
{
    void *const library = dlopen(getenv("TCUDA_CUFILE_PATH"), RTLD_NOW);
    CHECK(library != NULL);
    void *const found = dlsym(library, name);
    CHECK(found != NULL);
    return found;
}

static stand_in_state now(void)
{
    stand_in_state state;
    look(&state);
    return state;
}

/* The stand-in reaches memory by the driver's functions. */
static void connect_stand_in(void)
{
    static stand_in_driver driver;
    stand_in_use_fn use = NULL;
    void *address = NULL;
    *(void **)&look = find("stand_in_look");
    *(void **)&fail = find("stand_in_fail");
    *(void **)&use = find("stand_in_use");
    CHECK_OK(tcuda_backend_function("cuMemcpyAsync", &address));
    *(void **)&driver.copy = address;
    CHECK_OK(tcuda_backend_function("cuStreamSynchronize", &address));
    *(void **)&driver.wait = address;
    CHECK_OK(tcuda_backend_function("cuPointerGetAttribute", &address));
    *(void **)&driver.attribute = address;
    use(&driver);
}

static void files_come_and_go(void)
{
    const char *const path = path_of("cufile");
    void *handle = NULL;
    tcuda_file *const file = open_file(path, NEW);
    CHECK_EQ(now().handles, 1);
    CHECK_EQ(now().drivers, 1);
    CHECK_OK(tcuda_file_native(file, NULL, &handle));
    CHECK(handle != NULL);
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(now().handles, 0);
    CHECK_EQ(num_open(path), 0);
    CHECK_EQ(unlink(path), 0);
}

static void round_trips(void)
{
    const size_t sizes[] = { 1, 4096, MIB, MIB + 1, 5 * MIB + 3, 40 * MIB };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        round_trip(sizes[i], i % 2 == 0 ? 0 : 511, 0, stream);
    const stand_in_state state = now();
    CHECK(state.reads > 40 && state.writes > 40);
    CHECK_EQ(state.handles, 0);
}

/* Beyond the end of a file cuFile is not called. */
static void the_end_of_a_file(void)
{
    const char *const path = path_of("cufile_end");
    unsigned char *const ptr = allocate(5000, 0, stream);
    size_t done = 7;
    put_bytes(path, "0123456789", 10);
    tcuda_file *const file = open_file(path, TCUDA_FILE_READ);
    CHECK_OK(tcuda_file_read(file, ptr, 5000, 4, stream, &done));
    CHECK_EQ(done, 6);
    CHECK(holds(ptr, (const unsigned char *)"456789", 6, stream));
    const int reads = now().reads;
    CHECK_OK(tcuda_file_read(file, ptr, 5000, 10, stream, &done));
    CHECK_EQ(done, 0);
    CHECK_EQ(now().reads, reads);
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(ptr));
}

/* A block that consists of several mappings of the driver, unless memory comes in segments. */
static unsigned char *allocate_in_two_mappings(size_t bytes)
{
    CHECK_OK(tcuda_memory_empty_cache());
    void *const first = allocate(bytes / 2, 0, stream);
    void *const second = allocate(bytes / 2, 0, stream);
    CHECK_OK(tcuda_free(first));
    CHECK_OK(tcuda_free(second));
    return allocate(bytes, 0, stream);
}

/* Transfers of registered memory name the buffer's beginning. */
static void registered_memory_is_used(void)
{
    enum { BYTES = 100 * MIB };
    const char *const path = path_of("cufile_buffer");
    unsigned char *const ptr = allocate_in_two_mappings(BYTES);
    size_t done = 0;
    tcuda_file *const file = open_file(path, NEW);
    CHECK_OK(tcuda_file_register_buffer(ptr, BYTES));
    /* One for each mapping. */
    CHECK(now().buffers >= (in_segments() ? 1 : 2));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_file_register_buffer(ptr, BYTES));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_file_register_buffer(ptr + MIB, MIB));
    CHECK_OK(tcuda_file_write(file, ptr + 4096, 1000, 0, stream, &done));
    CHECK(now().base == ptr);
    CHECK_EQ(now().base_offset, 4096);
    fill_bytes(ptr, 6, BYTES, stream);
    CHECK_OK(tcuda_file_write(file, ptr, BYTES, 0, stream, &done));
    CHECK_EQ(done, BYTES);
    fill_bytes(ptr, 7, BYTES, stream);
    CHECK_OK(tcuda_file_read(file, ptr, BYTES, 0, stream, &done));
    CHECK_EQ(count_other_bytes(ptr, 6, BYTES, stream), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_file_unregister_buffer(ptr + MIB));
    CHECK_OK(tcuda_file_unregister_buffer(ptr));
    CHECK_EQ(now().buffers, 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_file_unregister_buffer(ptr));
    CHECK_OK(tcuda_file_write(file, ptr + 4096, 1000, 0, stream, &done));
    CHECK(now().base == ptr + 4096);
    CHECK_EQ(now().base_offset, 0);
    /* Half of a transfer is registered. */
    CHECK_OK(tcuda_file_register_buffer(ptr + MIB, 4096));
    CHECK_OK(tcuda_file_write(file, ptr, 2 * MIB, 0, stream, &done));
    CHECK_EQ(done, 2 * MIB);
    CHECK_OK(tcuda_file_unregister_buffer(ptr + MIB));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_file_register_buffer(ptr, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_file_register_buffer(NULL, 16));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_file_register_buffer(ptr, BYTES + 1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_file_register_buffer(&done, 4));
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(ptr));
}

/* Memory that is freed while it is registered leaves no registration behind. */
static void freed_memory_is_unregistered(void)
{
    unsigned char *const ptr = allocate(64 * MIB, 0, stream);
    CHECK_OK(tcuda_file_register_buffer(ptr, 64 * MIB));
    CHECK(now().buffers > 0);
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(now().buffers, 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_file_unregister_buffer(ptr));

    /* Also where an allocation may need the memory. */
    unsigned char *const other = allocate(64 * MIB, 0, stream);
    CHECK_OK(tcuda_file_register_buffer(other, 64 * MIB));
    CHECK_OK(tcuda_free(other));
    void *const large = allocate(300 * MIB, 0, stream);
    CHECK_EQ(now().buffers, 0);
    CHECK_OK(tcuda_free(large));
}

static void failures(void)
{
    const char *const path = path_of("cufile_failures");
    unsigned char *const ptr = allocate(4096, 0, stream);
    tcuda_file *file = NULL;
    size_t done = 7;
    put_bytes(path, "kept", 4);
    fail("cuFileHandleRegister", 1, 5008);
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_file_open(path, NEW, &file));
    CHECK_EQ(tcuda_last_error_native(), 5008);
    fail("cuFileHandleRegister", 1, 5030);
    CHECK_STATUS(TCUDA_STATUS_CUFILE_ERROR, tcuda_file_open(path, NEW, &file));
    CHECK(strstr(tcuda_last_error(), "5030") != NULL);
    CHECK(file == NULL);
    CHECK_EQ(num_open(path), 0);
    file = open_file(path, READ_WRITE);
    CHECK_OK(tcuda_file_read(file, ptr, 10, 0, stream, &done));
    CHECK_EQ(done, 4); /* it was not truncated */
    done = 7;
    fail("cuFileWrite", 1, 5011);
    CHECK_STATUS(TCUDA_STATUS_CUFILE_ERROR, tcuda_file_write(file, ptr, 16, 0, stream, &done));
    CHECK_EQ(tcuda_last_error_native(), 5011);
    fail("cuFileWrite", 1, ENOSPC);
    CHECK_STATUS(TCUDA_STATUS_FILE_ERROR, tcuda_file_write(file, ptr, 16, 0, stream, &done));
    CHECK_EQ(tcuda_last_error_native(), ENOSPC);
    CHECK_EQ(done, 7);
    fail("cuFileWrite", 3, EINTR);
    CHECK_OK(tcuda_file_write(file, ptr, 16, 0, stream, &done));
    CHECK_EQ(done, 16);
    fail("cuFileRead", 1, EIO);
    CHECK_STATUS(TCUDA_STATUS_FILE_ERROR, tcuda_file_read(file, ptr, 16, 0, stream, &done));
    fail("cuFileBufRegister", 1, 5036);
    CHECK_STATUS(TCUDA_STATUS_CUFILE_ERROR, tcuda_file_register_buffer(ptr, 4096));
    CHECK_EQ(now().buffers, 0);
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(ptr));
}

/* Files, buffers and the driver end with the library; the next life has them anew. */
static void a_shutdown_ends_all(void)
{
    const char *const path = path_of("cufile_shutdown");
    size_t live = 0;
    for (int round = 0; round < 2; round++) {
        const int opened = now().opened;
        unsigned char *const ptr = allocate(MIB, 0, NULL);
        tcuda_file *const file = open_file(path, NEW);
        CHECK_OK(tcuda_file_register_buffer(ptr, MIB));
        CHECK_EQ(now().opened, round == 0 ? opened : opened + 1);
        CHECK_OK(tcuda_shutdown(&live));
        CHECK_EQ(live, 1);
        CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_file_close(file));
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_file_unregister_buffer(ptr));
        const stand_in_state state = now();
        CHECK(state.handles == 0 && state.buffers == 0 && state.drivers == 0);
    }
    /* A driver that cannot be opened fails the call, and the next one tries again. */
    fail("cuFileDriverOpen", 1, 5001);
    tcuda_file *file = NULL;
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_file_open(path, NEW, &file));
    CHECK_OK(tcuda_file_close(open_file(path, NEW)));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(now().drivers, 0);
    /* One that another user has opened stays open. */
    stand_in_driver_fn open_driver = NULL, close_driver = NULL;
    *(void **)&open_driver = find("cuFileDriverOpen");
    *(void **)&close_driver = find("cuFileDriverClose");
    (void)open_driver();
    fail("cuFileDriverOpen", 1, 5026);
    CHECK_OK(tcuda_file_close(open_file(path, NEW)));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(now().drivers, 1);
    (void)close_driver();
    CHECK_EQ(unlink(path), 0);
}

/* A library without the mark is not used on the simulated machine. */
static void without_the_mark(void)
{
    bool supported = true;
    tcuda_file *file = NULL;
    CHECK_EQ(setenv("TCUDA_CUFILE_PATH", getenv("TCUDA_TEST_REAL_CUFILE"), 1), 0);
    CHECK_OK(tcuda_file_is_supported(&supported));
    CHECK(!supported);
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_file_open("/dev/null", READ_WRITE, &file));
    CHECK(strstr(tcuda_last_error(), "stand-in") != NULL);
    CHECK_OK(tcuda_shutdown(NULL));
}

static void without_a_library(void)
{
    bool supported = true;
    tcuda_file *file = NULL;
    CHECK_EQ(setenv("TCUDA_CUFILE_PATH", "/nonexistent/libcufile.so", 1), 0);
    CHECK_OK(tcuda_file_is_supported(&supported));
    CHECK(!supported);
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_file_open("/dev/null", READ_WRITE, &file));
    CHECK(strstr(tcuda_last_error(), "TCUDA_CUFILE_PATH") != NULL);
    CHECK_OK(tcuda_shutdown(NULL));
}

int main(void)
{
    bool supported = false;
    RUNS(without_the_mark);
    RUNS(without_a_library);
    CHECK_EQ(finish_cases(), EXIT_SUCCESS);
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    connect_stand_in();
    CHECK_OK(tcuda_file_is_supported(&supported));
    CHECK(supported);
    stream = create_stream(0);
    files_come_and_go();
    round_trips();
    the_end_of_a_file();
    registered_memory_is_used();
    freed_memory_is_unregistered();
    failures();
    CHECK_OK(tcuda_stream_destroy(stream));
    a_shutdown_ends_all();
    return finish();
}
