/* The stand-in for cuFile: how a test controls it. */
#ifndef CUFILE_H
#define CUFILE_H

#include <stddef.h>

/* What a stand-in has made and not ended, and what it was asked for last. */
typedef struct stand_in_state {
    int handles, buffers, drivers;   /* registered files and buffers, open drivers */
    int opened;                      /* how often the driver was opened */
    int reads, writes;               /* calls */
    const void *base;                /* of the last transfer */
    size_t base_offset, bytes;
} stand_in_state;

/* The driver's functions, by which it reaches memory of the simulated machine. */
typedef struct stand_in_driver {
    int (*copy)(unsigned long long dst, unsigned long long src, size_t bytes, void *stream);
    int (*wait)(void *stream);
    int (*attribute)(void *data, int attribute, unsigned long long ptr);
} stand_in_driver;

/* cuFileDriverOpen and _Close; what they return is a struct of two integers. */
typedef long long (*stand_in_driver_fn)(void);
typedef void (*stand_in_use_fn)(const stand_in_driver *driver);
typedef void (*stand_in_state_fn)(stand_in_state *state);
/* The next calls of a kind fail: with an errno, or a CUfileOpError. */
typedef void (*stand_in_fail_fn)(const char *call, int times, int code);

#endif /* CUFILE_H */
