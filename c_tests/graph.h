/* What the tests of graphs share. */
#ifndef GRAPH_H
#define GRAPH_H

#include "support.h"

typedef struct CUgraph_st template;
typedef struct CUgraphExec_st executable;

enum { PAGE = 4096, MIB = 1 << 20 };

static inline tcuda_graph *create_graph(int32_t keep)
{
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(keep, &graph));
    CHECK(graph != NULL);
    return graph;
}

static inline void begin(tcuda_graph *graph, tcuda_stream *stream)
{
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
}

static inline void end(tcuda_graph *graph)
{
    CHECK_OK(tcuda_graph_capture_end(graph));
}

static inline void replay(tcuda_graph *graph, tcuda_stream *stream)
{
    CHECK_OK(tcuda_graph_replay(graph, stream));
}

static inline bool is_capturing(tcuda_stream *stream)
{
    bool capturing = false;
    CHECK_OK(tcuda_stream_is_capturing(stream, &capturing));
    return capturing;
}

static inline uint64_t reserved(void)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(TCUDA_CURRENT_DEVICE, "reserved_bytes.all.current", &value));
    return value;
}

#endif /* GRAPH_H */
