// The same operations on PyTorch's real allocator and on tcuda's, random ones and those of real
// programs: after each of them the statistics of every device must be equal, value for value.
//
//   differential [--operations N] [--seconds N] [--seed S] [--devices D] [--tight] [--strict]
//                [--segments] [--options TEXT] [--fraction F] [--json FILE] [TRACE...]
//
// --segments: with expandable_segments:False, where every statistic is compared; TEXT is more of
// PYTORCH_CUDA_ALLOC_CONF, F the share of the memory that may be reserved.
//
// There are two builds: scripts/ci/differential.sh, without a GPU, and
// scripts/gpu/differential_gpu.sh. Without a GPU a difference is shrunk to a short program.
// Programs run in children, so that each attempt starts from nothing and a crash is a difference
// like any other.

#include "program.h"
#include "table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using Program = std::vector<Operation>;

// What a child says: how far it came, and what was wrong there.
struct Report {
    Tally tally;
    long program = 0; // number of the one that it ended in
    bool is_done = false;
    std::string wrong;
};

void send(int pipe, const void *data, size_t bytes)
{
    const char *at = static_cast<const char *>(data);
    while (bytes > 0) {
        const ssize_t sent = write(pipe, at, bytes);
        if (sent <= 0)
            std::_Exit(3);
        at += sent;
        bytes -= size_t(sent);
    }
}

bool receive(int pipe, void *data, size_t bytes)
{
    char *at = static_cast<char *>(data);
    while (bytes > 0) {
        const ssize_t got = read(pipe, at, bytes);
        if (got <= 0)
            return false;
        at += got;
        bytes -= size_t(got);
    }
    return true;
}

struct Progress {
    long program;
    Tally tally;
    size_t words; // length of the sentence that follows, if something was wrong
};

// Runs programs in a child: `next(i)` gives the i-th, or nothing after the last.
template <class Next> Report run_in_child(const Settings &settings, Next next)
{
    int ends[2];
    if (pipe(ends) != 0) {
        std::perror("differential: pipe");
        std::exit(2);
    }
    std::fflush(stdout);
    const pid_t child = fork();
    if (child < 0) {
        std::perror("differential: fork");
        std::exit(2);
    }
    if (child == 0) {
        close(ends[0]);
        auto torch = make_torch(settings.machine), tcuda = make_tcuda(settings.machine);
        Tally tally;
        for (long i = 0;; i++) {
            const Program *program = next(i, tally);
            if (program == nullptr)
                break;
            Progress progress{i, tally, 0};
            send(ends[1], &progress, sizeof progress);
            const auto wrong = run_program(*torch, *tcuda, settings, *program, tally);
            if (wrong) {
                progress = {i, tally, wrong->size()};
                send(ends[1], &progress, sizeof progress);
                send(ends[1], wrong->data(), wrong->size());
                std::_Exit(1);
            }
        }
        tcuda.reset();
        const Progress progress{-1, tally, 0};
        send(ends[1], &progress, sizeof progress);
        std::_Exit(0);
    }
    close(ends[1]);
    Report report;
    for (Progress progress; receive(ends[0], &progress, sizeof progress);) {
        report.tally = progress.tally;
        report.is_done = progress.program < 0;
        if (!report.is_done)
            report.program = progress.program;
        report.wrong.resize(progress.words);
        if (progress.words > 0)
            receive(ends[0], report.wrong.data(), progress.words);
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        report.wrong = "signal " + std::to_string(WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0 && report.wrong.empty())
        report.wrong = "the program ended with " + std::to_string(WEXITSTATUS(status));
    return report;
}

std::string wrong_with(const Settings &settings, const Program &program)
{
    const auto only = [&](long i, const Tally &) { return i == 0 ? &program : nullptr; };
    return run_in_child(settings, only).wrong;
}

// Leaves out what is not needed for something to be wrong: halves first, single operations last.
Program shrink(const Settings &settings, Program program)
{
    for (size_t length = program.size() / 2; length > 0; length /= 2) {
        for (size_t at = 0; at < program.size();) {
            Program shorter = program;
            const auto first = shorter.begin() + long(at);
            shorter.erase(first, shorter.begin() + long(std::min(at + length, shorter.size())));
            if (wrong_with(settings, shorter).empty())
                at += length;
            else
                program = std::move(shorter);
        }
    }
    return program;
}

void fail(const Settings &settings, const Report &report)
{
    std::printf("differential: FAILED, program %ld of --seed %llu: %s\n", report.program,
        static_cast<unsigned long long>(settings.seed), report.wrong.c_str());
    // Not on a GPU, where each attempt takes a second.
    if (ON_GPU)
        return;
    const Program whole = make_program(settings, uint64_t(report.program));
    if (wrong_with(settings, whole).empty()) {
        std::printf("alone the program agrees: the ones before it are needed\n");
        return;
    }
    std::printf("shrinking...\n");
    std::fflush(stdout);
    const Program program = shrink(settings, whole);
    for (size_t i = 0; i < program.size(); i++)
        std::printf("%3zu. %s\n", i, describe(program[i]).c_str());
    std::printf("%s\n", wrong_with(settings, program).c_str());
}

// Both stubs and PyTorch's options are read when libraries are loaded.
void set_environment(const Settings &settings, char **arguments)
{
    if (std::getenv("TCUDA_DIFFERENTIAL") != nullptr)
        return;
    setenv("TCUDA_DIFFERENTIAL", "1", 1);
    setenv("STUB_DEVICES", std::to_string(settings.machine.devices).c_str(), 1);
    setenv("STUB_TOTAL_MB", std::to_string(settings.machine.megabytes).c_str(), 1);
    const std::string options = std::string("expandable_segments:")
        + (settings.segments ? "False" : "True")
        + (settings.options.empty() ? "" : "," + settings.options);
    setenv("PYTORCH_CUDA_ALLOC_CONF", options.c_str(), 1);
    // Where memory is short PyTorch waits for what is pending; streams that share serve without.
    const std::string ours = options + (settings.tight ? ",share_between_streams:False" : "");
    setenv("TCUDA_ALLOC_CONF", ours.c_str(), 1);
    for (const char *name : {"PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TCUDA_SIM",
             "TCUDA_BACKEND", "TCUDA_FAULTS"})
        unsetenv(name);
    execv("/proc/self/exe", arguments);
    std::perror("differential: execv");
    std::exit(2);
}

// How long it goes on.
struct Length {
    long operations = 20000;
    double seconds = 1e9;
};

Row run_random(const Settings &settings, const Length &length)
{
    const Stopwatch watch;
    Program program;
    const Report report = run_in_child(settings, [&](long i, const Tally &tally) {
        program = make_program(settings, uint64_t(i));
        const bool is_over
            = tally.operations >= length.operations || watch.seconds() > length.seconds;
        return is_over ? nullptr : &program;
    });
    const bool agrees = report.is_done && report.wrong.empty();
    if (!agrees)
        fail(settings, report);
    return {"random", report.program + 1, report.tally, watch.seconds(), agrees};
}

Row run_trace(Settings settings, const std::string &path)
{
    const Stopwatch watch;
    settings.most_blocks = SIZE_MAX;
    const Program program = read_trace(path.c_str());
    const auto only = [&](long i, const Tally &) { return i == 0 ? &program : nullptr; };
    const Report report = run_in_child(settings, only);
    const bool agrees = report.is_done && report.wrong.empty();
    std::string name = path.substr(path.rfind('/') + 1);
    name.resize(std::min(name.size(), name.find('.')));
    if (!agrees)
        std::printf("differential: FAILED, %s: %s\n", name.c_str(), report.wrong.c_str());
    return {name, 1, report.tally, watch.seconds(), agrees};
}

} // namespace

