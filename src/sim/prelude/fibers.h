}
/* Runs threads of a block that wait for each other: each has a stack; they run in turn. */
#include <ucontext.h>
namespace tcuda_host {
struct fiber { ucontext_t context; bool is_over; };
static thread_local struct {
    ucontext_t home;
    fiber *fibers;
    unsigned current;
    one_thread *one;
    void *const *arguments;
} team;
static void begin() {
    team.one(team.arguments);
    team.fibers[team.current].is_over = true;
    swapcontext(&team.fibers[team.current].context, &team.home);
}
static void wait() { swapcontext(&team.fibers[team.current].context, &team.home); }
static inline void run_block(const launch *launch, one_thread *one) {
    const unsigned threads = launch->block[0] * launch->block[1] * launch->block[2];
    char *stacks = static_cast<char *>(launch->stacks);
    /* The contexts follow the stacks in memory. */
    team.fibers = reinterpret_cast<fiber *>(stacks + threads * launch->stack_bytes);
    team.one = one;
    team.arguments = launch->arguments;
    for (unsigned i = 0; i < threads; ++i) {
        fiber &fiber = team.fibers[i];
        fiber.is_over = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks + i * launch->stack_bytes;
        fiber.context.uc_stack.ss_size = launch->stack_bytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, begin, 0);
    }
    for (unsigned left = threads; left > 0;) {
        left = 0;
        for (unsigned i = 0; i < threads; ++i) {
            if (team.fibers[i].is_over) continue;
            team.current = i;
            threadIdx = {i % launch->block[0], i / launch->block[0] % launch->block[1],
                i / launch->block[0] / launch->block[1]};
            swapcontext(&team.home, &team.fibers[i].context);
            left += !team.fibers[i].is_over;
        }
    }
}
}
inline void __syncthreads() { tcuda_host::wait(); }
