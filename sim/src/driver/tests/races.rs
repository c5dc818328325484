//! An adversarial schedule detects programs that lack one wait within a few seeds. The same
//! programs with the wait never fail.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

const SEEDS: u64 = 1000;
const WORDS: usize = 64;
const BYTES: usize = WORDS * 4;

/// Pinned memory of the host.
struct Pinned(*mut u32);

impl Pinned {
    fn new(bench: &Bench) -> Pinned {
        let mut host = ptr::null_mut();
        ok!(bench, cuMemHostAlloc(&mut host, BYTES, 0));
        Pinned(host.cast())
    }

    fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }

    fn fill(&self, value: u32) {
        for index in 0..WORDS {
            // SAFETY: the index is below the size; a device may write meanwhile, as real ones do.
            unsafe { self.0.wrapping_add(index).write_volatile(value) };
        }
    }

    fn holds(&self, value: u32) -> bool {
        // SAFETY: as above.
        (0..WORDS).all(|index| unsafe { self.0.wrapping_add(index).read_volatile() } == value)
    }
}

/// A program that runs with or without its wait; returns true if the result is right.
type Program = fn(&Bench, bool) -> bool;

fn fill(bench: &Bench, address: u64, value: u32, stream: CUstream) {
    ok!(bench, cuMemsetD32Async(address, value, WORDS, stream));
}

fn holds(bench: &Bench, address: u64, value: u32, stream: CUstream) -> bool {
    let mut found = [0u8; BYTES];
    assert_eq!(bench.fetch(address, &mut found, stream), 0);
    found.chunks_exact(4).all(|word| word == value.to_le_bytes())
}

fn wait(bench: &Bench, event: CUevent, from: CUstream, to: CUstream) {
    ok!(bench, cuEventRecord(event, from));
    ok!(bench, cuStreamWaitEvent(to, event, 0));
}

/// One stream reads what another writes.
fn producer_and_consumer(bench: &Bench, waits: bool) -> bool {
    let (first, second, event) = (bench.stream(), bench.stream(), bench.event(2));
    let (input, output) = (bench.allocate(BYTES), bench.allocate(BYTES));
    fill(bench, input, 7, first);
    if waits {
        wait(bench, event, first, second);
    }
    ok!(bench, cuMemcpyAsync(output, input, BYTES, second));
    holds(bench, output, 7, second)
}

/// The event is recorded before the work that it should follow.
fn recorded_too_early(bench: &Bench, waits: bool) -> bool {
    let (first, second, event) = (bench.stream(), bench.stream(), bench.event(2));
    let (input, output) = (bench.allocate(BYTES), bench.allocate(BYTES));
    if !waits {
        ok!(bench, cuEventRecord(event, first));
    }
    fill(bench, input, 7, first);
    if waits {
        ok!(bench, cuEventRecord(event, first));
    }
    ok!(bench, cuStreamWaitEvent(second, event, 0));
    ok!(bench, cuMemcpyAsync(output, input, BYTES, second));
    holds(bench, output, 7, second)
}

/// The host reads pinned memory that a copy fills.
fn host_reads_too_early(bench: &Bench, waits: bool) -> bool {
    let (stream, host, memory) = (bench.stream(), Pinned::new(bench), bench.allocate(BYTES));
    host.fill(0);
    fill(bench, memory, 7, stream);
    ok!(bench, cuMemcpyAsync(host.address(), memory, BYTES, stream));
    if waits {
        ok!(bench, cuStreamSynchronize(stream));
    }
    host.holds(7)
}

/// The host writes pinned memory that a copy reads.
fn pinned_memory_is_used_again_too_early(bench: &Bench, waits: bool) -> bool {
    let (stream, host, memory) = (bench.stream(), Pinned::new(bench), bench.allocate(BYTES));
    host.fill(7);
    ok!(bench, cuMemcpyAsync(memory, host.address(), BYTES, stream));
    if waits {
        ok!(bench, cuStreamSynchronize(stream));
    }
    host.fill(8);
    holds(bench, memory, 7, stream)
}

/// A stream of another device reads the result.
fn across_devices(bench: &Bench, waits: bool) -> bool {
    let (first, event, input) = (bench.stream(), bench.event(2), bench.allocate(BYTES));
    let context = bench.context;
    let other = bench.use_device(1);
    let (second, output) = (bench.stream(), bench.allocate(BYTES));
    fill(bench, input, 7, first);
    if waits {
        wait(bench, event, first, second);
    }
    ok!(bench, cuMemcpyPeerAsync(output, other, input, context, BYTES, second));
    holds(bench, output, 7, second)
}

/// Memory of a pool is freed on one stream while another uses it.
fn freed_memory_is_used_again(bench: &Bench, waits: bool) -> bool {
    let (first, second, event) = (bench.stream(), bench.stream(), bench.event(2));
    let (mut memory, mut next, output) = (0, 0, bench.allocate(BYTES));
    ok!(bench, cuMemAllocAsync(&mut memory, BYTES, first));
    fill(bench, memory, 7, first);
    wait(bench, event, first, second);
    ok!(bench, cuMemcpyAsync(output, memory, BYTES, second));
    if waits {
        wait(bench, event, second, first);
    }
    ok!(bench, cuMemFreeAsync(memory, first));
    ok!(bench, cuMemAllocAsync(&mut next, BYTES, first));
    fill(bench, next, 8, first);
    ok!(bench, cuStreamSynchronize(first));
    let right = holds(bench, output, 7, second);
    ok!(bench, cuMemFreeAsync(next, first));
    right
}

static LAST: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn note(number: *mut c_void) {
    LAST.store(number.addr() as u32, Ordering::SeqCst);
}

