//! A folder of `src/` imports only folders below it, and the folders inside `memory/` do not import
//! each other in a circle. The modules of the crate `tcuda_sim` import only modules below them, and
//! the files of its `driver/` do not import each other in a circle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of `src/`, lowest first. Folders inside `memory/` stand in their own order; `memory`
/// itself is the facade over them.
const LAYERS: [&str; 29] = [
    "observe",
    "base",
    "sanitizer",
    "driver",
    "gpu",
    "telemetry",
    "profiling",
    "memory/config",
    "memory/stats",
    "memory/trace",
    "memory/backing",
    "memory/arena",
    "memory/device",
    "memory/fallback",
    "memory/pools",
    "memory/pinned",
    "memory",
    "ops",
    "tensor",
    "random",
    "jit",
    "graph",
    "ipc",
    "file",
    "nccl",
    "collectives",
    "interop",
    "runtime",
    "ffi",
];

/// The modules of `sim/src/`, the crate `tcuda_sim`, lowest first, as its `lib.rs` lists them.
const SIMULATOR_LAYERS: [&str; 9] =
    ["base", "number", "ptx", "registers", "memory", "program", "exec", "host", "driver"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A source file by its module path, without test code.
struct Source {
    /// From the folder of the sources, with slashes.
    path: String,
    module: Vec<String>,
    tokens: Vec<String>,
}

/// Identifiers and punctuation; comments, literals and lifetimes are left out.
fn tokens(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let (mut list, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let rest = &text[at..];
        let byte = bytes[at];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if let Some(hashes) = raw_string(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = rest.find('"').unwrap() + 1;
            at += begin + rest[begin..].find(&end).unwrap() + end.len();
        } else if byte == b'"' {
            at += 1;
            while bytes[at] != b'"' {
                at += if bytes[at] == b'\\' { 2 } else { 1 };
            }
            at += 1;
        } else if byte == b'\'' {
            at += character(rest);
        } else if byte.is_ascii_alphanumeric() || byte == b'_' {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            list.push(rest[..end].to_owned());
            at += end;
        } else if rest.starts_with("::") {
            list.push("::".into());
            at += 2;
        } else {
            let c = rest.chars().next().unwrap();
            if !c.is_whitespace() {
                list.push(c.into());
            }
            at += c.len_utf8();
        }
    }
    list
}

/// How many # a raw string at the beginning has.
fn raw_string(text: &str) -> Option<usize> {
    let text = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let hashes = text.len() - text.trim_start_matches('#').len();
    text[hashes..].starts_with('"').then_some(hashes)
}

/// The length of a character literal, or of a lifetime.
fn character(text: &str) -> usize {
    if text[1..].starts_with('\\') {
        return 3 + text[3..].find('\'').unwrap();
    }
    let first = text[1..].chars().next().unwrap().len_utf8();
    if text[1 + first..].starts_with('\'') { first + 2 } else { 1 }
}

/// The place after the bracket that closes the one at `open`.
fn close(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "{" | "[" | "(" => depth += 1,
            "}" | "]" | ")" => depth -= 1,
            _ => (),
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Takes out every item that is compiled for tests alone.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut list, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let is_mark = tokens[at..].iter().take(MARK.len()).eq(MARK.iter());
        if !is_mark {
            list.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += MARK.len();
        while at < tokens.len() {
            match tokens[at].as_str() {
                ";" | "," => {
                    at += 1;
                    break;
                }
                "{" => {
                    at = close(&tokens, at);
                    break;
                }
                "(" | "[" => at = close(&tokens, at),
                _ => at += 1,
            }
        }
    }
    list
}

fn sources(folder: &str) -> Vec<Source> {
    fn visit(folder: &Path, list: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, list);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                list.push(path);
            }
        }
    }
    let src = root().join(folder);
    let mut paths = Vec::new();
    visit(&src, &mut paths);
    paths.sort();
    let mut list = Vec::new();
    for path in paths {
        let name = path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        let is_test = |part: &str| part == "tests" || part.ends_with("_tests");
        let mut module: Vec<String> =
            name.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if module.iter().any(|part| is_test(part)) {
            continue;
        }
        if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
            module.pop();
        }
        let tokens = without_tests(tokens(&fs::read_to_string(&path).unwrap()));
        list.push(Source { path: name, module, tokens });
    }
    list
}

