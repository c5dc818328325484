/* Files that are read into device memory and written from it: through pinned memory everywhere, and
 * by cuFile where that is. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>

#include "file.h"

static tcuda_stream *stream;

static void sizes_and_offsets(uint32_t mode)
{
    const size_t sizes[] = { 1, 511, 4096, 3 * MIB, 8 * MIB, 8 * MIB + 1, 20 * MIB + 3 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        round_trip(sizes[i], i % 2 == 0 ? 0 : 4097, mode, stream);
    round_trip(70 * KIB, 4096, mode, NULL);
}

static void the_end_of_a_file(uint32_t mode)
{
    const char *const path = path_of("end");
    unsigned char *const pattern = make_pattern(10000);
    unsigned char *const ptr = allocate(20000, TCUDA_CURRENT_DEVICE, stream);
    size_t done = 7;
    put_bytes(path, pattern, 10000);
    tcuda_file *const file = open_file(path, TCUDA_FILE_READ | mode);
    fill_bytes(ptr, 0, 20000, stream);
    CHECK_OK(tcuda_file_read(file, ptr, 20000, 0, stream, &done));
    CHECK_EQ(done, 10000);
    CHECK(holds(ptr, pattern, 10000, stream));
    CHECK_EQ(count_other_bytes(ptr + 10000, 0, 10000, stream), 0);
    CHECK_OK(tcuda_file_read(file, ptr, 20000, 9990, stream, &done));
    CHECK_EQ(done, 10);
    CHECK(holds(ptr, pattern + 9990, 10, stream));
    CHECK_OK(tcuda_file_read(file, ptr, 20000, 10000, stream, &done));
    CHECK_EQ(done, 0);
    CHECK_OK(tcuda_file_read(file, ptr, 20000, (int64_t)1 << 40, stream, &done));
    CHECK_EQ(done, 0);
    done = 7;
    CHECK_OK(tcuda_file_read(file, NULL, 0, 0, stream, &done));
    CHECK_EQ(done, 0);
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(ptr));
    free(pattern);
}

/* Work of the stream that is queued before comes before, and all streams may use what is read. */
static void transfers_are_ordered(uint32_t mode)
{
    enum { BYTES = 9 * MIB };
    const char *const path = path_of("order");
    tcuda_stream *const other = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const from = allocate(BYTES, TCUDA_CURRENT_DEVICE, stream);
    unsigned char *const to = allocate(BYTES, TCUDA_CURRENT_DEVICE, stream);
    size_t done = 0;
    tcuda_file *const file = open_file(path, NEW | mode);
    for (int round = 1; round < 4; round++) {
        fill_bytes(from, 100, BYTES, stream);
        fill_bytes(from, round, BYTES, stream);
        CHECK_OK(tcuda_file_write(file, from, BYTES, 0, stream, &done));
        fill_bytes(to, 100, BYTES, stream);
        CHECK_OK(tcuda_file_read(file, to, BYTES, 0, stream, &done));
        CHECK_EQ(count_other_bytes(to, round, BYTES, other), 0);
        fill_bytes(from, 50, BYTES, other);
        CHECK_OK(tcuda_stream_synchronize(other));
    }
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(from));
    CHECK_OK(tcuda_free(to));
    CHECK_OK(tcuda_stream_destroy(other));
}

static void refuse_open(const char *path, uint32_t flags, tcuda_status expected, int code)
{
    tcuda_file *file = (tcuda_file *)(void *)&file;
    const tcuda_file *const before = file;
    CHECK_STATUS(expected, tcuda_file_open(path, flags, &file));
    CHECK(file == before);
    if (expected == TCUDA_STATUS_FILE_ERROR) {
        CHECK_EQ(tcuda_last_error_native(), code);
        CHECK(strstr(tcuda_last_error(), "cannot be opened") != NULL);
    }
}

