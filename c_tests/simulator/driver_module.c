/* Modules: options of the compiler, files, fat binaries, variables, functions, and links. */
#include <unistd.h>

#include "driver_modules.h"
#include "fat_binaries.h"

/* CUjit_option */
enum {
    JIT_MAX_REGISTERS = 0,
    JIT_WALL_TIME = 2,
    JIT_INFO_LOG = 3,
    JIT_INFO_LOG_BYTES = 4,
    JIT_ERROR_LOG = 5,
    JIT_ERROR_LOG_BYTES = 6,
    JIT_OPTIMIZATION_LEVEL = 7,
    JIT_TARGET_FROM_CONTEXT = 8,
    JIT_FALLBACK_STRATEGY = 10,
    JIT_DEBUG_INFO = 11,
    JIT_LOG_VERBOSE = 12,
    JIT_LINE_INFO = 13,
    JIT_CACHE_MODE = 14
};

static int (*load)(handle *module, const void *image);
static int (*load_with)(
    handle *module, const void *image, unsigned int count, int *options, void **values);
static int (*load_fat)(handle *module, const void *image);
static int (*load_file)(handle *module, const char *path);
static int (*unload)(handle module);
static int (*function_of)(handle *function, handle module, const char *name);
static int (*variable_of)(address *pointer, size_t *bytes, handle module, const char *name);

static void find_the_functions(void)
{
    FIND(load, "cuModuleLoadData");
    FIND(load_with, "cuModuleLoadDataEx");
    FIND(load_fat, "cuModuleLoadFatBinary");
    FIND(load_file, "cuModuleLoad");
    FIND(unload, "cuModuleUnload");
    FIND(function_of, "cuModuleGetFunction");
    FIND(variable_of, "cuModuleGetGlobal_v2");
}

static handle function_named(handle module, const char *name)
{
    handle function = NULL;
    CHECK_EQ(function_of(&function, module, name), SUCCESS);
    return function;
}

/* The module stores 7 + 5, as a module does that was just loaded. */
static void check_and_unload(handle module)
{
    address room = 0;
    CHECK_EQ(cuda_allocate(&room, 64), SUCCESS);
    CHECK_EQ(stored(function_named(module, "store"), room, 5), 12);
    CHECK_EQ(unload(module), SUCCESS);
}

static void check_options(void)
{
    char info[4096], error[4096];
    memset(info, 'x', sizeof info);
    memset(error, 'x', sizeof error);
    int options[] = {JIT_WALL_TIME, JIT_INFO_LOG, JIT_INFO_LOG_BYTES, JIT_ERROR_LOG,
        JIT_ERROR_LOG_BYTES, JIT_LOG_VERBOSE, JIT_OPTIMIZATION_LEVEL, JIT_TARGET_FROM_CONTEXT,
        JIT_FALLBACK_STRATEGY, JIT_DEBUG_INFO, JIT_LINE_INFO, JIT_CACHE_MODE, JIT_MAX_REGISTERS};
    enum { COUNT = sizeof options / sizeof options[0] };
    void *values[COUNT] = {NULL, info, (void *)sizeof info, error, (void *)sizeof error, (void *)1,
        (void *)4, NULL, (void *)0, (void *)0, (void *)1, (void *)0, (void *)24};
    handle module = NULL;
    CHECK_EQ(load_with(&module, kernels, COUNT, options, values), SUCCESS);
    float milliseconds = -1;
    memcpy(&milliseconds, &values[0], sizeof milliseconds);
    CHECK(milliseconds >= 0);
    const unsigned int info_bytes = (unsigned int)(uintptr_t)values[2];
    CHECK(info_bytes <= sizeof info);
    CHECK(memchr(info, 0, sizeof info) != NULL && memchr(error, 0, sizeof error) != NULL);
    CHECK_EQ(strlen(error), 0);
    CHECK(attribute_of(function_named(module, "store"), NUM_REGS) <= 24);
    check_and_unload(module);
    module = NULL;
    CHECK_EQ(load_with(&module, kernels, 0, NULL, NULL), SUCCESS);
    check_and_unload(module);
}

