//! cbindgen's text, laid out as one would by hand: short comments on one line or behind what they
//! explain, constants in groups below their type, prototypes wrapped at 100 columns.

const WIDTH: usize = 100;

/// A line of code and the lines of the comment above it. A first paragraph in `**` is a heading
/// for this row and those that follow: "**1-19: the call**".
#[derive(Clone)]
pub struct Row {
    heading: Option<String>,
    pub comment: Vec<String>,
    pub code: String,
}

/// What blank lines separate.
pub enum Item {
    /// `#define`s or opaque types of one family; `kind` is an integer type that they belong to.
    Table { family: String, kind: Option<Row>, rows: Vec<Row> },
    /// A struct or an enum.
    Block { head: Row, members: Vec<Row>, tail: String },
    /// A prototype, or the type of a callback.
    Function(Row),
}

/// The items of a section, from cbindgen's text.
pub fn parse(raw: &str) -> Vec<Item> {
    constants_below_their_type(items(rows(raw)))
}

pub fn tidy(items: &[Item]) -> String {
    items.iter().map(render).collect::<Vec<_>>().join("\n")
}

fn rows(raw: &str) -> Vec<Row> {
    let mut lines = raw.lines().map(str::trim);
    let mut rows = Vec::new();
    let mut comment = Vec::new();
    while let Some(line) = lines.next() {
        match line {
            "" => {}
            "/**" => comment = comment_text(lines.by_ref().take_while(|line| *line != "*/")),
            code => {
                let (heading, comment) = heading(std::mem::take(&mut comment));
                rows.push(Row { heading, comment, code: code.to_owned() });
            }
        }
    }
    rows
}

/// The text of a comment. What Rust asks of its callers below "# Safety" is for Rust alone.
fn comment_text<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let text: Vec<String> = lines.map(|line| uncommented(line).trim_end().to_owned()).collect();
    let mut text: Vec<String> =
        text.into_iter().take_while(|line| !line.starts_with("# Safety")).collect();
    while text.last().is_some_and(String::is_empty) {
        text.pop();
    }
    text
}

/// The text of a comment's line; its indentation goes on.
fn uncommented(line: &str) -> &str {
    let text = line.trim_start_matches('*');
    text.strip_prefix(' ').unwrap_or(text)
}

fn heading(mut comment: Vec<String>) -> (Option<String>, Vec<String>) {
    let first = comment.first().and_then(|line| line.strip_prefix("**")?.strip_suffix("**"));
    let heading = first.map(str::to_owned);
    if heading.is_some() {
        let rest = comment.iter().skip(1).position(|line| !line.is_empty());
        comment = rest.map_or(Vec::new(), |start| comment.split_off(start + 1));
    }
    (heading, comment)
}

fn items(rows: Vec<Row>) -> Vec<Item> {
    let mut items = Vec::new();
    let mut rows = rows.into_iter();
    while let Some(row) = rows.next() {
        let words: Vec<&str> = row.code.split([' ', ';']).collect();
        let integer = words[0] == "typedef" && !row.code.contains('(') && words[1] != "struct";
        if row.code.ends_with('{') {
            items.push(block(row, &mut rows));
        } else if words[0] == "#define" {
            let code = match row.code.split_once(" -") {
                Some((name, value)) => format!("{name} (-{value})"),
                None => row.code.clone(),
            };
            add_to_table(&mut items, family(words[1]), Row { code, ..row });
        } else if row.code.starts_with("typedef struct ") && !row.code.contains('(') {
            add_to_table(&mut items, String::new(), row);
        } else if integer {
            let family = family(&words[2].to_uppercase());
            items.push(Item::Table { family, kind: Some(row), rows: Vec::new() });
        } else {
            items.push(Item::Function(Row { code: untagged(&row.code), ..row }));
        }
    }
    items
}

fn block(head: Row, rows: &mut impl Iterator<Item = Row>) -> Item {
    let mut members = Vec::new();
    for row in rows {
        if row.code.starts_with('}') {
            if let (true, Some(last)) = (head.code.starts_with("typedef enum"), members.last_mut())
            {
                let last: &mut Row = last;
                last.code.truncate(last.code.trim_end_matches(',').len());
            }
            return Item::Block { head, members, tail: row.code };
        }
        members.push(Row { code: untagged(&row.code), ..row });
    }
    panic!("a block without an end");
}

/// TCUDA_LOG of TCUDA_LOG_OFF.
fn family(name: &str) -> String {
    name.split('_').take(2).collect::<Vec<_>>().join("_")
}

/// Types of ours have a typedef: no tag.
fn untagged(code: &str) -> String {
    code.replace("struct tcuda_", "tcuda_").replace("enum tcuda_", "tcuda_")
}

fn add_to_table(items: &mut Vec<Item>, name: String, row: Row) {
    match items.last_mut() {
        Some(Item::Table { family, rows, .. }) if *family == name => rows.push(row),
        _ => items.push(Item::Table { family: name, kind: None, rows: vec![row] }),
    }
}

/// cbindgen prints constants first; a reader wants the type first.
fn constants_below_their_type(items: Vec<Item>) -> Vec<Item> {
    let kinds: Vec<String> = items
        .iter()
        .filter_map(|item| match item {
            Item::Table { family, kind: Some(_), .. } => Some(family.clone()),
            _ => None,
        })
        .collect();
    let mut constants = Vec::new();
    let mut kept = Vec::new();
    for item in items {
        match item {
            Item::Table { family, kind: None, rows } if kinds.contains(&family) => {
                constants.extend(rows.into_iter().map(|row| (family.clone(), row)));
            }
            item => kept.push(item),
        }
    }
    for item in &mut kept {
        if let Item::Table { family, kind: Some(_), rows } = item {
            let own = constants.iter().filter(|(name, _)| name == family);
            rows.extend(own.map(|(_, row)| row.clone()));
        }
    }
    kept
}

