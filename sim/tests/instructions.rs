//! Compares every form of every instruction with what a GPU answered.
//!
//! `instructions/rows.txt` names the forms; `scripts/gpu/instructions_gpu.py` ran them on an H100
//! and wrote the other files of that folder. Results are compared bit for bit, approximate ones
//! within the bounds of the PTX ISA. `instructions/unlike.txt` lists the rows that differ on
//! purpose. ROWS=TEXT tests only the rows that contain TEXT.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

#[path = "instructions/machine.rs"]
#[allow(dead_code, reason = "what kernels print is of no interest here")]
mod machine;
#[path = "instructions/operands.rs"]
mod operands;
#[path = "instructions/rows.rs"]
mod rows;

use machine::Outcome;
use rows::Row;

/// Differences printed of a row, and rows printed of a family.
const LINES: usize = 3;
const ROWS: usize = 40;

/// Runs a row's kernel for all items.
fn run(row: &Row) -> Result<(Outcome, Vec<u64>), String> {
    let bytes = row.operands().iter().flat_map(|value| value.to_le_bytes()).collect();
    let results = vec![0; row.items() as usize * row.outputs.len() * 8];
    let mut buffers = [bytes, results, vec![0; row.memory() as usize]];
    let (blocks, threads) = (row.blocks() as u32, operands::BLOCK as u32);
    let outcome = machine::run(&row.ptx(), blocks, threads, 0, &mut buffers, &[])?;
    let words = buffers[1].chunks_exact(8);
    let results = words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    Ok((outcome, results))
}

/// What differs from the recorded answers of a row.
fn differences(row: &Row) -> Vec<String> {
    match run(row) {
        Ok((outcome, _)) if outcome.status != row.status => {
            let Outcome { status, fault, .. } = outcome;
            vec![format!("ends with status {status}, on a GPU {}: {fault}", row.status)]
        }
        Ok((_, results)) => row.differences(&results),
        Err(error) => vec![error],
    }
}

/// Rows that differ on purpose.
fn unlike() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/instructions");
    let text = std::fs::read_to_string(format!("{folder}/unlike.txt")).unwrap();
    text.lines().filter(|line| !line.starts_with([';', '#'])).map(str::to_owned).collect()
}

/// Runs the rows of a family, and fails with the differences.
fn check(family: &str) {
    let filter = std::env::var("ROWS").unwrap_or_default();
    let unlike = unlike();
    let mut reports = Vec::new();
    let mut count = 0;
    for row in rows::rows(family).iter().filter(|row| row.text.contains(&filter)) {
        count += 1;
        let mut lines = differences(row);
        if unlike.contains(&row.text) {
            let is_like = lines.is_empty();
            lines.clear();
            if is_like {
                lines.push("no longer differs: remove it from unlike.txt".to_owned());
            }
        }
        if !lines.is_empty() {
            let more = lines.len().saturating_sub(LINES);
            let mut report = format!("{}\n", row.text);
            for line in lines.iter().take(LINES) {
                report.push_str(&format!("    {line}\n"));
            }
            if more > 0 {
                report.push_str(&format!("    and {more} more\n"));
            }
            reports.push(report);
        }
    }
    let wrong = reports.len();
    reports.truncate(ROWS);
    assert!(wrong == 0, "{wrong} of {count} rows differ\n{}", reports.concat());
}

macro_rules! families {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*
    };
}

families! {
    approximate atomic compare convert_floats convert_from_integer convert_integers
    convert_to_integer double fault float flow half immediate integer logic memory set special
    video warp
}

/// The operands' formulas agree with those of the script that recorded the answers.
#[test]
fn operands() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/instructions");
    let text = std::fs::read_to_string(format!("{folder}/operands.txt")).unwrap();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (kind, index) = (words[0], words[1].parse().unwrap());
        let digest = u32::from_str_radix(words[2], 16).unwrap();
        let values: Vec<u64> =
            (0..rows::ITEMS).map(|item| operands::operand(kind, item, index)).collect();
        assert_eq!(rows::digest_of(&values), digest, "operand {index} of kind {kind}");
    }
}
