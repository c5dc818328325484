/* Where NVRTC is not found, a status and a sentence say so, and how to get it; nothing else fails,
 * and a later call finds it. */
#define _GNU_SOURCE /* dl_iterate_phdr */

#include <link.h>

#include "support.h"

static const char source[] = "extern \"C\" __global__ void f(int *x) { *x = nowhere; }";

static tcuda_status compile(void)
{
    tcuda_kernel *kernel = (tcuda_kernel *)(void *)source;
    const tcuda_status status = tcuda_kernel_compile(source, "f", NULL, &kernel);
    CHECK(kernel == (tcuda_kernel *)(void *)source);
    return status;
}

static void says(const char *text)
{
    if (strstr(tcuda_last_error(), text) == NULL)
        check_failed(__FILE__, __LINE__, text, tcuda_last_error());
}

static void a_path_that_names_nothing(void)
{
    CHECK_EQ(setenv("TCUDA_NVRTC_PATH", "/nonexistent/libnvrtc.so.12", 1), 0);
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, compile());
    says("NVRTC cannot be loaded from '/nonexistent/libnvrtc.so.12', "
         "the value of TCUDA_NVRTC_PATH");
}

/* The C library, say. */
static int another_library(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (strstr(info->dlpi_name, "/libc.so") == NULL)
        return 0;
    CHECK_EQ(setenv("TCUDA_NVRTC_PATH", info->dlpi_name, 1), 0);
    return 1;
}

static void a_path_that_names_another_library(void)
{
    CHECK_EQ(dl_iterate_phdr(another_library, NULL), 1);
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY, compile());
    says("NVRTC has no nvrtcVersion");
}

/* The call of a function needs it as well; what needs no compiler works. */
static void functions_of_elements(void)
{
    int64_t shape[] = { 16 };
    tcuda_jit *jit = NULL;
    tcuda_tensor tensor = { .data = allocate(64, 0, NULL), .device = { TCUDA_DEVICE_CUDA, 0 },
        .ndim = 1, .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = shape };
    CHECK_OK(tcuda_jit_create("template <typename T> T f(T x) { return x; }", NULL, &jit));
    CHECK_STATUS(TCUDA_STATUS_NO_LIBRARY,
        tcuda_jit_call(jit, &tensor, 1, NULL, 0, &tensor, 1, NULL));
    CHECK_OK(tcuda_jit_destroy(jit));
    CHECK_OK(tcuda_fill(tensor.data, "", 1, 64, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_OK(tcuda_free(tensor.data));
}

/* Machines with CUDA's own packages have one. */
static void no_path_and_none_installed(void)
{
    CHECK_EQ(unsetenv("TCUDA_NVRTC_PATH"), 0);
    if (compile() != TCUDA_STATUS_NO_LIBRARY) {
        printf("left out: an NVRTC is installed\n");
        return;
    }
    says("NVRTC was not found: tried libnvrtc.so.13");
    says("pip install nvidia-cuda-nvrtc-cu12");
    says("or set TCUDA_NVRTC_PATH to its path");
}

int main(void)
{
    const char *const found = getenv("TCUDA_NVRTC_PATH");
    char path[1024];
    SKIP_WITHOUT_GPU();
    snprintf(path, sizeof path, "%s", found == NULL ? "" : found);
    setenv("TCUDA_KERNEL_CACHE", "0", 1);
    a_path_that_names_nothing();
    functions_of_elements();
    a_path_that_names_another_library();
    no_path_and_none_installed();
    if (found != NULL) {
        CHECK_EQ(setenv("TCUDA_NVRTC_PATH", path, 1), 0);
        CHECK_STATUS(TCUDA_STATUS_COMPILE_ERROR, compile());
        says("nowhere");
    }
    return finish();
}