static void what_cannot_be_opened(void)
{
    const uint32_t staged = TCUDA_FILE_READ | TCUDA_FILE_STAGING;
    const uint32_t wrong[] = { 0, TCUDA_FILE_STAGING, TCUDA_FILE_READ | TCUDA_FILE_CREATE,
        TCUDA_FILE_READ | TCUDA_FILE_TRUNCATE, staged | 32, UINT32_MAX };
    const char *const path = path_of("absent");
    refuse_open(path, staged, TCUDA_STATUS_FILE_ERROR, ENOENT);
    refuse_open("/nonexistent/file", NEW | staged, TCUDA_STATUS_FILE_ERROR, ENOENT);
    refuse_open("", staged, TCUDA_STATUS_FILE_ERROR, ENOENT);
    refuse_open(".", staged, TCUDA_STATUS_FILE_ERROR, EISDIR);
    refuse_open(".", staged | TCUDA_FILE_WRITE, TCUDA_STATUS_FILE_ERROR, EISDIR);
    refuse_open("/dev/null/file", staged, TCUDA_STATUS_FILE_ERROR, ENOTDIR);
    refuse_open(NULL, staged, TCUDA_STATUS_INVALID_ARGUMENT, 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_file_open(path, NEW | staged, NULL));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refuse_open(path, wrong[i], TCUDA_STATUS_INVALID_ARGUMENT, 0);
    CHECK_EQ(access(path, F_OK), -1);

    /* A FIFO is refused, and not waited for. */
    const char *const fifo = path_of("fifo");
    CHECK_EQ(mkfifo(fifo, 0600), 0);
    refuse_open(fifo, staged, TCUDA_STATUS_FILE_ERROR, ESPIPE);
    refuse_open(fifo, staged | TCUDA_FILE_WRITE, TCUDA_STATUS_FILE_ERROR, ESPIPE);
    CHECK_EQ(unlink(fifo), 0);

    const char *const sealed = path_of("sealed");
    put_bytes(sealed, "x", 1);
    CHECK_EQ(chmod(sealed, 0), 0);
    if (geteuid() != 0)
        refuse_open(sealed, staged, TCUDA_STATUS_FILE_ERROR, EACCES);
    CHECK_EQ(unlink(sealed), 0);

    /* Paths are bytes, and readable in a sentence. */
    refuse_open("/nonexistent/\xff\xfe", staged, TCUDA_STATUS_FILE_ERROR, ENOENT);
    CHECK(strstr(tcuda_last_error(), "/nonexistent/\\xff\\xfe cannot") != NULL);
    const char *const odd = path_of("\xff\xfe \n");
    CHECK_OK(tcuda_file_close(open_file(odd, NEW | staged)));
    CHECK_EQ(unlink(odd), 0);
}

/* Without cuFile there is a sentence, and the file stays as it was. */
static void without_cufile(void)
{
    const char *const path = path_of("kept");
    bool supported = true;
    size_t length = 0;
    put_bytes(path, "kept", 4);
    CHECK_OK(tcuda_file_is_supported(&supported));
    if (on_simulator()) {
        CHECK(!supported);
        refuse_open(path, NEW, TCUDA_STATUS_NOT_SUPPORTED, 0);
        CHECK(strstr(tcuda_last_error(), "TCUDA_FILE_STAGING") != NULL);
    } else if (!supported) {
        refuse_open(path, NEW, TCUDA_STATUS_NO_LIBRARY, 0);
        CHECK(strstr(tcuda_last_error(), "TCUDA_FILE_STAGING") != NULL);
    }
    free(content_of(path, &length));
    CHECK_EQ(length, 4);
    CHECK_EQ(unlink(path), 0);
    if (!supported) {
        unsigned char *const ptr = allocate(4096, TCUDA_CURRENT_DEVICE, NULL);
        CHECK(tcuda_file_register_buffer(ptr, 4096) != TCUDA_STATUS_OK);
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_file_unregister_buffer(ptr));
        CHECK_OK(tcuda_free(ptr));
    }
    CHECK_OK(tcuda_file_unregister_buffer(NULL));
}

