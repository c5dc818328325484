//! Waits that are left out: each must be seen by some seed, or it is not needed.
//!
//! The k-th wait of a stream that a verb makes is not made, and says that it was. Of the seeds from 1 on
//! the first that shows it ends the search; the same seed is right with all of them made. Records need no
//! search of their own: without one, all waits for it are void.

use super::buffer::Place;
use super::case::{Case, VERBS, Verb};
use super::run::Missing;
use super::verbs::run;
use crate::driver::Call;
use crate::sim;

/// Seeds within which a missing wait must be seen, unless TCUDA_COMM_SEEDS says another number.
const SEEDS: u64 = 1000;
/// Seeds that say how many calls there are; which streams are idle is the seed's.
const LOOKS: u64 = 6;

/// A way of a verb.
#[derive(Clone, Copy, Debug)]
struct Way {
    plain: bool,
    limits: usize,
    peers: &'static str,
    rows: i64,
}

const WAYS: [Way; 5] = [
    Way { plain: false, limits: 0, peers: "full", rows: 12 },
    Way { plain: false, limits: 1, peers: "full", rows: 160 },
    Way { plain: false, limits: 2, peers: "full", rows: 160 },
    Way { plain: true, limits: 0, peers: "full", rows: 12 },
    Way { plain: false, limits: 0, peers: "none", rows: 12 },
];

fn case(verb: Verb, way: Way) -> Case {
    let list: Vec<Place> = (0..3).map(Place::Device).collect();
    Case {
        verb,
        devices: 3,
        peers: way.peers,
        schedule: String::new(),
        plain: way.plain,
        limits: way.limits,
        kind: (2, 32, 1),
        shape: vec![way.rows, 6],
        // Along the columns there is more than one row to a piece.
        dim: 0,
        root: if verb.is_coalesced() { Place::Device(0) } else { Place::Device(1) },
        list,
        tensors: if verb.is_coalesced() { 4 } else { 1 },
        buffer_bytes: 0,
        own_streams: true,
        foreign: false,
        odd: false,
        any_sizes: false,
        with_streams: false,
        captured: false,
        seed: 7,
    }
}

fn on(case: &Case, seed: u64) -> Case {
    Case { schedule: format!("adversarial:{seed}"), seed: case.seed + seed, ..case.clone() }
}

/// The first seed that shows that a call is missing.
fn first_seed(case: &Case, missing: Missing) -> Option<u64> {
    let seeds = std::env::var("TCUDA_COMM_SEEDS").ok().and_then(|text| text.parse().ok());
    (1..=seeds.unwrap_or(SEEDS)).find(|seed| {
        let case = on(case, *seed);
        let Err(why) = run(&case, Some(missing)) else { return false };
        if let Err(without) = run(&case, None) {
            panic!("wrong with all calls made: {without}\n{case:?}");
        }
        if std::env::var_os("TCUDA_COMM_VERBOSE").is_some_and(|value| value == "2") {
            println!("    {missing:?}, seed {seed}: {why}");
        }
        true
    })
}

fn every_call_is_needed(verbs: &[Verb]) {
    let _lock = sim::test_lock();
    let mut unseen = Vec::new();
    let (mut planted, mut latest) = (0, 0);
    let started = std::time::Instant::now();
    for (verb, way) in verbs.iter().flat_map(|verb| WAYS.map(|way| (*verb, way))) {
        let case = case(verb, way);
        let facts: Vec<_> = (1..=LOOKS)
            .map(|seed| match run(&on(&case, seed), None) {
                Ok(facts) => facts,
                Err(why) => panic!("{why}\n{:?}", on(&case, seed)),
            })
            .collect();
        let waits = facts.iter().map(|facts| facts.waits).max().unwrap_or(0);
        for number in 1..=waits {
            planted += 1;
            let missing = Missing { call: Call::cuStreamWaitEvent, number };
            match first_seed(&case, missing) {
                Some(seed) => latest = latest.max(seed),
                None => unseen.push(format!("{verb:?}, {way:?}: wait {number} of {waits}")),
            }
        }
        if std::env::var_os("TCUDA_COMM_VERBOSE").is_some() {
            println!("{verb:?} {way:?}: {waits} waits, {:?}", started.elapsed());
        }
    }
    println!("comm: {verbs:?}: {planted} missing calls, seen by seed {latest}");
    assert!(unseen.is_empty(), "not needed, it seems:\n{}", unseen.join("\n"));
}

#[test]
fn broadcasts_need_their_waits() {
    every_call_is_needed(&[Verb::Broadcast, Verb::BroadcastInto]);
}

#[test]
fn coalesced_verbs_need_their_waits() {
    every_call_is_needed(&[Verb::BroadcastCoalesced, Verb::ReduceAddCoalesced]);
}

#[test]
fn sums_need_their_waits() {
    every_call_is_needed(&[Verb::ReduceAdd, Verb::ReduceAddInto]);
}

#[test]
fn scatters_need_their_waits() {
    every_call_is_needed(&[Verb::Scatter, Verb::ScatterInto]);
}

#[test]
fn gathers_need_their_waits() {
    every_call_is_needed(&[Verb::Gather, Verb::GatherInto]);
}

#[test]
fn every_verb_is_looked_at() {
    assert_eq!(VERBS.len(), 10);
}
