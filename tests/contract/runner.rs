//! Runs each sequence in a process of its own and tells what was seen.

use crate::bench::Bench;
use crate::{Row, TOPICS};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Where the simulated machine is known to differ; scripts/ci/contract.py keeps it honest.
const DIFFERENCES: &str = include_str!("differences.txt");
/// A sequence that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(40);

/// One line of a sequence.
struct Step {
    line: String,
    what: String,
    expected: String,
    seen: String,
}

struct Outcome {
    steps: Vec<Step>,
    /// Why it was not run.
    skipped: Option<String>,
    /// How the process ended, if not by itself.
    fate: Option<String>,
}

impl Outcome {
    /// The steps that went otherwise than expected; on the simulated machine without those that
    /// are known to differ there.
    fn wrong<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = &'a Step> {
        let sim = crate::bench::backend() == "sim";
        self.steps.iter().filter(move |step| {
            let line = format!("{}: {}", full_name(row), step.what);
            step.expected != step.seen && !(sim && DIFFERENCES.lines().any(|known| known == line))
        })
    }

    fn is_failure(&self, row: &Row) -> bool {
        self.fate.is_some() || self.wrong(row).next().is_some()
    }
}

fn all_rows() -> impl Iterator<Item = &'static Row> {
    TOPICS.iter().flat_map(|rows| rows.iter())
}

/// Names are of their topics: two can have a sequence "create".
fn full_name(row: &Row) -> String {
    format!("{}/{}", row.topic, row.name)
}

/// The sequence of this full name, in this process.
fn run_here(name: &str) -> ! {
    let row = all_rows().find(|row| full_name(row) == name).expect("a sequence of this name");
    (row.run)(&Bench::new());
    println!("end");
    let _ = std::io::stdout().flush();
    // SAFETY: ends the process without waiting for what a sequence left in the driver.
    unsafe { libc::_exit(0) }
}

fn run_apart(row: &Row) -> Outcome {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--one", &full_name(row)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = pipe.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut errors = child.stderr.take().unwrap();
    let complaints = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = errors.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let start = Instant::now();
    let fate = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.signal().map(|signal| format!("signal {signal}")),
            None if start.elapsed() > LIMIT => {
                child.kill().unwrap();
                child.wait().unwrap();
                break Some(String::from("hung"));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut outcome = Outcome { steps: Vec::new(), skipped: None, fate };
    let mut ended = false;
    for line in reader.join().unwrap().lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["step", line, what, expected, seen] => outcome.steps.push(Step {
                line: line.into(),
                what: what.into(),
                expected: expected.into(),
                seen: seen.into(),
            }),
            ["skipped", why] => outcome.skipped = Some(why.into()),
            ["end"] => ended = true,
            _ => {}
        }
    }
    let complaints = complaints.join().unwrap();
    if !ended && outcome.fate.is_none() && outcome.skipped.is_none() {
        let last = complaints.lines().take(3).collect::<Vec<_>>().join(" ");
        outcome.fate = Some(format!("ended early: {last}"));
    }
    outcome
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn json(backend: &str, outcomes: &BTreeMap<usize, (&Row, Outcome)>) -> String {
    let mut text = format!("{{\"backend\": {}, \"rows\": [", quoted(backend));
    for (index, (row, outcome)) in outcomes.values().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        text += &format!(
            "{comma}\n {{\"topic\": {}, \"name\": {}, ",
            quoted(row.topic),
            quoted(row.name)
        );
        if let Some(why) = &outcome.skipped {
            text += &format!("\"skipped\": {}, ", quoted(why));
        }
        if let Some(fate) = &outcome.fate {
            text += &format!("\"fate\": {}, ", quoted(fate));
        }
        text += "\"steps\": [";
        for (index, step) in outcome.steps.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            text += &format!(
                "{comma}\n  [{}, {}, {}, {}]",
                quoted(&step.line),
                quoted(&step.what),
                quoted(&step.expected),
                quoted(&step.seen)
            );
        }
        text += "]}";
    }
    text + "\n]}\n"
}

struct Options {
    json: Option<String>,
    jobs: usize,
    words: Vec<String>,
}

fn options() -> Options {
    let mut options = Options { json: None, jobs: 4, words: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--one" => run_here(&arguments.next().expect("--one NAME")),
            "--list" => {
                all_rows().for_each(|row| println!("{}", full_name(row)));
                std::process::exit(0);
            }
            "--json" => options.json = Some(arguments.next().expect("--json FILE")),
            "--jobs" => {
                options.jobs =
                    arguments.next().and_then(|text| text.parse().ok()).expect("--jobs N");
            }
            // Those of cargo's own harness.
            flag if flag.starts_with('-') => {}
            word => options.words.push(word.into()),
        }
    }
    options
}

pub fn main() {
    let options = options();
    let missing = crate::arguments::missing();
    assert!(missing.is_empty(), "no sequence of wrong arguments for {missing:?}");
    let chosen = |row: &Row| {
        options.words.is_empty()
            || options.words.iter().any(|word| full_name(row).contains(&**word))
    };
    let rows: Vec<(usize, &Row)> = all_rows().filter(|row| chosen(row)).enumerate().collect();
    let (alone, together): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|(_, row)| row.topic.starts_with("alone"));
    let outcomes = Mutex::new(BTreeMap::new());
    let waiting = Mutex::new(together.into_iter());
    let run_all = || {
        loop {
            let next = waiting.lock().unwrap().next();
            let Some((index, row)) = next else { break };
            let outcome = run_apart(row);
            outcomes.lock().unwrap().insert(index, (row, outcome));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(run_all);
        }
    });
    for (index, row) in alone {
        outcomes.lock().unwrap().insert(index, (row, run_apart(row)));
    }
    let outcomes = outcomes.into_inner().unwrap();
    let (mut steps, mut skipped, mut failed) = (0, 0, 0);
    for (row, outcome) in outcomes.values() {
        steps += outcome.steps.len();
        skipped += usize::from(outcome.skipped.is_some());
        failed += usize::from(outcome.is_failure(row));
        for step in outcome.wrong(row) {
            println!(
                "{}: {}: {}: expected {}, seen {}",
                step.line, row.name, step.what, step.expected, step.seen
            );
        }
        if let Some(fate) = &outcome.fate {
            println!("{}: {}: {fate}", row.topic, row.name);
        }
    }
    let backend = crate::bench::backend();
    if let Some(path) = options.json {
        std::fs::write(path, json(&backend, &outcomes)).unwrap();
    }
    println!(
        "contract, {backend}: {} sequences, {steps} steps; {skipped} skipped, {failed} failed",
        outcomes.len()
    );
    std::process::exit(i32::from(failed > 0));
}
