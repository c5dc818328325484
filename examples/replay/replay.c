/* replay: plays recorded allocator traces of real programs on tcuda.
 *
 * Every allocation and free of a trace happens on the stream that the trace names: first timed,
 * then once more with the contents of all blocks checked. On a GPU if there is one; else on the
 * simulated machine, and the output says so. */

#define _GNU_SOURCE /* getopt_long */

#include "replay.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, MAX_REPEAT = 1000000 };

static const char HELP[] =
    "usage: replay [options] TRACE...\n"
    "\n"
    "Plays recorded allocator traces on tcuda: times malloc and free, then checks that\n"
    "every block keeps its contents and that no two live blocks overlap.\n"
    "\n"
    "  TRACE             a trace as text; '-' is the standard input\n"
    "  --backend NAME    cuda or sim (default: a GPU if there is one, else sim)\n"
    "  --device N        ordinal of the device (default: 0)\n"
    "  --repeat N        timed passes after the first (default: 5)\n"
    "  --json FILE       also write all figures to FILE\n"
    "  --no-verify       leave out the verifying pass\n"
    "  --help            print this and exit\n"
    "\n"
    "A trace has header lines, '# key value', and then one event a line:\n"
    "  a ID SIZE STREAM  allocate SIZE bytes on stream STREAM (0: the default one)\n"
    "  f ID              free ID\n"
    "\n"
    "TCUDA_BACKEND and TCUDA_SIM choose and describe the backend, as in every program\n"
    "that uses tcuda. Exit status: 0 all well, 1 a failure, 2 a wrong command line.\n";

typedef struct options {
    const char *backend; /* NULL: not given */
    const char *json_path;
    char *const *traces;
    int num_traces;
    int32_t device;
    uint32_t repeat;
    bool verify, help;
} options;

/* ---- Command line ---- */

