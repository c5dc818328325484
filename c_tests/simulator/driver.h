/* A CUDA driver opened by its path, as programs of the driver API use it. The programs of
 * driver_*.c do not use tcuda: they run on the simulator and on a GPU, with the same answers.
 * TCUDA_TEST_DRIVER is the path of the driver. */
#ifndef TCUDA_TEST_DRIVER_H
#define TCUDA_TEST_DRIVER_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* The checks of check.h, without what needs tcuda. */
#ifndef CHECK_H

#define CHECK_SKIPPED 77

static inline void check_failed(const char *file, int line, const char *what, const char *detail)
{
    fprintf(stderr, "%s:%d: %s%s\n", file, line, what, detail);
    exit(EXIT_FAILURE);
}

#define CHECK(condition) \
    do { \
        if (!(condition)) \
            check_failed(__FILE__, __LINE__, #condition, ""); \
    } while (0)

#define CHECK_EQ(actual, expected) \
    do { \
        int64_t check_actual_ = (int64_t)(actual), check_expected_ = (int64_t)(expected); \
        if (check_actual_ != check_expected_) { \
            char check_text_[80]; \
            snprintf(check_text_, sizeof check_text_, ": %lld, not %lld", \
                (long long)check_actual_, (long long)check_expected_); \
            check_failed(__FILE__, __LINE__, #actual " == " #expected, check_text_); \
        } \
    } while (0)

#define CHECK_STR(actual, expected) \
    do { \
        const char *check_actual_ = (actual), *check_expected_ = (expected); \
        if (strcmp(check_actual_, check_expected_) != 0) \
            check_failed(__FILE__, __LINE__, #actual " == " #expected, check_actual_); \
    } while (0)

#endif

/* CUdeviceptr */
typedef uint64_t address;

/* CUresult */
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    INVALID_SOURCE = 300,
    FILE_NOT_FOUND = 301,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801
};

static void *library;

/* The address of a function of the driver; the test fails if it is missing. */
static inline void *symbol(const char *name)
{
    void *const found = dlsym(library, name);
    if (found == NULL)
        check_failed(__FILE__, __LINE__, name, dlerror());
    return found;
}

static inline void open_the_driver(void)
{
    const char *const path = getenv("TCUDA_TEST_DRIVER");
    CHECK(path != NULL);
    library = dlopen(path, RTLD_NOW);
    if (library == NULL)
        check_failed(__FILE__, __LINE__, path, dlerror());
}

/* Sets a pointer to a function of the driver. */
#define FIND(pointer, name) \
    do { \
        void *const found_ = symbol(name); \
        memcpy(&(pointer), &found_, sizeof found_); \
    } while (0)

/* A list of functions of the driver is a macro LIST(F) of F(name, "symbol", (parameters)) ...:
 * LIST(DECLARE) declares pointers to them, LIST(LOAD) sets them. */
#define DECLARE(name, symbol, parameters) static int(*name) parameters;
#define LOAD(name, symbol, parameters) FIND(name, symbol);

#endif
