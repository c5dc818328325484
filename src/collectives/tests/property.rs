//! Random calls agree with the model.

use super::case::{self, Case, VERBS, Verb};
use super::verbs::run;
use crate::driver::sim;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{SystemTime, UNIX_EPOCH};

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a case. A panic is an error too; afterwards the library is shut down.
fn try_case(case: &Case) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| run(case, None))) {
        Ok(outcome) => outcome.map(drop),
        Err(panic) => {
            crate::driver::inject::clear();
            let _ = super::api::shutdown();
            let text = panic.downcast_ref::<String>().cloned();
            Err(text
                .or(panic.downcast_ref::<&str>().map(|text| text.to_string()))
                .unwrap_or_default())
        }
    }
}

fn agree(few: u32, verbs: &'static [Verb]) {
    let _lock = sim::test_lock();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = environment("TCUDA_MODEL_SEED").unwrap_or(now);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let many = if std::env::var_os("TCUDA_GAUNTLET").is_some() { few * 50 } else { few };
    let cases = environment("PROPTEST_CASES").map_or(many, |cases| cases as u32);
    let config =
        Config { cases, max_shrink_iters: 3000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    match runner.run(&case::case(verbs), |case| try_case(&case).map_err(TestCaseError::fail)) {
        Ok(()) => println!("comm: {verbs:?}: {cases} calls, TCUDA_MODEL_SEED={seed}"),
        Err(TestError::Fail(why, case)) => {
            panic!("TCUDA_MODEL_SEED={seed}\n{case:#?}\n{}", why.message());
        }
        Err(TestError::Abort(why)) => panic!("{}", why.message()),
    }
}

#[test]
fn broadcasts_agree_with_the_model() {
    agree(60, &[Verb::Broadcast, Verb::BroadcastInto]);
}

#[test]
fn coalesced_broadcasts_agree_with_the_model() {
    agree(30, &[Verb::BroadcastCoalesced]);
}

#[test]
fn sums_agree_with_the_model() {
    agree(60, &[Verb::ReduceAdd, Verb::ReduceAddInto]);
}

#[test]
fn coalesced_sums_agree_with_the_model() {
    agree(30, &[Verb::ReduceAddCoalesced]);
}

#[test]
fn scatters_agree_with_the_model() {
    agree(60, &[Verb::Scatter, Verb::ScatterInto]);
}

#[test]
fn gathers_agree_with_the_model() {
    agree(60, &[Verb::Gather, Verb::GatherInto]);
}

#[test]
fn every_verb_has_a_property() {
    assert_eq!(VERBS.len(), 10);
}
