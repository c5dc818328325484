/* A tool that listens to NVTX's memory extension and keeps a list of what it receives. */
#ifndef TOOL_H
#define TOOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct tool_range {
    uintptr_t address;
    size_t bytes;
} tool_range;

/* What it knows now. */
typedef struct tool_view {
    size_t num_heaps, num_regions;
    size_t num_errors; /* calls that make no sense */
    tool_range heaps[64], regions[64];
} tool_view;

typedef void (*tool_look_fn)(tool_view *view);

#endif /* TOOL_H */
