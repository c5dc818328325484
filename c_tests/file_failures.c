/* Files on full disks, in host functions, in children, on several threads, and at a shutdown. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "file.h"

static tcuda_stream *stream;

/* Beyond the limit of a file's size: an error, not the signal that ends a process. */
static void a_limit_of_size(void)
{
    const char *const path = path_of("limit");
    struct rlimit before, small;
    unsigned char *const ptr = allocate(20 * MIB, TCUDA_CURRENT_DEVICE, stream);
    size_t done = 7, length = 0;
    tcuda_file *const file = open_file(path, NEW | TCUDA_FILE_STAGING);
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 9 * MIB;
    fill_bytes(ptr, 3, 20 * MIB, stream);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_STATUS(TCUDA_STATUS_FILE_ERROR,
        tcuda_file_write(file, ptr, 20 * MIB, 0, stream, &done));
    CHECK_EQ(tcuda_last_error_native(), EFBIG);
    CHECK(strstr(tcuda_last_error(), "written at byte 9437184") != NULL);
    CHECK_EQ(done, 7);
    CHECK_OK(tcuda_file_write(file, ptr, MIB, 2 * MIB, stream, &done));
    CHECK_EQ(done, MIB);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK_OK(tcuda_file_write(file, ptr, 20 * MIB, 0, stream, &done));
    CHECK_OK(tcuda_file_close(file));
    free(content_of(path, &length));
    CHECK_EQ(length, 20 * MIB);
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(ptr));
}

static void a_full_disk(void)
{
    unsigned char *const ptr = allocate(4096, TCUDA_CURRENT_DEVICE, stream);
    size_t done = 7;
    tcuda_file *const full = open_file("/dev/full", READ_WRITE | TCUDA_FILE_STAGING);
    CHECK_STATUS(TCUDA_STATUS_FILE_ERROR, tcuda_file_write(full, ptr, 4096, 0, stream, &done));
    CHECK_EQ(tcuda_last_error_native(), ENOSPC);
    CHECK(strstr(tcuda_last_error(), "make room") != NULL);
    CHECK_EQ(done, 7);
    fill_bytes(ptr, 1, 4096, stream);
    CHECK_OK(tcuda_file_read(full, ptr, 4096, 0, stream, &done));
    CHECK_EQ(count_other_bytes(ptr, 0, 4096, stream), 0);
    CHECK_OK(tcuda_file_close(full));
    CHECK_OK(tcuda_free(ptr));
}

static void on_alarm(int number) { (void)number; }

/* Signals do not end a transfer. */
static void signals(void)
{
    struct sigaction action, before;
    const struct itimerval often = { { 0, 300 }, { 0, 300 } }, never = { { 0, 0 }, { 0, 0 } };
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    CHECK_EQ(sigaction(SIGALRM, &action, &before), 0);
    CHECK_EQ(setitimer(ITIMER_REAL, &often, NULL), 0);
    tcuda_stream *const own = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const ptr = allocate(20 * MIB, TCUDA_CURRENT_DEVICE, own);
    size_t done = 0;
    tcuda_file *const file = open_file(path_of("signals"), NEW | TCUDA_FILE_STAGING);
    fill_bytes(ptr, 9, 20 * MIB, own);
    CHECK_OK(tcuda_file_write(file, ptr, 20 * MIB, 0, own, &done));
    CHECK_EQ(done, 20 * MIB);
    fill_bytes(ptr, 8, 20 * MIB, own);
    CHECK_OK(tcuda_file_read(file, ptr, 20 * MIB, 0, own, &done));
    CHECK_EQ(setitimer(ITIMER_REAL, &never, NULL), 0);
    CHECK_EQ(sigaction(SIGALRM, &before, NULL), 0);
    CHECK_EQ(count_other_bytes(ptr, 9, 20 * MIB, own), 0);
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(unlink(path_of("signals")), 0);
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_stream_destroy(own));
}

static tcuda_file *shared;
static unsigned char *shared_memory;
static tcuda_status in_function[4];

static void try_all(void *user_data)
{
    size_t done = 0;
    tcuda_file *file = NULL;
    (void)user_data;
    in_function[0] = tcuda_file_read(shared, shared_memory, 16, 0, stream, &done);
    in_function[1] = tcuda_file_write(shared, shared_memory, 16, 0, stream, &done);
    in_function[2] = tcuda_file_close(shared);
    in_function[3] = tcuda_file_open("/dev/null", READ_WRITE | TCUDA_FILE_STAGING, &file);
}

