/* Which backend runs, and what a choice leaves behind. Only what needs no GPU: on any machine. */
#define _POSIX_C_SOURCE 200809L

#include <unistd.h>

#include "support.h"

static void select_backend(const char *name, const char *options)
{
    CHECK_OK(tcuda_backend_select(name, options));
    CHECK_STR(tcuda_backend_name(), name);
}

static void says(const char *part)
{
    if (strstr(tcuda_last_error(), part) == NULL)
        check_failed(__FILE__, __LINE__, part, tcuda_last_error());
}

static void the_last_choice_counts(void)
{
    select_backend("sim", "devices=3");
    select_backend("cuda", NULL);
    select_backend("cuda", "");
    select_backend("sim", "devices=2");
    CHECK_EQ(num_devices(), 2);
    select_backend("sim", "devices=4"); /* the count started the driver, no more */
    CHECK_EQ(num_devices(), 4);
    CHECK_OK(tcuda_init());
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_backend_select("sim", "devices=1"));
    says("call tcuda_backend_select first, or tcuda_shutdown before it");
    CHECK_EQ(num_devices(), 4);
    CHECK_OK(tcuda_shutdown(NULL));
}

static void wrong_choices_change_nothing(void)
{
    select_backend("sim", "devices=3");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_select("rocm", NULL));
    says("rocm");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_select("cuda", "devices=2"));
    says("devices=2");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_select("sim", "devices=none"));
    says("none");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_select(NULL, NULL));
    CHECK_STR(tcuda_backend_name(), "sim");
    CHECK_EQ(num_devices(), 3);
    CHECK_OK(tcuda_shutdown(NULL));
}

/* Options of a choice without any are the environment's. */
static void no_options_are_those_of_the_environment(void)
{
    CHECK_EQ(setenv("TCUDA_SIM", "devices=5", 1), 0);
    select_backend("sim", NULL);
    CHECK_EQ(num_devices(), 5);
    select_backend("sim", "");
    CHECK_EQ(num_devices(), 5);
    CHECK_EQ(setenv("TCUDA_SIM", "devices=-5", 1), 0);
    select_backend("sim", NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_init());
    says("-5");
    CHECK_EQ(unsetenv("TCUDA_SIM"), 0);
    CHECK_OK(tcuda_shutdown(NULL));
}

/* Where the current device does not exist any more, it is the first. */
static void a_smaller_machine_has_a_current_device(void)
{
    select_backend("sim", "devices=4");
    CHECK_OK(tcuda_device_set(3));
    CHECK_EQ(current_device(), 3);
    CHECK_OK(tcuda_shutdown(NULL));
    select_backend("sim", "devices=2");
    CHECK_EQ(current_device(), 0);
    void *block = allocate(512, TCUDA_CURRENT_DEVICE, NULL);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_device_set(1));
    CHECK_EQ(current_device(), 1);
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

/* ---- Faults ---- */

/* Those of the environment are taken when the library starts, unless a test has set its own. */
static void faults_of_the_environment_come_second(void)
{
    CHECK_EQ(setenv("TCUDA_FAULTS", "cuMemCreate@1=2!", 1), 0);
    select_backend("sim", NULL);
    CHECK_OK(tcuda_backend_inject("cuEventCreate", 1, 999, 0));
    void *block = allocate(512, 0, NULL);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(512, 0, NULL, &block));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_EQ(setenv("TCUDA_FAULTS", "cuMemCreate@none=2", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_init());
    says("cuMemCreate@none=2");
    CHECK_EQ(unsetenv("TCUDA_FAULTS"), 0);
    CHECK_OK(tcuda_shutdown(NULL));
}

/* There is room for 32 rules; one more changes nothing, and each can be taken back. */
static void there_is_room_for_so_many_rules(void)
{
    static const char *const functions[] = { "cuInit", "cuDriverGetVersion", "cuDeviceGetCount",
        "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceTotalMem",
        "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease",
        "cuDevicePrimaryCtxGetState", "cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess",
        "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent",
        "cuCtxGetDevice", "cuCtxSynchronize", "cuCtxGetStreamPriorityRange",
        "cuStreamCreateWithPriority", "cuStreamDestroy", "cuStreamQuery", "cuStreamSynchronize",
        "cuStreamWaitEvent", "cuStreamGetPriority", "cuStreamGetCtx", "cuStreamGetId",
        "cuLaunchHostFunc", "cuStreamIsCapturing", "cuEventCreate", "cuEventDestroy",
        "cuEventRecord" };
    enum { COUNT = sizeof functions / sizeof *functions };
    for (int i = 0; i < COUNT - 1; i++)
        CHECK_OK(tcuda_backend_inject(functions[i], 1000000, 999, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_backend_inject(functions[COUNT - 1], 1, 999, 0));
    says("too many functions have a rule");
    CHECK_OK(tcuda_backend_inject(functions[0], 0, 0, 0));
    CHECK_OK(tcuda_backend_inject(functions[COUNT - 1], 1, 999, 0));
    CHECK_OK(tcuda_backend_faults(NULL));
}

int main(void)
{
    CHECK_EQ(unsetenv("TCUDA_SIM"), 0);
    CHECK_EQ(unsetenv("TCUDA_FAULTS"), 0);
    the_last_choice_counts();
    wrong_choices_change_nothing();
    no_options_are_those_of_the_environment();
    a_smaller_machine_has_a_current_device();
    faults_of_the_environment_come_second();
    there_is_room_for_so_many_rules();
    return EXIT_SUCCESS;
}
