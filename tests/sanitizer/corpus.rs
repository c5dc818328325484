//! The corpus: random programs without a race, and for each a twin without one of the lines that
//! order it.

use super::generate::{self, Random};
use super::model;
use super::oracle::{self, Race};
use super::program::{How, Kind, Program, Step};
use super::run;
use std::collections::BTreeMap;

/// Number of pairs.
fn programs() -> usize {
    let wanted = std::env::var("TCUDA_SANITIZER_PROGRAMS").ok();
    wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(200)
}

pub struct Pair {
    pub seed: u64,
    pub clean: Program,
    pub racy: Program,
    /// The call that the racy program lacks.
    pub lacks: &'static str,
}

#[derive(Default)]
pub struct Corpus {
    pub pairs: Vec<Pair>,
    /// Seeds that gave no pair.
    pub skipped: usize,
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::RecordStream { .. } => "tcuda_record_stream",
        Step::HostRecord { .. } => "tcuda_host_record",
        Step::Fetch { .. } => "copy to pageable memory",
        Step::Record { .. } => "event record",
        Step::Wait { .. } => "event wait",
        Step::WaitStream { .. } => "wait for a stream",
        Step::SyncEvent { .. } => "event synchronise",
        Step::SyncStream { .. } => "stream synchronise",
        Step::SyncDevice { .. } => "device synchronise",
        Step::PollEvent { .. } => "event query",
        Step::PollStream { .. } => "stream query",
        Step::Callback { .. } => "callback",
        _ => "something else",
    }
}

/// Returns the races of a program. Host functions that no line waits for may run at any time, so
/// the oracle judges both extremes: at once and never. `None`: the results differ.
pub fn races(program: &Program, addresses: &[Option<u64>]) -> Option<Vec<Race>> {
    let [early, late] =
        [true, false].map(|sees_callbacks| oracle::judge(program, addresses, sees_callbacks));
    let same =
        |a: &Race, b: &Race| a.later.line == b.later.line && a.earlier.line == b.earlier.line;
    let agree = early.len() == late.len() && early.iter().zip(&late).all(|(a, b)| same(a, b));
    agree.then_some(early)
}

fn is_clean(program: &Program, addresses: &[Option<u64>]) -> bool {
    races(program, addresses).is_some_and(|races| races.is_empty())
}

fn is_racy(program: &Program, addresses: &[Option<u64>]) -> bool {
    races(program, addresses).is_some_and(|races| !races.is_empty())
}

/// Returns whether `is_so` holds both when blocks that other streams use are reused at once, and
/// when they are never reused.
fn in_both(program: &Program, is_so: fn(&Program, &[Option<u64>]) -> bool) -> bool {
    [false, true].iter().all(|is_slow| is_so(program, &model::addresses(program, *is_slow)))
}

/// Makes the same programs each time. For the last part of them the devices cannot access each
/// other's memory. The generator only predicts addresses, so each pair is also judged with the
/// addresses of a real run.
pub fn make() -> Corpus {
    let mut corpus = Corpus::default();
    let programs = programs();
    let mut lacking: BTreeMap<&'static str, usize> = BTreeMap::new();
    for seed in 0.. {
        if corpus.pairs.len() == programs {
            break;
        }
        let clean = generate::clean(seed, corpus.pairs.len() * 10 < programs * 7);
        let found = in_both(&clean, is_clean).then(|| {
            let orders = (0..clean.lines.len()).filter(|line| clean.lines[*line].orders);
            orders.filter(|line| in_both(&clean.without(*line), is_racy)).collect::<Vec<_>>()
        });
        // Choose the kind of line that was left out least often so far.
        let mut needed = found.unwrap_or_default();
        let first = Random(seed).below(needed.len() as u64) as usize;
        if !needed.is_empty() {
            needed.rotate_left(first);
        }
        let kind = |line: &usize| name(&clean.lines[*line].step);
        let rarest = needed.iter().min_by_key(|line| lacking.get(kind(line)).copied());
        let pair = rarest.map(|line| (clean.without(*line), kind(line)));
        let pair = pair.filter(|(racy, _)| {
            let run = |program| run::run(program, "immediate", false).addresses;
            is_clean(&clean, &run(&clean)) && is_racy(racy, &run(racy))
        });
        let Some((racy, lacks)) = pair else {
            corpus.skipped += 1;
            continue;
        };
        *lacking.entry(lacks).or_default() += 1;
        corpus.pairs.push(Pair { seed, clean, racy, lacks });
    }
    corpus
}

/// Returns the features that a program uses.
pub fn features(program: &Program) -> Vec<&'static str> {
    let step = |is_so: fn(&Step) -> bool| program.lines.iter().any(|line| is_so(&line.step));
    let kind = |wanted| program.streams.iter().any(|stream| stream.kind == wanted);
    let two_devices = |line: &super::program::Line| match &line.step {
        Step::Work { touches, .. } => {
            let places = touches.iter().map(|touch| program.blocks[touch.0.block].device);
            places.flatten().collect::<std::collections::BTreeSet<_>>().len() > 1
        }
        _ => false,
    };
    let captures = program.lines.iter().filter(|line| matches!(line.step, Step::Begin { .. }));
    let all = [
        ("copies", program.uses(How::Copy)),
        ("copies of rows", program.uses(How::Copy2d)),
        ("copies between devices", program.lines.iter().any(two_devices)),
        ("fills", program.uses(How::Fill)),
        ("random fills", program.uses(How::Random)),
        ("jit functions", program.uses(How::Elements)),
        ("kernels", program.uses(How::Kernel)),
        ("kernels of the host", program.uses(How::HostKernel)),
        (
            "collectives",
            [How::Broadcast, How::Gather, How::Sum].iter().any(|how| program.uses(*how)),
        ),
        ("pinned memory", program.blocks.iter().any(|block| block.device.is_none())),
        ("memory that is reused", step(|step| matches!(step, Step::Free { .. }))),
        ("tcuda_record_stream", step(|step| matches!(step, Step::RecordStream { .. }))),
        ("graphs", captures.clone().count() > 0),
        ("several graphs", captures.count() > 1),
        ("graphs that are destroyed", step(|step| matches!(step, Step::Drop { .. }))),
        ("callbacks", step(|step| matches!(step, Step::Callback { .. }))),
        ("queries", step(|s| matches!(s, Step::PollEvent { .. } | Step::PollStream { .. }))),
        ("events that are destroyed", step(|step| matches!(step, Step::Recreate { .. }))),
        ("default streams", kind(Kind::Legacy)),
        ("default streams of threads", kind(Kind::PerThread)),
        ("external streams, blocking", kind(Kind::Blocking)),
        ("external streams, not blocking", kind(Kind::NonBlocking)),
        ("two threads", program.lines.iter().any(|line| line.thread > 0)),
        ("two devices", program.devices == 2),
        ("three devices", program.devices == 3),
    ];
    all.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect()
}
