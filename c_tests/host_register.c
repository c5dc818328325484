/* Memory of the host that is page-locked where it is. */
#include "support.h"

enum { PAGE = 4096, PAGES = 16 };

static unsigned char *pages;

static void copies_use_it(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGES * PAGE, TCUDA_CURRENT_DEVICE, stream);
    CHECK_OK(tcuda_host_register(pages, PAGES * PAGE, TCUDA_HOST_REGISTER_PORTABLE));
    memset(pages, 7, PAGES * PAGE);
    CHECK_OK(tcuda_copy(bytes, pages, PAGES * PAGE, stream));
    CHECK_EQ(count_other_bytes(bytes, 7, PAGES * PAGE, stream), 0);
    fill_bytes(bytes, 9, PAGES * PAGE, stream);
    CHECK_OK(tcuda_copy(pages, bytes, PAGES * PAGE, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (int i = 0; i < PAGES * PAGE; i++)
        CHECK(pages[i] == 9);
    CHECK_OK(tcuda_host_unregister(pages));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Nothing is page-locked twice, and what is refused leaves the rest as it was. */
static void ranges_do_not_overlap(void)
{
    void *block = NULL;
    CHECK_OK(tcuda_host_register(pages + 4 * PAGE, 4 * PAGE, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_register(pages + 4 * PAGE, 4 * PAGE, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_register(pages, PAGES * PAGE, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_register(pages + 6 * PAGE, 4 * PAGE, 0));
    CHECK_OK(tcuda_host_register(pages, 4 * PAGE, 0));
    CHECK_OK(tcuda_host_register(pages + 8 * PAGE, PAGE, TCUDA_HOST_REGISTER_MAPPED));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_unregister(pages + PAGE));
    CHECK_OK(tcuda_host_unregister(pages + 4 * PAGE));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_unregister(pages + 4 * PAGE));
    CHECK_OK(tcuda_host_unregister(pages));
    CHECK_OK(tcuda_host_unregister(pages + 8 * PAGE));

    CHECK_OK(tcuda_host_malloc(PAGE, &block));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_register(block, PAGE, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_unregister(block));
    CHECK_OK(tcuda_host_free(block));
}

static void bad_arguments(void)
{
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_host_register(NULL, PAGE, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_host_register(pages, 0, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_host_register(pages, SIZE_MAX, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_host_register(pages, PAGE, 16));
    CHECK_OK(tcuda_host_unregister(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_unregister(pages));
}

/* A capture is not disturbed. */
static void captures_go_on(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_OK(tcuda_host_register(pages, PAGE, 0));
    fill_bytes(bytes, 1, PAGE, stream);
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_host_unregister(pages));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void the_end_unregisters(void)
{
    CHECK_OK(tcuda_host_register(pages, PAGE, 0));
    CHECK_OK(tcuda_shutdown(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_unregister(pages));
    CHECK_OK(tcuda_host_register(pages, PAGE, 0));
    CHECK_OK(tcuda_host_unregister(pages));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    pages = aligned_alloc(PAGE, PAGES * PAGE);
    CHECK(pages != NULL);
    bad_arguments();
    copies_use_it();
    ranges_do_not_overlap();
    captures_go_on();
    the_end_unregisters();
    free(pages);
    return finish();
}
