//! The kernels without a GPU: their PTX is current, and their source does on the CPU what it
//! should.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tcuda::ops::fill::{self, BLOCK, FillPlan};

#[path = "kernels/comm.rs"]
mod comm;
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

/// Compiles a test's C++ file, with optimisation for the many bytes that it is to write.
fn compiled(source: &str) -> PathBuf {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source).with_extension("so");
    let status = Command::new(env::var_os("CXX").unwrap_or("c++".into()))
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"])
        .args(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"])
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source))
        .status()
        .expect("a C++ compiler");
    assert!(status.success());
    library
}

/// A function of a test's C++ file.
fn function(source: &str, name: &CStr) -> *mut c_void {
    let path = CString::new(compiled(source).to_str().unwrap()).unwrap();
    // SAFETY: a library of ours.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: the handle is open.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null());
    address
}

type Fill = unsafe extern "C" fn(u32, u32, *mut u8, u64, *const u64, u32);

/// Runs the kernel's source at an offset of a buffer, and checks every byte of the buffer.
fn check(fill: Fill, value: &[u8], offset: usize, total: usize, grid: Option<u32>) {
    const CANARY: u8 = 0xee;
    let mut buffer = vec![CANARY; offset + total + 64];
    // From a 16-byte boundary on, so that the offset is the misalignment.
    let start = buffer.as_ptr().align_offset(16) + offset;
    let ptr = buffer[start..].as_mut_ptr();
    let plan = fill::plan(ptr as u64, value, total as u64).unwrap();
    let FillPlan::Kernel { grid: planned, parameters } = plan else { panic!("{plan:?}") };
    let words = parameters.pattern.as_ptr();
    let grid = grid.unwrap_or(planned);
    // SAFETY: the buffer has `total` bytes from `start` on, and the pattern four words.
    unsafe { fill(grid, BLOCK, ptr, parameters.bytes, words, parameters.period) };
    let wrong = buffer.iter().enumerate().find(|&(index, &byte)| {
        let inside = (start..start + total).contains(&index);
        byte != if inside { value[(index - start) % value.len()] } else { CANARY }
    });
    let case = (value.len(), offset, total, grid);
    assert_eq!(wrong, None, "value, offset, total, grid: {case:?}; buffer starts at {start}");
}

#[test]
fn the_fill_kernel_writes_what_is_asked() {
    let address = function("fill_on_cpu.cc", c"fill_on_cpu");
    // SAFETY: the function has this signature.
    let fill = unsafe { std::mem::transmute::<*mut c_void, Fill>(address) };

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
                    check(fill, &value, offset, total, None);
                }
            }
        }
        // Blocks that go on to further tiles, and more blocks than tiles.
        for grid in [1, 2, 3, 40] {
            check(fill, &value, 3, 200_003, Some(grid));
        }
    }
}
