/* cuSOLVER on tcuda's streams and memory: a Cholesky factorisation. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>

#include "support.h"

enum { SIDE = 64, LOWER = 0 };

typedef int (*size_fn)(struct cusolverDnContext *handle, int uplo, int n, float *a, int lda,
    int *elements);
typedef int (*factor_fn)(struct cusolverDnContext *handle, int uplo, int n, float *a, int lda,
    float *workspace, int elements, int *info);

/* A function of the library that tcuda opened. */
static void *find(const char *name)
{
    const char *const names[] = { getenv("TCUDA_CUSOLVER_PATH"), "libcusolver.so.12",
        "libcusolver.so.11", "libcusolver.so" };
    void *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && found == NULL; i++) {
        void *const library = names[i] != NULL ? dlopen(names[i], RTLD_NOW | RTLD_NOLOAD) : NULL;
        if (library != NULL)
            found = dlsym(library, name);
    }
    CHECK(found != NULL);
    return found;
}

/* a = l l^T, where l has its diagonal's value there and 1 below. */
static void factorise(tcuda_stream *stream, float diagonal)
{
    static float a[SIDE * SIDE], l[SIDE * SIDE];
    struct cusolverDnContext *handle = NULL;
    size_fn size = NULL;
    factor_fn factor = NULL;
    int elements = 0, info = -1;
    *(void **)&size = find("cusolverDnSpotrf_bufferSize");
    *(void **)&factor = find("cusolverDnSpotrf");
    for (int row = 0; row < SIDE; row++)
        for (int column = 0; column < SIDE; column++) {
            const int least = row < column ? row : column;
            a[row + column * SIDE] = row == column ? (float)least + diagonal * diagonal
                                                   : (float)least + diagonal;
        }
    float *const matrix = allocate(sizeof a, 0, stream);
    CHECK_OK(tcuda_copy(matrix, a, sizeof a, stream));
    CHECK_OK(tcuda_solver_handle(0, &handle));
    CHECK_EQ(size(handle, LOWER, SIDE, matrix, SIDE, &elements), 0);
    float *const workspace = allocate((size_t)elements * sizeof(float), 0, stream);
    int *const device_info = allocate(sizeof info, 0, stream);
    CHECK_EQ(factor(handle, LOWER, SIDE, matrix, SIDE, workspace, elements, device_info), 0);
    CHECK_OK(tcuda_copy(l, matrix, sizeof l, stream));
    CHECK_OK(tcuda_copy(&info, device_info, sizeof info, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(info, 0);
    for (int column = 0; column < SIDE; column++)
        for (int row = column; row < SIDE; row++) {
            const float off = l[row + column * SIDE] - (row == column ? diagonal : 1);
            CHECK(off < 1e-4F && off > -1e-4F);
        }
    CHECK_OK(tcuda_free(device_info));
    CHECK_OK(tcuda_free(workspace));
    CHECK_OK(tcuda_free(matrix));
}

int main(void)
{
    struct cusolverDnContext *handle = NULL;
    SKIP_WITHOUT_GPU();
    const tcuda_status status = tcuda_solver_handle(0, &handle);
    if (on_simulator()) {
        CHECK_EQ(status, TCUDA_STATUS_NOT_SUPPORTED);
        CHECK(handle == NULL);
        return finish();
    }
    if (status == TCUDA_STATUS_NO_LIBRARY || status == TCUDA_STATUS_NOT_SUPPORTED) {
        printf("skipped: %s\n", tcuda_last_error());
        return CHECK_SKIPPED;
    }
    CHECK_STATUS(TCUDA_STATUS_OK, status);
    tcuda_stream *streams[2] = { create_stream(0), create_stream(0) }, *previous = NULL;
    int32_t device = -1;
    CHECK_OK(tcuda_stream_exchange(streams[0], &previous, &device));
    factorise(streams[0], 2);
    CHECK_OK(tcuda_stream_set_current(streams[1]));
    factorise(streams[1], 3);
    CHECK_OK(tcuda_stream_set_current(previous));
    CHECK_OK(tcuda_stream_destroy(streams[0]));
    CHECK_OK(tcuda_stream_destroy(streams[1]));
    return finish();
}
