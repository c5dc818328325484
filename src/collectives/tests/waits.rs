//! Omits each wait in turn: some seed must show a wrong result, or the wait is unnecessary.
//!
//! The k-th wait of a stream that an operation makes is omitted, but reports success. The first
//! seed that shows it ends the search; with all waits the same seed must be right. Records need no
//! search: without a record all waits for it have no effect.

use super::buffer::Place;
use super::case::{Case, VERBS, Verb};
use super::run::Omitted;
use super::verbs::run;
use crate::driver::Call;
use crate::driver::sim;

/// Number of seeds in which an omitted wait must show; `TCUDA_COMM_SEEDS` overrides it.
const SEEDS: u64 = 1000;
/// Seeds that are run to count the calls, because idle streams depend on the seed.
const LOOKS: u64 = 6;

/// A configuration of the paths for an operation.
#[derive(Clone, Copy, Debug)]
struct PathConfig {
    fallback_only: bool,
    limits: usize,
    peers: &'static str,
    rows: i64,
}

const PATH_CONFIGS: [PathConfig; 5] = [
    PathConfig { fallback_only: false, limits: 0, peers: "full", rows: 12 },
    PathConfig { fallback_only: false, limits: 1, peers: "full", rows: 160 },
    PathConfig { fallback_only: false, limits: 2, peers: "full", rows: 160 },
    PathConfig { fallback_only: true, limits: 0, peers: "full", rows: 12 },
    PathConfig { fallback_only: false, limits: 0, peers: "none", rows: 12 },
];

fn case(verb: Verb, path_config: PathConfig) -> Case {
    let list: Vec<Place> = (0..3).map(Place::Device).collect();
    Case {
        verb,
        devices: 3,
        peers: path_config.peers,
        schedule: String::new(),
        fallback_only: path_config.fallback_only,
        limits: path_config.limits,
        kind: (2, 32, 1),
        shape: vec![path_config.rows, 6],
        // Along the columns a piece has more than one row.
        dim: 0,
        root: if verb.is_coalesced() { Place::Device(0) } else { Place::Device(1) },
        list,
        tensors: if verb.is_coalesced() { 4 } else { 1 },
        buffer_bytes: 0,
        own_streams: true,
        foreign: false,
        irregular: false,
        any_sizes: false,
        with_streams: false,
        captured: false,
        seed: 7,
    }
}

fn on(case: &Case, seed: u64) -> Case {
    Case { schedule: format!("adversarial:{seed}"), seed: case.seed + seed, ..case.clone() }
}

/// The first seed that shows the omitted call.
fn first_seed(case: &Case, omitted: Omitted) -> Option<u64> {
    let seeds = std::env::var("TCUDA_COMM_SEEDS").ok().and_then(|text| text.parse().ok());
    (1..=seeds.unwrap_or(SEEDS)).find(|seed| {
        let case = on(case, *seed);
        let Err(why) = run(&case, Some(omitted)) else { return false };
        if let Err(without) = run(&case, None) {
            panic!("wrong with all calls made: {without}\n{case:?}");
        }
        if std::env::var_os("TCUDA_COMM_VERBOSE").is_some_and(|value| value == "2") {
            println!("    {omitted:?}, seed {seed}: {why}");
        }
        true
    })
}

fn every_wait_is_needed(verbs: &[Verb]) {
    let _lock = sim::test_lock();
    let mut unseen = Vec::new();
    let (mut planted, mut latest) = (0, 0);
    let started = std::time::Instant::now();
    for (verb, path_config) in
        verbs.iter().flat_map(|verb| PATH_CONFIGS.map(|path_config| (*verb, path_config)))
    {
        let case = case(verb, path_config);
        let facts: Vec<_> = (1..=LOOKS)
            .map(|seed| match run(&on(&case, seed), None) {
                Ok(facts) => facts,
                Err(why) => panic!("{why}\n{:?}", on(&case, seed)),
            })
            .collect();
        let waits = facts.iter().map(|facts| facts.waits).max().unwrap_or(0);
        for number in 1..=waits {
            planted += 1;
            let omitted = Omitted { call: Call::cuStreamWaitEvent, number };
            match first_seed(&case, omitted) {
                Some(seed) => latest = latest.max(seed),
                None => unseen.push(format!("{verb:?}, {path_config:?}: wait {number} of {waits}")),
            }
        }
        if std::env::var_os("TCUDA_COMM_VERBOSE").is_some() {
            println!("{verb:?} {path_config:?}: {waits} waits, {:?}", started.elapsed());
        }
    }
    println!("comm: {verbs:?}: {planted} missing calls, seen by seed {latest}");
    assert!(unseen.is_empty(), "not needed, it seems:\n{}", unseen.join("\n"));
}

#[test]
fn broadcasts_need_their_waits() {
    every_wait_is_needed(&[Verb::Broadcast, Verb::BroadcastInto]);
}

#[test]
fn coalesced_verbs_need_their_waits() {
    every_wait_is_needed(&[Verb::BroadcastCoalesced, Verb::ReduceAddCoalesced]);
}

#[test]
fn sums_need_their_waits() {
    every_wait_is_needed(&[Verb::ReduceAdd, Verb::ReduceAddInto]);
}

#[test]
fn scatters_need_their_waits() {
    every_wait_is_needed(&[Verb::Scatter, Verb::ScatterInto]);
}

#[test]
fn gathers_need_their_waits() {
    every_wait_is_needed(&[Verb::Gather, Verb::GatherInto]);
}

#[test]
fn every_verb_is_searched() {
    assert_eq!(VERBS.len(), 10);
}
