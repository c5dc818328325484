//! Links: texts of PTX that become one.

use super::arguments::require;
use super::config::Config;
use super::handles::Handles;
use super::hooks;
use super::jit::{self, Options};
use crate::base::code;
use crate::program::Program;
use crate::ptx::parse;
use crate::ptx::tree::{Linkage, Module};
use crate::ptx::{LoadError, LoadErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::time::Instant;

/// The links that the host created.
pub(super) type Links = Handles<Link>;

/// A link.
pub(super) struct Link {
    options: Options,
    inputs: Vec<Input>,
    /// What the logs contain so far.
    info: String,
    error: String,
    /// The result, which the host reads until it destroys the link.
    output: Option<CString>,
}

/// A text that is linked.
struct Input {
    /// The host's name for it.
    name: String,
    text: String,
}

impl Link {
    pub(super) fn new(options: Options) -> Link {
        let (info, error) = (String::new(), String::new());
        Link { options, inputs: Vec::new(), info, error, output: None }
    }

    /// The compute capability that the result is for.
    pub(super) fn capability(&self, config: &Config) -> u32 {
        self.options.capability(config)
    }

    /// Adds a text that is valid by itself, except for functions that other inputs define.
    pub(super) fn add(&mut self, config: &Config, name: String, text: String) -> Result<(), i32> {
        let start = Instant::now();
        require(self.output.is_none(), code::INVALID_VALUE)?;
        if let Err(error) = Program::load(&text, self.capability(config))
            && error.kind != LoadErrorKind::Unresolved
        {
            self.error.push_str(&jit::message(&error));
            self.options.report(start, &self.info, &self.error)?;
            return Err(jit::refuse(&error));
        }
        self.inputs.push(Input { name, text });
        self.options.report(start, &self.info, &self.error)
    }

    /// The joined inputs.
    pub(super) fn complete(&mut self, config: &Config) -> Result<&CString, i32> {
        let start = Instant::now();
        let output = match self.output.take() {
            Some(output) => output,
            None => match self.join(config) {
                Ok(text) => CString::new(text).map_err(|_| code::INVALID_IMAGE)?,
                Err(message) => {
                    hooks::log_error(format_args!("images cannot be linked: {message}"));
                    self.error.push_str(&format!("error   : {message}\n"));
                    self.options.report(start, &self.info, &self.error)?;
                    return Err(code::UNKNOWN);
                }
            },
        };
        self.options.report(start, &self.info, &self.error)?;
        Ok(self.output.insert(output))
    }

    /// The text of all inputs. An error says what cannot be linked.
    fn join(&mut self, config: &Config) -> Result<String, String> {
        let joined = match &self.inputs[..] {
            [only] => only.text.clone(),
            inputs => join(inputs)?,
        };
        let program = self.options.compile(&joined, config).map_err(|error| error.to_string())?;
        self.info.push_str(&self.options.describe(&program, config));
        Ok(joined)
    }
}

/// One text of several: the newest header, then all their contents.
fn join(inputs: &[Input]) -> Result<String, String> {
    let read = |input: &Input| parse::module(&input.text).map(|tree| Names::of(&tree));
    let names: Result<Vec<Names>, LoadError> = inputs.iter().map(read).collect();
    let names = names.map_err(|error| error.to_string())?;
    let mut defined = BTreeMap::new();
    for (input, names) in inputs.iter().zip(&names) {
        for name in &names.visible {
            if let Some(first) = defined.insert(name, &input.name) {
                let place = &input.name;
                return Err(format!(
                    "Multiple definition of '{name}' in '{place}', first defined in '{first}'"
                ));
            }
        }
    }
    let (mut version, mut target) = ((0, 0), (0, String::new()));
    let mut all = String::new();
    for (index, (input, own)) in inputs.iter().zip(&names).enumerate() {
        let header = Header::of(&input.text);
        version = version.max(own.version);
        target = target.max((own.target, header.target.to_owned()));
        // Names that only one input knows are made unique.
        let others = |name: &str| names[..index].iter().any(|other| other.has(name));
        let clashing = own.internal.iter().filter(|name| others(name));
        let clashing: BTreeSet<&str> = clashing.map(String::as_str).collect();
        rename(header.body, &clashing, &format!("$link{index}"), &mut all);
        all.push('\n');
    }
    let (major, minor) = version;
    Ok(format!(".version {major}.{minor}\n.target {}\n.address_size 64\n{all}", target.1))
}

/// The names of an input outside of functions.
struct Names {
    version: (u32, u32),
    target: u32,
    /// Defined for all inputs.
    visible: BTreeSet<String>,
    /// Known to this input only.
    internal: BTreeSet<String>,
    /// Used from other inputs, or defined unless another one does.
    shared: BTreeSet<String>,
}

impl Names {
    fn of(tree: &Module<'_>) -> Names {
        let (version, target) = (tree.version, tree.target);
        let (mut visible, mut internal, mut shared) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let functions = tree.functions.iter().map(|it| match it.linkage {
            // Only declared.
            Linkage::Visible if it.body.is_none() => (it.name, Linkage::Extern, it.is_kernel),
            linkage => (it.name, linkage, it.is_kernel),
        });
        let variables = tree.variables.iter().map(|it| (it.name, it.linkage, false));
        for (name, linkage, is_kernel) in functions.chain(variables) {
            match linkage {
                Linkage::Visible => &mut visible,
                Linkage::Internal if is_kernel => &mut visible,
                Linkage::Internal => &mut internal,
                Linkage::Weak | Linkage::Extern => &mut shared,
            }
            .insert(name.to_owned());
        }
        Names { version, target, visible, internal, shared }
    }

    fn has(&self, name: &str) -> bool {
        [&self.visible, &self.internal, &self.shared].iter().any(|names| names.contains(name))
    }
}

/// The beginning of a valid text, and the rest.
struct Header<'a> {
    target: &'a str,
    body: &'a str,
}

