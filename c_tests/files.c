/* Files that the library writes: a path keeps its permissions, its links and its kind, and is never
 * half written. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph.h"

static char directory[64];
static tcuda_memory_snapshot *snapshot;
static tcuda_graph *graph;

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static int64_t size_of(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (int64_t)status.st_size : -1;
}

static int mode_of(const char *path)
{
    struct stat status;
    CHECK_EQ(stat(path, &status), 0);
    return (int)(status.st_mode & 07777);
}

static void write_text(const char *path, const char *text, mode_t mode)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    CHECK_EQ(write(file, text, strlen(text)), strlen(text));
    CHECK_EQ(fchmod(file, mode), 0);
    close(file);
}

static tcuda_status save(const char *path)
{
    return tcuda_memory_snapshot_save(snapshot, path);
}

static tcuda_status dump(const char *path)
{
    return tcuda_graph_debug_dump(graph, path);
}

static tcuda_status (*const writers[])(const char *) = {save, dump};
#define WRITERS (sizeof writers / sizeof *writers)

/* A process that was killed while it wrote, with the number of this one, as the first one of a
 * container has it again and again. */
static void names_that_are_taken(void)
{
    char name[128];
    for (int number = 0; number < 20; number++) {
        snprintf(name, sizeof name, "left.json.%d.%d.tmp", (int)getpid(), number);
        write_text(path_of(name), "", 0600);
        snprintf(name, sizeof name, ".tcuda-%d-%d.tmp", (int)getpid(), number);
        write_text(path_of(name), "", 0600);
    }
    for (size_t i = 0; i < WRITERS; i++) {
        CHECK_OK(writers[i](path_of("left.json")));
        CHECK(size_of(path_of("left.json")) > 10);
        CHECK_EQ(unlink(path_of("left.json")), 0);
    }
}

static void long_names(void)
{
    char name[256];
    memset(name, 'x', sizeof name);
    memcpy(name + 250, ".json", 6);
    for (size_t i = 0; i < WRITERS; i++) {
        CHECK_OK(writers[i](path_of(name)));
        CHECK(size_of(path_of(name)) > 10);
        CHECK_EQ(unlink(path_of(name)), 0);
    }
}

static void permissions(void)
{
    const int modes[] = {0600, 0640, 0666, 0444};
    const mode_t mask = umask(022);
    for (size_t i = 0; i < WRITERS; i++) {
        for (size_t mode = 0; mode < sizeof modes / sizeof *modes; mode++) {
            write_text(path_of("mode.json"), "old", (mode_t)modes[mode]);
            const bool may_write = access(path_of("mode.json"), W_OK) == 0;
            CHECK_STATUS(may_write ? TCUDA_STATUS_OK : TCUDA_STATUS_FILE_ERROR,
                writers[i](path_of("mode.json")));
            CHECK_EQ(mode_of(path_of("mode.json")), modes[mode]);
            CHECK_EQ(size_of(path_of("mode.json")) == 3, !may_write);
            CHECK_EQ(unlink(path_of("mode.json")), 0);
        }
        CHECK_OK(writers[i](path_of("mode.json")));
        CHECK_EQ(mode_of(path_of("mode.json")), 0644);
        CHECK_EQ(unlink(path_of("mode.json")), 0);
    }
    umask(mask);
}

/* The link stays, whether there is something at its end or not, and however long it is. */
static void links(void)
{
    char target[600];
    CHECK_EQ(mkdir(path_of("far"), 0700), 0);
    CHECK_EQ(symlink("far/second.json", path_of("first.json")), 0);
    snprintf(target, sizeof target, "%s/far/target", directory);
    CHECK_EQ(symlink(target, path_of("far/second.json")), 0);
    for (size_t i = 0; i < WRITERS; i++) {
        for (int again = 0; again < 2; again++) {
            CHECK_OK(writers[i](path_of("first.json")));
            struct stat status;
            CHECK_EQ(lstat(path_of("first.json"), &status), 0);
            CHECK(S_ISLNK(status.st_mode));
            CHECK_EQ(lstat(target, &status), 0);
            CHECK(S_ISREG(status.st_mode) && status.st_size > 10);
        }
        CHECK_EQ(unlink(target), 0);
    }
    CHECK_EQ(unlink(path_of("first.json")), 0);
    CHECK_EQ(symlink("first.json", path_of("first.json")), 0);
    CHECK_STATUS(TCUDA_STATUS_FILE_ERROR, save(path_of("first.json")));
    CHECK_EQ(tcuda_last_error_native(), ELOOP);
}

static void *read_all(void *file)
{
    static char bytes[65536];
    size_t total = 0;
    for (ssize_t now; (now = read(*(int *)file, bytes, sizeof bytes)) > 0;)
        total += (size_t)now;
    return (void *)total;
}

static void pipes(void)
{
    CHECK_EQ(mkfifo(path_of("pipe.json"), 0600), 0);
    for (size_t i = 0; i < WRITERS; i++) {
        CHECK_STATUS(TCUDA_STATUS_FILE_ERROR, writers[i](path_of("pipe.json")));
        CHECK_EQ(tcuda_last_error_native(), ENXIO);
        CHECK(strstr(tcuda_last_error(), "nothing reads it") != NULL);

        int reader = open(path_of("pipe.json"), O_RDONLY | O_NONBLOCK);
        CHECK(reader >= 0);
        CHECK_EQ(fcntl(reader, F_SETFL, 0), 0);
        CHECK_OK(writers[i](path_of("pipe.json")));
        pthread_t thread;
        void *total = NULL;
        CHECK_EQ(pthread_create(&thread, NULL, read_all, &reader), 0);
        CHECK_EQ(pthread_join(thread, &total), 0);
        CHECK((size_t)total > 10);
        close(reader);
        struct stat status;
        CHECK_EQ(lstat(path_of("pipe.json"), &status), 0);
        CHECK(S_ISFIFO(status.st_mode));
    }
    /* Devices stay what they are. */
    CHECK_EQ(symlink("/dev/null", path_of("null.json")), 0);
    CHECK_EQ(symlink("/dev/full", path_of("full.json")), 0);
    for (size_t i = 0; i < WRITERS; i++) {
        CHECK_OK(writers[i](path_of("null.json")));
        CHECK_STATUS(TCUDA_STATUS_FILE_ERROR, writers[i](path_of("full.json")));
        CHECK_EQ(tcuda_last_error_native(), ENOSPC);
    }
    struct stat status;
    CHECK_EQ(stat("/dev/null", &status), 0);
    CHECK(S_ISCHR(status.st_mode));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    snprintf(directory, sizeof directory, "/tmp/tcuda-files-XXXXXX");
    CHECK(mkdtemp(directory) != NULL);
    tcuda_stream *stream = create_stream(0);
    void *block = NULL;
    CHECK_OK(tcuda_malloc(PAGE, 0, stream, &block));
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    graph = create_graph(1);
    begin(graph, stream);
    fill_bytes(block, 0, PAGE, stream);
    end(graph);

    names_that_are_taken();
    long_names();
    permissions();
    links();
    pipes();

    char command[128];
    snprintf(command, sizeof command, "rm -r %s", directory);
    CHECK_EQ(system(command), 0);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
    return finish();
}
