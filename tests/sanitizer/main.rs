//! The corpus of the stream sanitizer: programs run on the library, and their reports are compared
//! with the races that an oracle finds.
//!
//! `TCUDA_SANITIZER_SEED=257 cargo test --test sanitizer one_seed -- --nocapture` prints the
//! programs of a seed with the findings of the oracle and of the sanitizer.
//! `TCUDA_SANITIZER_PROGRAMS=5000` makes more programs. `TCUDA_GAUNTLET=1` runs more seeds of the
//! adversarial schedule.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod api;
mod captures;
mod cases;
mod check;
mod corpus;
mod generate;
mod model;
mod oracle;
mod orders;
mod program;
mod run;
mod watch;

use check::Verdict;
use corpus::Corpus;
use oracle::Race;
use program::Program;
use run::Outcome;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// The simulated machine is shared, so tests run one at a time.
static MACHINE: Mutex<()> = Mutex::new(());
static CORPUS: OnceLock<Corpus> = OnceLock::new();

struct MachineGuard {
    _lock: MutexGuard<'static, ()>,
}

impl Drop for MachineGuard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            run::power_off();
        }
    }
}

fn lock_machine() -> MachineGuard {
    MachineGuard { _lock: MACHINE.lock().unwrap_or_else(PoisonError::into_inner) }
}

fn corpus() -> &'static Corpus {
    CORPUS.get_or_init(corpus::make)
}

/// Runs a program, and judges it with the addresses of this run.
fn run_and_judge(program: &Program, schedule: &str) -> (Outcome, Vec<Race>, Verdict) {
    let outcome = run::run(program, schedule, true);
    let races = corpus::races(program, &outcome.addresses);
    let races = races.expect("the races depend on when a host function runs");
    let verdict = check::compare(program, &outcome, &races);
    (outcome, races, verdict)
}

#[derive(Default)]
struct Figures {
    programs: usize,
    found: usize,
    lines: usize,
    reported: usize,
    reports: usize,
    wrong: Vec<String>,
}

impl Figures {
    fn take(&mut self, what: &str, verdict: &Verdict, reports: usize) {
        self.programs += 1;
        self.found += usize::from(verdict.is_found());
        self.lines += verdict.racing.len();
        self.reported += verdict.reported.len();
        self.reports += reports;
        let alarms =
            verdict.false_alarms.iter().map(|alarm| format!("{what}: false alarm: {alarm}"));
        self.wrong.extend(alarms);
        self.wrong.extend(verdict.untrue.iter().map(|text| format!("{what}: untrue: {text}")));
        let missed =
            verdict.missed.iter().map(|line| format!("{what}: line {line} is not reported"));
        self.wrong.extend(missed);
    }
}

fn agree(schedule: &str) {
    let _guard = lock_machine();
    let corpus = corpus();
    let start = Instant::now();
    let (mut clean, mut racy) = (Figures::default(), Figures::default());
    let mut moved = 0;
    for pair in &corpus.pairs {
        for (program, is_racy) in [(&pair.clean, false), (&pair.racy, true)] {
            let (outcome, races, verdict) = run_and_judge(program, schedule);
            let lacks = if is_racy { pair.lacks } else { "nothing" };
            let what = format!("seed {} without {lacks}", pair.seed);
            moved += usize::from(races.is_empty() == is_racy);
            let figures = if races.is_empty() { &mut clean } else { &mut racy };
            figures.take(&what, &verdict, outcome.reports.len());
        }
    }
    // Reuse of memory may depend on timing, so a run can have other races than the prediction.
    let most_moved = if schedule == "immediate" { 0 } else { corpus.pairs.len() / 40 };
    assert!(moved <= most_moved, "{moved} programs race where they should not, or do not");
    println!(
        "sanitizer: {schedule}: recall {}/{} racy programs ({}/{} racing lines, {} reports), \
         false alarms {}/{} clean programs, {:.1} s",
        racy.found,
        racy.programs,
        racy.reported,
        racy.lines,
        racy.reports,
        clean.reports,
        clean.programs,
        start.elapsed().as_secs_f64()
    );
    println!("figure: races of the sanitizer's corpus that are reported = {}", racy.found);
    println!("figure: false alarms = {}", clean.reports);
    let wrong = [clean.wrong, racy.wrong].concat();
    wrong.iter().take(20).for_each(|text| println!("{text}"));
    assert!(wrong.is_empty(), "{} of the reports are wrong or missing", wrong.len());
}

