//! What a release declared is still declared: functions with the same signature, structs that begin
//! with the same members, the same numbers. Additions pass. `abi/` has the header of each release.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn nothing_released_is_gone_or_changed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let now = std::fs::read_to_string(root.join("include/tcuda.h")).unwrap();
    let mut releases = 0;
    for entry in std::fs::read_dir(root.join("abi")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "h") {
            let released = std::fs::read_to_string(&path).unwrap();
            let broken = broken(&released, &now);
            assert!(broken.is_empty(), "since {}:\n{}", path.display(), broken.join("\n"));
            releases += 1;
        }
    }
    assert!(releases > 0);
}

#[test]
fn removals_and_changes_are_found_and_additions_are_not() {
    let released = "enum e { A = 0, B = 1 } e;\n#define N 3\n\
        typedef struct s { size_t struct_size; int x; } s;\n\
        typedef struct f { int x; } f;\nint g(int a);\n";
    let cases = [
        ("int g(int a);\n", "", 1),
        ("int g(int a);", "int g(long a);", 1),
        ("int g(int a);", "int g(int a);\nint h(void);", 0),
        ("int x; } s", "long x; } s", 1),
        ("int x; } s", "int x; int y; } s", 0),
        ("int x; } f", "int x; int y; } f", 1),
        ("size_t struct_size; int x;", "size_t struct_size; int y; int x;", 1),
        ("B = 1", "B = 2", 1),
        ("B = 1", "B = 1, C = 2", 0),
        ("#define N 3", "#define N 4", 1),
        ("#define N 3\n", "#define N 3\n#define M 4\n", 0),
    ];
    for (old, new, expected) in cases {
        let found = broken(released, &released.replace(old, new));
        assert_eq!(found.len(), expected, "{old} -> {new}: {found:?}");
    }
}

/// The declarations of `released` that `now` does not keep.
fn broken(released: &str, now: &str) -> Vec<String> {
    let (released, now) = (declarations(released), declarations(now));
    let kept = |name: &String, members: &Vec<String>| {
        let Some(present) = now.get(name) else { return false };
        let is_enum = name.contains("enum ");
        let grows = is_enum || members.first().is_some_and(|first| first == "size_t struct_size");
        match grows {
            true if is_enum => members.iter().all(|member| present.contains(member)),
            true => present.starts_with(members),
            false => present == members,
        }
    };
    let lost = released.iter().filter(|(name, members)| !kept(name, members));
    lost.map(|(name, members)| format!("{name} {members:?}")).collect()
}

/// Each declaration with its members, comments and layout aside; a constant's member is its value.
fn declarations(header: &str) -> BTreeMap<String, Vec<String>> {
    let mut text = String::new();
    let mut found = BTreeMap::new();
    let mut rest = header;
    while let Some((before, after)) = rest.split_once("/*") {
        text += before;
        rest = after.split_once("*/").unwrap().1;
    }
    text += rest;
    let text = text.replace("\\\n", " ");
    let mut code = String::new();
    for line in text.lines() {
        match line.trim().strip_prefix("#define ") {
            // The version moves; attributes differ by compiler.
            Some(constant) => {
                let (name, value) = constant.split_once(' ').unwrap_or((constant, ""));
                let is_number =
                    value.trim().starts_with(|c: char| c == '(' || c == '-' || c.is_ascii_digit());
                if is_number && !name.contains("VERSION") && !name.contains('(') {
                    found.insert(format!("#define {name}"), vec![value.trim().to_owned()]);
                }
            }
            None if line.trim().starts_with('#') => (),
            None => code += &format!("{line} "),
        }
    }
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let (mut depth, mut from) = (0, 0);
    for (index, letter) in code.char_indices() {
        match letter {
            '{' if !code[from..index].contains("extern") => depth += 1,
            '{' => from = index + 1,
            '}' => depth -= i32::from(depth > 0),
            ';' if depth == 0 => {
                let declaration = code[from..index].trim();
                let (name, members) = match declaration.split_once('{') {
                    Some((name, body)) => {
                        let body = body.rsplit_once('}').unwrap().0;
                        let members = body.split([';', ',']).map(|m| m.trim().to_owned());
                        (name.trim(), members.filter(|member| !member.is_empty()).collect())
                    }
                    None => (declaration, Vec::new()),
                };
                found.insert(name.to_owned(), members);
                from = index + 1;
            }
            _ => (),
        }
    }
    found
}