fn render(item: &Item) -> String {
    match item {
        Item::Table { kind, rows, .. } => {
            let kind = kind.iter().map(|row| above(&row.comment, "") + &row.code + "\n");
            kind.collect::<String>() + &table(rows, "")
        }
        Item::Block { head, members, tail } => {
            let body = table(members, "    ");
            format!("{}{}\n{body}{tail}\n", above(&head.comment, ""), head.code)
        }
        Item::Function(row) => {
            above(&row.comment, "") + &function(&row.code) + &integers_only(&row.code)
        }
    }
}

fn above(comment: &[String], indent: &str) -> String {
    match comment {
        [] => String::new(),
        [line] if indent.len() + line.chars().count() + 7 <= WIDTH => {
            format!("{indent}/** {line} */\n")
        }
        lines => {
            let lines = lines.iter().map(|line| format!("{indent} * {line}").trim_end().to_owned());
            format!("{indent}/**\n{}\n{indent} */\n", lines.collect::<Vec<_>>().join("\n"))
        }
    }
}

/// Rows with their comments behind them, in one column as far as they fit.
fn table(rows: &[Row], indent: &str) -> String {
    let mut text = String::new();
    let mut run: Vec<&Row> = Vec::new();
    for row in rows {
        if let Some(heading) = &row.heading {
            text += &behind(&std::mem::take(&mut run), indent);
            text += &format!("{indent}/* {heading} */\n");
        }
        if !fit(&[row], indent) {
            text += &behind(&std::mem::take(&mut run), indent);
            text += &format!("{}{indent}{}\n", above(&row.comment, indent), row.code);
            continue;
        }
        run.push(row);
        if !fit(&run, indent) {
            run.pop();
            text += &behind(&std::mem::replace(&mut run, vec![row]), indent);
        }
    }
    text + &behind(&run, indent)
}

fn fit(rows: &[&Row], indent: &str) -> bool {
    let code = rows.iter().map(|row| row.code.len()).max().unwrap_or(0);
    let comment = |row: &&Row| row.comment.first().map_or(0, |line| line.chars().count() + 9);
    let widest = rows.iter().map(comment).max().unwrap_or(0);
    rows.iter().all(|row| row.comment.len() <= 1) && indent.len() + code + widest <= WIDTH
}

fn behind(rows: &[&Row], indent: &str) -> String {
    let commented = rows.iter().filter(|row| !row.comment.is_empty());
    let column = commented.map(|row| row.code.len()).max().unwrap_or(0);
    let line = |row: &&Row| match row.comment.first() {
        Some(comment) => format!("{indent}{:column$} /**< {comment} */\n", row.code),
        None => format!("{indent}{}\n", row.code),
    };
    rows.iter().map(line).collect()
}

/// For a function of integers and floating-point numbers a macro of its name, whose `|` accepts
/// integers alone: with two arguments in the wrong order a call does not compile, in C and in C++.
/// Such a macro is not expanded where the name stands without a call, and behind the prototype it
/// does not disturb it.
fn integers_only(code: &str) -> String {
    const INTEGERS: [&str; 5] = ["int32_t", "uint32_t", "int64_t", "uint64_t", "size_t"];
    let Some((head, parameters)) = code.trim_end_matches(");").split_once('(') else {
        return String::new();
    };
    let parameters: Vec<&str> = parameters.split(", ").collect();
    let is_a = |types: &[&str], parameter: &str| {
        parameter
            .rsplit_once(' ')
            .is_some_and(|(kind, name)| types.contains(&kind) && !name.starts_with('*'))
    };
    let is_integer = |parameter: &str| is_a(&INTEGERS, parameter);
    if code.starts_with("typedef")
        || !parameters.iter().any(|parameter| is_integer(parameter))
        || !parameters.iter().any(|parameter| is_a(&["double", "float"], parameter))
    {
        return String::new();
    }
    let name = head.rsplit(' ').next().unwrap_or(head);
    let names =
        parameters.iter().map(|parameter| parameter.rsplit(' ').next().unwrap_or(parameter));
    let names: Vec<&str> = names.collect();
    let arguments =
        parameters.iter().zip(&names).map(|(parameter, name)| match is_integer(parameter) {
            true => format!("({name}) | 0"),
            false => (*name).to_owned(),
        });
    let arguments = arguments.collect::<Vec<_>>().join(", ");
    format!(
        "/* Refuses a double for an integer: arguments in the wrong order do not compile. A host \
         that defines\n\
         \x20* or wraps the function writes its name in parentheses: ({name})(...). */\n\
         #define {name}({}) \\\n    {name}({arguments})\n",
        names.join(", ")
    )
}

/// Attributes on a line of their own, then the prototype. [[nodiscard]] has to come first.
fn function(code: &str) -> String {
    let attributes = match code {
        code if code.starts_with(NODISCARD) => "TCUDA_NODISCARD TCUDA_API\n",
        code if code.starts_with("typedef") => "",
        _ => "TCUDA_API\n",
    };
    attributes.to_owned() + &wrapped(prototype(code))
}

const NODISCARD: &str = "TCUDA_NODISCARD ";

/// A function without its attributes.
pub fn prototype(code: &str) -> &str {
    code.strip_prefix(NODISCARD).unwrap_or(code)
}

/// A prototype in lines.
pub fn wrapped(prototype: &str) -> String {
    let mut text = String::new();
    let mut line = String::new();
    for part in prototype.split_inclusive(", ") {
        if line.len() + part.trim_end().len() > WIDTH {
            text += &format!("{}\n", line.trim_end());
            line = "    ".to_owned();
        }
        line += part;
    }
    text + &line + "\n"
}
