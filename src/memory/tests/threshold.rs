//! The thresholds above which streams share: half of the memory, and the peak since the cache was
//! emptied.

use super::{MIB, on_machine, sharing};

#[test]
fn streams_do_not_share_below_half_of_the_memory() {
    on_machine("memory=1GiB", |bench| {
        let streams = [(); 6].map(|()| bench.stream());
        for (index, stream) in (1..).zip(streams) {
            bench.free(bench.malloc(stream, 100 * MIB));
            // The sixth would need more than 512 MiB.
            assert_eq!(bench.reserved(), index.min(5) * 100 * MIB);
        }
        bench.check();
    });
}

#[test]
fn the_peak_before_the_cache_was_emptied_does_not_count() {
    sharing("memory=1GiB", |bench| {
        let (first, second) = (bench.stream(), bench.stream());
        bench.free(bench.malloc(first, 300 * MIB));
        bench.free(bench.malloc(second, 100 * MIB));
        assert_eq!(bench.reserved(), 300 * MIB, "no more than was needed");
        bench.empty_cache();
        bench.free(bench.malloc(first, 100 * MIB));
        bench.memory().reset_peak();
        bench.free(bench.malloc(second, 100 * MIB));
        assert_eq!(bench.reserved(), 100 * MIB);
        bench.check();
    });
}
