//! Runs programs that NVRTC compiled, and compares all that they write with a GPU's answers.
//!
//! `programs/*.cu` are the sources; `scripts/gpu/programs_gpu.py` compiled and ran them on an H100
//! and wrote the other files of that folder.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

#[path = "instructions/machine.rs"]
mod machine;
#[path = "instructions/operands.rs"]
#[allow(dead_code, reason = "one function of it is used here")]
mod operands;

/// Words of the input and of the output.
const WORDS: u64 = 512;
/// Differences that are printed.
const LINES: usize = 8;

fn check(name: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
    let read = |ending: &str| std::fs::read_to_string(format!("{folder}/{name}.{ending}")).unwrap();
    let (ptx, answers) = (read("ptx"), read("txt"));
    let mut lines = answers.lines();
    let (status, words) = lines.next().unwrap().split_once(' ').unwrap();
    let printed: Vec<&str> = lines.clone().filter_map(|line| line.strip_prefix("out ")).collect();
    // Blocks fail in any order.
    let sorted = |mut lines: Vec<&str>| {
        lines.sort_unstable();
        lines.join("\n")
    };
    let errors = sorted(lines.filter_map(|line| line.strip_prefix("err ")).collect());

    let input = (0..WORDS).flat_map(|i| (operands::splitmix64(i) as u32).to_le_bytes()).collect();
    let mut buffers = [vec![0; 4 * WORDS as usize], input];
    let count = (WORDS as u32).to_le_bytes();
    let outcome = machine::run(&ptx, 4, 128, 1024, &mut buffers, &count).unwrap();
    assert_eq!(outcome.status.to_string(), status, "{}", outcome.fault);
    assert_eq!(outcome.printed.lines().collect::<Vec<_>>(), printed);
    assert_eq!(sorted(outcome.errors.lines().collect()), errors);
    if words == "-" {
        return;
    }
    let mut differences = Vec::new();
    for (i, word) in buffers[0].chunks_exact(4).enumerate() {
        let ours = u32::from_le_bytes(word.try_into().unwrap());
        let theirs = u32::from_str_radix(&words[8 * i..8 * i + 8], 16).unwrap();
        if ours != theirs {
            differences.push(format!("word {i}: {ours:08x}, on a GPU {theirs:08x}"));
        }
    }
    let count = differences.len();
    differences.truncate(LINES);
    assert!(count == 0, "{count} words differ\n{}", differences.join("\n"));
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*
    };
}

programs! {
    assertion calls doubles floats halves hash heap histogram matmul overflow reduce scan text
}
