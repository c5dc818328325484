//! The shared library exports the functions of `tcuda.h` and nothing else, under its own name, and
//! needs nothing but the C library.
//!
//! TCUDA_TEST_LIBRARY names a release library instead of the one of this build, and
//! TCUDA_TEST_GLIBC the oldest glibc that it loads with; libtcuda_sim.so is in its folder.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn exports_are_the_functions_of_the_header() {
    let header = std::fs::read_to_string(root().join("include/tcuda.h")).unwrap();
    let symbols = tool("nm", &["-D", "--defined-only", "--format=posix"]);
    let exported: BTreeSet<&str> =
        symbols.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let declared = declared(&header);
    let missing: Vec<_> = declared.difference(&exported).collect();
    let extra: Vec<_> = exported.difference(&declared).collect();
    assert!(missing.is_empty(), "declared in tcuda.h, not exported: {missing:?}");
    assert!(extra.is_empty(), "exported, not declared in tcuda.h: {extra:?}");
}

#[test]
fn soname_carries_the_abi_version() {
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    let soname = format!("[libtcuda.so.{major}.{minor}]");
    assert!(dynamic("(SONAME)").iter().any(|line| line.ends_with(&soname)), "no {soname}");
}

#[test]
fn needs_only_the_c_library() {
    let mut allowed = vec![
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    ];
    // Parts of the C library until glibc 2.34.
    if oldest_glibc().is_some() {
        allowed.extend(["libpthread.so.0", "libdl.so.2", "librt.so.1"]);
    }
    for path in libraries() {
        for line in tool_on("readelf", &["-dW"], &path).lines().filter(|l| l.contains("(NEEDED)")) {
            let name = line.split(['[', ']']).nth(1).unwrap();
            assert!(allowed.contains(&name), "{} needs {name}", path.display());
        }
    }
}

/// Weak symbols may stay undefined (gmon, transactional memory); all others have a version of
/// glibc's or of libgcc's. A function that is newer than the oldest glibc has none.
#[test]
fn undefined_symbols_are_of_the_c_library() {
    for path in libraries() {
        for line in tool_on("nm", &["-D", "--undefined-only"], &path).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [kind, name] = words[..] else { panic!("nm: {line}") };
            let known = name.contains("@GLIBC_") || name.contains("@GCC_");
            assert!(known || ["w", "v"].contains(&kind), "{} wants {name}", path.display());
        }
    }
}

/// The dynamic linker refuses a library that names a version which its glibc does not have.
#[test]
fn versions_are_those_of_the_oldest_glibc() {
    let Some(oldest) = oldest_glibc() else { return };
    for path in libraries() {
        let needs = tool_on("readelf", &["-VW"], &path);
        let versions: Vec<&str> = needs
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("GLIBC_"))
            .map(|word| word.trim_end_matches(|c: char| !c.is_ascii_digit()))
            .collect();
        assert!(!versions.is_empty(), "readelf shows no version");
        for version in versions {
            let path = path.display();
            assert!(number(version) <= oldest, "{path} needs GLIBC_{version}");
        }
    }
}

/// "2.3.4" as numbers.
fn number(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap()).collect()
}

/// No folder of the machine that built a library which goes to others is in it.
#[test]
fn build_folders_are_not_inside() {
    if oldest_glibc().is_none() {
        return;
    }
    let home = std::env::var("HOME").unwrap();
    for path in libraries().into_iter().chain([library().with_file_name("libtcuda.a")]) {
        let bytes = std::fs::read(&path).unwrap();
        for folder in [env!("CARGO_MANIFEST_DIR"), &format!("{home}/")] {
            let is_inside = bytes.windows(folder.len()).any(|part| part == folder.as_bytes());
            assert!(!is_inside, "{} contains {folder}", path.display());
        }
    }
}

/// Threads and thread-local state of the library outlive any dlclose.
#[test]
fn is_never_unloaded() {
    assert!(dynamic("(FLAGS_1)").iter().any(|line| line.contains("NODELETE")));
}

#[test]
fn stack_is_not_executable() {
    let segments = tool("readelf", &["-lW"]);
    let stack = segments.lines().find(|line| line.contains("GNU_STACK")).unwrap();
    assert!(stack.contains(" RW ") && !stack.contains("RWE"), "{stack}");
}

/// Libraries that are loaded by dlopen share little of it. A debug build also has the ranks of
/// locks there.
#[test]
fn thread_local_storage_is_small() {
    let segments = tool("readelf", &["-lW"]);
    let segment = segments.lines().find(|line| line.trim_start().starts_with("TLS ")).unwrap();
    let size = segment.split_whitespace().nth(5).and_then(|size| size.strip_prefix("0x")).unwrap();
    let most = if std::env::var_os("TCUDA_TEST_LIBRARY").is_some() { 256 } else { 384 };
    let bytes = u32::from_str_radix(size, 16).unwrap();
    assert!(bytes <= most, "{bytes} bytes of thread-local storage, of {most}");
}

/// What a stripped library is made of, besides some headers.
#[test]
fn loaded_segments_are_small() {
    if std::env::var_os("TCUDA_TEST_LIBRARY").is_none() {
        return;
    }
    let segments = tool("readelf", &["-lW"]);
    let loads = segments.lines().filter(|line| line.trim_start().starts_with("LOAD "));
    let sizes = loads.map(|line| {
        let size = line.split_whitespace().nth(4).and_then(|size| size.strip_prefix("0x")).unwrap();
        u64::from_str_radix(size, 16).unwrap()
    });
    let (bytes, most) = (sizes.sum::<u64>(), 3_500_000);
    assert!(bytes > 1_000_000 && bytes <= most, "{bytes} bytes, of {most}");
}

/// Names before a parenthesis at the start of a declaration; comments and callback types aside.
fn declared(header: &str) -> BTreeSet<&str> {
    let lines = header.lines().filter(|line| !line.starts_with([' ', '#', '/', '}']));
    let lines = lines.filter(|line| !line.starts_with("typedef"));
    lines
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("tcuda_"))
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The shared library that cargo made for this very test run (target/<profile>/deps), or another.
fn library() -> PathBuf {
    let library = std::env::var_os("TCUDA_TEST_LIBRARY").map_or_else(
        || std::env::current_exe().unwrap().with_file_name("libtcuda.so"),
        |path| root().join(path),
    );
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// The library and its simulator.
fn libraries() -> [PathBuf; 2] {
    let simulator = library().with_file_name("libtcuda_sim.so");
    assert!(simulator.exists(), "{} is not there", simulator.display());
    [library(), simulator]
}

/// The version of glibc that a library for many machines is built for.
fn oldest_glibc() -> Option<Vec<u32>> {
    std::env::var("TCUDA_TEST_GLIBC").ok().map(|version| number(&version))
}

fn dynamic(tag: &str) -> Vec<String> {
    let section = tool("readelf", &["-dW"]);
    section.lines().filter(|line| line.contains(tag)).map(str::to_owned).collect()
}

fn tool(name: &str, arguments: &[&str]) -> String {
    tool_on(name, arguments, &library())
}

fn tool_on(name: &str, arguments: &[&str], path: &Path) -> String {
    let mut command = Command::new(name);
    command.args(arguments).arg(path).env("LC_ALL", "C");
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
