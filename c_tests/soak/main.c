/* Runs the kinds and prints what each left behind.
 *
 *   soak [--rounds N] [--equal] [--seconds S] [--json FILE] [--details] [--list] [KIND...]
 *
 * N rounds of each kind (1000), less of those whose rounds take long unless --equal is given, for
 * at most S seconds each (600). What the process holds after half of them is compared with what it
 * holds at the end: by then what is cached for good is there. Of what grew the names are printed,
 * and the times of the steps of a round where they are known; with --details also where nothing
 * grew. */
#include <malloc.h>

#include "soak.h"

typedef struct result {
    int64_t rounds;
    holdings grown;
    double first_us, last_us;
    char left_out[120];
} result;

typedef struct options {
    int64_t rounds;
    double seconds;
    FILE *json;
    bool is_equal, has_details;
    int chosen;
    char **names;
} options;

/* Growth that says nothing: free lists that fill, pages of the heap that are not contiguous,
 * messages of another process that are on the way. */
static const holdings allowed = { 1024, 64 * KIB, 16, 8, 64 };

static int result_pipe = -1;
static void hand_over(const result *what)
{
    CHECK_EQ(write(result_pipe, what, sizeof *what), (ssize_t)sizeof *what);
}

_Noreturn void leave_out(const char *why)
{
    result none = { 0 };
    snprintf(none.left_out, sizeof none.left_out, "%s", why);
    hand_over(&none);
    exit(EXIT_SUCCESS);
}

/* What of a kind grew, or NULL. */
static const char *growth_of(const kind *of, const result *found)
{
    /* Threads that run late leave more that is destroyed later: in runs of 50,000 to 200,000 rounds
     * between 48 events less and 196 more, however long they are. */
    const char *const machine = getenv("TCUDA_SIM");
    const bool has_threads = machine != NULL && strstr(machine, "schedule=threads") != NULL;
    if (found->grown.objects > allowed.objects + (has_threads ? 512 : 0))
        return "driver objects";
    if (found->grown.descriptors > allowed.descriptors)
        return "descriptors";
    /* AddressSanitizer keeps freed memory for a time, and takes time and memory of its own. */
    if (UNDER_ADDRESS_SANITIZER)
        return NULL;
    /* A simulated stream with a thread: two mappings of a stack, which the C library may keep. */
    if (found->grown.maps > allowed.maps + (has_threads ? 128 : 0))
        return "maps";
    /* What is destroyed goes some hundred at a time, which many rounds meet at its most and at its
     * least. */
    const int64_t more_kib = of->heap_kib + (has_threads ? 1024 : found->rounds < 10000 ? 0 : 448);
    if (found->grown.heap_bytes > allowed.heap_bytes + more_kib * KIB)
        return "heap";
    if (found->grown.resident_kib > allowed.resident_kib + more_kib)
        return "resident memory";
    /* Half as much again, and more than what caches and other processes make of it; where a part is
     * a few rounds, or threads are made or woken, these may make three times as much. */
    const bool varies = found->rounds <= 10000 || has_threads;
    if (found->last_us > (varies ? 3 : 1.5) * found->first_us + (varies ? 20 : 5))
        return "time";
    return NULL;
}

/* Runs a kind in this process. In parts of a hundredth, of which the quickest of the first and of
 * the last tenth are compared, by the processor's time: a machine that does other work besides
 * makes some slow. */
static void run(const kind *of, const options *wanted)
{
    result found = { .rounds = 0, .first_us = 1e30, .last_us = 1e30 };
    bool available = false;
    mallopt(M_ARENA_MAX, 2);
    if (of->begin != NULL)
        of->begin();
    CHECK_OK(tcuda_is_available(&available));
    if (!available)
        leave_out("there is no GPU");
    int64_t rounds = wanted->rounds / (of->share > 0 && !wanted->is_equal ? of->share : 1);
    rounds = rounds > 100 ? rounds : 100;
    const double end = time_of(CLOCK_MONOTONIC) + wanted->seconds;
    double recent[10] = { 0 };
    holdings early = { 0 };
    int64_t parts = 0;
    for (; parts < 100 && time_of(CLOCK_MONOTONIC) < end; parts++) {
        const int64_t to = rounds * (parts + 1) / 100, from = found.rounds;
        begin_part(parts);
        const double begin = time_of(CLOCK_PROCESS_CPUTIME_ID);
        for (; found.rounds < to; found.rounds++)
            of->round(found.rounds);
        const double each = (time_of(CLOCK_PROCESS_CPUTIME_ID) - begin) * 1e6 / (double)(to - from);
        recent[parts % 10] = each;
        if (parts < 10 && each < found.first_us)
            found.first_us = each;
        if (parts == 49)
            early = look(false);
    }
    if (parts < 60) {
        fprintf(stderr, "%s: %lld rounds in %.0f s are not enough\n", of->name,
            (long long)found.rounds, wanted->seconds);
        exit(EXIT_FAILURE);
    }
    for (int part = 0; part < 10; part++)
        if (recent[part] < found.last_us)
            found.last_us = recent[part];
    const holdings late = look(true);
    found.grown = (holdings){ late.resident_kib - early.resident_kib,
        late.heap_bytes - early.heap_bytes, late.maps - early.maps,
        late.descriptors - early.descriptors, late.objects - early.objects };
    if (growth_of(of, &found) != NULL || wanted->has_details) {
        print_growth(of->name);
        print_steps(of->name);
    }
    if (of->end != NULL)
        of->end();
    CHECK_EQ(finish(), EXIT_SUCCESS);
    hand_over(&found);
}

