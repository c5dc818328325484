/* What the header tests compile, as C and as C++: the header alone, and twice. */
#include <tcuda.h>
#include <tcuda.h>

size_t size_of_initialised(void);

size_t size_of_initialised(void)
{
    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    return info.struct_size;
}