/// The leaves of a tree of paths that begins at `at`, below `prefix`.
fn leaves(
    tokens: &[String],
    mut at: usize,
    prefix: &[String],
    found: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                let end = close(tokens, at);
                at += 1;
                while at < end - 1 {
                    at = leaves(tokens, at, &path, found);
                    while at < end - 1 && tokens[at] != "," {
                        at += 1;
                    }
                    at += 1;
                }
                return end;
            }
            Some("super") => drop(path.pop()),
            Some("self" | "*") => (),
            Some(name) => path.push(name.to_owned()),
            None => (),
        }
        at += 1;
        if tokens.get(at).map(String::as_str) != Some("::") {
            found.push(path);
            return at;
        }
        at += 1;
    }
}

/// The paths in a file, from the crate's root.
fn paths(source: &Source) -> Vec<Vec<String>> {
    let (mut found, mut at) = (Vec::new(), 0);
    let tokens = &source.tokens;
    while at < tokens.len() {
        // `pub(in crate::memory)` is a visibility, not an import.
        let is_first = at == 0 || !matches!(tokens[at - 1].as_str(), "::" | "in");
        let leads = tokens.get(at + 1).is_some_and(|next| next == "::");
        let prefix = match tokens[at].as_str() {
            "crate" if is_first && leads => Some(Vec::new()),
            "super" if is_first && leads => {
                Some(source.module[..source.module.len().saturating_sub(1)].to_vec())
            }
            _ => None,
        };
        at = match prefix {
            Some(prefix) => leaves(tokens, at + 2, &prefix, &mut found),
            None => at + 1,
        };
    }
    found
}

/// The layer of a module, or of an item in it.
fn layer(path: &[String], layers: &[&str]) -> Option<usize> {
    let two = (path.len() >= 2).then(|| format!("{}/{}", path[0], path[1]));
    let find = |name: &str| layers.iter().position(|layer| *layer == name);
    two.and_then(|two| find(&two)).or_else(|| find(path.first()?))
}

/// The files that can be reached from each other in both directions.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<(String, String)> {
    let reach = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            for to in edges.get(next).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let all: BTreeMap<_, _> = edges.keys().map(|from| (from.clone(), reach(from))).collect();
    let mut found = BTreeSet::new();
    for (from, tos) in edges {
        for to in tos {
            if all.get(to).is_some_and(|back| back.contains(from)) {
                found.insert((from.clone(), to.clone()));
            }
        }
    }
    found
}