static bool is_chosen(const options *wanted, const kind *of)
{
    for (int index = 0; index < wanted->chosen; index++)
        if (strcmp(wanted->names[index], of->name) == 0)
            return true;
    return wanted->chosen == 0 && !of->is_comparison;
}

/* Runs a kind in a process of its own; gives whether it passed. */
static bool run_kind(const kind *of, const options *wanted, bool is_first)
{
    int ends[2];
    result found = { 0 };
    CHECK_EQ(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(ends[0]);
        result_pipe = ends[1];
        run(of, wanted);
        exit(EXIT_SUCCESS);
    }
    close(ends[1]);
    const bool is_whole = read(ends[0], &found, sizeof found) == (ssize_t)sizeof found;
    close(ends[0]);
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    const bool worked = is_whole && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
    const char *const grown = worked && found.left_out[0] == '\0' ? growth_of(of, &found) : NULL;
    const bool passed = worked && grown == NULL;
    char outcome[200] = "ok";
    if (!worked)
        snprintf(outcome, sizeof outcome, "FAILED, status %#x", (unsigned)status);
    else if (found.left_out[0] != '\0')
        snprintf(outcome, sizeof outcome, "left out: %s", found.left_out);
    else if (grown != NULL)
        snprintf(outcome, sizeof outcome, "GREW: %s", grown);
    printf("%-24s %9lld %9lld %10lld %6lld %6lld %8lld %9.2f %9.2f  %s\n", of->name,
        (long long)found.rounds, (long long)found.grown.resident_kib,
        (long long)found.grown.heap_bytes, (long long)found.grown.maps,
        (long long)found.grown.descriptors, (long long)found.grown.objects, found.first_us,
        found.last_us, outcome);
    fflush(stdout);
    if (wanted->json != NULL)
        fprintf(wanted->json, "%s  {\"kind\": \"%s\", \"rounds\": %lld, \"resident_kib\": %lld, "
            "\"heap_bytes\": %lld, \"maps\": %lld, \"descriptors\": %lld, "
            "\"driver_objects\": %lld, \"cpu_us_first\": %.3f, \"cpu_us_last\": %.3f, "
            "\"outcome\": \"%s\"}", is_first ? "" : ",\n",
            of->name, (long long)found.rounds, (long long)found.grown.resident_kib,
            (long long)found.grown.heap_bytes, (long long)found.grown.maps,
            (long long)found.grown.descriptors, (long long)found.grown.objects, found.first_us,
            found.last_us, outcome);
    return passed;
}

int main(int argc, char **argv)
{
    options wanted = { .rounds = 1000, .seconds = 600, .names = argv };
    bool lists = false;
    for (int index = 1; index < argc; index++) {
        const char *const next = index + 1 < argc ? argv[index + 1] : NULL;
        if (strcmp(argv[index], "--rounds") == 0 && next != NULL)
            wanted.rounds = atoll(argv[++index]);
        else if (strcmp(argv[index], "--seconds") == 0 && next != NULL)
            wanted.seconds = atof(argv[++index]);
        else if (strcmp(argv[index], "--json") == 0 && next != NULL)
            CHECK((wanted.json = fopen(argv[++index], "w")) != NULL);
        else if (strcmp(argv[index], "--equal") == 0)
            wanted.is_equal = true;
        else if (strcmp(argv[index], "--details") == 0)
            wanted.has_details = true;
        else if (strcmp(argv[index], "--list") == 0)
            lists = true;
        else
            wanted.names[wanted.chosen++] = argv[index];
    }
    const kind *const lists_of_kinds[] = { work_kinds, memory_kinds, object_kinds, process_kinds,
        driver_kinds };
    int ran = 0, failed = 0;
    if (!lists)
        printf("%-24s %9s %9s %10s %6s %6s %8s %9s %9s\n"
            "%-24s %9s %9s %10s %6s %6s %8s %9s %9s\n", "kind",
            "rounds", "resident", "heap", "maps", "files", "driver's", "CPU us,", "CPU us,", "", "",
            "KiB", "bytes", "", "", "objects", "first", "last");
    if (wanted.json != NULL)
        fprintf(wanted.json, "[\n");
    for (size_t list = 0; list < sizeof lists_of_kinds / sizeof *lists_of_kinds; list++) {
        for (const kind *of = lists_of_kinds[list]; of->name != NULL; of++) {
            if (!is_chosen(&wanted, of))
                continue;
            if (lists)
                printf("%s\n", of->name);
            else if (!run_kind(of, &wanted, ran == 0))
                failed++;
            ran++;
        }
    }
    if (wanted.json != NULL) {
        fprintf(wanted.json, "\n]\n");
        fclose(wanted.json);
    }
    if (!lists)
        printf("figure: kinds that come and go = %d\n", ran);
    CHECK(ran > 0);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
