/* A CUDA driver opened by its path, as programs of the driver API use it. The programs of
 * driver_*.c do not use tcuda: they run on the simulator and on a GPU, with the same answers.
 * TCUDA_TEST_DRIVER is the path of the driver. */
#ifndef TCUDA_TEST_DRIVER_H
#define TCUDA_TEST_DRIVER_H

#include <dlfcn.h>

#ifndef CHECK_H
#define RECOVERY_NOT_LINKED
#include "check.h"
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
    if (library == NULL && strchr(path, '/') == NULL) {
        printf("skipped: no driver: %s\n", dlerror());
        exit(CHECK_SKIPPED);
    }
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
