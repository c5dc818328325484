/* Kernels whose headers are edited: what is compiled is what the files say now, in this process and
 * in those that find kernels on disk. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

static char directory[64], option[80], cache[80];

static const char source[] = "#include <outer.h>\n"
    "extern \"C\" __global__ void put(int *to) { *to = VALUE; }\n";

static void write_header(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void set_value(int value)
{
    char text[64];
    snprintf(text, sizeof text, "#define VALUE %d\n", value);
    write_header("deep/inner.h", text);
}

static int run(const char *code)
{
    const char *const flags[] = { option };
    const tcuda_kernel_options options = { .struct_size = sizeof options, .flags = flags,
        .num_flags = 1 };
    tcuda_kernel *kernel = NULL;
    int *block = allocate(sizeof(int), 0, NULL), value = 0;
    void *arguments[] = { &block };
    CHECK_OK(tcuda_kernel_compile(code, "put", &options, &kernel));
    CHECK_OK(tcuda_kernel_launch(kernel, NULL, arguments, 1, NULL));
    CHECK_OK(tcuda_copy(&value, block, sizeof value, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_OK(tcuda_kernel_destroy(kernel));
    CHECK_OK(tcuda_free(block));
    return value;
}

static int files_on_disk(void)
{
    DIR *list = opendir(cache);
    int count = 0;
    if (list == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
        count += strstr(entry->d_name, ".kernel") != NULL;
    closedir(list);
    return count;
}

static void in_one_process(void)
{
    set_value(1);
    CHECK_EQ(run(source), 1);
    CHECK_EQ(run(source), 1);
    CHECK_EQ(files_on_disk(), 1);
    /* Of the same length and, often, of the same time. */
    for (int value = 2; value < 5; value++) {
        set_value(value);
        CHECK_EQ(run(source), value);
    }
    CHECK_EQ(files_on_disk(), 4);
    /* What it was before is found again. */
    set_value(2);
    CHECK_EQ(run(source), 2);
    CHECK_EQ(files_on_disk(), 4);
}

static void in_another_process(void)
{
    CHECK_EQ(run(source), 2);
    set_value(3);
    CHECK_EQ(run(source), 3);
    CHECK_EQ(files_on_disk(), 4);
    set_value(6);
    CHECK_EQ(run(source), 6);
    CHECK_EQ(files_on_disk(), 5);
}

/* A name that only the compiler understands: compiled each time, and not kept. */
static void without_a_key(void)
{
    static const char computed[] = "#define NAMED(x) <x.h>\n#include NAMED(outer)\n"
        "extern \"C\" __global__ void put(int *to) { *to = VALUE; }\n";
    for (int value = 7; value < 10; value++) {
        set_value(value);
        CHECK_EQ(run(computed), value);
        CHECK_EQ(run(computed), value);
    }
    CHECK_EQ(files_on_disk(), 5);
}

static void remove_all(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", directory);
    CHECK_EQ(system(command), 0);
}

static void set_names(const char *where)
{
    snprintf(directory, sizeof directory, "%s", where);
    snprintf(option, sizeof option, "-I%s", directory);
    snprintf(cache, sizeof cache, "%s/cache", directory);
    CHECK_EQ(setenv("TCUDA_KERNEL_CACHE_PATH", cache, 1), 0);
}

/* This program once more, since a fork of a process that has used CUDA cannot use it. */
static void run_another_process(void)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "kernel_headers", directory, (char *)NULL);
        _exit(EXIT_FAILURE);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(child_status(status), EXIT_SUCCESS);
}

int main(int count, char **arguments)
{
    char path[128];
    if (count > 1) {
        set_names(arguments[1]);
        in_another_process();
        return finish();
    }
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    snprintf(path, sizeof path, "/tmp/tcuda-headers-XXXXXX");
    CHECK(mkdtemp(path) != NULL);
    set_names(path);
    snprintf(path, sizeof path, "%s/deep", directory);
    CHECK_EQ(mkdir(path, 0700), 0);
    write_header("outer.h", "#pragma once\n#include \"deep/inner.h\"\n");
    in_one_process();
    run_another_process();
    without_a_key();
    remove_all();
    return finish();
}
