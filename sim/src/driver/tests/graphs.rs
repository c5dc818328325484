//! Captures and graphs under every schedule: the results of launches and the order of their
//! operations.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn begin(bench: &Bench, stream: CUstream) {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    ok!(bench, cuStreamBeginCapture(stream, mode as u32));
}

/// Captures calls on a stream as an executable graph.
fn record(bench: &Bench, stream: CUstream, calls: impl FnOnce()) -> CUgraphExec {
    begin(bench, stream);
    calls();
    let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
    ok!(bench, cuStreamEndCapture(stream, &mut graph));
    ok!(bench, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(bench, cuGraphDestroy(graph));
    exec
}

/// Makes a stream wait for what another has recorded so far.
fn order(bench: &Bench, first: CUstream, second: CUstream) {
    let event = bench.event(2);
    ok!(bench, cuEventRecord(event, first));
    ok!(bench, cuStreamWaitEvent(second, event, 0));
    ok!(bench, cuEventDestroy(event));
}

fn fill(bench: &Bench, address: u64, value: u8, bytes: usize, stream: CUstream) {
    ok!(bench, cuMemsetD8Async(address, value, bytes, stream));
}

fn fetch<const N: usize>(bench: &Bench, address: u64, stream: CUstream) -> [u8; N] {
    let mut bytes = [0; N];
    let host = bytes.as_mut_ptr().expose_provenance() as u64;
    ok!(bench, cuMemcpyAsync(host, address, N, stream));
    ok!(bench, cuStreamSynchronize(stream));
    bytes
}

fn adversarial(seeds: u64) -> impl Iterator<Item = String> {
    let fixed = SCHEDULES[..2].iter().map(|schedule| format!("schedule={schedule}"));
    fixed.chain((0..seeds).map(|seed| format!("schedule=adversarial:{seed}")))
}

#[test]
fn a_launch_keeps_the_order_of_its_graph_under_every_schedule() {
    for options in adversarial(200) {
        let bench = Bench::new(&options);
        let (memory, a, b, c) =
            (bench.allocate(256), bench.stream(), bench.stream(), bench.stream());
        // Two concurrent branches that write, a third that reads both, and a final node.
        let exec = record(&bench, a, || {
            fill(&bench, memory, 1, 128, a);
            order(&bench, a, b);
            order(&bench, a, c);
            fill(&bench, memory, 2, 32, a);
            fill(&bench, memory + 32, 3, 32, b);
            order(&bench, a, c);
            order(&bench, b, c);
            ok!(bench, cuMemcpyAsync(memory + 64, memory, 64, c));
            order(&bench, c, a);
            fill(&bench, memory, 4, 16, a);
        });
        for round in 0..3 {
            fill(&bench, memory, 9, 256, a);
            ok!(bench, cuGraphLaunch(exec, a));
            let bytes: [u8; 256] = fetch(&bench, memory, a);
            let seen = [0, 16, 32, 64, 96, 128].map(|at| bytes[at]);
            assert_eq!(seen, [4, 2, 3, 2, 3, 9], "{options}, round {round}");
        }
        ok!(bench, cuGraphExecDestroy(exec));
    }
}

/// Some seeds show each order of two unordered branches.
#[test]
fn branches_without_an_order_run_in_either() {
    let mut last = [0; 2];
    for options in adversarial(100).skip(2) {
        let bench = Bench::new(&options);
        let (memory, a, b) = (bench.allocate(64), bench.stream(), bench.stream());
        let exec = record(&bench, a, || {
            order(&bench, a, b);
            fill(&bench, memory, 1, 64, a);
            fill(&bench, memory, 2, 64, b);
            order(&bench, b, a);
        });
        ok!(bench, cuGraphLaunch(exec, a));
        let bytes: [u8; 64] = fetch(&bench, memory, a);
        last[usize::from(bytes[63]) - 1] += 1;
        ok!(bench, cuGraphExecDestroy(exec));
    }
    assert!(last[0] > 0 && last[1] > 0, "{last:?}");
}

/// Some seed detects a host that does not wait for a launch; no seed fails one that waits.
#[test]
fn a_forgotten_wait_for_a_launch_is_seen() {
    let mut wrong = 0;
    for waits in [true, false] {
        for options in adversarial(100).skip(2) {
            let bench = Bench::new(&options);
            let (memory, a, b) = (bench.allocate(64), bench.stream(), bench.stream());
            let exec = record(&bench, a, || fill(&bench, memory, 1, 64, a));
            ok!(bench, cuGraphLaunch(exec, a));
            if waits {
                order(&bench, a, b);
            }
            let bytes: [u8; 64] = fetch(&bench, memory, b);
            let is_wrong = bytes != [1; 64];
            assert!(!(waits && is_wrong), "{options}");
            wrong += usize::from(is_wrong);
        }
    }
    assert!(wrong > 0);
}

static CALLS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn shift(digit: *mut c_void) {
    let before = CALLS.load(Ordering::SeqCst);
    CALLS.store(before * 10 + digit.addr() as u64, Ordering::SeqCst);
}

#[test]
fn launches_of_one_graph_follow_each_other() {
    for options in adversarial(30) {
        let bench = Bench::new(&options);
        let (a, b) = (bench.stream(), bench.stream());
        CALLS.store(0, Ordering::SeqCst);
        let exec = record(&bench, a, || {
            for digit in 1..4 {
                let digit = ptr::without_provenance_mut(digit);
                ok!(bench, cuLaunchHostFunc(a, Some(shift), digit));
            }
        });
        assert_eq!(CALLS.load(Ordering::SeqCst), 0, "{options}");
        for stream in [a, b, a] {
            ok!(bench, cuGraphLaunch(exec, stream));
        }
        // A destroyed graph's queued launch still runs.
        ok!(bench, cuGraphExecDestroy(exec));
        ok!(bench, cuCtxSynchronize());
        assert_eq!(CALLS.load(Ordering::SeqCst), 123_123_123, "{options}");
    }
}

#[test]
fn graphs_are_counted_and_give_everything_back() {
    for options in ["", "schedule=threads", "schedule=adversarial:5"] {
        let bench = Bench::new(options);
        let (stream, other) = (bench.stream(), bench.stream());
        let (before, free) = (live_objects(), bench.free());
        let mut address = 0;
        let exec = record(&bench, stream, || {
            ok!(bench, cuMemAllocAsync(&mut address, 1 << 20, stream));
            order(&bench, stream, other);
            fill(&bench, address, 1, 64, stream);
            fill(&bench, address + 64, 1, 64, other);
            order(&bench, other, stream);
            ok!(bench, cuMemFreeAsync(address, stream));
        });
        assert_eq!(live_objects().graphs, 1);
        for _ in 0..3 {
            ok!(bench, cuGraphLaunch(exec, stream));
        }
        ok!(bench, cuStreamSynchronize(stream));
        ok!(bench, cuGraphExecDestroy(exec));
        assert_eq!(cu!(bench, cuGraphLaunch(exec, stream)), code::INVALID_VALUE);
        assert_eq!(bench.free(), free, "{options}");
        // Failed and unfinished captures leave nothing alive.
        begin(&bench, stream);
        fill(&bench, 512, 1, 64, stream);
        assert_eq!(cu!(bench, cuStreamQuery(stream)), code::STREAM_CAPTURE_UNSUPPORTED);
        let mut graph = ptr::null_mut();
        let ended = cu!(bench, cuStreamEndCapture(stream, &mut graph));
        assert_eq!(ended, code::STREAM_CAPTURE_INVALIDATED);
        begin(&bench, stream);
        ok!(bench, cuMemAllocAsync(&mut address, 1 << 20, stream));
        ok!(bench, cuStreamDestroy(stream));
        assert_eq!(bench.free(), free, "{options}");
        let left = live_objects();
        let expected = LiveObjects { streams: before.streams - 1, ..before };
        assert_eq!(LiveObjects { workers: 0, ..left }, LiveObjects { workers: 0, ..expected });
    }
}

#[test]
fn memory_goes_when_a_launch_that_uses_it_is_over() {
    let bench = Bench::new("schedule=threads");
    let (stream, free) = (bench.stream(), bench.free());
    let mut address = 0;
    let gate = Gate::new();
    let exec = record(&bench, stream, || {
        ok!(bench, cuMemAllocAsync(&mut address, 1 << 20, stream));
        fill(&bench, address, 1, 64, stream);
        ok!(bench, cuMemFreeAsync(address, stream));
    });
    gate.hold(&bench, stream);
    ok!(bench, cuGraphLaunch(exec, stream));
    ok!(bench, cuGraphExecDestroy(exec));
    assert_ne!(bench.free(), free);
    gate.open();
    ok!(bench, cuStreamSynchronize(stream));
    assert_eq!(bench.free(), free);
}

#[test]
fn a_graph_runs_on_the_devices_that_it_was_captured_on() {
    for options in adversarial(20) {
        let bench = Bench::new(&format!("devices=2,{options}"));
        let (own, stream) = (bench.allocate(64), bench.stream());
        bench.use_device(1);
        let (theirs, other) = (bench.allocate(64), bench.stream());
        let exec = record(&bench, stream, || {
            fill(&bench, own, 1, 64, stream);
            bench.use_device(0);
            order(&bench, stream, other);
            fill(&bench, theirs, 2, 64, other);
            bench.use_device(1);
            order(&bench, other, stream);
            fill(&bench, own, 3, 32, stream);
        });
        // On a stream of the other device: each node keeps its own.
        ok!(bench, cuGraphLaunch(exec, other));
        ok!(bench, cuStreamSynchronize(other));
        assert_eq!(fetch::<64>(&bench, theirs, other), [2; 64], "{options}");
        let bytes: [u8; 64] = fetch(&bench, own, stream);
        assert_eq!((bytes[0], bytes[63]), (3, 1), "{options}");
        ok!(bench, cuGraphExecDestroy(exec));
    }
}
