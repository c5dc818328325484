/* What replay tells its user: messages, the progress bar, figures as text and as JSON. */

#define _POSIX_C_SOURCE 200809L

#include "replay.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Messages ---- */

void replay_complain(const char *format, ...)
{
    replay_progress_clear();
    fflush(stdout);
    fputs("replay: ", stderr);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

bool replay_succeeded(tcuda_status status, const char *call)
{
    if (status == TCUDA_STATUS_OK)
        return true;
    replay_complain("%s: %s: %s", call, tcuda_status_name((int32_t)status), tcuda_last_error());
    return false;
}

bool replay_event_succeeded(tcuda_status status, const char *call, const replay_trace *trace,
    size_t event)
{
    if (status == TCUDA_STATUS_OK)
        return true;
    const replay_origin origin = trace->origins[event];
    replay_complain("%s: line %" PRIu64 ": %s of block %" PRIu64 " (%" PRIu64 " bytes): %s: %s",
        trace->name, origin.line, call, origin.id, trace->events[event].bytes,
        tcuda_status_name((int32_t)status), tcuda_last_error());
    return false;
}

/* ---- Progress ---- */

enum { BAR_WIDTH = 30 };

static bool bar_is_shown;

void replay_progress(const char *name, uint64_t done, uint64_t total)
{
    if (!isatty(STDERR_FILENO) || total == 0)
        return;
    char bar[BAR_WIDTH + 1];
    const int filled = (int)(done * BAR_WIDTH / total);
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(BAR_WIDTH - filled));
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K%.40s [%s] %3d %%", name, bar, (int)(done * 100 / total));
    fflush(stderr);
    bar_is_shown = true;
}

void replay_progress_clear(void)
{
    if (!bar_is_shown)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    bar_is_shown = false;
}

/* ---- Text ---- */

typedef struct number_text { char text[32]; } number_text;

/* 1234567 as "1,234,567". */
static number_text grouped(uint64_t value)
{
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%" PRIu64, value);
    number_text out;
    char *to = out.text;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return out;
}

static const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static void print_bytes(const char *label, uint64_t bytes)
{
    printf("  %-16s %20s bytes  %9.3f GiB\n", label, grouped(bytes).text,
        (double)bytes / (1024.0 * 1024.0 * 1024.0));
}

static double ratio(uint64_t reserved, uint64_t allocated)
{
    return allocated > 0 ? (double)reserved / (double)allocated : 0.0;
}

void replay_print_result(const replay_trace *trace, const replay_run *run,
    const replay_result *result)
{
    replay_progress_clear();
    printf("\n%s: %s events, %s allocations, %" PRIu32 " stream%s\n", trace->name,
        grouped(trace->num_events).text, grouped(trace->num_allocs).text, trace->num_streams,
        plural(trace->num_streams));
    printf("  %-16s cold %.1f, warm %.1f (best of %" PRIu32 ")\n", "ns per event", result->cold_ns,
        result->warm_ns, run->repeat);
    print_bytes("peak allocated", result->peak_allocated);
    print_bytes("peak requested", result->peak_requested);
    print_bytes("peak reserved", result->peak_reserved);
    printf("  %-16s reserved / allocated = %.4f", "ratio",
        ratio(result->peak_reserved, result->peak_allocated));
    if (trace->recorded_allocated > 0 && trace->recorded_reserved > 0) {
        printf(" (where it was recorded: %.4f)",
            ratio(trace->recorded_reserved, trace->recorded_allocated));
    }
    printf("\n  %-16s %s\n", "segments", grouped(result->segments).text);
    printf("  %-16s cold %s, warm %s\n", "driver calls", grouped(result->cold_calls).text,
        grouped(result->warm_calls).text);
    if (run->verify) {
        printf("  %-16s %s tagged units in %s blocks intact, no overlap\n", "verified",
            grouped(result->verified_units).text, grouped(result->verified_blocks).text);
    } else {
        printf("  %-16s no (--no-verify)\n", "verified");
    }
    fflush(stdout);
}

