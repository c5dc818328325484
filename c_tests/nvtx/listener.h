/* A tool that listens to NVTX's marks and ranges, and keeps a list of what it receives. */
#ifndef LISTENER_H
#define LISTENER_H

#include <stddef.h>
#include <stdint.h>

typedef enum event_kind {
    EVENT_MARK,
    EVENT_PUSH,
    EVENT_POP,
    EVENT_START,
    EVENT_END,
    EVENT_OWN_PUSH, /* of the domain "tcuda" */
    EVENT_OWN_POP
} event_kind;

typedef struct told {
    event_kind kind;
    uint64_t id; /* of EVENT_START and EVENT_END */
    uintptr_t thread;
    char message[60];
} told;

/* What it has received since the last call. */
typedef struct listener_view {
    size_t count;
    size_t num_errors; /* calls that make no sense */
    size_t num_tools;  /* how often it was introduced */
    told events[4096];
} listener_view;

typedef void (*listener_take_fn)(listener_view *view);

#endif /* LISTENER_H */
