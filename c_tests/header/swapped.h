/* Does not compile, as C or as C++: a double is no device. */
#include <tcuda.h>

tcuda_status swapped(void);

tcuda_status swapped(void)
{
#ifdef FRACTION_SET
    return tcuda_memory_fraction_set(0.5, 0);
#else
    tcuda_torch_memory_fraction(0, 0.5f);
    return TCUDA_STATUS_OK;
#endif
}
