//! `include/api.json`: what `tcuda.h` declares, for programs. `data/api.schema.json` says what each
//! field means.

use crate::layout::{Item, Row, prototype};
use serde_json::{Value, json};

/// Grows where a field changes its meaning.
const FORMAT: u32 = 1;

/// Names have the unit, as a word at their end.
const UNITS: [(&str, &str); 16] = [
    ("bytes", "byte"),
    ("len", "byte"),
    ("needed", "byte"),
    ("bits", "bit"),
    ("ns", "ns"),
    ("us", "us"),
    ("ms", "ms"),
    ("s", "s"),
    ("mw", "mW"),
    ("milliwatts", "mW"),
    ("khz", "kHz"),
    ("mhz", "MHz"),
    ("megahertz", "MHz"),
    ("percent", "%"),
    ("c", "°C"),
    ("celsius", "°C"),
];

/// Parameters that may be NULL in every function: the front page, "NULL".
const NULL_TYPES: [&str; 2] = ["tcuda_stream *", "tcuda_generator *"];
const NULL_NAMES: [&str; 4] = ["options", "destroy", "user_data", "needed"];

/// What `api` reads beside the sections.
pub struct Sources<'a> {
    pub version: &'a str,
    pub front: &'a str,
    /// For each release its minor version and its header, oldest first.
    pub released: &'a [(String, String)],
    /// `data/torch_cuda.txt`.
    pub torch: &'a str,
}

/// The names that describe the types of parameters.
struct Known<'a> {
    handles: Vec<String>,
    sized: Vec<String>,
    callbacks: Vec<String>,
    /// Names of PyTorch, each with its functions.
    torch: Vec<(String, Vec<&'a str>)>,
}

pub fn api(sections: &[(&'static str, Vec<Item>)], sources: &Sources) -> Value {
    let mut api = json!({
        "format": FORMAT,
        "version": sources.version,
        "sections": titles(sections),
        "natives": natives(sources.front),
    });
    for kind in ["handles", "callbacks", "enums", "constants", "structs", "functions"] {
        api[kind] = json!([]);
    }
    let mut prototypes = Vec::new();
    for (title, items) in sections {
        let mut add = |kind: &str, name: &str, doc: &[String], fields: Value| {
            push(&mut api[kind], declaration(name, title, sources, &doc.join("\n"), fields));
        };
        for item in items {
            match item {
                Item::Table { kind: Some(kind), rows, .. } => {
                    let (base, name) = declarator(strip(&kind.code, "typedef "));
                    let values: Vec<Value> = rows.iter().map(constant).collect();
                    add("enums", &name, &kind.comment, json!({ "type": base, "values": values }));
                }
                Item::Table { kind: None, rows, .. } => {
                    for row in rows {
                        match row.code.strip_prefix("typedef struct ") {
                            Some(code) => {
                                add("handles", &declarator(code).1, &row.comment, json!({}));
                            }
                            None => {
                                let Value::Object(mut fields) = constant(row) else { continue };
                                let name = fields.remove("name").unwrap();
                                fields.remove("doc");
                                let name = name.as_str().unwrap();
                                add("constants", name, &row.comment, fields.into());
                            }
                        }
                    }
                }
                Item::Block { head, members, .. } => {
                    let (kind, name) = declarator(head.code.trim_end_matches(" {"));
                    let doc = &head.comment;
                    if kind == "typedef enum" {
                        let values: Vec<Value> = members.iter().map(constant).collect();
                        add("enums", &name, doc, json!({ "type": "enum", "values": values }));
                    } else {
                        let members: Vec<Value> = members
                            .iter()
                            .map(|row| variable(&row.code, &row.comment.join("\n"), json!({})))
                            .collect();
                        let sized = members[0]["name"] == "struct_size";
                        add("structs", &name, doc, json!({ "sized": sized, "members": members }));
                    }
                }
                Item::Function(row) => match row.code.strip_prefix("typedef ") {
                    Some(code) => {
                        let (result, rest) = code.split_once("(*").unwrap();
                        let (name, parameters) = rest.split_once(")(").unwrap();
                        let parameters = parameters_of(parameters);
                        let parameters: Vec<Value> =
                            parameters.iter().map(|code| variable(code, "", json!({}))).collect();
                        let result = result.trim_end();
                        let fields = json!({ "result": result, "parameters": parameters });
                        add("callbacks", name, &row.comment, fields);
                    }
                    None => prototypes.push((*title, row)),
                },
            }
        }
    }
    let known = Known {
        handles: names(&api["handles"]),
        callbacks: names(&api["callbacks"]),
        sized: api["structs"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|structure| structure["sized"] == true)
            .map(|structure| structure["name"].as_str().unwrap().to_owned())
            .collect(),
        torch: torch_names(sources.torch),
    };
    for (title, row) in prototypes {
        let (name, doc, fields) = function(row, &known);
        push(&mut api["functions"], declaration(&name, title, sources, &doc, fields));
    }
    let functions = names(&api["functions"]);
    for handle in api["handles"].as_array_mut().unwrap() {
        let name = handle["name"].as_str().unwrap();
        let ends = ["destroy", "close"].map(|end| format!("{name}_{end}"));
        if let Some(end) = functions.iter().find(|name| ends.contains(name)) {
            handle["destroy"] = json!(end);
        }
    }
    api
}

/// A title that starts with `-` is that of a part of the section before it.
fn titles(sections: &[(&'static str, Vec<Item>)]) -> Vec<Value> {
    let mut section = "";
    let mut title = |(title, _): &(&'static str, Vec<Item>)| match title.strip_prefix("- ") {
        Some(part) => json!({ "title": part, "part_of": section }),
        None => {
            section = title;
            json!({ "title": title })
        }
    };
    sections.iter().map(&mut title).collect()
}

/// The title of a section or of a part of one.
fn plain(title: &str) -> &str {
    title.trim_start_matches("- ")
}

fn strip<'a>(text: &'a str, prefix: &str) -> &'a str {
    text.strip_prefix(prefix).unwrap_or(text)
}

fn push(list: &mut Value, value: Value) {
    list.as_array_mut().unwrap().push(value);
}

pub fn names(list: &Value) -> Vec<String> {
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(name).collect()
}

/// What every declaration has, then its own fields; fields that are null are left out.
fn declaration(name: &str, title: &str, sources: &Sources, doc: &str, fields: Value) -> Value {
    let present = sources.version.rsplit_once('.').unwrap().0;
    let first = sources.released.iter().find(|(_, header)| has_word(header, name));
    let since = first.map_or(present, |(version, _)| version);
    let common = json!({ "name": name, "section": plain(title), "since": since, "doc": doc });
    merged(common, fields)
}

fn merged(mut first: Value, second: Value) -> Value {
    let (Some(first_fields), Value::Object(fields)) = (first.as_object_mut(), second) else {
        panic!("no objects");
    };
    first_fields.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
    first
}

pub fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|other| other == word)
}

