//! Random programs of streams, events and memory, run on the library through its C interface and on
//! a model too simple to be wrong; after every operation the two are compared, by the public
//! snapshot of blocks, the statistics, and the bytes in the blocks.
//!
//! A failing program is shrunk and printed. `TCUDA_MODEL_SEED` repeats a run, `PROPTEST_CASES` sets
//! the number of programs, `TCUDA_GAUNTLET=1` makes it large.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod api;
mod apply;
mod apply_streams;
mod books;
mod compare;
mod crowd;
mod hands;
mod ops;
mod order;
mod view;
mod world;

use ops::Op;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use world::{Machine, World};

/// There is one machine, so that one test runs at a time.
static MACHINE: Mutex<()> = Mutex::new(());
/// What the first panic of a program said.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Programs of a test: `make test` runs `few`, the gauntlet fifty times as many, or, where host
/// threads take turns as the seed says, which takes time, ten times.
fn cases(few: u32, schedule: &str) -> u32 {
    let factor = if schedule == "adversarial" { 10 } else { 50 };
    let many = if std::env::var_os("TCUDA_GAUNTLET").is_some() { few * factor } else { few };
    environment("PROPTEST_CASES").map_or(many, |cases| cases as u32)
}

fn machine(schedule: impl Strategy<Value = String>) -> impl Strategy<Value = Machine> {
    let memory = prop::sample::select(vec![8, 32, 64, 256, 1024]);
    let peers = prop::sample::select(vec!["full", "none", "pairs"]);
    let all = (1..=3, memory, peers, schedule, any::<bool>());
    all.prop_map(|(devices, memory_mib, peers, schedule, shares)| Machine {
        devices,
        memory_mib,
        peers,
        schedule,
        shares,
    })
}

fn note_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let mut first = PANIC.lock().unwrap_or_else(PoisonError::into_inner);
    first.get_or_insert_with(|| panic.to_string());
}

/// Runs a program; the error is what was wrong, after what was done.
fn run(machine: &Machine, ops: &[Op]) -> Result<(), String> {
    *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let mut log = Vec::new();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(machine.clone());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            ops.iter().enumerate().for_each(|(number, op)| world.run(op, number));
            world.end();
        }));
        log = std::mem::take(&mut world.log);
        if outcome.is_err() {
            api::shutdown();
        }
        outcome
    }));
    if matches!(outcome, Ok(Ok(()))) {
        return Ok(());
    }
    let why = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
    let why = why.unwrap_or_else(|| "a panic".to_owned());
    let shares = if machine.shares { ", streams share" } else { "" };
    Err(format!("machine: {}{shares}\n{}\n{why}", machine.options(), log.join("\n")))
}

/// Runs random programs on machines with a schedule, and prints the shortest that fails.
fn agree(name: &str, few: u32, schedule: impl Strategy<Value = String>) {
    let _lock = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = environment("TCUDA_MODEL_SEED").unwrap_or(now);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let cases = cases(few, name);
    let config =
        Config { cases, max_shrink_iters: 4000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(note_panic));
    let strategy = (machine(schedule), ops::program());
    let operations = Cell::new(0);
    let outcome = runner.run(&strategy, |(machine, ops)| {
        operations.set(operations.get() + ops.len());
        run(&machine, &ops).map_err(TestCaseError::fail)
    });
    std::panic::set_hook(before);
    match outcome {
        Ok(()) => {
            let operations = operations.get();
            println!(
                "model: {name}: {cases} programs, {operations} operations, TCUDA_MODEL_SEED={seed}"
            );
        }
        Err(TestError::Fail(why, _)) => {
            panic!("{name}: TCUDA_MODEL_SEED={seed}\n{}", why.message());
        }
        Err(TestError::Abort(why)) => panic!("{name}: {}", why.message()),
    }
}

/// Runs crowds of threads on machines with a schedule; `TCUDA_MODEL_SEED` begins with the plan that
/// failed, though what its threads do to each other is not the same each time.
fn meet(schedule: &str, few: u32) {
    let _lock = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let first = environment("TCUDA_MODEL_SEED").unwrap_or(now);
    let mut figures = crowd::Figures::default();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(note_panic));
    let failed = (0..u64::from(cases(few, schedule)))
        .map(|index| first.wrapping_add(index))
        .find_map(|seed| {
            *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let outcome = crowd::run(seed, schedule, &mut figures);
            outcome.err().map(|why| (seed, why))
        });
    std::panic::set_hook(before);
    if let Some((seed, why)) = failed {
        let panic = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
        panic!("crowd, {schedule}: TCUDA_MODEL_SEED={seed}\n{why}\n{}", panic.unwrap_or_default());
    }
    let figures = format!("{figures:?}").replace("Figures ", "");
    println!("model: crowd, {schedule}: {figures}, TCUDA_MODEL_SEED={first}");
}

#[test]
fn crowds_agree_when_work_runs_at_once() {
    meet("immediate", 100);
}

#[test]
fn crowds_agree_when_work_runs_on_threads() {
    meet("threads", 40);
}

#[test]
fn crowds_agree_when_work_runs_as_late_as_it_may() {
    meet("adversarial", 40);
}

#[test]
fn programs_agree_when_work_runs_at_once() {
    agree("immediate", 400, Just("immediate".to_owned()));
}

#[test]
fn programs_agree_when_work_runs_on_threads() {
    agree("threads", 100, Just("threads".to_owned()));
}

/// Whatever order of work the rules of CUDA allow, the bytes are those that the order of the
/// program demands, and the allocator reuses nothing too early.
#[test]
fn programs_agree_when_work_runs_as_late_as_it_may() {
    let is_known = {
        let _lock = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        api::select("schedule=adversarial:1").is_ok()
    };
    if !is_known {
        println!("skipped: the simulated machine has no adversarial schedule");
        return;
    }
    let schedule = any::<u32>().prop_map(|seed| format!("adversarial:{seed}"));
    agree("adversarial", 150, schedule);
}
