/* What is said where TCUDA_SIM_PATH names no library, and where it names another one. */
#include "support.h"

static void says(const char *part)
{
    if (strstr(tcuda_last_error(), part) == NULL)
        check_failed(__FILE__, __LINE__, part, tcuda_last_error());
}

int main(void)
{
    bool available = true;
    const char *const other = getenv("TCUDA_TEST_DRIVER");
    CHECK_EQ(setenv("TCUDA_SIM_PATH", "/nonexistent/libtcuda_sim.so", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_init());
    says("/nonexistent/libtcuda_sim.so");
    says("TCUDA_SIM_PATH");
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_backend_select("sim", "devices=2"));
    CHECK(other != NULL);
    CHECK_EQ(setenv("TCUDA_SIM_PATH", other, 1), 0);
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_init());
    says("not tcuda's simulator");
    /* Not false: the host asked for a backend that cannot start. */
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, tcuda_is_available(&available));
    CHECK(available);
    /* A later call finds what is corrected. */
    CHECK_EQ(unsetenv("TCUDA_SIM_PATH"), 0);
    CHECK_OK(tcuda_init());
    return finish();
}