/// Two callbacks on two streams.
fn callbacks_in_order(bench: &Bench, waits: bool) -> bool {
    let (first, second, event) = (bench.stream(), bench.stream(), bench.event(2));
    ok!(bench, cuLaunchHostFunc(first, Some(note), ptr::without_provenance_mut(1)));
    if waits {
        wait(bench, event, first, second);
    }
    ok!(bench, cuLaunchHostFunc(second, Some(note), ptr::without_provenance_mut(2)));
    ok!(bench, cuCtxSynchronize());
    LAST.load(Ordering::SeqCst) == 2
}

/// A non-blocking stream does not wait for the default stream.
fn default_stream(bench: &Bench, waits: bool) -> bool {
    let mut stream = ptr::null_mut();
    ok!(bench, cuStreamCreateWithPriority(&mut stream, u32::from(!waits), 0));
    let (input, output) = (bench.allocate(BYTES), bench.allocate(BYTES));
    fill(bench, input, 7, ptr::null_mut());
    ok!(bench, cuMemcpyAsync(output, input, BYTES, stream));
    holds(bench, output, 7, stream)
}

/// The program expects both halves of memory to change at once.
fn a_copy_is_not_atomic(bench: &Bench, waits: bool) -> bool {
    let (first, second, event) = (bench.stream(), bench.stream(), bench.event(2));
    let (input, output) = (bench.allocate(BYTES), bench.allocate(BYTES));
    fill(bench, input, 7, first);
    ok!(bench, cuStreamSynchronize(first));
    fill(bench, input, 8, first);
    if waits {
        wait(bench, event, first, second);
    }
    ok!(bench, cuMemcpyAsync(output, input, BYTES, second));
    holds(bench, output, 8, second) || (!waits && holds(bench, output, 7, second))
}

/// Memory is read before it is written.
fn fresh_memory_is_not_zero(bench: &Bench, waits: bool) -> bool {
    let (stream, memory) = (bench.stream(), bench.allocate(BYTES));
    if waits {
        fill(bench, memory, 0, stream);
    }
    holds(bench, memory, 0, stream)
}

const PROGRAMS: [(&str, Program); 10] = [
    ("producer and consumer", producer_and_consumer),
    ("recorded too early", recorded_too_early),
    ("host reads too early", host_reads_too_early),
    ("pinned memory used again", pinned_memory_is_used_again_too_early),
    ("across devices", across_devices),
    ("freed memory used again", freed_memory_is_used_again),
    ("callbacks in order", callbacks_in_order),
    ("default stream", default_stream),
    ("a copy is not atomic", a_copy_is_not_atomic),
    ("fresh memory is not zero", fresh_memory_is_not_zero),
];

fn run(program: Program, seed: u64, waits: bool) -> bool {
    let bench = Bench::new(&format!("devices=2,memory=64MiB,schedule=adversarial:{seed}"));
    program(&bench, waits)
}

#[test]
fn a_missing_wait_is_caught() {
    for (name, program) in PROGRAMS {
        let caught: Vec<u64> = (0..SEEDS).filter(|seed| !run(program, *seed, false)).collect();
        println!("{name}: by {} of {SEEDS} seeds", caught.len());
        // Users try a few dozen seeds.
        assert!(caught.first().is_some_and(|seed| *seed < 50), "{name}: {:?}", caught.first());
    }
}

#[test]
fn with_the_wait_no_seed_fails() {
    for (name, program) in PROGRAMS {
        for seed in 0..SEEDS {
            assert!(run(program, seed, true), "{name}, seed {seed}");
        }
    }
}

/// The trace of a run without addresses, which the host chooses.
fn trace(options: &str) -> Vec<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("sim_trace_{}_{number}", std::process::id()));
    let options = format!("{options},trace={}", path.display());
    let bench = Bench::new(&options);
    let streams: Vec<CUstream> = (0..4).map(|_| bench.stream()).collect();
    let (event, memory) = (bench.event(2), bench.allocate(1 << 16));
    for round in 0..100 {
        let stream = streams[round * 7 % 4];
        fill(&bench, memory + (round * BYTES) as u64, 1, stream);
        ok!(bench, cuEventRecord(event, stream));
        ok!(bench, cuStreamWaitEvent(streams[round % 3], event, 0));
        ok!(bench, cuLaunchHostFunc(streams[round % 2], Some(note), ptr::null_mut()));
        if round % 16 == 15 {
            ok!(bench, cuStreamSynchronize(stream));
        }
    }
    drop(bench);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let over = text.lines().filter(|line| line.contains("ran_after"));
    let without_address = |line: &str| {
        let Some(start) = line.find(",\"writes\"") else { return line.to_owned() };
        let cut = &line[..start];
        let rest = line.find(",\"waits\"").map_or("", |start| &line[start..]);
        format!("{cut}{rest}")
    };
    over.map(without_address).collect()
}

#[test]
fn the_same_seed_is_the_same_run() {
    if !is_alone("races::the_same_seed_is_the_same_run") {
        return;
    }
    let mut runs: Vec<Vec<String>> = Vec::new();
    for seed in 0..12 {
        let options = format!("schedule=adversarial:{seed}");
        let run = trace(&options);
        assert_eq!(run, trace(&options), "seed {seed}");
        runs.push(run);
    }
    runs.sort();
    runs.dedup();
    assert!(runs.len() >= 10, "seeds give other runs, not {} of 12", runs.len());
}

#[test]
fn only_what_late_names_is_late() {
    let late = |line: &&String| line.contains("\"late\":true");
    let undelayed = trace("schedule=adversarial:0,late=none");
    assert_eq!(undelayed.iter().filter(late).count(), 0);
    let one = trace("schedule=adversarial:0,late=5");
    let found: Vec<_> = one.iter().filter(late).collect();
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("{\"number\":5,"), "{}", found[0]);
}
