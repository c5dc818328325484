//! The shared library exports the functions of `tcuda.h` and nothing else, under its own name, and
//! needs nothing but the C library.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn exports_are_the_functions_of_the_header() {
    let symbols = tool("nm", &["-D", "--defined-only", "--format=posix"]);
    let exported = symbols.lines().filter_map(|line| line.split_whitespace().next());
    let exported: BTreeSet<String> = exported.map(str::to_owned).collect();
    let declared = declared();
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
    let allowed = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];
    for line in dynamic("(NEEDED)") {
        let name = line.split(['[', ']']).nth(1).unwrap();
        assert!(allowed.contains(&name), "libtcuda.so needs {name}");
    }
}

/// Weak symbols may stay undefined (gmon, transactional memory); all others have a version of
/// glibc's or of libgcc's.
#[test]
fn undefined_symbols_are_of_the_c_library() {
    for line in tool("nm", &["-D", "--undefined-only"]).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, name] = words[..] else { panic!("nm: {line}") };
        let known = name.contains("@GLIBC_") || name.contains("@GCC_");
        assert!(known || ["w", "v"].contains(&kind), "libtcuda.so wants {name}");
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

fn declared() -> BTreeSet<String> {
    let api = std::fs::read_to_string(root().join("include/api.json")).unwrap();
    let api: serde_json::Value = serde_json::from_str(&api).unwrap();
    let functions = api["functions"].as_array().unwrap();
    functions.iter().map(|function| function["name"].as_str().unwrap().to_owned()).collect()
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

fn dynamic(tag: &str) -> Vec<String> {
    let section = tool("readelf", &["-dW"]);
    section.lines().filter(|line| line.contains(tag)).map(str::to_owned).collect()
}

fn tool(name: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(name);
    command.args(arguments).arg(library()).env("LC_ALL", "C");
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
