/* Libraries: their kernels, which are launched as functions are, in any context. */
#include <unistd.h>

#include "driver_modules.h"

static int (*load)(handle *library, const void *image, int *options, void **values,
    unsigned int count, int *library_options, void **library_values, unsigned int library_count);
static int (*load_file)(handle *library, const char *path, int *options, void **values,
    unsigned int count, int *library_options, void **library_values, unsigned int library_count);
static int (*unload)(handle library);
static int (*kernel_of)(handle *kernel, handle library, const char *name);
static int (*function_of)(handle *function, handle kernel);
static int (*attribute)(int *value, int attribute, handle kernel, int device);
static int (*set_attribute)(int attribute, int value, handle kernel, int device);

static void find_the_functions(void)
{
    FIND(load, "cuLibraryLoadData");
    FIND(load_file, "cuLibraryLoadFromFile");
    FIND(unload, "cuLibraryUnload");
    FIND(kernel_of, "cuLibraryGetKernel");
    FIND(function_of, "cuKernelGetFunction");
    FIND(attribute, "cuKernelGetAttribute");
    FIND(set_attribute, "cuKernelSetAttribute");
}

static handle library_of_kernels(void)
{
    handle library = NULL;
    CHECK_EQ(load(&library, kernels, NULL, NULL, 0, NULL, NULL, 0), SUCCESS);
    CHECK(library != NULL);
    return library;
}

static handle kernel_named(handle library, const char *name)
{
    handle kernel = NULL;
    CHECK_EQ(kernel_of(&kernel, library, name), SUCCESS);
    return kernel;
}

/* A library needs no context. */
static void check_without_context(void)
{
    handle kernel = NULL, function = NULL;
    const handle library = library_of_kernels();
    kernel = kernel_named(library, "store");
    CHECK(function_of(&function, kernel) != SUCCESS);
    int value = 0;
    CHECK_EQ(attribute(&value, MAX_THREADS_PER_BLOCK, kernel, 0), SUCCESS);
    CHECK_EQ(value, 1024);
    CHECK_EQ(unload(library), SUCCESS);
}

static void check_kernels(handle library)
{
    int (*count_of)(unsigned int *count, handle library);
    int (*enumerate)(handle *kernels, unsigned int count, handle library);
    int (*name_of)(const char **name, handle kernel);
    int (*library_of)(handle *library, handle kernel);
    int (*parameter)(handle kernel, size_t index, size_t *offset, size_t *bytes);
    FIND(count_of, "cuLibraryGetKernelCount");
    FIND(enumerate, "cuLibraryEnumerateKernels");
    FIND(name_of, "cuKernelGetName");
    FIND(library_of, "cuKernelGetLibrary");
    FIND(parameter, "cuKernelGetParamInfo");
    unsigned int count = 0;
    handle found[2] = {NULL, NULL}, owner = NULL, missing = NULL;
    CHECK_EQ(count_of(&count, library), SUCCESS);
    CHECK_EQ(count, 2);
    CHECK_EQ(enumerate(found, 2, library), SUCCESS);
    const handle store = kernel_named(library, "store");
    const handle twice = kernel_named(library, "double_of");
    CHECK((found[0] == store && found[1] == twice) || (found[0] == twice && found[1] == store));
    CHECK_EQ(kernel_of(&missing, library, "stor"), NOT_FOUND);
    const char *name = NULL;
    CHECK_EQ(name_of(&name, store), SUCCESS);
    CHECK_STR(name, "store");
    CHECK_EQ(name_of(NULL, store), INVALID_VALUE);
    CHECK_EQ(name_of(&name, NULL), INVALID_VALUE);
    CHECK_EQ(library_of(&owner, twice), SUCCESS);
    CHECK(owner == library);
    size_t offset = 77, bytes = 77;
    CHECK_EQ(parameter(store, 1, &offset, &bytes), SUCCESS);
    CHECK_EQ(offset, 8);
    CHECK_EQ(bytes, 4);
    CHECK_EQ(parameter(store, 0, &offset, NULL), SUCCESS);
    CHECK_EQ(offset, 0);
    CHECK_EQ(parameter(store, 2, &offset, &bytes), INVALID_VALUE);
}