static void wrong_arguments(uint32_t mode)
{
    const char *const path = path_of("wrong");
    unsigned char *const ptr = allocate(4096, TCUDA_CURRENT_DEVICE, stream);
    unsigned char *const freed = allocate(3 * MIB, TCUDA_CURRENT_DEVICE, stream);
    unsigned char on_stack[16];
    void *pinned = NULL;
    size_t done = 7;
    tcuda_file *const file = open_file(path, NEW | mode);
    tcuda_file *const readable = open_file(path, TCUDA_FILE_READ | mode);
    tcuda_file *const writable = open_file(path, TCUDA_FILE_WRITE | mode);
    CHECK_OK(tcuda_host_malloc(64, &pinned));
    CHECK_OK(tcuda_free(freed));
#define REFUSED(status, what, ptr, bytes, offset) \
    do { \
        CHECK_STATUS(TCUDA_STATUS_##status, \
            tcuda_file_read(what, ptr, bytes, offset, stream, &done)); \
        CHECK_STATUS(TCUDA_STATUS_##status, \
            tcuda_file_write(what, ptr, bytes, offset, stream, &done)); \
    } while (0)
    REFUSED(INVALID_ARGUMENT, file, ptr, 16, -1);
    REFUSED(INVALID_ARGUMENT, file, ptr, 16, INT64_MIN);
    REFUSED(INVALID_ARGUMENT, file, ptr, 16, INT64_MAX);
    REFUSED(INVALID_ARGUMENT, file, ptr, 4097, 0);
    REFUSED(INVALID_ARGUMENT, file, ptr + 4090, 7, 0);
    REFUSED(INVALID_ARGUMENT, file, ptr, SIZE_MAX, 0);
    REFUSED(INVALID_ARGUMENT, file, NULL, 1, 0);
    REFUSED(INVALID_POINTER, file, on_stack, 16, 0);
    REFUSED(INVALID_POINTER, file, pinned, 16, 0);
    REFUSED(INVALID_POINTER, file, freed, 16, 0);
    REFUSED(INVALID_HANDLE, NULL, ptr, 16, 0);
    REFUSED(INVALID_HANDLE, (tcuda_file *)(void *)stream, ptr, 16, 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_file_write(readable, ptr, 16, 0, stream, &done));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_file_read(writable, ptr, 16, 0, stream, &done));
    CHECK_EQ(done, 7);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_file_read(file, ptr, 16, 0, stream, NULL));
    CHECK_OK(tcuda_file_write(file, ptr + 4090, 6, 0, stream, &done));
    CHECK_EQ(done, 6);
    CHECK_OK(tcuda_file_close(file));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_file_close(file));
    REFUSED(INVALID_HANDLE, file, ptr, 16, 0);
    CHECK_OK(tcuda_file_close(NULL));
    CHECK_OK(tcuda_file_close(readable));
    CHECK_OK(tcuda_file_close(writable));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_host_free(pinned));
    CHECK_OK(tcuda_free(ptr));
}

/* Truncated or not, and what stays of a file that is written in part. */
static void flags_mean_what_they_say(uint32_t mode)
{
    const char *const path = path_of("flags");
    unsigned char *const ptr = allocate(100, TCUDA_CURRENT_DEVICE, stream);
    size_t done = 0, length = 0;
    fill_bytes(ptr, 'b', 100, stream);
    put_bytes(path, "aaaaaaaa", 8);
    tcuda_file *file = open_file(path, TCUDA_FILE_WRITE | TCUDA_FILE_CREATE | mode);
    CHECK_OK(tcuda_file_write(file, ptr, 2, 3, stream, &done));
    CHECK_OK(tcuda_file_close(file));
    unsigned char *content = content_of(path, &length);
    CHECK(length == 8 && memcmp(content, "aaabbaaa", 8) == 0);
    free(content);
    file = open_file(path, TCUDA_FILE_WRITE | TCUDA_FILE_TRUNCATE | mode);
    CHECK_OK(tcuda_file_write(file, ptr, 2, 1, stream, &done));
    CHECK_OK(tcuda_file_close(file));
    content = content_of(path, &length);
    CHECK(length == 3 && memcmp(content, "\0bb", 3) == 0);
    free(content);
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(ptr));
}