/* The error log has the reason, cut at the size of the buffer. */
static void check_errors(void)
{
    static const char wrong[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                ".visible .entry f()\n{\n    nonsense.u32;\n}\n";
    static const char newer[] = ".version 99.9\n.target sm_70\n.address_size 64\n";
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    char log[1024];
    const size_t rooms[] = {sizeof log, 8, 1};
    handle module = NULL;
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) {
        memset(log, 'x', sizeof log);
        void *values[] = {log, (void *)rooms[i]};
        CHECK_EQ(load_with(&module, wrong, 2, options, values), INVALID_PTX);
        CHECK((uintptr_t)values[1] <= rooms[i]);
        CHECK(memchr(log, 0, rooms[i]) != NULL);
        CHECK(strlen(log) > 0 || rooms[i] == 1);
        CHECK(rooms[i] == sizeof log || log[rooms[i]] == 'x');
    }
    void *values[] = {log, (void *)sizeof log};
    CHECK_EQ(load_with(&module, newer, 2, options, values), UNSUPPORTED_PTX_VERSION);
    CHECK(strlen(log) > 0);
    CHECK_EQ(load_with(&module, wrong, 0, NULL, NULL), INVALID_PTX);
    CHECK_EQ(load_with(NULL, kernels, 0, NULL, NULL), INVALID_VALUE);
    CHECK_EQ(load_with(&module, NULL, 0, NULL, NULL), INVALID_VALUE);
}

static void check_files(void)
{
    char path[] = "/tmp/tcuda_module_XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK_EQ(write(file, kernels, sizeof kernels - 1), sizeof kernels - 1);
    close(file);
    handle module = NULL;
    CHECK_EQ(load_file(&module, path), SUCCESS);
    check_and_unload(module);
    unlink(path);
    CHECK_EQ(load_file(&module, path), FILE_NOT_FOUND);
    CHECK_EQ(load_file(&module, NULL), INVALID_VALUE);
}

/* What programs have for a fat binary. */
struct wrapper {
    uint32_t magic, version;
    const void *data;
    void *unused;
};

/* The first image's target in a fat binary. */
enum { TARGET = 44 };

static void check_fat_binary(const void *fat, size_t size)
{
    int (*load_library)(handle *library, const void *image, void *options, void *values,
        unsigned int count, void *library_options, void *library_values,
        unsigned int library_count);
    int (*unload_library)(handle library);
    FIND(load_library, "cuLibraryLoadData");
    FIND(unload_library, "cuLibraryUnload");
    struct wrapper wrapper = {.magic = 0x466243b1, .version = 1, .data = fat};
    handle module = NULL, library = NULL;
    /* Only libraries take what programs have. */
    CHECK_EQ(load_library(&library, &wrapper, NULL, NULL, 0, NULL, NULL, 0), SUCCESS);
    CHECK_EQ(unload_library(library), SUCCESS);
    CHECK_EQ(load_fat(&module, &wrapper), INVALID_IMAGE);
    CHECK_EQ(load_fat(&module, fat), SUCCESS);
    check_and_unload(module);
    CHECK_EQ(load(&module, fat), SUCCESS);
    check_and_unload(module);
    /* PTX for a later device only. */
    uint64_t later[128];
    const uint32_t target = 999;
    CHECK(size <= sizeof later);
    memcpy(later, fat, size);
    memcpy((char *)later + TARGET, &target, sizeof target);
    CHECK_EQ(load_fat(&module, later), NO_BINARY_FOR_GPU);
}

static void check_fat_binaries(void)
{
    check_fat_binary(plain, sizeof plain);
    check_fat_binary(compressed, sizeof compressed);
}

static void check_variables(void)
{
    handle module = NULL;
    address counter = 0, again = 0, table = 0, room = 0;
    size_t bytes = 0;
    CHECK_EQ(load(&module, kernels), SUCCESS);
    CHECK_EQ(variable_of(&counter, &bytes, module, "counter"), SUCCESS);
    CHECK_EQ(bytes, 4);
    CHECK_EQ(variable_of(&again, NULL, module, "counter"), SUCCESS);
    CHECK_EQ(again, counter);
    CHECK_EQ(variable_of(NULL, &bytes, module, "table"), SUCCESS);
    CHECK_EQ(bytes, 16);
    CHECK_EQ(variable_of(&table, &bytes, module, "table"), SUCCESS);
    CHECK_EQ(word_at(table), 0x030201);
    CHECK_EQ(word_at(counter), 7);
    CHECK_EQ(cuda_allocate(&room, 64), SUCCESS);
    set_word(counter, 40);
    CHECK_EQ(stored(function_named(module, "store"), room, 2), 42);
    CHECK_EQ(word_at(counter), 2);
    CHECK_EQ(variable_of(&again, &bytes, module, "store"), INVALID_VALUE);
    CHECK_EQ(variable_of(&again, &bytes, module, "count"), NOT_FOUND);
    CHECK_EQ(unload(module), SUCCESS);
}