#[test]
fn the_corpus_agrees_when_work_runs_at_once() {
    agree("immediate");
}

#[test]
fn the_corpus_agrees_when_work_runs_on_threads() {
    agree("threads");
}

#[test]
fn the_corpus_agrees_when_work_runs_as_late_as_it_may() {
    let seeds = if std::env::var_os("TCUDA_GAUNTLET").is_some() { 20 } else { 1 };
    (1..=seeds).for_each(|seed| agree(&format!("adversarial:{seed}")));
}

#[test]
fn small_cases_agree() {
    let _guard = lock_machine();
    let mut wrong = Vec::new();
    let cases = cases::all_cases();
    for case in &cases {
        let (outcome, races, verdict) = run_and_judge(&case.program, "immediate");
        let mut lines: BTreeMap<usize, usize> = BTreeMap::new();
        races.iter().for_each(|race| *lines.entry(race.later.line).or_default() += 1);
        let wanted: BTreeMap<usize, usize> = case.races.iter().copied().collect();
        assert_eq!(lines, wanted, "the oracle of \"{}\"", case.name);
        let mut reported: BTreeMap<usize, usize> = BTreeMap::new();
        outcome.reports.iter().for_each(|r| *reported.entry(r.line).or_default() += 1);
        if reported != wanted || !verdict.untrue.is_empty() {
            wrong.push(format!(
                "{}: {reported:?} instead of {wanted:?} {:?}{:?}",
                case.name, verdict.false_alarms, verdict.untrue
            ));
        }
    }
    println!("sanitizer: {} of {} small cases agree", cases.len() - wrong.len(), cases.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Prints and checks what the corpus contains.
#[test]
fn the_corpus_is_varied() {
    let _guard = lock_machine();
    let start = Instant::now();
    let corpus = corpus();
    let mut lacks: BTreeMap<&str, usize> = BTreeMap::new();
    let mut features: BTreeMap<&str, usize> = BTreeMap::new();
    for pair in &corpus.pairs {
        *lacks.entry(pair.lacks).or_default() += 1;
        for feature in corpus::features(&pair.clean) {
            *features.entry(feature).or_default() += 1;
        }
    }
    let lines: usize = corpus.pairs.iter().map(|pair| pair.clean.lines.len()).sum();
    println!(
        "sanitizer: corpus: {} pairs of {lines} lines, {} seeds skipped, {:.1} s",
        corpus.pairs.len(),
        corpus.skipped,
        start.elapsed().as_secs_f64()
    );
    println!("sanitizer: left out: {lacks:?}");
    println!("sanitizer: clean programs with: {features:?}");
    assert!(lacks.len() >= 11 && lacks.values().all(|count| *count >= 10), "{lacks:?}");
    assert!(features.values().all(|count| *count >= 10), "{features:?}");
}

#[test]
fn one_seed() {
    let seed = std::env::var("TCUDA_SANITIZER_SEED").ok().and_then(|seed| seed.parse().ok());
    let Some(seed): Option<u64> = seed else { return };
    let _guard = lock_machine();
    let pair = corpus().pairs.iter().find(|pair| pair.seed == seed).expect("no pair of this seed");
    let schedule = std::env::var("TCUDA_SANITIZER_SCHEDULE").unwrap_or("immediate".to_owned());
    for program in [&pair.clean, &pair.racy] {
        println!("{program}");
        let (outcome, races, _) = run_and_judge(program, &schedule);
        for race in races {
            let (earlier, later) = (race.earlier.line, race.later.line);
            println!("oracle: lines {earlier} and {later}, {:x?}", race.bytes);
        }
        outcome.reports.iter().for_each(|report| println!("report: {}", check::describe(report)));
        for (line, address) in outcome.addresses.iter().enumerate() {
            address.iter().for_each(|address| println!("line {line}: at {address:x}"));
        }
    }
}
