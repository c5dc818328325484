/* What the header tests compile, as C and as C++: the header alone, and twice. */
#include <tcuda.h>
#include <tcuda.h>

size_t size_of_initialised(void);

size_t size_of_initialised(void)
{
    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    return info.struct_size;
}

/* Functions that are also macros: with integers of every kind, through a pointer, and by hand. */
enum ordinal { FIRST, SECOND };
typedef struct loaded {
    tcuda_status (*tcuda_memory_fraction_set)(int32_t device, double fraction);
} loaded;

int is_called_in_every_way(enum ordinal ordinal, const int32_t device, unsigned char small);

int is_called_in_every_way(enum ordinal ordinal, const int32_t device, unsigned char small)
{
    loaded api = { tcuda_memory_fraction_set };
    void (*const torch)(double, int32_t) = &tcuda_torch_memory_fraction;
    int failed = 0;
    failed += tcuda_memory_fraction_set(0, 0.5) != TCUDA_STATUS_OK;
    failed += tcuda_memory_fraction_set(TCUDA_CURRENT_DEVICE, 1) != TCUDA_STATUS_OK;
    failed += tcuda_memory_fraction_set(ordinal == FIRST ? 0 : 1, 0.25) != TCUDA_STATUS_OK;
    failed += tcuda_memory_fraction_set(device, 1.0 / 3) != TCUDA_STATUS_OK;
    failed += tcuda_memory_fraction_set(small, 0.5) != TCUDA_STATUS_OK;
    failed += (tcuda_memory_fraction_set)(device, 0.5) != TCUDA_STATUS_OK;
    failed += api.tcuda_memory_fraction_set(device, 0.5) != TCUDA_STATUS_OK;
    tcuda_torch_memory_fraction(0.5, device);
    torch(0.5, device);
    return failed;
}
