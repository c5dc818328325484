//! The reader of traces of examples/replay, for the target `trace`: with coverage and
//! AddressSanitizer when libFuzzer is there.

fn main() {
    let replay = "../examples/replay";
    let mut build = cc::Build::new();
    build.std("c11").include("../include").include(replay).file("src/trace.c");
    for file in ["replay_trace.c", "replay_check.c", "replay_ranges.c"] {
        build.file(format!("{replay}/{file}"));
    }
    for changed in ["src/trace.c", "src/coverage.c", replay, "../include/tcuda.h"] {
        println!("cargo::rerun-if-changed={changed}");
    }
    if std::env::var_os("CARGO_FEATURE_LIBFUZZER").is_some() {
        build.opt_level(1);
        for flag in ["-fsanitize-coverage=trace-pc,trace-cmp", "-fsanitize=address", "-g"] {
            build.flag(flag);
        }
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap=__sanitizer_cov_trace_pc");
        // It must not count its own calls.
        cc::Build::new().file("src/coverage.c").opt_level(2).compile("tcuda_fuzz_coverage");
    }
    build.compile("tcuda_fuzz_trace");
}
