//! Measures the crossover points of the paths, for the limits, on the GPUs of this machine.
//!
//! cargo test --release --lib collectives::path::tests::sweep -- --ignored --nocapture

use super::super::limits::LANES;
use super::*;
use crate::gpu::gpus::Gpus;
use std::time::Instant;

const NEVER: u64 = u64::MAX;

/// Median microseconds of a call until all devices are idle, and of the call alone.
fn timed(gpus: &Gpus, body: &dyn Fn()) -> (f64, f64) {
    let run = || {
        let start = Instant::now();
        body();
        let called = start.elapsed();
        gpus.devices.iter().for_each(|device| device.synchronize().unwrap());
        (start.elapsed().as_secs_f64() * 1e6, called.as_secs_f64() * 1e6)
    };
    for _ in 0..3 {
        run();
    }
    let mut times: Vec<(f64, f64)> = (0..15).map(|_| run()).collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    times[times.len() / 2]
}

/// Prints a line: the operation, its size, and the time of each path.
fn line(what: &str, bytes: u64, paths: &[(&str, (f64, f64))]) {
    print!("{what:22} {:>9} KiB", bytes >> 10);
    for (limits_of_path, (whole, host)) in paths {
        print!(
            "  {limits_of_path} {whole:8.1} us {:5.0} GB/s host {host:6.1}",
            bytes as f64 / whole / 1e3
        );
    }
    println!();
}

#[test]
#[ignore = "takes several GPUs"]
fn sweep() {
    let _lock = sim::test_lock();
    let inside = thread::enter().unwrap();
    runtime::select_backend(&inside, "cuda", "").unwrap();
    let gpus = runtime::get(&inside).unwrap();
    let streams = pooled(gpus);
    let most: u64 = 1 << 30;
    let parts = |_: u32| {
        let part = |stream: &&Stream| Part {
            device: stream.device(),
            address: allocate(gpus, stream, most as usize),
        };
        streams.iter().map(part).collect::<Vec<Part>>()
    };
    let (sent, got) = (parts(0), parts(1));
    let others = streams.len() as u64 - 1;
    let with = |limits: &[(&'static Limit, u64)], body: &dyn Fn(&Team)| {
        let _limits = Limits::set(limits);
        timed(gpus, &|| body(&Team::new(gpus, &streams).unwrap()))
    };
    let sizes = (12..=30).step_by(2).map(|log| 1u64 << log);
    for bytes in sizes.clone() {
        let body = |team: &Team| assert!(broadcast(team, bytes, sent[0], &got[1..]).unwrap());
        let root = with(&[(&SMALL_BROADCAST, NEVER)], &body);
        let owners = with(&[(&SMALL_BROADCAST, 0), (&LARGE_BROADCAST, NEVER)], &body);
        let chain = with(&[(&SMALL_BROADCAST, 0), (&LARGE_BROADCAST, 0)], &body);
        line("broadcast", bytes, &[("root", root), ("owners", owners), ("chain", chain)]);
    }
    for bytes in sizes.clone() {
        let dst = got[0];
        let item = Sum { number: Number::F32, elements: bytes / 4, sources: &sent, dst };
        let body = |team: &Team| assert!(sum(team, &[item]).unwrap());
        let root = with(&[(&SMALL_SUM, NEVER)], &body);
        let owners = with(&[(&SMALL_SUM, 0)], &body);
        line("sum", bytes, &[("root", root), ("owners", owners)]);
    }
    for bytes in sizes {
        for (what, gathers) in [("scatter", false), ("gather", true)] {
            let rows = (1..streams.len()).map(|device| {
                let at = |part: Part, index: u64| Part { address: part.address + index, ..part };
                let inside = device as u64 * (bytes / (others + 1)) / 512 * 512;
                match gathers {
                    false => Rows::flat(at(sent[0], inside), got[device], bytes / (others + 1)),
                    true => Rows::flat(sent[device], at(got[0], inside), bytes / (others + 1)),
                }
            });
            let rows: Vec<Rows> = rows.collect();
            let body = |team: &Team| assert!(copies(team, &rows).unwrap());
            let kernel = with(&[(&SMALL_COPIES, NEVER)], &body);
            let engines = with(&[(&SMALL_COPIES, 0)], &body);
            line(what, bytes, &[("kernel", kernel), ("engines", engines)]);
        }
    }
    for width in [16, 32, 64, 100, 128, 256, 512, 1024, 4096] {
        let bytes: u64 = 64 << 20;
        let (rows, src_pitch) = (bytes / width, 2 * width);
        let row = Rows { src: sent[0], dst: got[1], width, rows, src_pitch, dst_pitch: width };
        let body = |team: &Team| assert!(copies(team, &[row]).unwrap());
        let kernel = with(&[(&WIDE_ROW, NEVER)], &body);
        let engine = with(&[(&WIDE_ROW, 0)], &body);
        line(&format!("rows of {width}"), bytes, &[("kernel", kernel), ("engine", engine)]);
    }
    for (lanes, least, largest) in [1, 2, 3].into_iter().flat_map(|lanes| {
        [(1, 16), (2, 16), (2, 64), (4, 64), (8, 128)]
            .map(move |(least, most): (u64, u64)| (lanes, least, most))
    }) {
        for bytes in [64 << 20, 256 << 20, most] {
            let body = |team: &Team| assert!(broadcast(team, bytes, sent[0], &got[1..]).unwrap());
            let chunks = [(&MIN_CHUNK, least << 20), (&MAX_CHUNK, largest << 20)];
            let [least_chunk, most_chunk] = chunks;
            let limits = [(&LANES, lanes), (&LARGE_BROADCAST, 0), least_chunk, most_chunk];
            line(
                &format!("{lanes} lanes, {least}-{largest} MiB"),
                bytes,
                &[("chain", with(&limits, &body))],
            );
        }
    }
    for part in sent.iter().chain(&got) {
        memory::free(gpus, part.address).unwrap();
    }
    runtime::shutdown(&inside, |_| 0).unwrap();
}
