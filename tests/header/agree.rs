//! `tcuda.h`, `tcuda_cdef.h` and `api.json` declare the same.

use crate::{api, cdef, header};
use serde_json::Value;
use std::collections::BTreeSet;

/// Each declaration of C text in one line: without comments, attributes and preprocessor lines.
/// Constants are `NAME = value`.
fn declarations(text: &str) -> BTreeSet<String> {
    let mut code = String::new();
    for (index, part) in text.split("/*").enumerate() {
        code += match index {
            0 => part,
            _ => part.split_once("*/").unwrap().1,
        };
    }
    let mut found = BTreeSet::new();
    let mut plain = String::new();
    for line in code.replace("\\\n", " ").lines() {
        let Some(directive) = line.strip_prefix('#') else {
            plain += &format!("{line} ");
            continue;
        };
        let mut words = directive.split_whitespace();
        if let (Some("define"), Some(name), Some(value)) =
            (words.next(), words.next(), words.next())
            && let Ok(value) = value.trim_matches(['(', ')']).parse::<i64>()
        {
            found.insert(format!("{name} = {value}"));
        }
    }
    let plain = plain.replace("TCUDA_NODISCARD", "").replace("TCUDA_API", "");
    let plain = plain.replace("extern \"C\" {", "");
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = plain.as_str();
    while let Some(end) = end_of_declaration(rest) {
        let (declaration, after) = rest.split_at(end);
        match declaration
            .trim()
            .strip_prefix("enum { ")
            .and_then(|values| values.strip_suffix(" }"))
        {
            Some(values) => found.extend(values.split(", ").map(str::to_owned)),
            None => _ = found.insert(declaration.trim().to_owned()),
        }
        rest = &after[1..];
    }
    found
}

/// The first semicolon outside of braces.
fn end_of_declaration(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(index, letter)| {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => (),
        }
        (letter == ';' && depth == 0).then_some(index)
    })
}

/// `char name[256]` of `char[256]`: the rule that data/api.schema.json states.
fn declared(variable: &Value) -> String {
    let (kind, name) = (variable["type"].as_str().unwrap(), variable["name"].as_str().unwrap());
    let place = kind.find("(*)").map(|index| index + 2).or_else(|| kind.find('['));
    let (before, after) = kind.split_at(place.unwrap_or(kind.len()));
    let space = if before.ends_with('*') { "" } else { " " };
    format!("{before}{space}{name}{after}")
}

fn list(value: &Value, separator: &str, render: impl Fn(&Value) -> String) -> String {
    value.as_array().unwrap().iter().map(render).collect::<Vec<_>>().join(separator)
}

/// The declarations of api.json as C.
fn rendered(api: &Value) -> BTreeSet<String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let constant = |value: &Value| format!("{} = {}", text(&value["name"]), value["value"]);
    let parameters = |value: &Value| match list(&value["parameters"], ", ", declared) {
        empty if empty.is_empty() => "void".to_owned(),
        list => list,
    };
    let result = |value: &Value| match text(&value["result"]) {
        pointer if pointer.ends_with('*') => pointer,
        value => value + " ",
    };
    let render = |kind: &str, value: &Value| -> Vec<String> {
        let name = value["name"].as_str().unwrap();
        match kind {
            "natives" => vec![format!("struct {name}")],
            "handles" => vec![format!("typedef struct {name} {name}")],
            "callbacks" => {
                vec![format!("typedef {}(*{name})({})", result(value), parameters(value))]
            }
            "constants" => vec![constant(value)],
            "enums" if value["type"] == "enum" => {
                let values = list(&value["values"], ", ", constant);
                vec![format!("typedef enum {name} {{ {values} }} {name}")]
            }
            "enums" => {
                let values = value["values"].as_array().unwrap().iter().map(constant);
                let kind = text(&value["type"]);
                std::iter::once(format!("typedef {kind} {name}")).chain(values).collect()
            }
            "structs" => {
                let members = list(&value["members"], " ", |member| declared(member) + ";");
                vec![format!("typedef struct {name} {{ {members} }} {name}")]
            }
            "functions" => vec![format!("{}{name}({})", result(value), parameters(value))],
            _ => panic!("api.json has {kind}"),
        }
    };
    let lists = api
        .as_object()
        .unwrap()
        .iter()
        .filter(|(kind, list)| list.is_array() && *kind != "sections");
    lists
        .flat_map(|(kind, list)| {
            list.as_array().unwrap().iter().flat_map(move |value| render(kind, value))
        })
        .collect()
}

fn differences(first: &BTreeSet<String>, second: &BTreeSet<String>) -> Vec<String> {
    first.symmetric_difference(second).cloned().collect()
}

#[test]
fn header_and_json_declare_the_same() {
    let header = declarations(&header());
    let api = rendered(&api());
    assert!(header.len() > 500);
    let differences: Vec<String> = differences(&header, &api);
    let differences: Vec<&String> =
        differences.iter().filter(|line| !line.starts_with("TCUDA_VERSION")).collect();
    assert!(differences.is_empty(), "only in one of tcuda.h and api.json: {differences:#?}");
}

#[test]
fn header_and_cdef_declare_the_same() {
    let cdef = cdef();
    assert!(!cdef.contains(['#']) && !cdef.contains("/*"));
    let differences = differences(&declarations(&header()), &declarations(&cdef));
    assert!(differences.is_empty(), "only in one of tcuda.h and tcuda_cdef.h: {differences:#?}");
}

#[test]
fn differences_are_found() {
    let text = "#define N (-1)\ntypedef int32_t kind; /* is; */\nint f(kind k,\n    void *p);\n\
        typedef struct s {\n    char text[8];\n} s;\n";
    let whole = declarations(text);
    assert_eq!(whole.len(), 4, "{whole:?}");
    for (old, new) in [("-1", "-2"), ("void *p", "void **p"), ("[8]", "[9]"), ("kind;", "kin;")] {
        assert_eq!(differences(&whole, &declarations(&text.replace(old, new))).len(), 2, "{old}");
    }
    let enumerated = text.replace("#define N (-1)", "enum {\n    N = -1\n};");
    assert_eq!(differences(&whole, &declarations(&enumerated)), Vec::<String>::new());
}
