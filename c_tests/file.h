/* Files of the tests of section "Files". */
#ifndef FILE_H
#define FILE_H

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

enum {
    KIB = 1 << 10,
    MIB = 1 << 20,
    READ_WRITE = TCUDA_FILE_READ | TCUDA_FILE_WRITE,
    NEW = READ_WRITE | TCUDA_FILE_CREATE | TCUDA_FILE_TRUNCATE
};

/* A path of this process. */
static inline const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "file_%ld_%s", (long)getpid(), name);
    return path;
}

static inline tcuda_file *open_file(const char *path, uint32_t flags)
{
    tcuda_file *file = NULL;
    CHECK_OK(tcuda_file_open(path, flags, &file));
    CHECK(file != NULL);
    return file;
}

/* The byte at a place of a pattern whose period is no power of 2. */
static inline unsigned char byte_at(size_t place) { return (unsigned char)(place % 251 + 1); }

static inline unsigned char *make_pattern(size_t bytes)
{
    unsigned char *const pattern = malloc(bytes);
    CHECK(pattern != NULL);
    for (size_t i = 0; i < bytes; i++)
        pattern[i] = byte_at(i);
    return pattern;
}

static inline void put_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *const file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
}

/* The content of a file; the caller frees it. */
static inline unsigned char *content_of(const char *path, size_t *count)
{
    FILE *const file = fopen(path, "rb");
    CHECK(file != NULL);
    CHECK_EQ(fseek(file, 0, SEEK_END), 0);
    *count = (size_t)ftell(file);
    unsigned char *const content = malloc(*count + 1);
    CHECK(content != NULL);
    rewind(file);
    CHECK_EQ(fread(content, 1, *count, file), *count);
    CHECK_EQ(fclose(file), 0);
    return content;
}

/* Are the bytes in device memory those of an array? Waits for the stream. */
static inline bool holds(const void *ptr, const unsigned char *expected, size_t bytes,
    tcuda_stream *stream)
{
    unsigned char *const host = malloc(bytes);
    CHECK(host != NULL);
    CHECK_OK(tcuda_copy(host, ptr, bytes, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    const bool same = memcmp(host, expected, bytes) == 0;
    free(host);
    return same;
}

/* Writes memory to a new file and reads it back, at an offset. */
static inline void round_trip(size_t bytes, int64_t offset, uint32_t mode, tcuda_stream *stream)
{
    const char *const path = path_of("trip");
    unsigned char *const pattern = make_pattern(bytes);
    unsigned char *const memory = allocate(bytes + 1, TCUDA_CURRENT_DEVICE, stream);
    unsigned char *const ptr = memory + 1;
    size_t done = 0, length = 0;
    CHECK_OK(tcuda_copy(ptr, pattern, bytes, stream));
    tcuda_file *const file = open_file(path, NEW | mode);
    CHECK_OK(tcuda_file_write(file, ptr, bytes, offset, stream, &done));
    CHECK_EQ(done, bytes);
    unsigned char *const content = content_of(path, &length);
    CHECK_EQ(length, (size_t)offset + bytes);
    for (int64_t i = 0; i < offset; i++)
        CHECK(content[i] == 0);
    CHECK(memcmp(content + offset, pattern, bytes) == 0);
    free(content);
    fill_bytes(ptr, 0, bytes, stream);
    CHECK_OK(tcuda_file_read(file, ptr, bytes, offset, stream, &done));
    CHECK_EQ(done, bytes);
    CHECK(holds(ptr, pattern, bytes, stream));
    CHECK_OK(tcuda_file_close(file));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(tcuda_free(memory));
    free(pattern);
}

/* How many descriptors of this process are of a file. */
static inline int num_open(const char *path)
{
    struct stat of_path, own;
    int count = 0;
    CHECK_EQ(stat(path, &of_path), 0);
    for (int number = 0; number < 4096; number++)
        count += fstat(number, &own) == 0 && own.st_dev == of_path.st_dev
            && own.st_ino == of_path.st_ino;
    return count;
}

#endif /* FILE_H */
