#include <stdio.h>
#include <tcuda.h>

int main(void)
{
    void *ptr = NULL;
    if (tcuda_version() != TCUDA_VERSION) {
        return 1;
    }
    if (tcuda_malloc(1 << 20, TCUDA_CURRENT_DEVICE, NULL, &ptr) != TCUDA_STATUS_OK ||
        tcuda_free(ptr) != TCUDA_STATUS_OK) {
        fprintf(stderr, "%s\n", tcuda_last_error());
        return 1;
    }
    printf("tcuda %u on %s\n", tcuda_version(), tcuda_backend_name());
    return tcuda_shutdown(NULL) == TCUDA_STATUS_OK ? 0 : 1;
}