/// `struct CUstream_st;       /* CUstream, cudaStream_t */` of the front page.
fn natives(front: &str) -> Vec<Value> {
    let lines = front.lines().filter_map(|line| line.strip_prefix("struct "));
    lines
        .map(|line| {
            let (name, doc) = line.split_once(';').unwrap();
            let doc = doc.trim().trim_start_matches("/* ").trim_end_matches(" */");
            json!({ "name": name, "doc": doc })
        })
        .collect()
}

/// The type and the name of `char name[256]`, `const char *text` or `void (*init)(int32_t count)`:
/// the type is that of C's sizeof, `char[256]` or `void (*)(int32_t count)`.
fn declarator(code: &str) -> (String, String) {
    let code = code.trim_end_matches([';', ',']);
    let (before, after) = match code.find(")(").or_else(|| code.find('[')) {
        Some(end) => code.split_at(end),
        None => (code, ""),
    };
    let start = before.rfind([' ', '*']).map_or(0, |index| index + 1);
    let (kind, name) = before.split_at(start);
    (format!("{}{after}", kind.trim_end()), name.to_owned())
}

/// The parameters between a parenthesis and `);`.
fn parameters_of(code: &str) -> Vec<&str> {
    match code.trim_end_matches(");") {
        "" | "void" => Vec::new(),
        code => code.split(", ").collect(),
    }
}

/// A row of a `#define` or of an enum.
fn constant(row: &Row) -> Value {
    let code = strip(&row.code, "#define ").replace(" = ", " ");
    let (name, value) = code.trim_end_matches(',').split_once(' ').unwrap();
    let value: i64 = value.trim_matches(['(', ')']).parse().unwrap();
    json!({ "name": name, "value": value, "doc": row.comment.join("\n") })
}

fn unit(name: &str, kind: &str) -> Option<&'static str> {
    let last = name.rsplit('_').next().unwrap_or(name);
    let is_number = !kind.contains("void") && !kind.contains("tcuda_");
    let is_whole = name == last && last.len() < 3;
    let found = UNITS.iter().find(|(word, _)| *word == last && is_number && !is_whole);
    found.map(|(_, unit)| *unit)
}