int main(int argc, char **argv)
{
    Settings settings;
    settings.seed = std::random_device()();
    Length length;
    std::vector<std::string> traces;
    std::string json;
    for (int i = 1; i < argc; i++) {
        const std::string option = argv[i];
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (option == "--tight") {
            settings.tight = true;
            settings.machine.megabytes = 256;
        } else if (option == "--strict") {
            settings.strict = true;
        } else if (option == "--segments") {
            settings.segments = true;
        } else if (option == "--options") {
            settings.options = value;
            i++;
        } else if (option == "--fraction") {
            settings.machine.fraction = std::strtod(value, nullptr);
            i++;
        } else if (option == "--json") {
            json = value;
            i++;
        } else if (option == "--operations" || option == "--seed" || option == "--devices"
            || option == "--seconds") {
            const unsigned long long number = std::strtoull(value, nullptr, 10);
            if (option == "--operations")
                length.operations = long(number);
            else if (option == "--seconds")
                length.seconds = double(number);
            else if (option == "--seed")
                settings.seed = number;
            else
                settings.machine.devices = int(number);
            i++;
        } else if (!option.starts_with("--")) {
            traces.push_back(option);
        } else {
            std::fprintf(stderr,
                "usage: differential [--operations N] [--seconds N] [--seed S] [--devices D] "
                "[--tight] [--strict] [--segments] [--options TEXT] [--fraction F] [--json FILE] "
                "[TRACE...]\n");
            return 2;
        }
    }
    if (ON_GPU)
        settings.machine.devices = 1;
    // The traces are of programs that had a large GPU.
    if (!traces.empty())
        settings.machine.megabytes = 131072;
    if (settings.machine.devices < 1 || settings.machine.devices > 16) {
        std::fprintf(stderr, "differential: 1 to 16 devices\n");
        return 2;
    }
    set_environment(settings, argv);
    Table table;
    table.add(run_random(settings, length));
    for (const auto &trace : traces)
        table.add(run_trace(settings, trace));
    table.print(settings);
    if (!json.empty() && !table.write_json(json, settings))
        return 2;
    return table.agrees() ? 0 : 1;
}