/// "file -> layer: method" for each call of a method that a higher folder defines for a type of a
/// lower one: such a call needs no import. Only methods whose name no other function has are found.
fn upward_calls(sources: &[Source], layers: &[&str]) -> BTreeSet<String> {
    let mut types: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut functions: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources {
        let Some(own) = layer(&source.module, layers) else { continue };
        for pair in source.tokens.windows(2) {
            match pair[0].as_str() {
                "struct" | "enum" => types.entry(&pair[1]).or_default().push(own),
                "fn" => *functions.entry(&pair[1]).or_default() += 1,
                _ => (),
            }
        }
    }
    // The layer that defines a method, for methods of types of lower layers.
    let mut methods: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources {
        let Some(own) = layer(&source.module, layers) else { continue };
        let tokens = &source.tokens;
        for at in 0..tokens.len() {
            let is_inherent = tokens[at] == "impl"
                && tokens.get(at + 2).is_some_and(|next| next == "{")
                && types
                    .get(tokens[at + 1].as_str())
                    .is_some_and(|list| list.len() == 1 && list[0] < own);
            if !is_inherent {
                continue;
            }
            for pair in tokens[at..close(tokens, at + 2)].windows(2) {
                if pair[0] == "fn" && functions[pair[1].as_str()] == 1 {
                    methods.insert(&pair[1], own);
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    for source in sources {
        let Some(own) = layer(&source.module, layers) else { continue };
        for call in source.tokens.windows(3).filter(|call| call[0] == "." && call[2] == "(") {
            if let Some(to) = methods.get(call[1].as_str()).filter(|to| **to > own) {
                found.insert(format!("{} -> {}: {}", source.path, layers[*to], call[1]));
            }
        }
    }
    found
}

/// "file -> layer" for each import that goes up, and "file -> file" for each in a circle of the
/// simulator's `driver/`.
fn broken(sources: &[Source], layers: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.module.is_empty()) {
        let from = layer(&source.module, layers)
            .unwrap_or_else(|| panic!("{} is in no folder of the list", source.path));
        for path in paths(source) {
            let Some(to) = layer(&path, layers) else { continue };
            if to > from {
                found.insert(format!("{} -> {}", source.path, layers[to]));
            }
            if layers == SIMULATOR_LAYERS
                && layers[from] == "driver"
                && layers[to] == "driver"
                && source.module.len() > 1
            {
                let target = sources.iter().find(|other| {
                    other.module.len() == 2 && path.len() >= 2 && other.module[..] == path[..2]
                });
                if let Some(target) = target.filter(|target| target.path != source.path) {
                    inside.entry(source.path.clone()).or_default().insert(target.path.clone());
                }
            }
        }
    }
    found.extend(circles(&inside).into_iter().map(|(from, to)| format!("{from} -> {to}")));
    found
}

#[test]
fn a_folder_imports_only_folders_below_it() {
    for (folder, layers) in [("src", &LAYERS[..]), ("sim/src", &SIMULATOR_LAYERS[..])] {
        let sources = sources(folder);
        let found = broken(&sources, layers);
        assert!(found.is_empty(), "{folder}: these imports go up, or in a circle: {found:#?}");
        let found = upward_calls(&sources, layers);
        assert!(found.is_empty(), "{folder}: these calls go up: {found:#?}");
    }
}

#[test]
fn the_simulator_lists_its_modules_in_this_order() {
    let text = fs::read_to_string(root().join("sim/src/lib.rs")).unwrap();
    let listed = text.lines().filter_map(|line| {
        let item = line.strip_prefix("//! ")?.split_once(". `")?.1;
        item.split_once('`').map(|(name, _)| name)
    });
    assert_eq!(listed.collect::<Vec<_>>(), SIMULATOR_LAYERS);
}

fn planted(path: &str, text: &str) -> Source {
    let module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    Source { path: path.into(), module, tokens: without_tests(tokens(text)) }
}

#[test]
fn a_planted_import_is_found() {
    let text = "use crate::{base::error, memory::{Block, arena::bins}};\n\
        fn f() -> super::super::ffi::X {}";
    let found = broken(&[planted("gpu/device.rs", text)], &LAYERS);
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        ["gpu/device.rs -> ffi", "gpu/device.rs -> memory", "gpu/device.rs -> memory/arena"]
    );
    let quiet = "// crate::ffi\nconst A: &str = \"crate::ffi\"; const B: char = '\"';\n\
        #[cfg(test)]\nmod tests { use crate::ffi; }\n use crate::base::error::Error<'a>;";
    assert_eq!(broken(&[planted("gpu/device.rs", quiet)], &LAYERS), BTreeSet::new());
    let up = planted("memory/arena/bins.rs", "use super::super::Facade;");
    assert_eq!(broken(&[up], &LAYERS).len(), 1);
    let up = planted("memory/access.rs", "use crate::program::Slot;");
    assert_eq!(broken(&[up], &SIMULATOR_LAYERS).len(), 1);
}

#[test]
fn a_planted_call_is_found() {
    let files = [
        planted("gpu/device.rs", "pub struct Device; fn f(d: &Device) { d.grown(); d.own(); }"),
        planted("memory/mod.rs", "impl Device { fn grown(&self) {} } fn own() {}"),
        planted("ffi/device.rs", "fn g(d: &Device) { d.grown(); }"),
    ];
    let found: Vec<_> = upward_calls(&files, &LAYERS).into_iter().collect();
    assert_eq!(found, ["gpu/device.rs -> memory: grown"]);
}

#[test]
fn a_planted_circle_is_found() {
    let files = [
        planted("driver/a.rs", "use super::b::B;"),
        planted("driver/b.rs", "use crate::driver::c;"),
        planted("driver/c.rs", "use super::a::A; use super::d;"),
        planted("driver/d.rs", ""),
    ];
    let found: Vec<_> = broken(&files, &SIMULATOR_LAYERS).into_iter().collect();
    assert_eq!(
        found,
        ["driver/a.rs -> driver/b.rs", "driver/b.rs -> driver/c.rs", "driver/c.rs -> driver/a.rs"]
    );
}