static void host_functions(void)
{
    const char *const path = path_of("function");
    size_t done = 0;
    shared_memory = allocate(4096, TCUDA_CURRENT_DEVICE, stream);
    shared = open_file(path, NEW | TCUDA_FILE_STAGING);
    CHECK_OK(tcuda_stream_add_callback(stream, try_all, NULL, NULL));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (int i = 0; i < 4; i++)
        CHECK_EQ(in_function[i], TCUDA_STATUS_INVALID_STATE);
    CHECK_OK(tcuda_file_write(shared, shared_memory, 16, 0, stream, &done));
    CHECK_OK(tcuda_file_close(shared));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(shared_memory));
}

enum { THREADS = 4, PART = 3 * MIB + 5 };

static void *read_part(void *argument)
{
    const size_t part = *(const size_t *)argument;
    tcuda_stream *const own = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const ptr = allocate(PART, TCUDA_CURRENT_DEVICE, own);
    size_t done = 0;
    for (int round = 0; round < 3; round++) {
        CHECK_OK(tcuda_file_read(shared, ptr, PART, (int64_t)(part * PART), own, &done));
        CHECK_EQ(done, PART);
        CHECK_EQ(count_other_bytes(ptr, (int)part + 1, PART, own), 0);
    }
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_stream_destroy(own));
    return NULL;
}

static void several_threads(void)
{
    const char *const path = path_of("threads");
    unsigned char *const ptr = allocate(PART, TCUDA_CURRENT_DEVICE, stream);
    pthread_t threads[THREADS];
    size_t parts[THREADS], done = 0;
    shared = open_file(path, NEW | TCUDA_FILE_STAGING);
    for (size_t i = 0; i < THREADS; i++) {
        fill_bytes(ptr, (int)i + 1, PART, stream);
        CHECK_OK(tcuda_file_write(shared, ptr, PART, (int64_t)(i * PART), stream, &done));
    }
    for (size_t i = 0; i < THREADS; i++) {
        parts[i] = i;
        threads[i] = start_thread(read_part, &parts[i]);
    }
    for (size_t i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    CHECK_OK(tcuda_file_close(shared));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(ptr));
}

static void *read_until_closed(void *argument)
{
    size_t done = 0;
    tcuda_status status = TCUDA_STATUS_OK;
    (void)argument;
    while (status == TCUDA_STATUS_OK)
        status = tcuda_file_read(shared, shared_memory, MIB, 0, NULL, &done);
    CHECK(status == TCUDA_STATUS_INVALID_HANDLE || status == TCUDA_STATUS_INVALID_STATE);
    return NULL;
}

/* A close during a read: the read ends, later ones are refused, and the descriptor is closed. */
static void closes_and_reads_at_once(void)
{
    const char *const path = path_of("closed");
    shared_memory = allocate(MIB, TCUDA_CURRENT_DEVICE, stream);
    size_t done = 0;
    for (int round = 0; round < 10; round++) {
        shared = open_file(path, NEW | TCUDA_FILE_STAGING);
        CHECK_OK(tcuda_file_write(shared, shared_memory, MIB, 0, NULL, &done));
        const pthread_t reader = start_thread(read_until_closed, NULL);
        sleep_ms(round % 3);
        CHECK_OK(tcuda_file_close(shared));
        join_thread(reader);
        CHECK_EQ(num_open(path), 0);
    }
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(shared_memory));
}

/* A child does not have the file: neither the handle nor the descriptor. */
static void children(void)
{
    const char *const path = path_of("child");
    int32_t descriptor = -1;
    int status = 0;
    shared = open_file(path, NEW | TCUDA_FILE_STAGING);
    CHECK_OK(tcuda_file_native(shared, &descriptor, NULL));
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        tcuda_file *file = NULL;
        bool supported = false;
        if (tcuda_file_close(shared) != TCUDA_STATUS_FORKED
            || tcuda_file_open(path, READ_WRITE | TCUDA_FILE_STAGING, &file) != TCUDA_STATUS_FORKED
            || tcuda_file_is_supported(&supported) != TCUDA_STATUS_FORKED
            || fcntl(descriptor, F_GETFD) >= 0)
            _exit(1);
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(fcntl(descriptor, F_GETFD) >= 0);
    CHECK_OK(tcuda_file_close(shared));
    CHECK_EQ(unlink(path), 0);
}

static void a_shutdown_closes(void)
{
    const char *const path = path_of("shutdown");
    size_t live = 0;
    CHECK_OK(tcuda_shutdown(NULL));
    tcuda_file *const file = open_file(path, NEW | TCUDA_FILE_STAGING);
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_file_close(file));
    CHECK_EQ(num_open(path), 0);
    CHECK_EQ(unlink(path), 0);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    stream = create_stream(TCUDA_CURRENT_DEVICE);
    a_limit_of_size();
    a_full_disk();
    signals();
    host_functions();
    several_threads();
    closes_and_reads_at_once();
    children();
    CHECK_OK(tcuda_stream_destroy(stream));
    a_shutdown_closes();
    return finish();
}
