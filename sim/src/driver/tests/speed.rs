//! Speed of calls: `cargo test --release --lib sim::tests::speed -- --ignored --nocapture`.

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
    for schedule in ["immediate", "threads", "adversarial:0", "adversarial:3"] {
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

/// The time to queue and run small operations, and the cost of a machine that runs few.
#[test]
#[ignore = "a measurement"]
fn adversarial() {
    for seed in 0..12 {
        println!("adversarial:{seed}");
        let bench = Bench::new(&format!("schedule=adversarial:{seed}"));
        let streams: Vec<CUstream> = (0..8).map(|_| bench.stream()).collect();
        let event = bench.event(2);
        let memory = bench.allocate(4096);
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        let image = c".version 7.8\n.target sm_52\n.entry speed_nothing(.param .u64 p) { ret; }";
        ok!(bench, cuModuleLoadData(&mut module, image.as_ptr().cast()));
        ok!(bench, cuModuleGetFunction(&mut function, module, c"speed_nothing".as_ptr()));
        let mut argument = memory;
        let mut arguments = [ptr::from_mut(&mut argument).cast::<c_void>()];
        let mut round = 0;
        measure("of five, one operation", || {
            let stream = streams[round % 8];
            let cell = memory + (round % 64 * 64) as u64;
            match round % 5 {
                0 => ok!(bench, cuEventRecord(event, stream)),
                1 => ok!(bench, cuStreamWaitEvent(stream, event, 0)),
                2 => ok!(bench, cuMemsetD8Async(cell, 1, 16, stream)),
                3 => ok!(bench, cuMemcpyAsync(cell, memory, 16, stream)),
                _ => {
                    let (list, none) = (arguments.as_mut_ptr(), ptr::null_mut());
                    ok!(bench, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, list, none));
                }
            }
            round += 1;
            if round % 1000 == 0 {
                ok!(bench, cuCtxSynchronize());
            }
        });
    }
}

#[test]
#[ignore = "a measurement"]
fn a_machine_for_a_few_operations() {
    for schedule in ["immediate", "threads", "adversarial:0", "adversarial:3", "adversarial:4"] {
        const ROUNDS: u32 = 1000;
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let bench = Bench::new(&format!("schedule={schedule}"));
            let (stream, other, event) = (bench.stream(), bench.stream(), bench.event(2));
            let memory = bench.allocate(4096);
            for _ in 0..4 {
                ok!(bench, cuMemsetD8Async(memory, 1, 4096, stream));
                ok!(bench, cuEventRecord(event, stream));
                ok!(bench, cuStreamWaitEvent(other, event, 0));
                ok!(bench, cuMemcpyAsync(memory, memory + 64, 64, other));
                ok!(bench, cuStreamSynchronize(other));
            }
        }
        println!(
            "{schedule:16} {:8.1} us",
            start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS)
        );
    }
}