static void check_functions(void)
{
    int (*count_of)(unsigned int *count, handle module);
    int (*enumerate)(handle *functions, unsigned int count, handle module);
    int (*name_of)(const char **name, handle function);
    int (*module_of)(handle *module, handle function);
    int (*is_loaded)(int *state, handle function);
    int (*load_function)(handle function);
    int (*set_cache)(handle function, int config);
    int (*set_banks)(handle function, int config);
    int (*loading_mode)(int *mode);
    FIND(count_of, "cuModuleGetFunctionCount");
    FIND(enumerate, "cuModuleEnumerateFunctions");
    FIND(name_of, "cuFuncGetName");
    FIND(module_of, "cuFuncGetModule");
    FIND(is_loaded, "cuFuncIsLoaded");
    FIND(load_function, "cuFuncLoad");
    FIND(set_cache, "cuFuncSetCacheConfig");
    FIND(set_banks, "cuFuncSetSharedMemConfig");
    FIND(loading_mode, "cuModuleGetLoadingMode");
    handle module = NULL, found = NULL, functions[3] = {NULL, NULL, NULL};
    unsigned int count = 0;
    int mode = 0;
    CHECK_EQ(loading_mode(&mode), SUCCESS);
    CHECK(mode == 1 || mode == 2);
    CHECK_EQ(load(&module, kernels), SUCCESS);
    CHECK_EQ(count_of(&count, module), SUCCESS);
    CHECK_EQ(count, 2);
    CHECK_EQ(enumerate(functions, 1, module), SUCCESS);
    CHECK(functions[0] != NULL && functions[1] == NULL);
    CHECK_EQ(enumerate(functions, 2, module), SUCCESS);
    CHECK(functions[1] != NULL && functions[0] != functions[1]);
    bool has_store = false, has_double = false;
    for (int i = 0; i < 2; i++) {
        const char *name = NULL;
        int state = -1;
        CHECK_EQ(name_of(&name, functions[i]), SUCCESS);
        has_store |= strcmp(name, "store") == 0;
        has_double |= strcmp(name, "double_of") == 0;
        CHECK_EQ(module_of(&found, functions[i]), SUCCESS);
        CHECK(found == module);
        CHECK_EQ(load_function(functions[i]), SUCCESS);
        CHECK_EQ(is_loaded(&state, functions[i]), SUCCESS);
        CHECK_EQ(state, 1);
        for (int config = 0; config < 4; config++)
            CHECK_EQ(set_cache(functions[i], config), SUCCESS);
        for (int config = 0; config < 3; config++)
            CHECK_EQ(set_banks(functions[i], config), SUCCESS);
    }
    CHECK(has_store && has_double);
    const handle function = function_named(module, "double_of");
    const char *name = NULL;
    CHECK_EQ(name_of(&name, NULL), INVALID_VALUE);
    CHECK_EQ(attribute_of(function, MAX_THREADS_PER_BLOCK), 64);
    CHECK_EQ(attribute_of(function, SHARED_SIZE_BYTES), 1024);
    CHECK_EQ(cuda_set_function_attribute(function, PREFERRED_SHARED_MEMORY_CARVEOUT, 50), SUCCESS);
    CHECK_EQ(attribute_of(function, PREFERRED_SHARED_MEMORY_CARVEOUT), 50);
    CHECK_EQ(cuda_set_function_attribute(function, NUM_REGS, 1), INVALID_VALUE);
    CHECK_EQ(unload(module), SUCCESS);
}

