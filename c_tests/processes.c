/* Which processes have memory of a GPU: torch's text and the list. */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <unistd.h>

#include "support.h"

static const size_t mib = 1 << 20;

static const char *text_of(int32_t device)
{
    static char text[1 << 16];
    size_t needed = 0;
    CHECK_OK(tcuda_memory_processes(device, text, sizeof text, &needed));
    CHECK_EQ(needed, strlen(text));
    return text;
}

static size_t list_of(int32_t device, tcuda_process *processes, size_t capacity)
{
    size_t count = 77;
    CHECK_OK(tcuda_memory_process_list(device, processes, capacity, &count));
    return count;
}

/* The simulated machine: this process, with what it took of the device. */
static void the_simulated_machine_knows_this_process(void)
{
    char expected[256];
    tcuda_process process = { 0, 0 };
    for (int32_t device = 0; device < num_devices(); device++) {
        const size_t bytes = (size_t)(device + 1) * 8 * mib;
        void *block = allocate(bytes, device, NULL);
        snprintf(expected, sizeof expected, "GPU:%d\nprocess %10ld uses %12.3f MB GPU memory",
            device, (long)getpid(), (double)bytes / (double)mib);
        CHECK_STR(text_of(device), expected);
        CHECK_EQ(list_of(device, &process, 1), 1);
        CHECK_EQ(process.pid, (uint64_t)getpid());
        CHECK_EQ(process.used_bytes, bytes);
        CHECK_OK(tcuda_free(block));
    }
}

/* A GPU: whatever runs there, text and list agree. Another process may begin or end in between. */
static void text_and_list_agree(void)
{
    static tcuda_process processes[256];
    void *block = allocate(64 * mib, 0, NULL);
    for (int attempt = 0;; attempt++) {
        const size_t count = list_of(0, processes, 256);
        CHECK(count <= 256);
        const char *line = text_of(0);
        CHECK(strncmp(line, "GPU:", 4) == 0);
        size_t lines = 0, named = 0;
        while ((line = strchr(line, '\n')) != NULL) {
            uint64_t pid = 0;
            line++;
            lines++;
            if (sscanf(line, "process %" SCNu64 " uses", &pid) == 1 && lines <= count)
                named += pid == processes[lines - 1].pid;
        }
        if (count == 0 ? lines == 1 : lines == count && named == count)
            break;
        CHECK(attempt < 10);
    }
    CHECK_OK(tcuda_free(block));
}

static void bad_arguments_are_refused(void)
{
    tcuda_process process = { 77, 77 };
    size_t count = 77;
    char text[4] = "abc";
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_process_list(0, NULL, 1, &count));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_process_list(0, &process, 1, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_memory_process_list(num_devices(), &process, 1, &count));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_processes(0, NULL, 4, &count));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_memory_processes(-7, text, 4, &count));
    CHECK(count == 77 && process.pid == 77 && process.used_bytes == 77);
    CHECK_STR(text, "abc");
    CHECK_OK(tcuda_memory_processes(0, text, 4, NULL));
    CHECK_STR(text, "GPU");
}

int main(void)
{
    size_t count = 0;
    SKIP_WITHOUT_GPU();
    bad_arguments_are_refused();
    if (on_simulator())
        the_simulated_machine_knows_this_process();
    (void)list_of(0, NULL, 0);
    text_and_list_agree();
    CHECK_OK(tcuda_memory_process_list(0, NULL, 0, &count));
    return finish();
}
