/* What is reported where NCCL is missing, too old, or not for this machine. Each case is a process,
 * since a library is opened once. */
#include "communicator.h"

static bool mentions(const char *text)
{
    return strstr(tcuda_last_error(), text) != NULL;
}

static void there_is_none(const char *path, bool has_version, const char *text)
{
    int32_t major = -1, minor = -1, patch = -1, device = 0;
    tcuda_unique_id id = { { 7 } };
    tcuda_communicator *none = NULL;
    setenv("TCUDA_NCCL_PATH", path, 1);
    if (has_version) {
        CHECK_OK(tcuda_nccl_version(&major, &minor, &patch));
        CHECK_EQ(major, 2);
    } else {
        CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_nccl_version(&major, &minor, &patch));
        CHECK(mentions(text));
        CHECK_EQ(major + minor + patch, -3);
    }
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_communicator_unique_id(&id));
    CHECK(mentions(text));
    CHECK_EQ(id.bytes[0], 7);
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_communicator_init_rank(&id, 1, 0, 0, &none));
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_communicator_init_all(&device, 1, &none));
    CHECK(none == NULL);
    CHECK_EQ(finish(), EXIT_SUCCESS);
}

static void nothing_is_there(void)
{
    there_is_none("/nonexistent/libnccl.so.2", false, "/nonexistent/libnccl.so.2");
}

static void it_is_too_old(void)
{
    setenv("TCUDA_FAKE_NCCL_VERSION", "2804", 1);
    there_is_none(getenv("TCUDA_NCCL_PATH"), false, "NCCL is too old: it is 2.8");
}

static void it_works_on_gpus_only(void)
{
    const char *path = getenv("TCUDA_TEST_NCCL_OF_GPUS");
    if (path != NULL) there_is_none(path, true, "the simulated machine is in use");
}

static void it_lacks_a_function(void)
{
    const char *path = getenv("TCUDA_TEST_NCCL_WITHOUT_RECV");
    if (path != NULL) there_is_none(path, false, "no ncclRecv");
}

int main(void)
{
    const char *backend = getenv("TCUDA_BACKEND");
    RUNS(nothing_is_there);
    if (backend != NULL && strcmp(backend, "sim") == 0 && getenv("TCUDA_NCCL_PATH") != NULL) {
        RUNS(it_is_too_old);
        RUNS(it_works_on_gpus_only);
        RUNS(it_lacks_a_function);
    }
    return finish_cases();
}
