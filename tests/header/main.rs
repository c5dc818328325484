//! `include/tcuda.h` is what cbindgen makes of `src/ffi`, section by section, laid out as by hand;
//! `include/api.json` and `include/tcuda_cdef.h` are the same for programs, and
//! `src/ffi/call_table.rs` is the list of functions that `tcuda_call` finds.
//!
//! `TCUDA_BLESS=1 cargo test --test header` writes them anew; read the diff of `tcuda.h` as a C
//! programmer would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod agree;
mod api;
mod calls;
mod cdef;
mod layout;

use layout::Item;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The table of contents of `tcuda.h`: a title and the files of `src/ffi` under it, in order.
/// cbindgen prints all types of one run before all functions, hence one run per entry; a file that
/// uses the types of a later one shares its entry. A title that starts with `-` is a subsection.
const SECTIONS: &[(&str, &[&str])] = &[
    ("Library", &["status", "library", "call", "observer"]),
    ("Devices", &["device"]),
    ("Streams and events", &["stream", "event", "copy"]),
    ("Green contexts", &["green_context"]),
    ("Memory", &["memory"]),
    ("- Statistics", &["statistics"]),
    ("- Limits and settings", &["limits"]),
    ("- History", &["history"]),
    ("- Snapshots", &["snapshot"]),
    ("- Events", &["memory_event"]),
    ("- Allocators of other libraries", &["pluggable"]),
    ("- Private pools", &["mem_pool"]),
    ("- Managed memory", &["managed"]),
    ("- Memory for native streams", &["native_stream"]),
    ("- Memory for PyTorch and ONNX Runtime", &["torch", "ort"]),
    ("- Pinned host memory", &["host"]),
    ("- Sharing with other processes", &["ipc"]),
    ("Files", &["file"]),
    ("Tensors", &["tensor"]),
    ("Random numbers", &["generator", "random"]),
    ("Graphs", &["graph", "graph_conditional", "graph_hooks", "graph_data", "callable"]),
    ("Collectives", &["comm"]),
    ("Communicators", &["communicator"]),
    ("NVTX and telemetry", &["nvtx", "monitor"]),
    ("Jiterator and kernels", &["jit", "kernel"]),
    ("Stream sanitizer", &["sanitizer"]),
];

const FRONT: &str = include_str!("front.h");
const BACK: &str = "\n#ifdef __cplusplus\n}\n#endif\n\n#endif /* TCUDA_H */\n";

#[test]
fn is_current() {
    let api = api();
    for (name, fresh) in [
        ("include/tcuda.h", header()),
        ("include/tcuda_cdef.h", cdef()),
        ("include/api.json", serde_json::to_string_pretty(&api).unwrap() + "\n"),
        ("src/ffi/call_table.rs", calls::table(&api, &root().join("src/ffi"))),
    ] {
        let path = root().join(name);
        if std::env::var_os("TCUDA_BLESS").is_some_and(|value| value == "1") {
            std::fs::write(&path, &fresh).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = checked_in.lines().zip(fresh.lines()).position(|(old, new)| old != new);
        assert!(
            checked_in == fresh,
            "{name} is stale from line {}: TCUDA_BLESS=1 cargo test --test header",
            differs.unwrap_or(checked_in.lines().count().min(fresh.lines().count())) + 1
        );
    }
}

#[test]
fn has_every_file_of_src_ffi() {
    let listed: Vec<&str> = SECTIONS.iter().flat_map(|(_, files)| files.iter().copied()).collect();
    for entry in std::fs::read_dir(root().join("src/ffi")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let exports = std::fs::read_to_string(&path).unwrap().contains("#[unsafe(no_mangle)]");
        assert!(
            !exports || listed.contains(&name),
            "src/ffi/{name}.rs is in no section of tcuda.h"
        );
    }
}

#[test]
fn is_at_most_100_columns_wide() {
    for (index, line) in header().lines().enumerate() {
        assert!(line.chars().count() <= 100, "tcuda.h:{}: {line}", index + 1);
    }
}

#[test]
fn defines_each_number_once() {
    let text = header();
    let mut names = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("#define ")) {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        if value.starts_with(|first: char| first.is_ascii_digit() || first == '(') {
            assert!(!names.contains(&name), "tcuda.h defines {name} twice");
            names.push(name);
        }
    }
    assert!(!names.is_empty());
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

type Sections = Vec<(&'static str, Vec<Item>)>;

/// Each title with what stands below it.
fn sections() -> &'static Sections {
    static READ: LazyLock<Sections> = LazyLock::new(|| {
        SECTIONS.iter().map(|(title, files)| (*title, layout::parse(&section(files)))).collect()
    });
    &READ
}

fn front() -> String {
    let [major, minor, patch] = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ];
    let number = |part: &str| part.parse::<u32>().unwrap();
    let version = number(major) * 1_000_000 + number(minor) * 1_000 + number(patch);
    FRONT
        .replace("@MAJOR@", major)
        .replace("@MINOR@", minor)
        .replace("@PATCH@", patch)
        .replace("@VERSION@", &version.to_string())
}

fn header() -> String {
    let mut text = front();
    for (title, items) in sections() {
        write!(text, "\n{}\n\n{}", banner(title), layout::tidy(items)).unwrap();
    }
    text + BACK
}

fn cdef() -> String {
    cdef::cdef(&front(), sections())
}

fn api() -> serde_json::Value {
    let sources = api::Sources {
        version: env!("CARGO_PKG_VERSION"),
        front: FRONT,
        released: &released(),
        torch: &std::fs::read_to_string(root().join("data/torch_cuda.txt")).unwrap(),
    };
    api::api(sections(), &sources)
}

/// The headers of `abi/`, with their minor versions, oldest first.
fn released() -> Vec<(String, String)> {
    let number = |version: &str| {
        let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap());
        (numbers.next(), numbers.next(), numbers.next())
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("abi")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(version) = name.strip_prefix("tcuda-").and_then(|name| name.strip_suffix(".h"))
        else {
            continue;
        };
        let minor = version.rsplit_once('.').unwrap().0.to_owned();
        found.push((number(version), minor, std::fs::read_to_string(&path).unwrap()));
    }
    found.sort();
    found.into_iter().map(|(_, minor, header)| (minor, header)).collect()
}

fn banner(title: &str) -> String {
    match title.strip_prefix("- ") {
        Some(title) => format!("/* ---- {title} ---- */"),
        None => format!("/* {:=<37} {:=<56} */", "", format!("{title} ")),
    }
}

/// One run of cbindgen over the files of a section.
fn section(files: &[&str]) -> String {
    let mut config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new();
    for file in files {
        let path = root().join(format!("src/ffi/{file}.rs"));
        config.export.include.extend(public_types(&path));
        builder = builder.with_src(path);
    }
    let mut text = Vec::new();
    builder.with_config(config).generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

/// A type stays with its section even if only functions of later ones use it.
fn public_types(path: &Path) -> Vec<String> {
    let source =
        std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let name = |line: &str| {
        let rest = ["pub struct ", "pub enum ", "pub union ", "pub type "]
            .iter()
            .find_map(|keyword| line.strip_prefix(keyword))?;
        Some(rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_owned())
    };
    source.lines().filter_map(name).filter(|name| name.starts_with("tcuda_")).collect()
}
