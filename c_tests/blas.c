/* cuBLAS on tcuda's streams and memory: a product of two matrices. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>

#include "support.h"

enum { SIDE = 64 };

typedef int (*sgemm_fn)(struct cublasContext *handle, int transpose_a, int transpose_b, int m,
    int n, int k, const float *alpha, const float *a, int lda, const float *b, int ldb,
    const float *beta, float *c, int ldc);

/* Of the library that tcuda opened. */
static sgemm_fn find_sgemm(void)
{
    const char *const names[] = { getenv("TCUDA_CUBLAS_PATH"), "libcublas.so.13", "libcublas.so.12",
        "libcublas.so.11", "libcublas.so" };
    sgemm_fn sgemm = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && sgemm == NULL; i++) {
        void *const library = names[i] != NULL ? dlopen(names[i], RTLD_NOW | RTLD_NOLOAD) : NULL;
        if (library != NULL)
            *(void **)&sgemm = dlsym(library, "cublasSgemm_v2");
    }
    CHECK(sgemm != NULL);
    return sgemm;
}

/* c = a b, where a has its row's number everywhere and b is 2 on the diagonal. */
static void multiply(sgemm_fn sgemm, tcuda_stream *stream, float scale)
{
    static float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
    const float one = 1, zero = 0;
    struct cublasContext *handle = NULL;
    float *blocks[3];
    for (int i = 0; i < SIDE * SIDE; i++) {
        a[i] = (float)(i % SIDE);
        b[i] = i / SIDE == i % SIDE ? scale : 0;
    }
    for (int i = 0; i < 3; i++)
        blocks[i] = allocate(sizeof a, 0, stream);
    CHECK_OK(tcuda_copy(blocks[0], a, sizeof a, stream));
    CHECK_OK(tcuda_copy(blocks[1], b, sizeof b, stream));
    CHECK_OK(tcuda_blas_handle(0, &handle));
    CHECK_EQ(sgemm(handle, 0, 0, SIDE, SIDE, SIDE, &one, blocks[0], SIDE, blocks[1], SIDE, &zero,
        blocks[2], SIDE), 0);
    CHECK_OK(tcuda_copy(c, blocks[2], sizeof c, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (int i = 0; i < SIDE * SIDE; i++)
        CHECK(c[i] == scale * (float)(i % SIDE));
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_free(blocks[i]));
}

/* The product is in the graph, and so is its workspace. */
static void multiply_in_a_graph(sgemm_fn sgemm, tcuda_stream *stream)
{
    static float ones[SIDE * SIDE], c[SIDE * SIDE];
    const float one = 1, zero = 0;
    struct cublasContext *handle = NULL;
    tcuda_graph *graph = NULL;
    float *in = allocate(sizeof ones, 0, stream), *out = allocate(sizeof c, 0, stream);
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_THREAD_LOCAL));
    CHECK_OK(tcuda_blas_handle(0, &handle));
    CHECK_EQ(sgemm(handle, 0, 0, SIDE, SIDE, SIDE, &one, in, SIDE, in, SIDE, &zero, out, SIDE), 0);
    CHECK_OK(tcuda_graph_capture_end(graph));
    for (int round = 1; round < 4; round++) {
        for (int i = 0; i < SIDE * SIDE; i++)
            ones[i] = (float)round;
        CHECK_OK(tcuda_copy(in, ones, sizeof ones, stream));
        CHECK_OK(tcuda_graph_replay(graph, stream));
        CHECK_OK(tcuda_copy(c, out, sizeof c, stream));
        CHECK_OK(tcuda_stream_synchronize(stream));
        for (int i = 0; i < SIDE * SIDE; i++)
            CHECK(c[i] == (float)(round * round * SIDE));
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(in));
    CHECK_OK(tcuda_free(out));
}

int main(void)
{
    struct cublasContext *handle = NULL;
    SKIP_WITHOUT_GPU();
    const tcuda_status status = tcuda_blas_handle(0, &handle);
    if (on_simulator() && getenv("TCUDA_CUBLAS_PATH") == NULL) {
        CHECK_EQ(status, TCUDA_STATUS_NOT_SUPPORTED);
        CHECK(handle == NULL);
        return finish();
    }
    if (status == TCUDA_STATUS_NO_LIBRARY || status == TCUDA_STATUS_NOT_SUPPORTED) {
        printf("skipped: %s\n", tcuda_last_error());
        return CHECK_SKIPPED;
    }
    CHECK_STATUS(TCUDA_STATUS_OK, status);
    const sgemm_fn sgemm = find_sgemm();
    tcuda_stream *streams[2] = { create_stream(0), create_stream(0) }, *previous = NULL;
    int32_t device = -1;
    CHECK_OK(tcuda_stream_exchange(streams[0], &previous, &device));
    multiply(sgemm, streams[0], 2);
    CHECK_OK(tcuda_stream_set_current(streams[1]));
    multiply(sgemm, streams[1], 3);
    multiply_in_a_graph(sgemm, streams[1]);
    CHECK_OK(tcuda_stream_set_current(previous));
    CHECK_OK(tcuda_stream_destroy(streams[0]));
    CHECK_OK(tcuda_stream_destroy(streams[1]));
    return finish();
}