impl Header<'_> {
    fn of(text: &str) -> Header<'_> {
        let (mut rest, mut target) = (skip(text), "");
        loop {
            if let Some(after) = rest.strip_prefix(".target") {
                let list = skip(after);
                // The list goes on behind each comma.
                let mut end = word(list);
                while skip(end).starts_with(',') {
                    end = word(skip(&skip(end)[1..]));
                }
                target = &list[..list.len() - end.len()];
                rest = skip(end);
            } else if let Some(after) =
                rest.strip_prefix(".version").or(rest.strip_prefix(".address_size"))
            {
                rest = skip(word(skip(after)));
            } else {
                return Header { target, body: rest };
            }
        }
    }
}

/// The text behind its first word.
fn word(text: &str) -> &str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    text.trim_start_matches(is_part)
}

/// The text behind blanks and comments.
fn skip(text: &str) -> &str {
    let mut rest = text.trim_start();
    loop {
        rest = match (rest.strip_prefix("//"), rest.strip_prefix("/*")) {
            (Some(comment), _) => comment.split_once('\n').map_or("", |(_, after)| after),
            (_, Some(comment)) => comment.split_once("*/").map_or("", |(_, after)| after),
            _ => return rest,
        }
        .trim_start();
    }
}

/// Appends a text in which these names have an addition.
fn rename(text: &str, names: &BTreeSet<&str>, addition: &str, to: &mut String) {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' => rest[1..].find('"').map_or(rest.len(), |at| at + 2),
            c if is_part(c) => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (part, after) = rest.split_at(end);
        to.push_str(part);
        if names.contains(part) {
            to.push_str(addition);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "// user\n.version 7.0 .target sm_70, debug // flags\n.address_size 64\n\
        .extern .func (.param .b32 r) twice (.param .b32 x);\n.global .u32 table[1] = {5};\n\
        .visible .entry k() { .reg .b32 %table; mov.u32 %table, table; ret; }";
    const MAKER: &str = "/* maker */ .version 7.8\n.target sm_52\n.address_size 64\n\
        .global .u32 table[1] = {6};\n.visible .func (.param .b32 r) twice (.param .b32 x)\n\
        { .reg .b32 %a; ld.param.b32 %a, [x]; add.u32 %a, %a, %a; st.param.b32 [r], %a; ret; }";

    fn input(name: &str, text: &str) -> Input {
        Input { name: name.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn inputs_become_one_text() {
        let joined = join(&[input("a", USER), input("b", MAKER)]).unwrap();
        assert!(joined.starts_with(".version 7.8\n.target sm_70, debug"), "{joined}");
        assert!(joined.contains("mov.u32 %table, table;"), "{joined}");
        assert!(joined.contains("table$link1[1] = {6}"), "{joined}");
        let program = Program::load(&joined, 90).unwrap();
        assert_eq!(program.variables.len(), 2);
        let message = join(&[input("a", MAKER), input("b", MAKER)]).unwrap_err();
        assert_eq!(message, "Multiple definition of 'twice' in 'b', first defined in 'a'");
    }
}
