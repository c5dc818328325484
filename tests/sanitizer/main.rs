//! The corpus of the stream sanitizer: programs of which an oracle knows whether two accesses race,
//! run on the library, whose reports are compared with it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod api;
mod captures;
mod corpus;
mod generate;
mod model;
mod oracle;
mod orders;
mod program;
mod run;
mod watch;

use std::collections::BTreeMap;
use std::time::Instant;

#[test]
fn probe() {
    let start = Instant::now();
    let corpus = corpus::make();
    println!("{} pairs, {} skipped {:?}", corpus.pairs.len(), corpus.skipped, start.elapsed());
    let mut lacks: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lines = 0;
    for pair in &corpus.pairs {
        *lacks.entry(pair.lacks).or_default() += 1;
        lines += pair.clean.lines.len();
    }
    println!("{lacks:?} {lines}");
    for schedule in ["immediate", "threads", "adversarial:1"] {
        let start = Instant::now();
        let mut wrong = Vec::new();
        for pair in &corpus.pairs {
            let clean = run::run(&pair.clean, schedule, false);
            let races = corpus::races(&pair.clean, &clean.addresses);
            let racy = run::run(&pair.racy, schedule, false);
            let found = corpus::races(&pair.racy, &racy.addresses);
            if races.as_ref().is_none_or(|r| !r.is_empty())
                || found.as_ref().is_none_or(|f| f.is_empty())
            {
                wrong.push((pair.seed, pair.lacks, races.map(|r| r.len()), found.map(|r| r.len())));
            }
        }
        println!("{schedule} {:?} {wrong:?}", start.elapsed());
    }
}

#[test]
fn look() {
    let Some(seed) = std::env::var("LOOK").ok().and_then(|s| s.parse().ok()) else { return };
    let corpus = corpus::make();
    let pair = corpus.pairs.iter().find(|pair| pair.seed == seed).unwrap();
    let program = &pair.racy;
    println!("{program}");
    for schedule in ["immediate", "threads"] {
        let run = run::run(program, schedule, false);
        for race in oracle::judge(program, &run.addresses, true) {
            println!("{schedule} {} {} {:x?}", race.earlier.line, race.later.line, race.bytes);
        }
        for (line, a) in run.addresses.iter().enumerate() {
            if let Some(a) = a {
                println!("{line} {a:x}");
            }
        }
    }
}
