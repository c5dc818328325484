/* Kernels that are linked: with images of PTX, of images alone, and with link-time optimisation. */
#include <dlfcn.h>

#include "support.h"

static int32_t *word;

/* triple(x) is 3 * x; plus(x, y) is triple(x) + y. */
#define HEAD ".version 7.8\n.target sm_52\n.address_size 64\n"
#define TIMES(factor) HEAD \
    ".visible .func (.param .b32 result) triple(.param .b32 x)\n" \
    "{\n" \
    "    .reg .b32 %a, %b;\n" \
    "    ld.param.b32 %a, [x];\n" \
    "    mul.lo.s32 %b, %a, " factor ";\n" \
    "    st.param.b32 [result], %b;\n" \
    "    ret;\n" \
    "}\n"
static const char triple[] = TIMES("3"), quadruple[] = TIMES("4");
static const char plus[] = HEAD
    ".extern .func (.param .b32 result) triple(.param .b32 x);\n"
    ".visible .func (.param .b32 result) plus(.param .b32 x, .param .b32 y)\n"
    "{\n"
    "    .reg .b32 %a, %b;\n"
    "    ld.param.b32 %a, [x];\n"
    "    {\n"
    "    .param .b32 x1;\n"
    "    .param .b32 result1;\n"
    "    st.param.b32 [x1], %a;\n"
    "    call.uni (result1), triple, (x1);\n"
    "    ld.param.b32 %a, [result1];\n"
    "    }\n"
    "    ld.param.b32 %b, [y];\n"
    "    add.s32 %a, %a, %b;\n"
    "    st.param.b32 [result], %a;\n"
    "    ret;\n"
    "}\n";
static const char entry[] = HEAD
    ".extern .func (.param .b32 result) triple(.param .b32 x);\n"
    ".visible .entry put(.param .u64 to, .param .u32 value)\n"
    "{\n"
    "    .reg .b64 %to;\n"
    "    .reg .b32 %a;\n"
    "    ld.param.u64 %to, [to];\n"
    "    ld.param.u32 %a, [value];\n"
    "    {\n"
    "    .param .b32 x1;\n"
    "    .param .b32 result1;\n"
    "    st.param.b32 [x1], %a;\n"
    "    call.uni (result1), triple, (x1);\n"
    "    ld.param.b32 %a, [result1];\n"
    "    }\n"
    "    st.global.u32 [%to], %a;\n"
    "    ret;\n"
    "}\n";
static const char whole[] = HEAD
    ".visible .entry put(.param .u64 to, .param .u32 value)\n"
    "{\n"
    "    .reg .b64 %to;\n"
    "    .reg .b32 %a;\n"
    "    ld.param.u64 %to, [to];\n"
    "    ld.param.u32 %a, [value];\n"
    "    st.global.u32 [%to], %a;\n"
    "    ret;\n"
    "}\n";

static const char source[] =
    "extern \"C\" __device__ int triple(int x);\n"
    "extern \"C\" __device__ int plus(int x, int y);\n"
    "template <typename T> __global__ void put(T *to, T value) { *to = plus(triple(value), 1); }\n";

static tcuda_kernel_image text(const char *ptx, const char *name)
{
    const tcuda_kernel_image image = { .data = ptx, .bytes = strlen(ptx), .name = name,
        .kind = TCUDA_IMAGE_PTX };
    return image;
}

static tcuda_kernel_options with(const tcuda_kernel_image *images, size_t count)
{
    tcuda_kernel_options options = TCUDA_INIT(tcuda_kernel_options);
    options.images = images;
    options.num_images = count;
    return options;
}

