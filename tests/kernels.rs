//! The kernels without a GPU: their PTX is current, and does what it should where the crate
//! `tcuda_sim` executes it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use machine::{CANARY, bytes_of, file, program, run};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use tcuda::ops::fill::{self, BLOCK, FillPlan};
use tcuda_sim::host::HostMachine;

#[path = "kernels/comm.rs"]
mod comm;
#[path = "kernels/machine.rs"]
mod machine;
#[path = "kernels/oracle.rs"]
mod oracle;
#[path = "kernels/philox.rs"]
mod philox;
#[path = "kernels/random.rs"]
mod random;

/// To the terminal, past the capture of output: a skip must not look like a pass.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[test]
fn the_ptx_is_current_and_assembles() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/generate/make_ptx.py");
    let Ok(output) = Command::new("python3").arg(script).args(["--check", "--assemble"]).output()
    else {
        return note("skipped: no python3");
    };
    let text = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => print!("{}", String::from_utf8_lossy(&output.stdout)),
        Some(77) => note(&text),
        _ => panic!("{text}"),
    }
}

/// Runs the kernel at an offset of a buffer, and checks every byte of the buffer.
fn check(value: &[u8], offset: usize, total: usize, grid: Option<u32>) {
    let start = 16 + offset;
    let mut machine = HostMachine::default();
    let buffer = machine.add(&vec![CANARY; start + total + 64]);
    let plan = fill::plan(buffer + start as u64, value, total as u64).unwrap();
    let FillPlan::Kernel { grid: planned, parameters } = plan else { panic!("{plan:?}") };
    let grid = grid.unwrap_or(planned);
    let fill::Parameters { dst, bytes, pattern: [a, b, c, d], period } = parameters;
    let mut values = bytes_of(&[dst, bytes, a, b, c, d]);
    values.extend_from_slice(&period.to_le_bytes());
    let program = program("fill", || file("fill"));
    run(&mut machine, program, fill::KERNEL.to_str().unwrap(), [grid, BLOCK], &values);
    let wrong = machine.get(buffer).into_iter().enumerate().find(|&(index, byte)| {
        let inside = (start..start + total).contains(&index);
        byte != if inside { value[(index - start) % value.len()] } else { CANARY }
    });
    let case = (value.len(), offset, total, grid);
    assert_eq!(wrong, None, "value, offset, total, grid: {case:?}");
}

#[test]
fn the_fill_kernel_writes_what_is_asked() {
    for period in 2..=fill::LONGEST {
        let value: Vec<u8> = (1..=period as u8).map(|index| index * 13).collect();
        // An odd address or length keeps 2 and 4 bytes off the driver's own fill.
        let ours = |offset: usize, total: usize| {
            ![2, 4].contains(&period)
                || !offset.is_multiple_of(period)
                || !total.is_multiple_of(period)
        };
        for offset in 0..16 {
            for total in (1..80).chain([255, 4096 + offset, 16_384, 16_385, 70_001]) {
                if ours(offset, total) {
                    check(&value, offset, total, None);
                }
            }
        }
        // Blocks that go on to further tiles, and more blocks than tiles.
        for grid in [1, 2, 3, 40] {
            check(&value, 3, 200_003, Some(grid));
        }
    }
}