/// A member or a parameter.
fn variable(code: &str, doc: &str, fields: Value) -> Value {
    let (kind, name) = declarator(code);
    let unit = unit(&name, &kind);
    let doc = (!doc.is_empty()).then_some(doc);
    let common = merged(json!({ "name": name, "type": kind }), json!({ "unit": unit, "doc": doc }));
    merged(common, fields)
}

/// `@param[out] major, minor  the capability`
struct Described {
    names: Vec<String>,
    direction: &'static str,
    text: String,
}

/// The text of a comment above its parameters, and these.
fn split_comment(comment: &[String]) -> (String, Vec<Described>) {
    let end = comment.iter().position(|line| line.starts_with('@'));
    let (body, rows) = comment.split_at(end.unwrap_or(comment.len()));
    let mut described: Vec<Described> = Vec::new();
    for line in rows {
        let line = line.replace("@return", "@param @return");
        let Some(row) = line.strip_prefix("@param") else {
            let last = described.last_mut().unwrap();
            last.text += &format!(" {}", line.trim());
            continue;
        };
        let (direction, row) = match row.split_once(']') {
            Some(("[out", row)) => ("out", row),
            Some(("[in,out", row)) => ("inout", row),
            _ => ("in", row),
        };
        let (names, text) = row.trim().split_once("  ").unwrap_or((row.trim(), ""));
        let names = names.split(", ").map(str::to_owned).collect();
        described.push(Described { names, direction, text: text.trim().to_owned() });
    }
    (body.join("\n").trim_end().to_owned(), described)
}

/// The name, the text and the further fields of a function.
fn function(row: &Row, known: &Known) -> (String, String, Value) {
    let (head, parameters) = prototype(&row.code).split_once('(').unwrap();
    let (result, name) = declarator(head);
    let (text, described) = split_comment(&row.comment);
    let Some((doc, label)) = split_label(&text) else {
        panic!("the comment of {name} does not end with (torch.cuda...) or (+)");
    };
    let declared: Vec<(String, String)> =
        parameters_of(parameters).into_iter().map(declarator).collect();
    for name in described.iter().flat_map(|described| &described.names) {
        let known = name == "@return" || declared.iter().any(|(_, other)| other == name);
        assert!(known, "{head}: a @param describes {name}");
    }
    let comment = row.comment.join(" ");
    let parameters: Vec<Value> = declared
        .iter()
        .enumerate()
        .map(|(index, (kind, parameter))| {
            let described = described.iter().find(|other| other.names.contains(parameter));
            let Some(Described { direction, text: doc, .. }) = described else {
                panic!("{name}: no @param describes {parameter}");
            };
            check_direction(&name, kind, parameter, direction, known);
            let ends = index == 0
                && kind.ends_with('*')
                && ["_destroy", "_free", "_release", "_close"]
                    .iter()
                    .any(|end| name.ends_with(end));
            let can_be_null = kind.ends_with('*') || known.callbacks.contains(kind);
            let nullable = can_be_null
                && ((ends && !name.ends_with("_close"))
                    || NULL_TYPES.contains(&kind.as_str())
                    || NULL_NAMES.contains(&parameter.as_str())
                    || is_native(kind)
                    || says_may_be_null(&comment, doc, parameter));
            let ownership = match () {
                () if ends => Some("ended"),
                () if parameter == "user_data" => {
                    declared.iter().any(|(kind, _)| kind == "tcuda_destroy_fn").then_some("kept")
                }
                () if *direction == "in" => None,
                () => ownership(kind, doc, &text, known),
            };
            let is_list = kind.ends_with('*') && !is_handle(kind, known);
            let length = is_list.then(|| length(&declared[index + 1..])).flatten();
            // The front page: a buf of len 0, a list of count 0.
            let null_if = match &length {
                _ if doc.contains("may be NULL") => condition(doc),
                Some(length) if !nullable => Some(format!("{length} is 0")),
                _ => None,
            };
            let fields = json!({
                "direction": direction,
                "nullable": nullable || null_if.is_some(),
                "null_if": null_if,
                "length": length,
                "ownership": ownership,
            });
            variable(&format!("{kind} {parameter}"), doc, fields)
        })
        .collect();
    let mut torch: Vec<&str> = torch_words(label).collect();
    for (other, functions) in &known.torch {
        if functions.contains(&name.as_str()) && !torch.contains(&other.as_str()) {
            torch.push(other);
        }
    }
    let result_ownership = match result.as_str() {
        "const char *" if doc.contains("valid until") => Some("borrowed"),
        "const char *" => Some("static"),
        _ => None,
    };
    let returned = described.iter().find(|described| described.names[0] == "@return");
    let fields = json!({
        "torch": torch,
        "torch_label": label.replace('\n', " "),
        "result": result,
        "result_doc": returned.map(|returned| &returned.text),
        "result_ownership": result_ownership,
        "parameters": parameters,
    });
    (name, doc.to_owned(), fields)
}

