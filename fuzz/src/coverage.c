/* What gcc calls in code that was compiled with -fsanitize-coverage=trace-pc: counters that
 * libFuzzer reads beside those of the Rust code. Its own function of that name does nothing, hence
 * --wrap. */

#include <stdint.h>

enum { COUNTERS = 4096 };

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t counters[COUNTERS];

void __wrap___sanitizer_cov_trace_pc(void);

void __wrap___sanitizer_cov_trace_pc(void)
{
    const uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    counters[(caller * UINT64_C(0x9E3779B97F4A7C15)) >> 52]++;
}
