// The same random operations on PyTorch's real allocator and on tcuda's, without a GPU: after each of
// them the statistics of every device must be equal, value for value.
//
//   differential [--operations N] [--seed S] [--devices D] [--tight] [--strict]
//                [--segments] [--options TEXT] [--fraction F]
//
// --segments: with expandable_segments:False, where every statistic is compared; TEXT is more of
// PYTORCH_CUDA_ALLOC_CONF, F the share of the memory that may be reserved.
//
// A difference is shrunk to a short program. Programs run in children, so that each attempt starts
// from nothing and a crash is a difference like any other.

#include "program.h"

#include <chrono>
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

int fail(const Settings &settings, const Report &report)
{
    std::printf("differential: FAILED, program %ld of --seed %llu: %s\n", report.program,
        static_cast<unsigned long long>(settings.seed), report.wrong.c_str());
    const Program whole = make_program(settings, uint64_t(report.program));
    if (wrong_with(settings, whole).empty()) {
        std::printf("alone the program agrees: the ones before it are needed\n");
        return 1;
    }
    std::printf("shrinking...\n");
    std::fflush(stdout);
    const Program program = shrink(settings, whole);
    for (size_t i = 0; i < program.size(); i++)
        std::printf("%3zu. %s\n", i, describe(program[i]).c_str());
    std::printf("%s\n", wrong_with(settings, program).c_str());
    return 1;
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
    setenv("TCUDA_ALLOC_CONF", options.c_str(), 1);
    for (const char *name : {"PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TCUDA_SIM",
             "TCUDA_BACKEND", "TCUDA_FAULTS"})
        unsetenv(name);
    execv("/proc/self/exe", arguments);
    std::perror("differential: execv");
    std::exit(2);
}

} // namespace

int main(int argc, char **argv)
{
    Settings settings;
    settings.seed = std::random_device()();
    long operations = 20000;
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
        } else if (option == "--operations" || option == "--seed" || option == "--devices") {
            const unsigned long long number = std::strtoull(value, nullptr, 10);
            if (option == "--operations")
                operations = long(number);
            else if (option == "--seed")
                settings.seed = number;
            else
                settings.machine.devices = int(number);
            i++;
        } else {
            std::fprintf(stderr, "usage: differential [--operations N] [--seed S] [--devices D] "
                                 "[--tight] [--strict] [--segments] [--options TEXT] "
                                 "[--fraction F]\n");
            return 2;
        }
    }
    if (settings.machine.devices < 1 || settings.machine.devices > 16) {
        std::fprintf(stderr, "differential: 1 to 16 devices\n");
        return 2;
    }
    set_environment(settings, argv);
    const auto start = std::chrono::steady_clock::now();
    Program program;
    const Report report = run_in_child(settings, [&](long i, const Tally &tally) {
        program = make_program(settings, uint64_t(i));
        return tally.operations < operations ? &program : nullptr;
    });
    if (!report.is_done || !report.wrong.empty())
        return fail(settings, report);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const Tally &tally = report.tally;
    std::printf("differential: %ld operations in %ld programs agree with PyTorch's allocator: %ld "
                "blocks, %ld times out of memory, %ld statistics of devices, %.1f s, --seed %llu\n",
        tally.operations, report.program + 1, tally.blocks, tally.ooms, tally.comparisons,
        seconds.count(), static_cast<unsigned long long>(settings.seed));
    if (settings.tight) {
        std::printf("differential: memory was short: %ld requests only tcuda could serve, %ld only "
                    "PyTorch; %ld times only tcuda reclaimed first, %ld times only PyTorch\n",
            tally.only_tcuda, tally.only_torch, tally.retries_of_tcuda, tally.retries_of_torch);
    }
    return 0;
}
