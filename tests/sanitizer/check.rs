//! Compares the reports of the sanitizer with the races of the oracle.

use super::oracle::{Race, common, subtract};
use super::program::{How, Mode, Program};
use super::run::Outcome;
use super::watch::{Report, Side};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Verdict {
    /// Reports that are no races.
    pub false_alarms: Vec<String>,
    /// Reports of races that describe an access wrongly.
    pub untrue: Vec<String>,
    /// Racing lines, and those of them that were reported.
    pub racing: BTreeSet<usize>,
    pub reported: BTreeSet<usize>,
    /// Racing lines that should have been reported, and were not.
    pub missed: Vec<usize>,
}

impl Verdict {
    /// Returns whether the first race was reported.
    pub fn is_found(&self) -> bool {
        self.racing.first().is_none_or(|first| !self.missed.contains(first))
    }
}

fn number(mode: Mode) -> i32 {
    match mode {
        Mode::Read => 1,
        Mode::Write => 2,
        Mode::Both => 3,
    }
}

fn side_matches(side: &Side, how: Option<How>, stream: i64, device: i32, mode: Mode) -> bool {
    how.is_none_or(|how| side.label.contains(how.label()))
        && (side.stream, side.device, side.mode) == (stream, device, number(mode))
}

fn matches(program: &Program, outcome: &Outcome, report: &Report, race: &Race) -> bool {
    let (now, then) = (&race.later, &race.earlier);
    let device = |stream: usize| program.streams[stream].device;
    let bytes = [(report.first, report.first + report.bytes)];
    let lies_in = |side: &Side| {
        side.first <= report.first && report.first + report.bytes <= side.first + side.bytes
    };
    !common(&race.bytes, &bytes).is_empty()
        && side_matches(
            &report.current,
            now.how,
            outcome.ids[now.stream],
            device(now.stream),
            now.mode,
        )
        && side_matches(
            &report.previous,
            then.how,
            outcome.ids[then.stream],
            device(then.stream),
            then.mode,
        )
        && report.previous.sequence < report.current.sequence
        && lies_in(&report.current)
        && lies_in(&report.previous)
        && !report.missing.is_empty()
        && report.text.contains(&report.current.label)
        && report.text.contains(&report.previous.label)
}

pub fn compare(program: &Program, outcome: &Outcome, races: &[Race]) -> Verdict {
    let racing = races.iter().map(|race| race.later.line).collect();
    let mut verdict = Verdict { racing, ..Verdict::default() };
    for report in &outcome.reports {
        let bytes = [(report.first, report.first + report.bytes)];
        let same = |race: &&Race| {
            race.later.line == report.line && !common(&race.bytes, &bytes).is_empty()
        };
        let own: Vec<&Race> = races.iter().filter(same).collect();
        if own.is_empty() {
            verdict.false_alarms.push(describe(report));
        } else if own.iter().any(|race| matches(program, outcome, report, race)) {
            verdict.reported.insert(report.line);
        } else {
            let expected: Vec<_> =
                own.iter().map(|race| (race.earlier.line, &race.earlier)).collect();
            verdict.untrue.push(format!("{}; by the oracle {expected:x?}", describe(report)));
            verdict.reported.insert(report.line);
        }
    }
    verdict.missed = missed(races, &verdict.reported);
    verdict
}

/// Returns the racing lines that should have been reported. A reported access replaces the one with
/// which it raced: later accesses are compared with it, so their common bytes need no second
/// report. All other races must be reported.
fn missed(races: &[Race], reported: &BTreeSet<usize>) -> Vec<usize> {
    let mut missed = BTreeSet::new();
    for race in races.iter().filter(|race| !reported.contains(&race.later.line)) {
        let replaces = |other: &&Race| {
            other.later.line < race.later.line && reported.contains(&other.later.line)
        };
        let mut open = race.bytes.clone();
        for other in races.iter().filter(replaces) {
            for bytes in &other.bytes {
                open = subtract(&open, *bytes);
            }
        }
        if !open.is_empty() {
            missed.insert(race.later.line);
        }
    }
    missed.into_iter().collect()
}

pub fn describe(report: &Report) -> String {
    let Report { line, first, bytes, current, previous, missing, .. } = report;
    format!(
        "line {line}, {bytes} bytes at {first:x}: {current:x?} after {previous:x?}; \"{missing}\""
    )
}
