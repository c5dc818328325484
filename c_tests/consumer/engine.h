#pragma once
#include <tcuda.h>

/* A host's library with tcuda in its interface: bytes of device memory that are zero. */
tcuda_status engine_zeroes(size_t bytes, tcuda_stream *stream, void **memory);
