#include <engine.h>
#include <stdio.h>

int main(void)
{
    unsigned char host[64] = { 1, 2, 3 };
    void *memory = NULL;
    if (engine_zeroes(sizeof host, NULL, &memory) != TCUDA_STATUS_OK ||
        tcuda_copy(host, memory, sizeof host, NULL) != TCUDA_STATUS_OK ||
        tcuda_stream_synchronize(NULL) != TCUDA_STATUS_OK ||
        tcuda_free(memory) != TCUDA_STATUS_OK) {
        fprintf(stderr, "%s\n", tcuda_last_error());
        return 1;
    }
    for (size_t i = 0; i < sizeof host; i++) {
        if (host[i] != 0)
            return 1;
    }
    return tcuda_shutdown(NULL) == TCUDA_STATUS_OK ? 0 : 1;
}