fn pointee(kind: &str) -> String {
    kind.trim_end_matches('*').replace("const ", "").trim().to_owned()
}

fn is_handle(kind: &str, known: &Known) -> bool {
    kind.matches('*').count() == 1 && known.handles.contains(&pointee(kind))
}

fn is_native(kind: &str) -> bool {
    kind.matches('*').count() == 1 && kind.starts_with("struct ")
}

/// What a function writes is marked: what points to memory of the host that is not const. Memory of
/// a device is a value, its address, and so are handles.
fn check_direction(function: &str, kind: &str, name: &str, direction: &str, known: &Known) {
    let is_const = kind.ends_with("const *") || kind.starts_with("const ") && !kind.ends_with("**");
    let is_value = !kind.ends_with('*')
        || is_const
        || is_handle(kind, known)
        || is_native(kind)
        || (kind == "void *" && name != "buf");
    let is_sized = !is_value && known.sized.contains(&pointee(kind));
    let right: &[&str] = match () {
        () if is_value => &["in"],
        () if is_sized => &["inout"],
        () => &["out", "inout"],
    };
    assert!(right.contains(&direction), "{function}: {name} is {direction}, not {right:?}");
}

/// The number of elements of a list or text, from the parameters behind it.
fn length(following: &[(String, String)]) -> Option<String> {
    let is_length =
        |name: &str| ["len", "capacity", "count"].contains(&name) || name.starts_with("num_");
    let lengths = following.iter().take_while(|(kind, name)| kind == "size_t" && is_length(name));
    let lengths: Vec<&str> = lengths.map(|(_, name)| name.as_str()).collect();
    (!lengths.is_empty()).then(|| lengths.join(" * "))
}

/// Does the parameter's text, or a clause of the comment that names it, say that it "may be NULL"?
fn says_may_be_null(comment: &str, doc: &str, name: &str) -> bool {
    let clauses = comment
        .match_indices("may be NULL")
        .map(|(index, _)| comment[..index].rsplit(['.', ':', ';', '@']).next().unwrap_or_default());
    doc.contains("may be NULL") || clauses.into_iter().any(|clause| has_word(clause, name))
}

/// `len is 0` of "may be NULL if len is 0".
fn condition(doc: &str) -> Option<String> {
    let rest = doc.split_once("may be NULL ")?.1;
    let rest = rest.strip_prefix("if ").or_else(|| rest.strip_prefix("when "))?;
    Some(rest.split([';', ':', '.']).next()?.replace('`', ""))
}

/// Of an output of a function.
fn ownership(kind: &str, doc: &str, text: &str, known: &Known) -> Option<&'static str> {
    let is_handle = kind.ends_with("**") && known.handles.contains(&pointee(kind));
    match () {
        () if !kind.ends_with("**") && kind != "tcuda_tensor *" => None,
        () if doc.contains("borrowed") => Some("borrowed"),
        () if doc.contains("the caller's") => Some("owned"),
        // The front page, "Handles" and "Native".
        () if is_handle && !has_word(text, "borrowed") => Some("owned"),
        () => (is_handle || kind.starts_with("struct ")).then_some("borrowed"),
    }
}

/// The text before `(torch.cuda.set_device)` or `(+)` at the end of a comment, and what is within
/// the parentheses.
fn split_label(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let start = text.char_indices().rev().find_map(|(index, letter)| {
        depth += i32::from(letter == ')') - i32::from(letter == '(');
        (depth == 0).then_some(index)
    })?;
    let label = text[start..].strip_prefix('(')?.strip_suffix(')')?;
    let is_label = label.starts_with('+') || label.contains("torch.") || label.contains("Tensor.");
    is_label.then_some((text[..start].trim_end(), label))
}

/// `torch.cuda.Stream` of "the end of a torch.cuda.Stream".
fn torch_words(label: &str) -> impl Iterator<Item = &str> {
    let words = label.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
    words.filter(|word| {
        word.strip_prefix("torch.").is_some_and(|rest| rest != "cuda")
            || word.starts_with("Tensor.")
    })
}

/// Each name of PyTorch in full, with its functions.
fn torch_names(text: &str) -> Vec<(String, Vec<&str>)> {
    let mut module = "";
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(title) = line.strip_prefix('[') {
            module = title.split([',', ']']).next().unwrap();
        } else if let Some((name, functions)) = line.split_once(": ") {
            let functions = functions.split('(').next().unwrap();
            found.push((format!("{module}.{name}"), functions.split_whitespace().collect()));
        }
    }
    found
}
