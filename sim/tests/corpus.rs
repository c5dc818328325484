//! PTX files load: those of the library, and others in the folder that TCUDA_PTX_CORPUS names.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::PathBuf;
use tcuda_sim::program::Program;

fn load_all(folder: PathBuf) -> (usize, Vec<String>) {
    let (mut count, mut failures) = (0, Vec::new());
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.extension().is_some_and(|it| it == "ptx") {
            count += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            if let Err(error) = Program::load(&text, 90) {
                failures.push(format!("{}: {error}", path.display()));
            }
        }
    }
    (count, failures)
}

#[test]
fn the_kernels_of_the_library_load() {
    let (count, failures) = load_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels").into());
    assert!(count > 0);
    assert_eq!(failures, Vec::<String>::new());
}

#[test]
fn other_kernels_load() {
    let Some(folder) = std::env::var_os("TCUDA_PTX_CORPUS") else { return };
    let (count, failures) = load_all(folder.into());
    failures.iter().for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} of {count} do not load", failures.len());
}
