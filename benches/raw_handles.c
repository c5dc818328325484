/* What compute-sanitizer says of a kernel that writes across two handles of memory mapped side by
 * side, with the raw driver API and nothing of tcuda but the fill kernel's PTX: the standard by
 * which reports about tcuda's own mappings are judged.
 *
 * usage: raw_handles kernels/fill.ptx      (build: gcc raw_handles.c -I$CUDA/include -lcuda) */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

#define DRIVER(call) check((call), #call)

static void check(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS) return;
    const char *name = NULL;
    cuGetErrorName(result, &name);
    fprintf(stderr, "%s: %s\n", call, name ? name : "?");
    exit(EXIT_FAILURE);
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (!file || !text || fread(text, 1, (1 << 20) - 1, file) == 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(EXIT_FAILURE);
    }
    fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: raw_handles kernels/fill.ptx\n"), 2;
    const size_t half = 2 << 20;
    CUcontext context;
    DRIVER(cuInit(0));
    DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
    DRIVER(cuCtxSetCurrent(context));

    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUdeviceptr base;
    DRIVER(cuMemAddressReserve(&base, 2 * half, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        CUmemGenericAllocationHandle handle;
        DRIVER(cuMemCreate(&handle, half, &properties, 0));
        DRIVER(cuMemMap(base + i * half, half, 0, handle, 0));
    }
    CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DRIVER(cuMemSetAccess(base, 2 * half, &access, 1));

    CUmodule module;
    CUfunction fill;
    DRIVER(cuModuleLoadData(&module, read_text(argv[1])));
    DRIVER(cuModuleGetFunction(&fill, module, "tcuda_fill_pattern"));
    CUdeviceptr to = base + half / 2;
    unsigned long long bytes = half, word = 0x0123456789abcdefull;
    unsigned period = 8;
    void *arguments[] = {&to, &bytes, &word, &word, &word, &word, &period};
    DRIVER(cuLaunchKernel(fill, 64, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    DRIVER(cuCtxSynchronize());
    DRIVER(cuMemsetD8(base + half / 2, 1, half));
    DRIVER(cuCtxSynchronize());
    puts("wrote across two handles");
    return 0;
}