/* The kernel itself, its function, and the function of the library's module are the same code. */
static void check_launches(handle library)
{
    int (*module_of)(handle *module, handle library);
    int (*variable_of)(address *pointer, size_t *bytes, handle library, const char *name);
    int (*function_in)(handle *function, handle module, const char *name);
    FIND(module_of, "cuLibraryGetModule");
    FIND(variable_of, "cuLibraryGetGlobal");
    FIND(function_in, "cuModuleGetFunction");
    handle function = NULL, module = NULL, in_module = NULL;
    address room = 0, counter = 0;
    size_t bytes = 0;
    const handle kernel = kernel_named(library, "store");
    CHECK_EQ(cuda_allocate(&room, 64), SUCCESS);
    CHECK_EQ(stored(kernel, room, 1), 8);
    CHECK_EQ(function_of(&function, kernel), SUCCESS);
    CHECK_EQ(stored(function, room, 20), 21);
    CHECK_EQ(module_of(&module, library), SUCCESS);
    CHECK_EQ(function_in(&in_module, module, "store"), SUCCESS);
    CHECK_EQ(stored(in_module, room, 300), 320);
    CHECK_EQ(variable_of(&counter, &bytes, library, "counter"), SUCCESS);
    CHECK_EQ(bytes, 4);
    CHECK_EQ(word_at(counter), 300);
    set_word(counter, 5);
    CHECK_EQ(stored(kernel, room, 1), 6);
    CHECK_EQ(variable_of(&counter, &bytes, library, "count"), NOT_FOUND);
    int threads = 0;
    CHECK_EQ(cuda_function_attribute(&threads, MAX_THREADS_PER_BLOCK, kernel), INVALID_HANDLE);
}

static void check_what_is_missing(handle library)
{
    int (*managed)(address *pointer, size_t *bytes, handle library, const char *name);
    int (*unified)(void **function, handle library, const char *name);
    FIND(managed, "cuLibraryGetManaged");
    FIND(unified, "cuLibraryGetUnifiedFunction");
    address pointer = 0;
    size_t bytes = 0;
    void *function = NULL;
    CHECK_EQ(managed(&pointer, &bytes, library, "counter"), NOT_FOUND);
    CHECK_EQ(unified(&function, library, "store"), INVALID_VALUE);
}

static int value_of(handle kernel, int which)
{
    int value = -77;
    CHECK_EQ(attribute(&value, which, kernel, 0), SUCCESS);
    return value;
}

/* What is set of the function comes before what is set of the kernel, in any order. */
static void check_attributes(handle library)
{
    int (*set_cache)(handle kernel, int config, int device);
    FIND(set_cache, "cuKernelSetCacheConfig");
    const int most = MAX_DYNAMIC_SHARED_SIZE_BYTES;
    const handle kernel = kernel_named(library, "store");
    handle function = NULL;
    CHECK_EQ(function_of(&function, kernel), SUCCESS);
    CHECK_EQ(value_of(kernel_named(library, "double_of"), MAX_THREADS_PER_BLOCK), 64);
    CHECK_EQ(value_of(kernel_named(library, "double_of"), SHARED_SIZE_BYTES), 1024);
    CHECK_EQ(set_attribute(most, 20000, kernel, 0), SUCCESS);
    CHECK_EQ(value_of(kernel, most), 20000);
    CHECK_EQ(cuda_set_function_attribute(function, most, 30000), SUCCESS);
    CHECK_EQ(attribute_of(function, most), 30000);
    CHECK_EQ(set_attribute(most, 10000, kernel, 0), SUCCESS);
    CHECK_EQ(value_of(kernel, most), 10000);
    CHECK_EQ(attribute_of(function, most), 30000);
    CHECK_EQ(set_attribute(most, -1, kernel, 0), INVALID_VALUE);
    CHECK_EQ(set_attribute(NUM_REGS, 1, kernel, 0), INVALID_VALUE);
    CHECK_EQ(set_attribute(most, 1, kernel, 1000), INVALID_DEVICE);
    CHECK_EQ(set_cache(kernel, 1, 0), SUCCESS);
    CHECK_EQ(set_cache(kernel, 1, 1000), INVALID_DEVICE);
}

static void check_files(void)
{
    char path[] = "/tmp/tcuda_library_XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK_EQ(write(file, kernels, sizeof kernels - 1), sizeof kernels - 1);
    close(file);
    handle library = NULL;
    CHECK_EQ(load_file(&library, path, NULL, NULL, 0, NULL, NULL, 0), SUCCESS);
    kernel_named(library, "store");
    CHECK_EQ(unload(library), SUCCESS);
    unlink(path);
    CHECK_EQ(load_file(&library, path, NULL, NULL, 0, NULL, NULL, 0), FILE_NOT_FOUND);
}

static void check_errors(void)
{
    handle library = NULL;
    CHECK_EQ(load(&library, NULL, NULL, NULL, 0, NULL, NULL, 0), INVALID_VALUE);
    CHECK_EQ(load(NULL, kernels, NULL, NULL, 0, NULL, NULL, 0), INVALID_VALUE);
}

int main(void)
{
    start_the_driver();
    find_the_functions();
    check_without_context();
    start_a_context();
    const handle library = library_of_kernels();
    check_kernels(library);
    check_launches(library);
    check_what_is_missing(library);
    check_attributes(library);
    CHECK_EQ(unload(library), SUCCESS);
    check_files();
    check_errors();
    return EXIT_SUCCESS;
}
