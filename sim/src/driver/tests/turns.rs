//! Host threads under an adversarial schedule: the seed selects the running thread, and no thread
//! waits forever.

use super::*;
use crate::driver::host_calls::thread_id;
use crate::driver::thread_state::ThreadStates;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The machine's objects that a thread uses.
#[derive(Clone, Copy)]
struct View {
    context: usize,
    shared: usize,
    event: usize,
    memory: u64,
}

impl View {
    fn shared(&self) -> CUstream {
        ptr::without_provenance_mut(self.shared)
    }

    fn event(&self) -> CUevent {
        ptr::without_provenance_mut(self.event)
    }

    fn enter(&self) {
        ok!(self, cuCtxSetCurrent(ptr::without_provenance_mut(self.context)));
    }
}

fn with_view<R>(options: &str, body: impl FnOnce(View) -> R) -> R {
    let bench = Bench::new(options);
    let result = body(View {
        context: bench.context.addr(),
        shared: bench.stream().addr(),
        event: bench.event(2).addr(),
        memory: bench.allocate(1 << 16),
    });
    ok!(bench, cuCtxSynchronize());
    result
}

/// The order of calls of four threads, and the trace.
fn run(seed: u64) -> (Vec<u32>, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("sim_turns_{}_{number}", std::process::id()));
    let options = format!("schedule=adversarial:{seed},trace={}", path.display());
    let order = Mutex::new(Vec::new());
    with_view(&options, |view| {
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let order = &order;
                scope.spawn(move || {
                    view.enter();
                    for round in 0..25 {
                        let cell = view.memory + u64::from(thread * 64 + round % 7);
                        ok!(view, cuMemsetD8Async(cell, thread as u8, 32, view.shared()));
                        ok!(view, cuEventRecord(view.event(), view.shared()));
                        lock(order).push(thread);
                        ok!(view, cuStreamWaitEvent(ptr::null_mut(), view.event(), 0));
                    }
                });
            }
        });
    });
    let trace = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    (order.into_inner().unwrap(), trace)
}

#[test]
fn the_same_seed_is_the_same_run_of_many_threads() {
    if !is_alone("turns::the_same_seed_is_the_same_run_of_many_threads") {
        return;
    }
    let mut orders = Vec::new();
    for seed in 0..6 {
        let first = run(seed);
        assert_eq!(first.0.len(), 100);
        for _ in 0..3 {
            assert_eq!(run(seed), first, "seed {seed}");
        }
        orders.push(first.0);
    }
    orders.sort();
    orders.dedup();
    assert!(orders.len() >= 5, "seeds give other orders, not {} of 6", orders.len());
}

#[test]
fn a_thread_that_spins_for_another_does_not_stop_it() {
    with_view("schedule=adversarial:3", |view| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                view.enter();
                while !done.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                ok!(view, cuStreamSynchronize(view.shared()));
            });
            scope.spawn(|| {
                view.enter();
                for _ in 0..20 {
                    ok!(view, cuMemsetD8Async(view.memory, 1, 32, view.shared()));
                }
                done.store(true, Ordering::SeqCst);
            });
        });
    });
}

#[test]
fn threads_that_wait_for_each_other_go_on() {
    with_view("schedule=adversarial:5", |view| {
        let barrier = Barrier::new(3);
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                let barrier = &barrier;
                scope.spawn(move || {
                    view.enter();
                    for round in 0..20 {
                        ok!(view, cuMemsetD8Async(view.memory, thread, 32, view.shared()));
                        barrier.wait();
                        // A short-lived thread.
                        std::thread::scope(|inner| {
                            inner.spawn(|| {
                                view.enter();
                                ok!(view, cuEventRecord(view.event(), view.shared()));
                            });
                        });
                        if round % 5 == u32::from(thread) {
                            ok!(view, cuEventSynchronize(view.event()));
                        }
                    }
                });
            }
        });
    });
}

static RUN: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn meet(barrier: *mut c_void) {
    // SAFETY: the argument is the test's barrier, which outlives the callback.
    unsafe { &*barrier.cast::<Barrier>() }.wait();
    RUN.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_callback_that_waits_for_a_thread_holds_up_no_other() {
    for seed in 0..4 {
        RUN.store(0, Ordering::SeqCst);
        with_view(&format!("schedule=adversarial:{seed}"), |view| {
            let barrier = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    view.enter();
                    let argument = ptr::from_ref(&barrier).cast_mut().cast();
                    ok!(view, cuLaunchHostFunc(view.shared(), Some(meet), argument));
                    ok!(view, cuStreamSynchronize(view.shared()));
                    assert_eq!(RUN.load(Ordering::SeqCst), 1);
                });
                scope.spawn(|| {
                    view.enter();
                    for _ in 0..20 {
                        ok!(view, cuMemsetD8Async(view.memory, 1, 32, ptr::null_mut()));
                    }
                    barrier.wait();
                    ok!(view, cuMemsetD8Async(view.memory, 2, 32, ptr::null_mut()));
                });
            });
        });
    }
}

fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

unsafe extern "C" fn count(_: *mut c_void) {
    RUN.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_callback_is_not_taken_for_asleep_while_its_thread_waits_for_a_lock() {
    if !is_alone("turns::a_callback_is_not_taken_for_asleep_while_its_thread_waits_for_a_lock") {
        return;
    }
    // No operation is delayed: a callback has finished when the call that queues it returns.
    with_view("schedule=adversarial:1,late=none", |view| {
        let machine = crate::driver::entry::machine().unwrap();
        let adversary = &machine.schedule.adversary;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    adversary.scheduler.set_idle(thread_id(), true);
                    while !stop.load(Ordering::Relaxed) {
                        let state = lock(&adversary.state);
                        compute(Duration::from_micros(5));
                        drop(state);
                    }
                });
            }
            let start = Instant::now();
            // Fewer rounds suffice on a busy machine.
            let rounds = (0..1000).take_while(|_| start.elapsed() < Duration::from_secs(3));
            let early = rounds.filter(|_| {
                ok!(view, cuLaunchHostFunc(view.shared(), Some(count), ptr::null_mut()));
                lock(&adversary.state).callbacks > 0
            });
            let early = early.count();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(early, 0, "calls went on before the callback was over");
        });
    });
}

#[test]
fn a_thread_started_after_the_list_was_read_is_found() {
    if !is_alone("turns::a_thread_started_after_the_list_was_read_is_found") {
        return;
    }
    let mut thread_states = ThreadStates::default();
    thread_states.begin();
    assert!(thread_states.is_complete());
    let stop = AtomicBool::new(false);
    let wait = || {
        while !stop.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    };
    // No assertion while threads wait: if it failed, they would wait forever.
    let seen = std::thread::scope(|scope| {
        let first = scope.spawn(wait);
        let (one_came, again) = (thread_states.is_complete(), thread_states.is_complete());
        thread_states.begin();
        stop.store(true, Ordering::Relaxed);
        first.join().unwrap();
        stop.store(false, Ordering::Relaxed);
        let second = scope.spawn(wait);
        let one_for_another = thread_states.is_complete();
        stop.store(true, Ordering::Relaxed);
        second.join().unwrap();
        (one_came, again, one_for_another)
    });
    assert_eq!(seen, (false, true, false), "the list is read anew when one came, or went as well");
}
