#include "engine.h"

tcuda_status engine_zeroes(size_t bytes, tcuda_stream *stream, void **memory)
{
    const char zero = 0;
    const tcuda_status status = tcuda_malloc(bytes, TCUDA_CURRENT_DEVICE, stream, memory);
    return status != TCUDA_STATUS_OK ? status : tcuda_fill(*memory, &zero, 1, bytes, stream);
}