/* Two texts, which share a variable, and have one of the same name each for itself. */
static const char caller[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b32 result) with_own (.param .b32 x);\n"
    ".extern .global .align 4 .u32 common;\n"
    ".global .align 4 .u32 own = 100;\n"
    ".visible .entry call(.param .u64 to, .param .u32 value)\n"
    "{\n"
    ".reg .b64 %a;\n.reg .b32 %r<4>;\n"
    "ld.param.u64 %a, [to];\ncvta.to.global.u64 %a, %a;\nld.param.u32 %r0, [value];\n"
    "{\n.param .b32 in;\n.param .b32 out;\nst.param.b32 [in], %r0;\n"
    "call.uni (out), with_own, (in);\nld.param.b32 %r1, [out];\n}\n"
    "ld.global.u32 %r2, [own];\nadd.u32 %r3, %r1, %r2;\n"
    "ld.global.u32 %r2, [common];\nadd.u32 %r3, %r3, %r2;\nst.global.u32 [%a], %r3;\nret;\n"
    "}\n";
static const char callee[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 common = 20000;\n"
    ".global .align 4 .u32 own = 3000;\n"
    ".visible .func (.param .b32 result) with_own (.param .b32 x)\n"
    "{\n"
    ".reg .b32 %r<3>;\n"
    "ld.param.b32 %r0, [x];\nld.global.u32 %r1, [own];\nadd.u32 %r2, %r0, %r1;\n"
    "st.param.b32 [result], %r2;\nret;\n"
    "}\n";

static int (*link_create)(unsigned int count, int *options, void **values, handle *state);
static int (*link_add)(handle state, int kind, void *data, size_t bytes, const char *name,
    unsigned int count, int *options, void **values);
static int (*link_add_file)(handle state, int kind, const char *path, unsigned int count,
    int *options, void **values);
static int (*link_complete)(handle state, void **image, size_t *bytes);
static int (*link_destroy)(handle state);

enum { INPUT_PTX = 1 };

static int add_text(handle state, const char *text)
{
    return link_add(state, INPUT_PTX, (void *)(uintptr_t)text, strlen(text) + 1, "text", 0, NULL,
        NULL);
}

static void check_links(void)
{
    FIND(link_create, "cuLinkCreate_v2");
    FIND(link_add, "cuLinkAddData_v2");
    FIND(link_add_file, "cuLinkAddFile_v2");
    FIND(link_complete, "cuLinkComplete");
    FIND(link_destroy, "cuLinkDestroy");
    handle state = NULL, module = NULL;
    void *image = NULL;
    size_t bytes = 0;
    address room = 0;
    CHECK_EQ(link_create(0, NULL, NULL, &state), SUCCESS);
    CHECK_EQ(add_text(state, caller), SUCCESS);
    CHECK_EQ(add_text(state, callee), SUCCESS);
    CHECK_EQ(link_complete(state, &image, &bytes), SUCCESS);
    CHECK(image != NULL && bytes > 0);
    CHECK_EQ(load(&module, image), SUCCESS);
    CHECK_EQ(link_destroy(state), SUCCESS);
    CHECK_EQ(cuda_allocate(&room, 64), SUCCESS);
    CHECK_EQ(stored(function_named(module, "call"), room, 5), 23105);
    CHECK_EQ(unload(module), SUCCESS);

    char log[1024] = "";
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)sizeof log};
    CHECK_EQ(link_create(2, options, values, &state), SUCCESS);
    CHECK_EQ(add_text(state, caller), SUCCESS);
    CHECK(link_complete(state, &image, &bytes) != SUCCESS);
    CHECK(strstr(log, "with_own") != NULL);
    CHECK_EQ(link_destroy(state), SUCCESS);

    values[1] = (void *)sizeof log;
    log[0] = 0;
    CHECK_EQ(link_create(2, options, values, &state), SUCCESS);
    CHECK_EQ(add_text(state, ".version 7.0\n.target sm_70\n.address_size 64\nnonsense\n"),
        INVALID_PTX);
    CHECK(strlen(log) > 0);
    CHECK_EQ(link_add_file(state, INPUT_PTX, "/nonexistent/file.ptx", 0, NULL, NULL),
        FILE_NOT_FOUND);
    CHECK_EQ(link_destroy(state), SUCCESS);
    CHECK_EQ(link_create(0, NULL, NULL, NULL), INVALID_VALUE);
}

int main(void)
{
    start_the_driver();
    find_the_functions();
    start_a_context();
    check_options();
    check_errors();
    check_files();
    check_fat_binaries();
    check_variables();
    check_functions();
    check_links();
    return EXIT_SUCCESS;
}
