//! Runs the checked-in inputs, and a few random ones, through every target, without libFuzzer.

use std::path::Path;
use std::time::{Duration, Instant};
use tcuda_fuzz::{TARGETS, Target, abi, forks, shutdowns, threads};

/// The files of a directory, in order.
fn inputs(folder: &str, target: &str) -> Vec<(String, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: std::path::PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        (path.display().to_string(), bytes)
    };
    files.into_iter().map(read).collect()
}

/// Says which input it was when its run panics.
struct Named<'a>(&'a str);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input is {}", self.0);
        }
    }
}

fn run((_, body): &Target, name: &str, data: &[u8]) {
    let _named = Named(name);
    body(data);
}

#[test]
fn every_corpus_runs() {
    for target in TARGETS {
        let files = inputs("corpus", target.0);
        assert!(!files.is_empty(), "{} has no corpus", target.0);
        files.iter().for_each(|(name, data)| run(target, name, data));
    }
}

#[test]
fn every_regression_runs() {
    for target in TARGETS {
        inputs("regressions", target.0).iter().for_each(|(name, data)| run(target, name, data));
    }
}

/// One file over and over: TCUDA_FUZZ_TARGET=abi TCUDA_FUZZ_INPUT=file TCUDA_FUZZ_RANDOM=1000.
#[test]
fn the_named_input_runs() {
    let variable = |name: &str| std::env::var(name).ok();
    let (Some(path), Some(only)) = (variable("TCUDA_FUZZ_INPUT"), variable("TCUDA_FUZZ_TARGET"))
    else {
        return;
    };
    let data = std::fs::read(&path).unwrap();
    let target = TARGETS.iter().find(|target| target.0 == only).unwrap();
    let rounds = variable("TCUDA_FUZZ_RANDOM").and_then(|rounds| rounds.parse().ok());
    (0..rounds.unwrap_or(1)).for_each(|_| run(target, &path, &data));
}

#[test]
fn random_inputs_run() {
    let rounds = std::env::var("TCUDA_FUZZ_RANDOM").ok().and_then(|rounds| rounds.parse().ok());
    let only = std::env::var("TCUDA_FUZZ_TARGET").ok();
    for target in TARGETS.iter().filter(|target| only.as_deref().is_none_or(|n| n == target.0)) {
        for seed in 1..=rounds.unwrap_or(30u64) {
            let mut state = seed;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            };
            let length = usize::from(next()) * 8;
            let data: Vec<u8> = (0..length).map(|_| next()).collect();
            run(target, &format!("random input {seed} of {}", target.0), &data);
        }
    }
}

/// Random inputs for TCUDA_FUZZ_SECONDS, in turns: one thread, several, several while another one
/// shuts down, and while another one forks. `TCUDA_FUZZ_SEED` of the last line repeats a run;
/// `TCUDA_FUZZ_BESIDE` names one of the four.
#[test]
fn a_random_caller_runs_for_a_time() {
    let variable = |name: &str| std::env::var(name).ok();
    let number = |name: &str| variable(name).and_then(|value| value.parse::<u64>().ok());
    let Some(seconds) = number("TCUDA_FUZZ_SECONDS") else { return };
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut seed = number("TCUDA_FUZZ_SEED").unwrap_or_else(|| clock().unwrap().as_micros() as u64);
    let all: [Target; 4] =
        [("abi", abi), ("threads", threads), ("shutdowns", shutdowns), ("forks", forks)];
    let only = variable("TCUDA_FUZZ_BESIDE");
    let chosen = |target: &&Target| only.as_deref().is_none_or(|name| name == target.0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut runs = 0;
    while Instant::now() < end {
        for target in all.iter().filter(chosen) {
            let mut state = seed | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            };
            let length = 8 * (usize::from(next()) + 1);
            let data: Vec<u8> = (0..length).map(|_| next()).collect();
            run(target, &format!("TCUDA_FUZZ_SEED={seed} TCUDA_FUZZ_BESIDE={}", target.0), &data);
            runs += 1;
        }
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    }
    println!("figure: random inputs = {runs}");
}
