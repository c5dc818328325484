//! The fault loop: every scenario is run with its k-th driver call, or its k-th allocation of host
//! memory, failing, once and for ever, with k = 1, 2, 3 ... until nothing is left to fail. After
//! each run nothing may be lost, and the library works again.
//!
//! `faults` runs a share that lasts TCUDA_FAULT_SECONDS (40), TCUDA_GAUNTLET=1 all of it, and
//! `faults SCENARIO [RULE]` one scenario, or one run of it; --scenarios lists them.

mod checks;
mod host;
mod scenarios;

use checks::Outcome;
use scenarios::{SCENARIOS, Scenario};
use std::ffi::c_int;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tcuda::base::host_faults;

/// The effects that a fault has, with what they act on.
const KINDS: [(&str, &str); 13] = [
    ("*", "2"),
    ("*", "2!"),
    ("*", "999"),
    ("*", "999!"),
    ("*", "1"),
    ("*", "1!"),
    ("*", "700"),
    ("*", "700!"),
    ("*", "lost"),
    ("*", "slow:1ms"),
    ("*", "slow:20us!"),
    ("malloc", "fail"),
    ("malloc", "fail!"),
];
/// A run takes milliseconds; one that takes so long hangs.
const HANGS: Duration = Duration::from_secs(20);
/// A share tries every k up to this one, then takes ever longer steps.
const ALL_UP_TO: u64 = 24;
/// After so many failures the rest is noise.
const MOST_FAILURES: usize = 40;

/// What runs now.
static NOW: Mutex<String> = Mutex::new(String::new());
/// Counts runs; odd while one runs.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// How to see a failure again.
fn command(scenario: &str, rule: &str) -> String {
    format!("cargo test --locked --features host_faults --test faults -- {scenario} '{rule}'")
}

/// Says what ran when the process was brought to its end; a debugger says where.
extern "C" fn on_signal(signal: c_int) {
    host_faults::set(0, false);
    // What is done here is not allowed in a signal handler, and good enough at the end of a test.
    eprintln!("signal {signal}: {}", host::lock(&NOW));
    // SAFETY: no preconditions.
    unsafe { libc::_exit(1) };
}

fn guard() {
    for signal in [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS] {
        let handler = on_signal as extern "C" fn(c_int);
        // SAFETY: a function with a handler's signature.
        unsafe { libc::signal(signal, handler as usize) };
    }
    std::thread::spawn(|| {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(250));
            let runs = RUNS.load(Ordering::Relaxed);
            if runs != seen || runs.is_multiple_of(2) {
                (seen, since) = (runs, Instant::now());
            } else if since.elapsed() > HANGS {
                eprintln!("hangs: {}", host::lock(&NOW));
                std::process::abort();
            }
        }
    });
}

/// The runs of one scenario with one kind of fault.
struct Cursor {
    scenario: &'static Scenario,
    kind: usize,
    next: Option<u64>,
}

#[derive(Default)]
struct Figures {
    injections: [u64; KINDS.len()],
    runs: u64,
    failures: Vec<String>,
}

impl Figures {
    fn run(&mut self, scenario: &'static Scenario, rule: &str, is_warm: bool) -> Outcome {
        *host::lock(&NOW) = command(scenario.name, rule);
        RUNS.fetch_add(1, Ordering::Relaxed);
        let outcome = checks::run(scenario, rule, is_warm);
        RUNS.fetch_add(1, Ordering::Relaxed);
        self.runs += 1;
        if !outcome.problems.is_empty() {
            let text = format!(
                "{}\n    {}",
                command(scenario.name, rule),
                outcome.problems.join("\n    ")
            );
            println!("FAILED {text}");
            self.failures.push(text);
        }
        outcome
    }
}

impl Cursor {
    /// One run with the next k.
    fn step(&mut self, figures: &mut Figures, takes_all: bool) {
        let Some(k) = self.next else { return };
        let (target, effect) = KINDS[self.kind];
        let outcome = figures.run(self.scenario, &format!("{target}@{k}={effect}"), true);
        figures.injections[self.kind] += outcome.fired;
        let step = if takes_all || k < ALL_UP_TO { 1 } else { 1 + k / 5 };
        // Where every call is slow, the first k says it all.
        let is_slow_for_ever = effect.starts_with("slow") && effect.ends_with('!');
        self.next = (outcome.fired > 0 && !is_slow_for_ever).then_some(k + step);
    }
}

fn report(figures: &Figures, scenarios: usize, left: usize, started: Instant) -> ExitCode {
    println!("\ninjections by kind:");
    for ((target, effect), count) in KINDS.iter().zip(figures.injections) {
        let times = if effect.ends_with('!') { "for ever" } else { "once" };
        println!("  {target:>6} = {:<5} {times:<8} {count:>9}", effect.trim_end_matches('!'));
    }
    println!(
        "{} injections in {} runs of {} scenarios, {left} not run to the end, {:.1} s, {} failed",
        figures.injections.iter().sum::<u64>(),
        figures.runs,
        scenarios,
        started.elapsed().as_secs_f64(),
        figures.failures.len()
    );
    if figures.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let (only, rule) = (arguments.first(), arguments.get(1));
    let takes_all = only.is_some() || std::env::var_os("TCUDA_GAUNTLET").is_some();
    let seconds = std::env::var("TCUDA_FAULT_SECONDS").ok().and_then(|text| text.parse().ok());
    let limit = Duration::from_secs(seconds.unwrap_or(40));
    let started = Instant::now();
    if std::env::args().any(|argument| argument == "--scenarios") {
        SCENARIOS.iter().for_each(|scenario| println!("{}", scenario.name));
        return ExitCode::SUCCESS;
    }
    scenarios::tools::prepare();
    guard();
    checks::begin();
    let mut figures = Figures::default();
    let mut cursors = Vec::new();
    let chosen = |scenario: &&Scenario| only.is_none_or(|only| only == scenario.name);
    for scenario in SCENARIOS.iter().filter(chosen) {
        // Twice: the first run makes what the library keeps for good.
        figures.run(scenario, "", false);
        figures.run(scenario, "", true);
        if let Some(rule) = rule {
            figures.injections[0] += figures.run(scenario, rule, true).fired;
            continue;
        }
        let kinds = 0..KINDS.len();
        cursors.extend(kinds.map(|kind| Cursor { scenario, kind, next: Some(1) }));
    }
    let in_time = || takes_all || started.elapsed() < limit;
    let unfinished = |cursors: &[Cursor]| cursors.iter().filter(|c| c.next.is_some()).count();
    while unfinished(&cursors) > 0 && in_time() && figures.failures.len() < MOST_FAILURES {
        for cursor in &mut cursors {
            if in_time() && figures.failures.len() < MOST_FAILURES {
                cursor.step(&mut figures, takes_all);
            }
        }
    }
    report(&figures, SCENARIOS.iter().filter(chosen).count(), unfinished(&cursors), started)
}
