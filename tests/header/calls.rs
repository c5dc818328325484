//! `src/ffi/call_table.rs`: the functions that return a status, which `tcuda_call` finds.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// `tcuda_call` itself is left out.
pub fn table(api: &Value, ffi: &Path) -> String {
    let modules = modules(ffi);
    let mut entries = BTreeMap::new();
    for function in api["functions"].as_array().unwrap() {
        let name = function["name"].as_str().unwrap();
        if function["result"] == "tcuda_status" && name != "tcuda_call" {
            entries.insert(name, function["parameters"].as_array().unwrap().len());
        }
    }
    let mut text = String::from(HEAD);
    writeln!(text, "pub static ENTRIES: [Entry; {}] = [", entries.len()).unwrap();
    for (name, count) in entries {
        let module = modules.get(name).unwrap_or_else(|| panic!("{name} is not in src/ffi"));
        writeln!(text, "    entry!(call{count} sizes{count} {module} {name}),").unwrap();
    }
    text + "];\n"
}

const HEAD: &str = "\
//! The functions that `tcuda_call` finds, in the order of their names. Written by tests/header:
//! TCUDA_BLESS=1 cargo test --test header

use super::call::*;

macro_rules! entry {
    ($call:ident $sizes:ident $module:ident $name:ident) => {
        Entry {
            name: stringify!($name),
            sizes: $sizes(super::$module::$name),
            // SAFETY: `tcuda_call` checks the number of arguments; its caller promises the rest.
            invoke: |arguments| unsafe { $call(super::$module::$name, arguments) },
        }
    };
}

";

/// The file of each function of `src/ffi`.
fn modules(ffi: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(ffi).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let Some((_, rest)) = line.split_once("extern \"C\" fn tcuda_") else { continue };
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.insert(format!("tcuda_{name}"), module.to_owned());
        }
    }
    found
}
