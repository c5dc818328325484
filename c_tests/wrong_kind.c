/* Pointers of one kind of memory that are given to the functions of another: each refuses, names
 * the functions that take them, and leaves the block alone. And what is no memory of tcuda's. */
#include "support.h"

static const char by_device[] = "is device memory of tcuda_malloc; tcuda_free and";
static const char by_pinned[] = "is pinned memory of tcuda_host_malloc; tcuda_host_free and";

static void says(tcuda_status status, const char *sentence)
{
    CHECK_EQ(status, TCUDA_STATUS_INVALID_POINTER);
    if (strstr(tcuda_last_error(), sentence) == NULL)
        check_failed(__FILE__, __LINE__, sentence, tcuda_last_error());
}

/* All functions that take a block, by what each says of a pointer. */
static void refuse_everywhere(void *ptr, const char *of_device, const char *of_pinned,
    const char *of_imported)
{
    tcuda_ipc_handle handle;
    if (of_device != NULL) {
        says(tcuda_free(ptr), of_device);
        says(tcuda_record_stream(ptr, NULL), of_device);
        says(tcuda_ipc_export(ptr, NULL, &handle), of_device);
    }
    if (of_pinned != NULL) {
        says(tcuda_host_free(ptr), of_pinned);
        says(tcuda_host_record(ptr, NULL), of_pinned);
    }
    says(tcuda_ipc_close(ptr, NULL), of_imported);
}

static void before_initialisation(void *foreign)
{
    says(tcuda_free(foreign), "was not allocated by tcuda, or tcuda was shut down since");
    says(tcuda_host_free(foreign), "is not pinned memory of tcuda_host_malloc");
}

static void every_kind_names_its_functions(void)
{
    void *pinned = NULL, *const block = allocate(4096, 0, NULL);
    int foreign = 0;
    CHECK_OK(tcuda_host_malloc(4096, &pinned));
    refuse_everywhere(pinned, by_pinned, NULL, by_pinned);
    refuse_everywhere((char *)pinned + 64, by_pinned, NULL, by_pinned);
    refuse_everywhere(block, NULL, by_device, by_device);
    refuse_everywhere((char *)block + 512, NULL, by_device, by_device);
    refuse_everywhere(&foreign, "was not allocated by tcuda", "pinned memory of tcuda_host_malloc",
        "was not imported, or was closed already");
    says(tcuda_free((char *)block + 512), "is not the start of a block that tcuda allocated");
    says(tcuda_host_free((char *)pinned + 64), "is not pinned memory of tcuda_host_malloc");
    /* All of it is as it was. */
    fill_bytes(block, 7, 4096, NULL);
    CHECK_EQ(count_other_bytes(block, 7, 4096, NULL), 0);
    CHECK_OK(tcuda_record_stream(block, NULL));
    CHECK_OK(tcuda_host_record(pinned, NULL));
    CHECK_OK(tcuda_host_free(pinned));
    CHECK_OK(tcuda_free(block));
    says(tcuda_free(block), "was freed already");
    says(tcuda_host_free(pinned), "was freed already");
}

/* With nothing allocated no block is in use beside which anything could lie. */
static void what_a_capture_holds_is_named(void)
{
    size_t free_bytes = 0, total = 0;
    tcuda_stream *const own = create_stream(0), *const captured = create_stream(0);
    tcuda_graph *graph = NULL;
    void *none = NULL, *const block = allocate(5 << 20, 0, own);
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total));
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, captured, NULL, TCUDA_CAPTURE_RELAXED));
    CHECK_OK(tcuda_record_stream(block, captured));
    CHECK_OK(tcuda_free(block));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(total, 0, own, &none));
    const char *const text = tcuda_last_error();
    CHECK(strstr(text, "0 bytes is allocated by tcuda") != NULL);
    CHECK(strstr(text, "5.00 MiB of it was freed, and streams still use it.") != NULL);
    CHECK(strstr(text, "A capture is under way") != NULL && strstr(text, "lies beside") == NULL);
    CHECK_OK(tcuda_graph_capture_abort(graph));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(total + 1, 0, own, &none));
    CHECK(strstr(tcuda_last_error(), "capture") == NULL);
    CHECK(strstr(tcuda_last_error(), "and 0 bytes is reserved by tcuda but unalloc") != NULL);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(captured));
}

int main(void)
{
    int foreign = 0;
    before_initialisation(&foreign);
    SKIP_WITHOUT_GPU();
    every_kind_names_its_functions();
    what_a_capture_holds_is_named();
    return finish();
}