static int32_t run(tcuda_kernel *kernel, int32_t value)
{
    int32_t found = -1;
    void *const args[] = { &word, &value };
    CHECK_OK(tcuda_kernel_launch(kernel, NULL, args, 2, NULL));
    CHECK_OK(tcuda_copy(&found, word, sizeof found, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    return found;
}

/* What the kernel gives for 7. */
static int32_t result_of(const char *code, const char *name, const tcuda_kernel_options *options)
{
    tcuda_kernel *kernel = NULL;
    CHECK_OK(tcuda_kernel_compile(code, name, options, &kernel));
    const int32_t found = run(kernel, 7);
    CHECK_OK(tcuda_kernel_destroy(kernel));
    return found;
}

static void refused(tcuda_status expected, const char *code, const char *name,
    const tcuda_kernel_options *options, const char *part)
{
    tcuda_kernel *kernel = (tcuda_kernel *)word;
    CHECK_STATUS(expected, tcuda_kernel_compile(code, name, options, &kernel));
    CHECK(kernel == (tcuda_kernel *)word);
    CHECK(strstr(tcuda_last_error(), part) != NULL);
}

static void sources_are_linked_with_images(void)
{
    tcuda_kernel_image images[] = { text(plus, "plus"), text(triple, NULL) };
    tcuda_kernel_options options = with(images, 2);
    CHECK_EQ(result_of(source, "put<int>", &options), 9 * 7 + 1);
    /* The same program with another image is another kernel. */
    images[1] = text(quadruple, "quadruple");
    CHECK_EQ(result_of(source, "put<int>", &options), 16 * 7 + 1);
    images[1] = text(triple, NULL);
    images[1].bytes++; /* with its NUL */
    CHECK_EQ(result_of(source, "put<int>", &options), 9 * 7 + 1);
}

/* The kernel is in an image, alone or with others; the images are copied. */
static void images_may_have_the_kernel(void)
{
    char copy[sizeof entry];
    memcpy(copy, entry, sizeof entry);
    tcuda_kernel_image images[] = { text(copy, "entry"), text(triple, "triple") };
    tcuda_kernel_options options = with(images, 2);
    tcuda_kernel *kernel = NULL;
    CHECK_OK(tcuda_kernel_compile(NULL, "put", &options, &kernel));
    memset(copy, 0, sizeof copy);
    CHECK_EQ(run(kernel, 5), 15);
    CHECK_OK(tcuda_kernel_destroy(kernel));
    images[0] = text(whole, NULL);
    options.num_images = 1;
    CHECK_EQ(result_of(NULL, "put", &options), 7);
    refused(TCUDA_STATUS_INVALID_ARGUMENT, NULL, "absent", &options, "absent");
    images[0] = text(HEAD "nonsense\n", NULL);
    refused(TCUDA_STATUS_COMPILE_ERROR, NULL, "put", &options, "do not link");
}

static void what_does_not_link_is_quoted(void)
{
    tcuda_kernel_image images[] = { text(plus, "plus"), text(triple, "one"), text(triple, "two") };
    tcuda_kernel_options options = with(images, 1);
    refused(TCUDA_STATUS_COMPILE_ERROR, source, "put<int>", &options, "triple");
    options.num_images = 3;
    refused(TCUDA_STATUS_COMPILE_ERROR, source, "put<int>", &options, "triple");
    images[0] = text(HEAD "nonsense\n", "nonsense");
    options.num_images = 2;
    refused(TCUDA_STATUS_COMPILE_ERROR, source, "put<int>", &options, "do not link");
    images[0] = text("no image at all", "none");
    images[0].kind = TCUDA_IMAGE_CUBIN;
    refused(TCUDA_STATUS_COMPILE_ERROR, source, "put<int>", &options, "do not link");
}

static void wrong_arguments_are_refused(void)
{
    tcuda_kernel_image image = text(triple, NULL);
    tcuda_kernel_options options = with(&image, 1);
    const tcuda_status wrong = TCUDA_STATUS_INVALID_ARGUMENT;
    for (int32_t kind = -1; kind <= 7; kind += kind == 0 ? 7 : 1) {
        image.kind = kind;
        refused(wrong, source, "put<int>", &options, "images[i].kind is");
    }
    image = text(triple, NULL);
    image.bytes = 0;
    refused(wrong, source, "put<int>", &options, "images[i].bytes");
    image.bytes = 8;
    image.data = NULL;
    refused(wrong, source, "put<int>", &options, "images[i].data");
    image = text(triple, NULL);
    options.num_images = 257;
    refused(wrong, source, "put<int>", &options, "num_images is 257");
    options = with(NULL, 1);
    refused(wrong, source, "put<int>", &options, "images");
    options = with(NULL, 0);
    refused(wrong, NULL, "put<int>", &options, "source");
    options.lto = 2;
    refused(wrong, source, "put<int>", &options, "lto is 2");
}

static void captures_go_on(void)
{
    const tcuda_kernel_image images[] = { text(entry, "entry"), text(quadruple, "quadruple") };
    const tcuda_kernel_options options = with(images, 2);
    tcuda_graph *graph = NULL;
    tcuda_stream *stream = NULL;
    tcuda_kernel *kernel = NULL;
    int32_t value = 3, found = 0;
    void *const args[] = { &word, &value };
    CHECK_OK(tcuda_stream_create(0, 0, &stream));
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_OK(tcuda_kernel_compile(NULL, "put", &options, &kernel));
    CHECK_OK(tcuda_kernel_launch(kernel, NULL, args, 2, stream));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_replay(graph, stream));
    CHECK_OK(tcuda_copy(&found, word, sizeof found, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(found, 12);
    CHECK_OK(tcuda_kernel_destroy(kernel));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* ---- Link-time optimisation ---- */

/* A function of NVRTC, whose type the caller gives. */
static void find(void *library, const char *name, void *function)
{
    void *const address = dlsym(library, name);
    CHECK(address != NULL);
    memcpy(function, &address, sizeof address);
}

/* LTO IR of a text of CUDA C++, by NVRTC itself; NULL without it. */
static void *lto_ir_of(const char *code, size_t *bytes)
{
    int (*create)(void **program, const char *text, const char *name, int headers,
        const char *const *texts, const char *const *names);
    int (*compile)(void *program, int count, const char *const *options);
    int (*size)(void *program, size_t *bytes);
    int (*get)(void *program, char *ir);
    int (*destroy)(void **program);
    const char *const options[] = { "-dlto", "-arch=compute_75", "-default-device" };
    const char *const path = getenv("TCUDA_NVRTC_PATH");
    void *library = dlopen(path != NULL && *path != '\0' ? path : "libnvrtc.so.12", RTLD_NOW);
    void *program = NULL;
    if (library == NULL)
        return NULL;
    find(library, "nvrtcCreateProgram", &create);
    find(library, "nvrtcCompileProgram", &compile);
    find(library, "nvrtcGetLTOIRSize", &size);
    find(library, "nvrtcGetLTOIR", &get);
    find(library, "nvrtcDestroyProgram", &destroy);
    CHECK_EQ(create(&program, code, "helper", 0, NULL, NULL), 0);
    CHECK_EQ(compile(program, 3, options), 0);
    CHECK_EQ(size(program, bytes), 0);
    void *const ir = malloc(*bytes);
    CHECK(ir != NULL);
    CHECK_EQ(get(program, ir), 0);
    CHECK_EQ(destroy(&program), 0);
    return ir;
}

static void without_nvjitlink(void)
{
    const char *const known = getenv("TCUDA_NVJITLINK_PATH");
    char *const path = known == NULL ? NULL : strdup(known);
    tcuda_kernel_options options = TCUDA_INIT(tcuda_kernel_options);
    options.lto = 1;
    CHECK_EQ(setenv("TCUDA_NVJITLINK_PATH", "/nonexistent/libnvJitLink.so", 1), 0);
    refused(TCUDA_STATUS_NO_LIBRARY, "__global__ void put(int *to, int value) { *to = value; }",
        "put", &options, "TCUDA_NVJITLINK_PATH");
    CHECK_EQ(path == NULL ? unsetenv("TCUDA_NVJITLINK_PATH")
        : setenv("TCUDA_NVJITLINK_PATH", path, 1), 0);
    free(path);
}

static void link_time_optimisation(void)
{
    tcuda_kernel_options options = TCUDA_INIT(tcuda_kernel_options);
    tcuda_kernel *kernel = NULL;
    options.lto = 1;
    const tcuda_status status = tcuda_kernel_compile(
        "__global__ void put(int *to, int value) { *to = value + 1; }", "put", &options, &kernel);
    if (status == TCUDA_STATUS_NO_LIBRARY) {
        printf("left out: %s\n", tcuda_last_error());
        return;
    }
    CHECK_EQ(status, TCUDA_STATUS_OK);
    CHECK_EQ(run(kernel, 4), 5);
    CHECK_OK(tcuda_kernel_destroy(kernel));
    size_t bytes = 0, other_bytes = 0;
    void *const ir = lto_ir_of("extern \"C\" __device__ int triple(int x) { return 3 * x; }"
        "extern \"C\" __device__ int plus(int x, int y) { return triple(x) + y; }", &bytes);
    void *const kernel_ir = lto_ir_of("extern \"C\" __device__ int triple(int x);"
        "extern \"C\" __global__ void put(int *to, int x) { *to = triple(x) + 2; }", &other_bytes);
    if (ir == NULL || kernel_ir == NULL)
        return;
    tcuda_kernel_image images[] = {
        { .data = ir, .bytes = bytes, .name = "helper", .kind = TCUDA_IMAGE_LTOIR },
        { .data = kernel_ir, .bytes = other_bytes, .name = "kernel", .kind = TCUDA_IMAGE_LTOIR },
    };
    options = with(images, 1);
    for (options.lto = 0; options.lto < 2; options.lto++)
        CHECK_EQ(result_of(source, "put<int>", &options), 9 * 7 + 1);
    options = with(images, 2);
    CHECK_EQ(result_of(NULL, "put", &options), 3 * 7 + 2);
    images[0].bytes /= 2;
    refused(TCUDA_STATUS_COMPILE_ERROR, NULL, "put", &options, "do not link");
    free(ir);
    free(kernel_ir);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    setenv("TCUDA_KERNEL_CACHE", "0", 1);
    CHECK_OK(tcuda_malloc(sizeof *word, 0, NULL, (void **)&word));
    sources_are_linked_with_images();
    images_may_have_the_kernel();
    what_does_not_link_is_quoted();
    wrong_arguments_are_refused();
    captures_go_on();
    without_nvjitlink();
    link_time_optimisation();
    CHECK_OK(tcuda_free(word));
    return finish();
}