bool replay_print_summary(int32_t device)
{
    size_t needed = 0;
    if (!replay_succeeded(tcuda_memory_summary(device, 0, NULL, 0, &needed),
            "tcuda_memory_summary"))
        return false;
    char *text = malloc(needed + 1);
    if (text == NULL) {
        replay_complain("no host memory for the summary");
        return false;
    }
    const bool ok = replay_succeeded(tcuda_memory_summary(device, 0, text, needed + 1, NULL),
        "tcuda_memory_summary");
    if (ok)
        printf("\n%s%s", text, needed > 0 && text[needed - 1] == '\n' ? "" : "\n");
    free(text);
    return ok;
}

/* ---- JSON ---- */

static void json_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\')
            fprintf(file, "\\%c", *p);
        else if (*p < 0x20)
            fprintf(file, "\\u%04x", *p);
        else
            fputc(*p, file);
    }
    fputc('"', file);
}

static void json_number(FILE *file, const char *key, uint64_t value)
{
    fprintf(file, ",\n      \"%s\": %" PRIu64, key, value);
}

void replay_json_begin(FILE *file, const replay_machine *machine, uint32_t repeat)
{
    if (file == NULL)
        return;
    const uint32_t version = tcuda_version();
    fputs("{\n  \"backend\": ", file);
    json_string(file, machine->backend);
    fprintf(file, ",\n  \"device\": %" PRId32 ",\n  \"device_name\": ", machine->device);
    json_string(file, machine->device_name);
    fputs(",\n  \"machine\": ", file);
    json_string(file, machine->sentence);
    fprintf(file,
        ",\n  \"version\": \"%" PRIu32 ".%" PRIu32 ".%" PRIu32 "\",\n  \"repeat\": %" PRIu32
        ",\n  \"results\": [",
        version / 1000000, version / 1000 % 1000, version % 1000, repeat);
}

void replay_json_result(FILE *file, bool first, const replay_trace *trace, const replay_run *run,
    const replay_result *result, bool ok)
{
    if (file == NULL)
        return;
    fprintf(file, "%s\n    {\n      \"trace\": ", first ? "" : ",");
    json_string(file, trace->name);
    fprintf(file, ",\n      \"ok\": %s", ok ? "true" : "false");
    json_number(file, "events", trace->num_events);
    json_number(file, "allocations", trace->num_allocs);
    json_number(file, "streams", trace->num_streams);
    fprintf(file, ",\n      \"cold_ns_per_event\": %.3f,\n      \"warm_ns_per_event\": %.3f",
        result->cold_ns, result->warm_ns);
    json_number(file, "peak_allocated", result->peak_allocated);
    json_number(file, "peak_requested", result->peak_requested);
    json_number(file, "peak_reserved", result->peak_reserved);
    fprintf(file, ",\n      \"ratio\": %.6f", ratio(result->peak_reserved, result->peak_allocated));
    json_number(file, "segments", result->segments);
    json_number(file, "driver_calls_cold", result->cold_calls);
    json_number(file, "driver_calls_warm", result->warm_calls);
    fprintf(file, ",\n      \"verified\": %s", ok && run->verify ? "true" : "false");
    json_number(file, "verified_blocks", result->verified_blocks);
    json_number(file, "verified_units", result->verified_units);
    fputs("\n    }", file);
}

void replay_json_failure(FILE *file, bool first, const char *path)
{
    if (file == NULL)
        return;
    fprintf(file, "%s\n    {\n      \"trace\": ", first ? "" : ",");
    json_string(file, path);
    fputs(",\n      \"ok\": false\n    }", file);
}

void replay_json_end(FILE *file, bool ok)
{
    if (file != NULL)
        fprintf(file, "\n  ],\n  \"ok\": %s\n}\n", ok ? "true" : "false");
}