static bool parse_number(const char *text, long low, long high, long *number)
{
    char *end;
    errno = 0;
    *number = strtol(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *number >= low && *number <= high;
}

static bool bad_value(const char *option, const char *value, const char *expected)
{
    replay_complain("%s: '%s' is not %s", option, value, expected);
    return false;
}

static bool parse_options(int argc, char **argv, options *o)
{
    enum { BACKEND = 1, DEVICE, REPEAT, JSON, NO_VERIFY, HELP_OPTION };
    static const struct option known[] = {
        {"backend", required_argument, NULL, BACKEND}, {"device", required_argument, NULL, DEVICE},
        {"repeat", required_argument, NULL, REPEAT},   {"json", required_argument, NULL, JSON},
        {"no-verify", no_argument, NULL, NO_VERIFY},   {"help", no_argument, NULL, HELP_OPTION},
        {NULL, 0, NULL, 0},
    };
    *o = (options){.repeat = 5, .verify = true};
    int option;
    long number;
    while ((option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        switch (option) {
        case BACKEND:
            if (strcmp(optarg, "cuda") != 0 && strcmp(optarg, "sim") != 0)
                return bad_value("--backend", optarg, "cuda or sim");
            o->backend = optarg;
            break;
        case DEVICE:
            if (!parse_number(optarg, 0, 1023, &number))
                return bad_value("--device", optarg, "a device number");
            o->device = (int32_t)number;
            break;
        case REPEAT:
            if (!parse_number(optarg, 1, MAX_REPEAT, &number))
                return bad_value("--repeat", optarg, "a number from 1 to 1000000");
            o->repeat = (uint32_t)number;
            break;
        case JSON:
            o->json_path = optarg;
            break;
        case NO_VERIFY:
            o->verify = false;
            break;
        case 'h':
        case HELP_OPTION:
            o->help = true;
            return true;
        default: /* getopt_long has said what is wrong */
            return false;
        }
    }
    o->traces = argv + optind;
    o->num_traces = argc - optind;
    if (o->num_traces == 0) {
        replay_complain("no trace given");
        return false;
    }
    return true;
}

/* ---- Backend ---- */

/* The simulated machine: as TCUDA_SIM says, else as large as an H200. */
static bool select_sim(int32_t device)
{
    char plain[64];
    snprintf(plain, sizeof plain, "devices=%" PRId32 ",memory=141GiB", device + 1);
    const char *wanted = getenv("TCUDA_SIM");
    return replay_succeeded(
        tcuda_backend_select("sim", wanted != NULL && *wanted != '\0' ? wanted : plain),
        "tcuda_backend_select");
}

/* Why the GPU cannot be used, as a part of a sentence. */
static void describe_absence(char *reason, size_t size)
{
    const tcuda_status status = tcuda_init();
    if (status == TCUDA_STATUS_OK)
        snprintf(reason, size, "the driver shows no device");
    else
        snprintf(reason, size, "%s", tcuda_last_error());
}

/* Chooses a backend, initialises it, and says in words what runs. */
static bool start_machine(const options *o, replay_machine *machine)
{
    char why[320] = "";
    const char *asked = getenv("TCUDA_BACKEND");
    if (o->backend != NULL && strcmp(o->backend, "sim") == 0) {
        snprintf(why, sizeof why, "asked for by --backend");
        if (!select_sim(o->device))
            return false;
    } else if (o->backend != NULL) {
        if (!replay_succeeded(tcuda_backend_select(o->backend, NULL), "tcuda_backend_select"))
            return false;
    } else if (asked != NULL && *asked != '\0') {
        snprintf(why, sizeof why, "asked for by TCUDA_BACKEND");
    } else {
        bool available = false;
        if (!replay_succeeded(tcuda_is_available(&available), "tcuda_is_available"))
            return false;
        if (!available) {
            char reason[256];
            describe_absence(reason, sizeof reason);
            snprintf(why, sizeof why, "no GPU was found: %s", reason);
            if (!select_sim(o->device))
                return false;
        }
    }
    machine->device = o->device;
    if (!replay_succeeded(tcuda_init(), "tcuda_init")
        || !replay_succeeded(tcuda_device_name(o->device, machine->device_name,
               sizeof machine->device_name, NULL), "tcuda_device_name"))
        return false;
    machine->backend = tcuda_backend_name();
    if (strcmp(machine->backend, "sim") == 0) {
        snprintf(machine->sentence, sizeof machine->sentence,
            "simulated machine (%s), device %" PRId32 ": %s", why, o->device, machine->device_name);
    } else {
        snprintf(machine->sentence, sizeof machine->sentence, "GPU %" PRId32 ": %s", o->device,
            machine->device_name);
    }
    return true;
}

/* ---- One trace ---- */

/* Gives back the first `count` streams; the default one is borrowed. */
static bool destroy_streams(tcuda_stream **streams, uint32_t count)
{
    bool ok = true;
    for (uint32_t i = 1; i < count; i++)
        ok = replay_succeeded(tcuda_stream_destroy(streams[i]), "tcuda_stream_destroy") && ok;
    return ok;
}

static bool create_streams(int32_t device, tcuda_stream **streams, uint32_t count)
{
    if (!replay_succeeded(tcuda_stream_default(device, &streams[0]), "tcuda_stream_default"))
        return false;
    for (uint32_t i = 1; i < count; i++) {
        if (!replay_succeeded(tcuda_stream_create(device, 0, &streams[i]), "tcuda_stream_create")) {
            (void)destroy_streams(streams, i);
            return false;
        }
    }
    return true;
}

/* After a trace the library must count nothing as allocated. */
static bool check_all_freed(const replay_trace *trace, int32_t device)
{
    size_t bytes = 0;
    if (!replay_succeeded(tcuda_memory_allocated(device, &bytes), "tcuda_memory_allocated"))
        return false;
    if (bytes > 0)
        replay_complain("%s: everything was freed, but %zu bytes count as allocated", trace->name,
            bytes);
    return bytes == 0;
}

static bool run_trace(const replay_trace *trace, const options *o, replay_run *run,
    replay_result *result)
{
    tcuda_stream *streams[REPLAY_MAX_STREAMS];
    *run = (replay_run){.device = o->device, .repeat = o->repeat, .verify = o->verify,
        .streams = streams};
    if (!create_streams(o->device, streams, trace->num_streams))
        return false;
    bool ok = replay_time(trace, run, result) && (!o->verify || replay_check(trace, run, result))
        && check_all_freed(trace, o->device);
    ok = destroy_streams(streams, trace->num_streams) && ok;
    run->streams = NULL;
    if (ok)
        replay_print_result(trace, run, result);
    return ok;
}

/* Plays the traces one by one; one that fails does not keep the others from running. */
static bool run_traces(const options *o, FILE *json)
{
    bool ok = true, any_ran = false;
    for (int i = 0; i < o->num_traces; i++) {
        replay_trace trace;
        replay_run run;
        replay_result result = {0};
        if (!replay_trace_read(o->traces[i], &trace)) {
            replay_json_failure(json, i == 0, o->traces[i]);
            ok = false;
            continue;
        }
        const bool passed = run_trace(&trace, o, &run, &result);
        replay_progress_clear();
        replay_json_result(json, i == 0, &trace, &run, &result, passed);
        replay_trace_free(&trace);
        ok = passed && ok;
        any_ran = true;
    }
    return (!any_ran || replay_print_summary(o->device)) && ok;
}

/* ---- The whole ---- */

/* Waits, frees everything, and finds what was forgotten. */
static bool shut_down(void)
{
    size_t live = 0;
    if (!replay_succeeded(tcuda_shutdown(&live), "tcuda_shutdown"))
        return false;
    if (live > 0)
        replay_complain("leak: %zu handles were still alive at the end", live);
    return live == 0;
}

static bool close_file(FILE *file, const char *name, bool keep_open)
{
    const bool failed = ferror(file) != 0;
    if ((keep_open ? fflush(file) : fclose(file)) == 0 && !failed)
        return true;
    replay_complain("%s: cannot be written", name);
    return false;
}

int main(int argc, char **argv)
{
    options o;
    if (!parse_options(argc, argv, &o)) {
        fputs("Try 'replay --help'.\n", stderr);
        return EXIT_USAGE;
    }
    if (o.help) {
        fputs(HELP, stdout);
        return close_file(stdout, "standard output", true) ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    replay_machine machine = {0};
    if (!start_machine(&o, &machine))
        return EXIT_FAILURE;
    FILE *json = NULL;
    if (o.json_path != NULL && (json = fopen(o.json_path, "w")) == NULL)
        replay_complain("%s: cannot be written: %s", o.json_path, strerror(errno));
    bool ok = o.json_path == NULL || json != NULL;
    if (ok) {
        const uint32_t version = tcuda_version();
        printf("tcuda %" PRIu32 ".%" PRIu32 ".%" PRIu32 " on the %s backend\n%s\n",
            version / 1000000, version / 1000 % 1000, version % 1000, machine.backend,
            machine.sentence);
        replay_json_begin(json, &machine, o.repeat);
        ok = run_traces(&o, json);
    }
    ok = shut_down() && ok;
    replay_json_end(json, ok);
    if (json != NULL)
        ok = close_file(json, o.json_path, false) && ok;
    ok = close_file(stdout, "standard output", true) && ok;
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
