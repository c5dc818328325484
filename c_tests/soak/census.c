/* What the process holds, by name: mappings, descriptors, objects of the driver, and the time of
 * the steps of a round. */
#include <ctype.h>
#include <dirent.h>
#include <malloc.h>

#include "soak.h"

enum { NAMES = 512, NAME = 96, STEPS = 8 };

/* Things of one name. */
typedef struct row {
    char name[NAME];
    int64_t count, kib, resident_kib;
} row;

/* What there is at one time. */
typedef struct census {
    int names;
    row rows[NAMES];
} census;

/* Early and late. */
static census looks[2];

static const char *const made_and_ended[][4] = {
    { "cuStreamCreateWithPriority", NULL, NULL, "cuStreamDestroy" },
    { "cuEventCreate", "cuIpcOpenEventHandle", NULL, "cuEventDestroy" },
    { "cuMemCreate", "cuMemImportFromShareableHandle", NULL, "cuMemRelease" },
    { "cuMemAddressReserve", NULL, NULL, "cuMemAddressFree" },
    { "cuMemAlloc", NULL, NULL, "cuMemFree" },
    { "cuMemHostAlloc", NULL, NULL, "cuMemFreeHost" },
    { "cuMemHostRegister", NULL, NULL, "cuMemHostUnregister" },
    { "cuMemPoolCreate", NULL, NULL, "cuMemPoolDestroy" },
    { "cuStreamEndCapture", NULL, NULL, "cuGraphDestroy" },
    { "cuGraphInstantiateWithFlags", NULL, NULL, "cuGraphExecDestroy" },
    { "cuModuleLoadData", NULL, NULL, "cuModuleUnload" },
};

/* The row of a name; the last one stands for all names that find no room. */
static row *row_of(census *in, const char *name)
{
    for (int index = 0; index < in->names; index++)
        if (strncmp(in->rows[index].name, name, NAME - 1) == 0)
            return &in->rows[index];
    if (in->names == NAMES)
        return &in->rows[NAMES - 1];
    row *const added = &in->rows[in->names++];
    memcpy(added->name, name, strnlen(name, NAME - 1));
    return added;
}

/* Numbers of processes, inodes and the like become '#', so that those of one kind have one name. */
static void generalize(char *name)
{
    char *to = name;
    for (const char *from = name; *from != '\0';) {
        const size_t length = strcspn(from, "/.-_:[]() ");
        bool is_number = length >= 3;
        for (size_t index = 0; index < length; index++)
            is_number = is_number && isxdigit((unsigned char)from[index]);
        if (is_number)
            *to++ = '#';
        else
            to = (char *)memmove(to, from, length) + length;
        from += length;
        if (*from != '\0')
            *to++ = *from++;
    }
    *to = '\0';
}

/* Reads the mappings; gives their number. */
static int64_t read_maps(census *into)
{
    FILE *const file = fopen("/proc/self/smaps", "r");
    CHECK(file != NULL);
    char line[512], name[sizeof line + 40];
    row *last = NULL;
    int64_t maps = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long begin = 0, end = 0;
        long kib = 0;
        char access[8] = "";
        int rest = 0;
        if (sscanf(line, "Rss: %ld kB", &kib) == 1 && last != NULL)
            last->resident_kib += kib;
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %n", &begin, &end, access, &rest) < 3)
            continue;
        line[strcspn(line, "\n")] = '\0';
        char *const path = line + (rest > 0 ? rest : (int)strlen(line));
        generalize(path);
        kib = (long)((end - begin) / KIB);
        if (*path == '\0')
            snprintf(name, sizeof name, "%s of %ld KiB without a name", access, kib);
        else
            snprintf(name, sizeof name, "%s %s", access, path);
        last = row_of(into, name);
        last->count++;
        last->kib += kib;
        maps++;
    }
    fclose(file);
    return maps;
}

/* Reads the descriptors; gives their number. */
static int64_t read_descriptors(census *into)
{
    DIR *const folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    int64_t count = 0;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char target[400] = "", name[sizeof target + 20];
        if (entry->d_name[0] == '.'
            || readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) < 0)
            continue;
        generalize(target);
        snprintf(name, sizeof name, "descriptor of %s", target);
        row_of(into, name)->count++;
        count++;
    }
    closedir(folder);
    return count;
}

