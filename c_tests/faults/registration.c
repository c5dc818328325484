/* What a process registers when the library is first entered, and what comes of it when that fails
 * once: the call fails and says so, the next one works, and a fork goes through, for which nothing
 * may be registered twice. TCUDA_LIBC_FAULTS says what fails. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int main(void)
{
    uint64_t fired = 0;
    bool available = false;
    alarm(60); /* handlers that were registered twice wait for themselves */
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_HOST_MEMORY, tcuda_is_available(&available));
    CHECK(strlen(tcuda_last_error()) > 0);
    for (int i = 0; i < 3; i++) {
        int status = 0;
        CHECK_OK(tcuda_is_available(&available));
        CHECK(available);
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60);
            CHECK_STATUS(TCUDA_STATUS_FORKED, tcuda_init());
            _exit(EXIT_SUCCESS);
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(child_status(status), EXIT_SUCCESS);
    }
    CHECK_OK(tcuda_backend_fault_count(&fired));
    CHECK_EQ(fired, 0); /* of the library's own */
    return finish();
}
