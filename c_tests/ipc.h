/* Two processes that share memory: each case is a process of its own, which forks its partner
 * before either uses the library. */
#ifndef IPC_H
#define IPC_H

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "support.h"

/* What the partner does; `line` leads to the case. */
typedef void partner_fn(int line);

/* The other process is gone: where faults are injected one of them may be why. */
static inline void lose_line(void)
{
    if (recovery_file() != NULL) {
        recover("the line to the other process");
        exit(CHECK_RECOVERED);
    }
    check_failed(__FILE__, __LINE__, "the other process is there", "");
}

static inline void tell(int line, const void *what, size_t bytes)
{
    if (send(line, what, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        lose_line();
}

static inline void hear(int line, void *what, size_t bytes)
{
    for (size_t read_bytes = 0; read_bytes < bytes;) {
        const ssize_t count = read(line, (char *)what + read_bytes, bytes - read_bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            lose_line();
        read_bytes += (size_t)count;
    }
}

/* A word, so that the other goes on. */
static inline void nod(int line)
{
    tell(line, "!", 1);
}

static inline void wait_for_nod(int line)
{
    char word = 0;
    hear(line, &word, 1);
    CHECK_EQ(word, '!');
}

/* Starts the partner of a case: its process and the line to it. */
static inline pid_t start_partner(partner_fn *body, int *line)
{
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    fflush(NULL);
    const pid_t partner = fork();
    CHECK(partner >= 0);
    if (partner == 0) {
        close(ends[0]);
        alarm(60);
        body(ends[1]);
        exit(finish());
    }
    close(ends[1]);
    *line = ends[0];
    return partner;
}

/* It has ended well. */
static inline void end_partner(pid_t partner, int line)
{
    int status = 0;
    CHECK_EQ(waitpid(partner, &status, 0), partner);
    CHECK_EQ(child_status(status), EXIT_SUCCESS);
    close(line);
}

/* It ends at once, with nothing given back. */
static inline void kill_partner(pid_t partner, int line)
{
    int status = 0;
    CHECK_EQ(kill(partner, SIGKILL), 0);
    CHECK_EQ(waitpid(partner, &status, 0), partner);
    CHECK(WIFSIGNALED(status));
    close(line);
}

static inline tcuda_ipc_handle export_block(void *block, tcuda_stream *stream)
{
    tcuda_ipc_handle handle;
    memset(&handle, 0x77, sizeof handle);
    CHECK_OK(tcuda_ipc_export(block, stream, &handle));
    return handle;
}

static inline void *import_block(const tcuda_ipc_handle *handle, tcuda_stream *stream,
    size_t expected)
{
    void *ptr = NULL;
    size_t bytes = 0;
    CHECK_OK(tcuda_ipc_import(handle, stream, &ptr, &bytes));
    CHECK(ptr != NULL);
    CHECK_EQ(bytes, expected);
    return ptr;
}

static inline tcuda_ipc_handle hear_handle(int line)
{
    tcuda_ipc_handle handle;
    hear(line, &handle, sizeof handle);
    return handle;
}

/* Descriptors of this process, without those that the simulated machine has of its threads. */
static inline size_t open_files(void)
{
    char path[300], target[300];
    const struct dirent *entry;
    DIR *directory = opendir("/proc/self/fd");
    size_t count = 0;
    CHECK(directory != NULL);
    while ((entry = readdir(directory)) != NULL) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        const ssize_t length = readlink(path, target, sizeof target);
        count += length > 6 && strncmp(target, "/proc/", 6) != 0;
    }
    closedir(directory);
    return count;
}

static inline size_t allocated_now(void)
{
    size_t bytes = 0;
    CHECK_OK(tcuda_memory_allocated(0, &bytes));
    return bytes;
}

/* Collects until no more than so many bytes are allocated; a process that was killed may take a
 * moment to end. */
static inline void collect_until(size_t bytes)
{
    for (int i = 0; i < 5000 && allocated_now() > bytes; i++) {
        CHECK_OK(tcuda_ipc_collect());
        if (allocated_now() > bytes)
            sleep_ms(1);
    }
    CHECK_EQ(allocated_now(), bytes);
}

/* A case, in a process of its own. */
static inline void run_case(const char *name, void (*body)(void))
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        body();
        exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || child_status(status) != EXIT_SUCCESS) {
        fprintf(stderr, "%s: wait status %#x\n", name, (unsigned)status);
        ++*failed_cases();
    }
}

#define CASE(body) run_case(#body, body)

/* Asked in a process of its own, since the cases fork before they use the library. */
static inline bool is_without_gpu(void)
{
    int status = 0;
    fflush(NULL);
    const pid_t probe = fork();
    CHECK(probe >= 0);
    if (probe == 0) {
        SKIP_WITHOUT_GPU();
        exit(finish());
    }
    CHECK_EQ(waitpid(probe, &status, 0), probe);
    return WIFEXITED(status) && WEXITSTATUS(status) == CHECK_SKIPPED;
}

#endif /* IPC_H */