/* Objects of the driver that the library made and has not ended, by its calls. */
static int64_t read_objects(census *into)
{
    int64_t all = 0;
    for (size_t kind = 0; kind < sizeof made_and_ended / sizeof *made_and_ended; kind++) {
        int64_t count = 0;
        for (int made = 0; made < 3 && made_and_ended[kind][made] != NULL; made++)
            count += (int64_t)calls_of(made_and_ended[kind][made]);
        count -= (int64_t)calls_of(made_and_ended[kind][3]);
        char name[NAME];
        snprintf(name, sizeof name, "objects of %s", made_and_ended[kind][0]);
        row_of(into, name)->count = count;
        all += count;
    }
    return all;
}

holdings look(bool is_late)
{
    census *const into = &looks[is_late];
    if (!is_late)
        memset(looks, 0, sizeof looks); /* both take their memory now */
    long total = 0, resident = 0;
    holdings found = { 0 };
    found.maps = read_maps(into);
    found.descriptors = read_descriptors(into);
    found.objects = read_objects(into);
    malloc_trim(0);
    FILE *const file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%ld %ld", &total, &resident), 2);
    fclose(file);
    found.resident_kib = (int64_t)resident * sysconf(_SC_PAGESIZE) / KIB;
#if defined __GLIBC_PREREQ && !defined __SANITIZE_ADDRESS__
#if __GLIBC_PREREQ(2, 33)
    found.heap_bytes = (int64_t)mallinfo2().uordblks;
#endif
#endif
    return found;
}

void print_growth(const char *kind)
{
    for (int index = 0; index < looks[1].names; index++) {
        const row *const late = &looks[1].rows[index];
        const row *const early = row_of(&looks[0], late->name);
        const int64_t count = late->count - early->count, kib = late->kib - early->kib,
            resident_kib = late->resident_kib - early->resident_kib;
        if (count > 0 || kib > 0 || resident_kib > 0)
            fprintf(stderr, "%s: %+lld, %+lld KiB, %+lld KiB resident: %s (%lld)\n", kind,
                (long long)count, (long long)kib, (long long)resident_kib, late->name,
                (long long)late->count);
    }
}

/* The time of a step in a part of the rounds, by the clock and of the processor. */
typedef struct times {
    double wall, processor;
    int64_t count;
} times;

static struct {
    const char *name;
    times early, late[10];
} steps[STEPS];

static double step_wall, step_processor;
static int64_t part;

double time_of(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

void begin_part(int64_t number)
{
    part = number;
    for (int index = 0; index < STEPS; index++)
        steps[index].late[number % 10] = (times){ 0 };
}

void begin_steps(void)
{
    step_wall = time_of(CLOCK_MONOTONIC);
    step_processor = time_of(CLOCK_PROCESS_CPUTIME_ID);
}

void end_step(const char *name)
{
    const double wall = time_of(CLOCK_MONOTONIC), processor = time_of(CLOCK_PROCESS_CPUTIME_ID);
    int index = 0;
    while (index < STEPS - 1 && steps[index].name != NULL && strcmp(steps[index].name, name) != 0)
        index++;
    steps[index].name = name;
    times *const to[] = { &steps[index].late[part % 10], &steps[index].early };
    for (int place = 0; place < (part < 10 ? 2 : 1); place++) {
        to[place]->wall += wall - step_wall;
        to[place]->processor += processor - step_processor;
        to[place]->count++;
    }
    begin_steps();
}

void print_steps(const char *kind)
{
    for (int index = 0; index < STEPS && steps[index].name != NULL; index++) {
        const times *const early = &steps[index].early;
        times late = { 0 };
        for (int place = 0; place < 10; place++) {
            late.wall += steps[index].late[place].wall;
            late.processor += steps[index].late[place].processor;
            late.count += steps[index].late[place].count;
        }
        const double first = 1e6 / (double)(early->count > 0 ? early->count : 1);
        const double last = 1e6 / (double)(late.count > 0 ? late.count : 1);
        fprintf(stderr, "%s: %s: CPU %.1f us at first, %.1f at last; by the clock %.1f, %.1f\n",
            kind, steps[index].name, early->processor * first, late.processor * last,
            early->wall * first, late.wall * last);
    }
}
