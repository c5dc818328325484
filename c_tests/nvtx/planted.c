/* Writes with a kernel of the library's, as argv[1] says: inside a block, beside it in its segment,
 * past the bytes that were asked for, or after it was freed. To be run under compute-sanitizer. */
#include <stdlib.h>

#include "../support.h"

/* Values of three bytes are no memset: a kernel writes them. */
static void write_with_a_kernel(char *to, size_t bytes, tcuda_stream *stream)
{
    static const char value[3] = { 1, 2, 3 };
    CHECK_OK(tcuda_fill(to, value, sizeof value, bytes / sizeof value, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
}

int main(int argc, char **argv)
{
    SKIP_WITHOUT_GPU();
    CHECK_EQ(argc, 2);
    tcuda_stream *stream = create_stream(0);
    char *first = allocate(3000, 0, stream);
    char *block = allocate(3000, 0, stream);
    char *freed = allocate(3000, 0, stream);
    CHECK_OK(tcuda_free(freed));
    /* All are in one segment, of which the last part is unused. */
    CHECK(block == first + 3072 && freed == block + 3072);
    write_with_a_kernel(block, 3000, stream);
    if (strcmp(argv[1], "beside") == 0)
        write_with_a_kernel(freed + 100000, 30, stream);
    else if (strcmp(argv[1], "past") == 0)
        write_with_a_kernel(block, 3030, stream);
    else if (strcmp(argv[1], "freed") == 0)
        write_with_a_kernel(freed, 30, stream);
    else
        CHECK_STR(argv[1], "inside");
    CHECK_OK(tcuda_free(first));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
    return finish();
}
