/* Loses a block on purpose: the leak checker must say so, or the other tests cannot rely on it. */
#include <stdlib.h>

#include "check.h"

static void *volatile lost;

int main(void)
{
    CHECK_EQ(tcuda_version(), TCUDA_VERSION);
    lost = malloc(100);
    lost = NULL;
    return EXIT_SUCCESS;
}
