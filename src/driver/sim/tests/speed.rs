//! How fast calls are: `cargo test --release --lib sim::tests::speed -- --ignored --nocapture`.

use super::*;
use std::time::Instant;

fn measure(name: &str, mut call: impl FnMut()) {
    const ROUNDS: u32 = 1_000_000;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        call();
    }
    let nanoseconds = start.elapsed().as_nanos() as f64 / f64::from(ROUNDS);
    println!("{name:24} {nanoseconds:7.1} ns  {:6.2} M/s", 1e3 / nanoseconds);
}

#[test]
#[ignore = "a measurement"]
fn calls() {
    for schedule in ["immediate", "threads"] {
        println!("{schedule}");
        let bench = Bench::new(&format!("schedule={schedule}"));
        let (stream, other) = (bench.stream(), bench.stream());
        let (event, timed) = (bench.event(2), bench.event(0));
        let device = bench.allocate(4096);
        let (base, handle) = (bench.reserve(4 * GRANULARITY), bench.create(0, GRANULARITY));
        measure("current context", || ok!(bench, cuCtxGetCurrent(&mut ptr::null_mut())));
        measure("stream query", || ok!(bench, cuStreamQuery(stream)));
        measure("event query", || ok!(bench, cuEventQuery(event)));
        measure("event record", || ok!(bench, cuEventRecord(event, stream)));
        measure("event record, timed", || ok!(bench, cuEventRecord(timed, stream)));
        measure("wait event", || ok!(bench, cuStreamWaitEvent(other, event, 0)));
        ok!(bench, cuCtxSynchronize());
        measure("memset 16 B", || ok!(bench, cuMemsetD8Async(device, 1, 16, stream)));
        ok!(bench, cuCtxSynchronize());
        measure("copy 16 B", || ok!(bench, cuMemcpyAsync(device, device + 64, 16, stream)));
        ok!(bench, cuCtxSynchronize());
        measure("map, access, unmap", || {
            ok!(bench, cuMemMap(base, GRANULARITY, 0, handle, 0));
            assert_eq!(bench.grant(base, GRANULARITY, 0), 0);
            ok!(bench, cuMemUnmap(base, GRANULARITY));
        });
    }
}
