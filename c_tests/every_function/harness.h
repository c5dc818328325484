/* What the generated every_function.c stands on: arguments that can be spoiled one at a time, and
 * outputs that must be untouched after a failure. */
#ifndef HARNESS_H
#define HARNESS_H

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum spoiling { NOTHING, NIL, STALE, FOREIGN, BITS, STACK, EVERY_POINTER_NIL };
static const char *const spoilings[] = { "valid", "NULL", "stale", "of another kind", "random bits",
    "a stack address", "every pointer NULL" };

/* What a spoiled argument must give. */
enum expectation { NO_CRASH, INVALID_HANDLE, INVALID_ARGUMENT, INVALID_POINTER, SOME_FAILURE };

struct function {
    const char *name;
    tcuda_status (*call)(void);
    int alone; /* changes the state of the process or the thread: runs in a process of its own */
    int refused; /* gives TCUDA_STATUS_FORKED in the child of a process that initialised */
    int without_driver; /* the status without a driver */
    int of_negative; /* the status for the device -5 */
};

/* No status: not a matter of this function. */
enum { UNTOLD = -1 };

struct spoiled {
    int function, argument;
    const char *name;
    enum spoiling how;
    enum expectation expected;
};

/* The case that runs. */
static struct spoiled now;
static const char *now_function = "";
/* As long as any function reads or writes. */
static char on_stack[4096];
/* This is the child of a process that initialised: nothing can be made here. */
static int is_forked;
/* Here neither, because there is no driver. */
static int has_no_driver;
/* Every device parameter. */
static int32_t now_device = TCUDA_CURRENT_DEVICE;

static inline int is_spoiled(int argument, enum spoiling how)
{
    return (now.argument == argument && now.how == how) ||
        (argument >= 0 && how == NIL && now.how == EVERY_POINTER_NIL);
}

/* Where the function is called; NULL: at once. */
static tcuda_status (*call_place)(tcuda_status (*perform)(void *), void *arguments);

static inline tcuda_status call_in_place(tcuda_status (*perform)(void *), void *arguments)
{
    return call_place == NULL ? perform(arguments) : call_place(perform, arguments);
}

/* Functions are called by tcuda_call. */
static int are_by_name;

/* The object says what the status and this thread's last error say. */
static inline tcuda_status call_by_name(const char *function, const uint64_t *arguments,
    size_t count)
{
    tcuda_error error = TCUDA_INIT(tcuda_error);
    const tcuda_status status = tcuda_call(function, arguments, count, &error);
    CHECK(error.status == status);
    CHECK(strcmp(error.message, status == TCUDA_STATUS_OK ? "" : tcuda_last_error()) == 0);
    return status;
}

static inline uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- Arguments ---- */