static void native_values(uint32_t mode)
{
    const char *const path = path_of("native");
    int32_t descriptor = -1;
    void *handle = (void *)&handle;
    tcuda_file *const file = open_file(path, NEW | mode);
    CHECK_OK(tcuda_file_native(file, &descriptor, &handle));
    CHECK(descriptor >= 0 && (fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((handle == NULL) == (mode == TCUDA_FILE_STAGING));
    CHECK_OK(tcuda_file_native(file, NULL, NULL));
    CHECK(num_open(path) >= 1);
    CHECK_OK(tcuda_file_close(file));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_file_native(file, &descriptor, NULL));
    CHECK_EQ(num_open(path), 0);
    CHECK_EQ(unlink(path), 0);
}

static void every_test(uint32_t mode)
{
    sizes_and_offsets(mode);
    the_end_of_a_file(mode);
    transfers_are_ordered(mode);
    wrong_arguments(mode);
    flags_mean_what_they_say(mode);
    native_values(mode);
}

/* The other device's memory, and a stream of either device. */
static void other_devices(void)
{
    if (num_devices() < 2)
        return;
    const char *const path = path_of("far");
    unsigned char *const far = allocate(9 * MIB, 1, NULL);
    size_t done = 0;
    tcuda_file *const file = open_file(path, NEW | TCUDA_FILE_STAGING);
    CHECK_OK(tcuda_fill(far, "x", 1, 9 * MIB, NULL));
    CHECK_OK(tcuda_file_write(file, far, 9 * MIB, 0, NULL, &done));
    CHECK_OK(tcuda_fill(far, "y", 1, 9 * MIB, NULL));
    CHECK_OK(tcuda_device_synchronize(1));
    CHECK_OK(tcuda_file_read(file, far, 9 * MIB, 0, stream, &done));
    CHECK_EQ(count_other_bytes(far, 'x', 9 * MIB, NULL), 0);
    CHECK_EQ(current_device(), 0);
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(far));
}

/* A captured stream has no transfers; other streams have, and the capture goes on. */
static void captures(void)
{
    const char *const path = path_of("capture");
    tcuda_stream *const captured = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const ptr = allocate(4096, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *graph = NULL;
    size_t done = 0;
    tcuda_file *const file = open_file(path, NEW | TCUDA_FILE_STAGING);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, captured, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_file_write(file, ptr, 16, 0, captured, &done));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_file_read(file, ptr, 16, 0, captured, &done));
    CHECK_OK(tcuda_file_write(file, ptr, 16, 0, stream, &done));
    CHECK_EQ(done, 16);
    fill_bytes(ptr, 1, 16, captured);
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_stream_destroy(captured));
}

int main(void)
{
    bool supported = false;
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    stream = create_stream(TCUDA_CURRENT_DEVICE);
    what_cannot_be_opened();
    without_cufile();
    every_test(TCUDA_FILE_STAGING);
    other_devices();
    captures();
    CHECK_OK(tcuda_file_is_supported(&supported));
    if (supported) {
        /* cuFile may be there and refuse to begin. */
        tcuda_file *file = NULL;
        if (tcuda_file_open(path_of("probe"), NEW, &file) == TCUDA_STATUS_OK) {
            CHECK_OK(tcuda_file_close(file));
            every_test(0);
        } else {
            printf("without cuFile: %s\n", tcuda_last_error());
        }
        unlink(path_of("probe"));
    }
    CHECK_OK(tcuda_stream_destroy(stream));
    return finish();
}
