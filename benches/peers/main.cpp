// The workloads on one peer: peers.py runs it for one after the other and puts the rows together.
//
//   peers_FAMILY PEER GROUP[,GROUP...] [--quick] [TRACE...]
//
// Which family it is says a macro: PEER_TCUDA, PEER_TORCH (WITHOUT_GPU: over the stub runtime),
// PEER_CUDA (HAVE_CUB: with CUB) or PEER_RMM. A group that fails or cannot run says so in a row of
// its own, and the next one goes on.

#include <memory>

#if defined(PEER_TCUDA)
#include "peer_tcuda.hpp"
#elif defined(PEER_TORCH)
#include "peer_torch.hpp"
#elif defined(PEER_RMM)
#include "peer_rmm.hpp"
#else
#include "peer_cuda.hpp"
#endif
#include "driver.hpp"
#include "small.hpp"
#include "streams.hpp"
#include "threads.hpp"
#include "traces.hpp"

#include <cstring>
#include <utility>

namespace {

using namespace bench;

template <Peer P>
void run_group(const std::string &group, const std::vector<Trace> &all)
{
    if (group == "pairs") pairs<P>();
    else if (group == "churn") churn<P>();
    else if (group == "latency") latency<P>();
    else if (group == "random") rmm_random<P>();
    else if (group == "step") step<P>();
    else if (group == "recorded") all_recorded<P>();
    else if (group == "threads") threads<P>();
    else if (group == "handoff") handoff<P>();
    else if (group == "traces") traces<P>(all);
    else if (group == "rotation") rotation<P>();
    else if (group == "regrow") regrow<P>();
    else if (group == "limits") limits<P>(all);
    else if (group == "events") events<P>();
    else if (group == "driver") driver_memory();
    else fail("there is no such group");
}

template <Peer P>
int run(const std::vector<std::string> &groups, const std::vector<const char *> &paths)
{
    std::vector<Trace> all;
    try {
        for (const char *path : paths) all.push_back(read_trace(path));
        P::start();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "peers: %s\n", error.what());
        return 1;
    }
    for (const std::string &group : groups) {
        const auto start = Clock::now();
        try {
            run_group<P>(group, all);
        } catch (const std::exception &error) {
            skipped(group.c_str(), "failed", error.what());
        }
        std::fprintf(stderr, "  %s: %.1f s\n", group.c_str(), ns_since(start) / 1e9);
    }
    try {
        P::stop();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "peers: %s\n", error.what());
        return 1;
    }
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: %s PEER GROUP[,GROUP...] [--quick] [TRACE...]\n", argv[0]);
        return 2;
    }
    const std::string peer = argv[1];
    std::vector<std::string> groups;
    std::istringstream list(argv[2]);
    for (std::string group; std::getline(list, group, ',');) groups.push_back(group);
    std::vector<const char *> paths;
    for (int i = 3; i < argc; i++) {
        if (!std::strcmp(argv[i], "--quick")) quick = true;
        else paths.push_back(argv[i]);
    }
#if defined(PEER_TCUDA)
    simulated = !std::strcmp(tcuda_backend_name(), "sim");
    return run<Tcuda>(groups, paths);
#elif defined(PEER_TORCH)
    return run<Torch>(groups, paths);
#elif defined(PEER_RMM)
    if (peer == "rmm_pool") return run<Rmm<RmmPool>>(groups, paths);
    if (peer == "rmm_arena") return run<Rmm<RmmArena>>(groups, paths);
    if (peer == "rmm_async") return run<Rmm<RmmAsync>>(groups, paths);
#else
    if (peer == "malloc_async") return run<MallocAsync>(groups, paths);
    if (peer == "malloc") return run<Malloc>(groups, paths);
#ifdef HAVE_CUB
    if (peer == "cub") return run<Cub>(groups, paths);
#endif
#endif
    skipped("all", "skipped", "this program was built without it");
    return 0;
}