#define HANDLE(argument, type, other) \
    (is_spoiled(argument, NIL) ? NULL \
        : is_spoiled(argument, STALE) ? stale_##type() \
        : is_spoiled(argument, FOREIGN) ? (type *)(void *)make_##other() \
        : is_forked || is_spoiled(argument, BITS) \
            ? (type *)(uintptr_t)UINT64_C(0x9e3779b97f4a7c15) \
        : is_spoiled(argument, STACK) ? (type *)(void *)on_stack \
        : make_##type())

#define POINTER(argument, value) (is_spoiled(argument, NIL) ? NULL : (value))

/* Everything made for a case is dropped after it, newest first. */
static struct { void (*drop)(void *); void *what; } made[64];
static size_t made_count;

static inline void drop_later(void (*drop)(void *), void *what)
{
    CHECK(made_count < sizeof made / sizeof made[0]);
    made[made_count].drop = drop;
    made[made_count++].what = what;
}

/* A function that queues nothing. */
static inline int32_t queue_nothing(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs)
{
    (void)user_data, (void)inputs, (void)num_inputs, (void)stream, (void)outputs, (void)num_outputs;
    return 0;
}

static inline void *input_callable(void)
{
    static tcuda_callable callable;
    memset(&callable, 0, sizeof callable);
    callable.struct_size = sizeof callable;
    callable.forward = queue_nothing;
    return &callable;
}

/* Outputs, with what they hold before the call. */
static struct { unsigned char *bytes, *before; size_t size; } outputs[16];
static size_t output_count;

static inline void *output_bytes(size_t size, size_t struct_size)
{
    CHECK(output_count < sizeof outputs / sizeof outputs[0]);
    unsigned char *bytes = malloc(size), *before = malloc(size);
    CHECK(bytes && before);
    memset(bytes, 0xAB, size);
    if (struct_size && size >= sizeof struct_size)
        memcpy(bytes, &struct_size, sizeof struct_size);
    memcpy(before, bytes, size);
    outputs[output_count].bytes = bytes;
    outputs[output_count].before = before;
    outputs[output_count++].size = size;
    return bytes;
}

/* The output that is written after a failure, too. */
static inline tcuda_error *error_object(void)
{
    static tcuda_error error;
    error.struct_size = sizeof error;
    return &error;
}

/* Host bytes that a call reads. */
static inline void *input_bytes(size_t struct_size)
{
    static union { unsigned char bytes[1024]; size_t struct_size; uint64_t align; } zeros;
    memset(&zeros, 0, sizeof zeros);
    zeros.struct_size = struct_size;
    return &zeros;
}

/* ---- Cases ---- */

static inline void report(const char *what, tcuda_status status)
{
    fprintf(stderr, "%s, %s %s: %s (%s: %s)\n", now_function, now.name, spoilings[now.how], what,
        tcuda_status_name((int32_t)status), tcuda_last_error());
}

static inline void crashed(int signal_number)
{
    fprintf(stderr, "%s, %s %s: signal %d\n", now_function, now.name, spoilings[now.how],
        signal_number);
    _exit(128 + signal_number);
}

static inline int outputs_untouched(void)
{
    for (size_t i = 0; i < output_count; i++)
        if (memcmp(outputs[i].bytes, outputs[i].before, outputs[i].size) != 0)
            return 0;
    return 1;
}

static inline void drop_all(void)
{
    bool is_initialized = false;
    /* Calls queue work on streams that know nothing of each other, with memory that is freed. */
    if (!is_forked && tcuda_is_initialized(&is_initialized) == TCUDA_STATUS_OK && is_initialized)
        (void)!tcuda_device_synchronize(TCUDA_CURRENT_DEVICE);
    while (made_count > 0) {
        made_count--;
        made[made_count].drop(made[made_count].what);
    }
    while (output_count > 0) {
        output_count--;
        free(outputs[output_count].bytes);
        free(outputs[output_count].before);
    }
}

static inline int as_expected(enum expectation expected, tcuda_status status)
{
    switch (expected) {
    case INVALID_HANDLE: return status == TCUDA_STATUS_INVALID_HANDLE;
    case INVALID_ARGUMENT: return status == TCUDA_STATUS_INVALID_ARGUMENT;
    case INVALID_POINTER: /* of device memory; NULL is also simply missing */
        return status == TCUDA_STATUS_INVALID_POINTER || status == TCUDA_STATUS_INVALID_ARGUMENT;
    case SOME_FAILURE: return status != TCUDA_STATUS_OK;
    case NO_CRASH: break;
    }
    return 1;
}

/* A call that fails even with valid arguments (wrong state, not supported here) may give its own
 * status first when one is spoiled. */
static inline int run_case(struct spoiled spoiled, const char *function, tcuda_status (*call)(void),
    tcuda_status unspoiled, tcuda_status *result)
{
    now = spoiled;
    now_function = function;
    tcuda_status status = call();
    int good = as_expected(spoiled.expected, status) ||
        (unspoiled != TCUDA_STATUS_OK && status == unspoiled);
    if (!good)
        report("not the expected status", status);
    if (status != TCUDA_STATUS_OK && !outputs_untouched()) {
        report("an output was written", status);
        good = 0;
    }
    now.how = NOTHING;
    drop_all();
    if (result)
        *result = status;
    return good;
}

/* Runs all cases of a function; the number of failures. */
static inline int run_function(const struct function *functions, int index,
    const struct spoiled *cases, size_t case_count)
{
    const struct function *function = &functions[index];
    const struct spoiled valid = { index, -2, "arguments", NOTHING, NO_CRASH };
    tcuda_status unspoiled;
    int failures = !run_case(valid, function->name, function->call, TCUDA_STATUS_OK, &unspoiled);
    if (unspoiled != TCUDA_STATUS_OK)
        printf("note: %s gives %s to valid arguments: %s\n", function->name,
            tcuda_status_name((int32_t)unspoiled), tcuda_last_error());
    for (size_t i = 0; i < case_count; i++)
        if (cases[i].function == index)
            failures += !run_case(cases[i], function->name, function->call, unspoiled, NULL);
    return failures;
}

static inline int live_handles(void)
{
    size_t live = 0;
    if (tcuda_shutdown(&live) == TCUDA_STATUS_OK && live == 0)
        return 0;
    fprintf(stderr, "%zu handles are alive at the end (last function: %s)\n", live, now_function);
    return 1;
}

/* In the child of this process, which has initialised: every function fails, and writes nothing. */
static inline int run_forked(const struct function *functions, int function_count)
{
    const struct spoiled valid = { 0, -2, "arguments in a forked child", NOTHING, NO_CRASH };
    int failures = 0, status;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(600);
        is_forked = 1;
        for (int i = 0; i < function_count; i++) {
            now = valid;
            now_function = functions[i].name;
            const tcuda_status given = functions[i].call();
            if (functions[i].refused && given != TCUDA_STATUS_FORKED) {
                report("not TCUDA_STATUS_FORKED", given);
                failures++;
            }
            if (functions[i].refused && !outputs_untouched()) {
                report("an output was written", given);
                failures++;
            }
            drop_all();
        }
        _exit(failures > 0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return status != 0;
}

/* Calls a function in some state of the process: it gives `expected`, and after a failure its
 * outputs are untouched. The number of failures. */
static inline int run_in_state(const struct function *function, const char *state, int expected)
{
    const struct spoiled valid = { 0, -2, state, NOTHING, NO_CRASH };
    now = valid;
    now_function = function->name;
    const tcuda_status given = function->call();
    int failures = given != (tcuda_status)expected;
    if (failures > 0)
        report("not the status of this state", given);
    if (given != TCUDA_STATUS_OK && !outputs_untouched()) {
        report("an output was written", given);
        failures++;
    }
    drop_all();
    return failures;
}

/* Runs `body` in a child, before this process initialises; nonzero if it failed. */
static inline int in_child(int (*body)(const struct function *, int),
    const struct function *functions, int function_count)
{
    int status;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(600);
        _exit(body(functions, function_count) > 0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return status != 0;
}

static inline int run_without_driver(const struct function *functions, int function_count)
{
    int failures = 0;
    CHECK(setenv("TCUDA_BACKEND", "cuda", 1) == 0);
    CHECK(setenv("TCUDA_CUDA_DRIVER_PATH", "/nonexistent", 1) == 0);
    has_no_driver = 1;
    for (int i = 0; i < function_count; i++)
        if (functions[i].without_driver != UNTOLD)
            failures +=
                run_in_state(&functions[i], "without a driver", functions[i].without_driver);
    return failures;
}

/* Each function is the first that is called. */
static inline int run_first_with_device(const struct function *function, int one)
{
    (void)one;
    const char *state = now_device < 0 ? "with device -5 first" : "with device 99 first";
    const int expected = now_device < 0 ? function->of_negative : TCUDA_STATUS_INVALID_DEVICE;
    return run_in_state(function, state, expected);
}

static inline int run_with_other_devices(const struct function *functions, int function_count)
{
    int failures = 0;
    for (int i = 0; i < function_count; i++) {
        if (functions[i].of_negative == UNTOLD)
            continue;
        now_device = -5;
        failures += in_child(run_first_with_device, &functions[i], 1);
        now_device = 99;
        if (functions[i].of_negative != TCUDA_STATUS_INVALID_ARGUMENT)
            failures += in_child(run_first_with_device, &functions[i], 1);
    }
    now_device = -5;
    if (tcuda_init() != TCUDA_STATUS_OK)
        return failures;
    for (int i = 0; i < function_count; i++)
        if (functions[i].of_negative != UNTOLD)
            failures += run_in_state(&functions[i], "with device -5", functions[i].of_negative);
    return failures;
}

/* The functions that run alone come first, each in a child: a fork after the first call that
 * initialises the library would only ever see TCUDA_STATUS_FORKED. */
static inline int run_everything(const struct function *functions, int function_count,
    const struct spoiled *cases, size_t case_count)
{
    int failures = 0;
    are_by_name = getenv("EVERY_FUNCTION_BY_NAME") != NULL;
    signal(SIGSEGV, crashed);
    signal(SIGBUS, crashed);
    signal(SIGABRT, crashed);
    signal(SIGALRM, crashed);
    failures += in_child(run_without_driver, functions, function_count);
    failures += in_child(run_with_other_devices, functions, function_count);
    for (int i = 0; i < function_count; i++) {
        int status;
        if (!functions[i].alone)
            continue;
        fflush(NULL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(600);
            failures = run_function(functions, i, cases, case_count);
            exit(failures + live_handles() > 0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        failures += status != 0;
    }
    alarm(600);
    for (int i = 0; i < function_count; i++)
        if (!functions[i].alone)
            failures += run_function(functions, i, cases, case_count);
    if (tcuda_init() == TCUDA_STATUS_OK)
        failures += run_forked(functions, function_count);
    failures += live_handles();
    printf("%d functions, %zu cases, %d failures\n", function_count, case_count, failures);
    return failures > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif /* HARNESS_H */
