//! Waits for values in memory: what ends them, and what runs after them.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Pinned memory, zero.
fn word(bench: &Bench) -> &'static AtomicU32 {
    let mut host = ptr::null_mut();
    ok!(bench, cuMemHostAlloc(&mut host, 64, 0));
    // SAFETY: pinned memory that lives until the machine ends.
    let word = unsafe { &*host.cast::<AtomicU32>() };
    word.store(0, Ordering::SeqCst);
    word
}

fn address(word: &AtomicU32) -> u64 {
    word.as_ptr().expose_provenance() as u64
}

static RAN_ON: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

unsafe extern "C" fn note_thread(_: *mut c_void) {
    RAN_ON.lock().unwrap().push(thread::current().id());
}

/// A stream with a wait for 1 in a word that is 0, and a function after it.
fn waiting_stream(bench: &Bench) -> (CUstream, &'static AtomicU32) {
    RAN_ON.lock().unwrap().clear();
    let (stream, word) = (bench.stream(), word(bench));
    ok!(bench, cuStreamWaitValue32(stream, address(word), 1, 1));
    ok!(bench, cuLaunchHostFunc(stream, Some(note_thread), ptr::null_mut()));
    assert_eq!(cu!(bench, cuStreamQuery(stream)), code::NOT_READY);
    (stream, word)
}

#[test]
fn the_end_of_the_machine_ends_waits() {
    for schedule in ["immediate", "threads", "adversarial:1"] {
        let start = Instant::now();
        let bench = Bench::new(&format!("schedule={schedule}"));
        waiting_stream(&bench);
        // Before other tests may use the list.
        power_off();
        assert!(start.elapsed() < Duration::from_secs(20), "{schedule}");
        assert!(RAN_ON.lock().unwrap().is_empty(), "work after the wait is dropped");
    }
}

#[test]
fn the_end_of_a_context_ends_waits_after_the_time_of_a_kernel() {
    for schedule in ["immediate", "threads", "adversarial:1"] {
        let bench = Bench::new(&format!("schedule={schedule},kernel_time=2"));
        // A wait that another thread ends in time.
        let (_, word) = waiting_stream(&bench);
        let stores = thread::spawn(|| {
            thread::sleep(Duration::from_millis(50));
            word.store(1, Ordering::SeqCst);
        });
        ok!(bench, cuDevicePrimaryCtxReset(0));
        assert_eq!(RAN_ON.lock().unwrap().len(), 1, "{schedule}");
        stores.join().unwrap();
        // One that nothing ends.
        bench.use_device(0);
        waiting_stream(&bench);
        let start = Instant::now();
        ok!(bench, cuDevicePrimaryCtxReset(0));
        assert!(start.elapsed() >= Duration::from_secs(2), "{schedule}");
        assert!(RAN_ON.lock().unwrap().is_empty(), "work after the wait is dropped");
    }
}

#[test]
fn work_runs_at_once_again_after_a_wait() {
    let bench = Bench::new("schedule=immediate");
    let (stream, word) = waiting_stream(&bench);
    let (other, event) = (bench.stream(), bench.event(0));
    ok!(bench, cuEventRecord(event, stream));
    ok!(bench, cuStreamWaitEvent(other, event, 0));
    ok!(bench, cuLaunchHostFunc(other, Some(note_thread), ptr::null_mut()));
    assert!(RAN_ON.lock().unwrap().is_empty());
    word.store(1, Ordering::SeqCst);
    ok!(bench, cuCtxSynchronize());
    let own = thread::current().id();
    assert_eq!(RAN_ON.lock().unwrap().len(), 2);
    assert!(!RAN_ON.lock().unwrap().contains(&own));
    for stream in [stream, other] {
        ok!(bench, cuStreamWaitValue32(stream, address(word), 1, 1));
        ok!(bench, cuLaunchHostFunc(stream, Some(note_thread), ptr::null_mut()));
        assert_eq!(RAN_ON.lock().unwrap().last(), Some(&own));
        ok!(bench, cuStreamQuery(stream));
    }
}

/// Two streams that wait for each other's values, and the trace.
fn ping_pong(seed: u64) -> String {
    const ROUNDS: u32 = 30;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("sim_values_{}_{number}", std::process::id()));
    let bench = Bench::new(&format!("schedule=adversarial:{seed},trace={}", path.display()));
    let streams = [bench.stream(), bench.stream()];
    let memory = bench.allocate(4096);
    ok!(bench, cuMemsetD8Async(memory, 0, 4096, streams[0]));
    ok!(bench, cuStreamSynchronize(streams[0]));
    for round in 1..=ROUNDS {
        let cell = memory + 256 + 4 * u64::from(round);
        ok!(bench, cuStreamWaitValue32(streams[1], memory, round, 0));
        ok!(bench, cuMemsetD32Async(cell, round, 1, streams[1]));
        ok!(bench, cuStreamWriteValue32(streams[1], memory + 64, round, 0));
        ok!(bench, cuStreamWriteValue32(streams[0], memory, round, 0));
        ok!(bench, cuStreamWaitValue32(streams[0], memory + 64, round, 0));
        ok!(bench, cuMemcpyAsync(cell + 1024, cell, 4, streams[0]));
    }
    let mut copied = [0; 4 * ROUNDS as usize];
    assert_eq!(bench.fetch(memory + 256 + 1024 + 4, &mut copied, streams[0]), 0);
    let expected: Vec<u8> = (1..=ROUNDS).flat_map(u32::to_ne_bytes).collect();
    assert_eq!(copied[..], expected, "seed {seed}");
    drop(bench);
    let trace = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    trace
}

#[test]
fn waits_for_values_of_queued_work_repeat() {
    if !is_alone("values::waits_for_values_of_queued_work_repeat") {
        return;
    }
    for seed in 0..12 {
        let first = ping_pong(seed);
        for _ in 0..2 {
            assert_eq!(ping_pong(seed), first, "seed {seed}");
        }
    }
}
