/* Loses a block on purpose: the leak checker must say so, or it is not there for the other tests.
 */
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
