//! Links: texts of PTX that become one.

use super::arguments::require;
use super::config::Config;
use super::handles::Handles;
use super::hooks;
use super::jit::{self, Options};
use crate::base::code;
use crate::program::{Builtin, Program};
use crate::ptx::LoadErrorKind;
use crate::ptx::parse;
use crate::ptx::tree::{Function, Linkage, Module, Space};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::iter;
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
    /// True if inputs do not fit together, which ends the link.
    is_failed: bool,
    /// The result, which the host reads until it destroys the link.
    output: Option<CString>,
}

/// A text that is linked.
struct Input {
    /// The host's name for it.
    name: String,
    text: String,
    names: Names,
}

impl Link {
    pub(super) fn new(options: Options) -> Link {
        let (info, error) = (String::new(), String::new());
        Link { options, inputs: Vec::new(), info, error, is_failed: false, output: None }
    }

    /// The compute capability that the result is for.
    pub(super) fn capability(&self, config: &Config) -> u32 {
        self.options.capability(config)
    }

    /// Adds a text that is valid by itself, except for functions that other inputs define. One that
    /// is not valid is left out.
    pub(super) fn add(&mut self, config: &Config, name: String, text: String) -> Result<(), i32> {
        let start = Instant::now();
        require(self.output.is_none(), code::INVALID_VALUE)?;
        require(!self.is_failed, code::INVALID_SOURCE)?;
        match Program::load(&text, self.capability(config)) {
            Err(error) if error.kind != LoadErrorKind::Unresolved => {
                self.note(&jit::message(&error));
                self.options.report(start, &self.info, &self.error)?;
                return Err(jit::refuse(&error));
            }
            _ => {}
        }
        let names = parse::module(&text).map(|tree| Names::of(&text, &tree));
        let input = Input { name, text, names: names.map_err(|error| jit::refuse(&error))? };
        let is_alone = self.check_definitions(&input);
        self.inputs.push(input);
        self.options.report(start, &self.info, &self.error)?;
        is_alone
    }

    /// Adds a line to the log of errors.
    fn note(&mut self, line: &str) {
        if !self.error.is_empty() {
            self.error.push('\n');
        }
        self.error.push_str(line);
    }

    /// Notes why the inputs cannot be linked.
    fn fail(&mut self, message: &str) -> i32 {
        hooks::log_error(format_args!("images cannot be linked: {message}"));
        self.note(&format!("error   : {message}"));
        self.is_failed = true;
        code::INVALID_SOURCE
    }

    /// Checks that no other input defines what this one does.
    fn check_definitions(&mut self, input: &Input) -> Result<(), i32> {
        let place = &input.name;
        let message = input.names.visible.iter().find_map(|name| {
            let first = self.inputs.iter().find(|other| other.names.visible.contains(name))?;
            let first = &first.name;
            Some(format!(
                "Multiple definition of '{name}' in '{place}', first defined in '{first}'"
            ))
        });
        message.map_or(Ok(()), |message| Err(self.fail(&message)))
    }

    /// Checks that the driver or an input defines what inputs need.
    fn check_uses(&mut self) -> Result<(), i32> {
        let is_defined = |name: &str| {
            self.inputs.iter().any(|other| other.names.visible.contains(name))
                || self.inputs.iter().any(|other| other.names.weak.contains(name))
                || Builtin::named(name).is_some()
        };
        let mut messages = Vec::new();
        for input in &self.inputs {
            let undefined = input.names.needed.iter().filter(|name| !is_defined(name));
            messages.extend(
                undefined
                    .map(|name| format!("Undefined reference to '{name}' in '{}'", input.name)),
            );
        }
        let failed = messages.iter().map(|message| self.fail(message)).last();
        failed.map_or(Ok(()), Err)
    }

    /// The joined inputs.
    pub(super) fn complete(&mut self, config: &Config) -> Result<&CString, i32> {
        let start = Instant::now();
        let output = match self.output.take() {
            Some(output) => Ok(output),
            None => self.join(config),
        };
        self.options.report(start, &self.info, &self.error)?;
        Ok(self.output.insert(output?))
    }

    /// The text of all inputs.
    fn join(&mut self, config: &Config) -> Result<CString, i32> {
        require(!self.is_failed, code::INVALID_SOURCE)?;
        self.check_uses()?;
        let joined = match &self.inputs[..] {
            [only] => only.text.clone(),
            inputs => join(inputs, self.capability(config)),
        };
        match self.options.compile(&joined, config) {
            Ok(program) => self.info.push_str(&self.options.describe(&program, config)),
            Err(error) => return Err(self.fail(&error.to_string())),
        }
        CString::new(joined).map_err(|_| code::INVALID_IMAGE)
    }
}

/// One text of several: the newest header, then all their contents. Without a text it is empty, for
/// a compute capability.
fn join(inputs: &[Input], capability: u32) -> String {
    let version = inputs.iter().map(|input| input.names.version).max().unwrap_or(parse::NEWEST);
    let mut target = (0, format!("sm_{capability}"));
    let mut all = String::new();
    for (index, input) in inputs.iter().enumerate() {
        let (header, own) = (Header::of(&input.text), &input.names);
        target = target.max((own.target, header.target.to_owned()));
        // Names that only one input knows are made unique.
        let others = |name: &str| inputs[..index].iter().any(|other| other.names.has(name));
        let clashing = own.internal.iter().filter(|name| others(name));
        let clashing: BTreeSet<&str> = clashing.map(String::as_str).collect();
        rename(header.body, &clashing, &format!("$link{index}"), &mut all);
        all.push('\n');
    }
    let (major, minor) = version;
    format!(".version {major}.{minor}\n.target {}\n.address_size 64\n{all}", target.1)
}

/// The names of an input outside of functions.
#[derive(Default)]
struct Names {
    version: (u32, u32),
    target: u32,
    /// Defined for all inputs.
    visible: BTreeSet<String>,
    /// Known to this input only.
    internal: BTreeSet<String>,
    /// Defined unless another input does.
    weak: BTreeSet<String>,
    /// Defined by another input.
    needed: BTreeSet<String>,
    /// Declared without a use, or defined by the launch.
    unneeded: BTreeSet<String>,
}

impl Names {
    fn of(text: &str, tree: &Module<'_>) -> Names {
        let (version, target) = (tree.version, tree.target);
        let mut names = Names { version, target, ..Names::default() };
        let has_body = |it: &Function<'_>| it.body.is_some() && it.linkage != Linkage::Extern;
        let defined: BTreeSet<&str> =
            tree.functions.iter().filter(|it| has_body(it)).map(|it| it.name).collect();
        // A declaration before the definition adds nothing.
        for it in tree.functions.iter().filter(|it| has_body(it) || !defined.contains(it.name)) {
            let is_declared = !has_body(it);
            // The declaration has the name once.
            let is_called = || parts(text).filter(|part| *part == it.name).count() > 1;
            match it.linkage {
                _ if is_declared && is_called() => &mut names.needed,
                _ if is_declared => &mut names.unneeded,
                Linkage::Weak => &mut names.weak,
                Linkage::Internal if !it.is_kernel => &mut names.internal,
                _ => &mut names.visible,
            }
            .insert(it.name.to_owned());
        }
        for it in &tree.variables {
            match it.linkage {
                Linkage::Extern if it.space == Space::Shared => &mut names.unneeded,
                Linkage::Extern => &mut names.needed,
                Linkage::Weak => &mut names.weak,
                Linkage::Internal => &mut names.internal,
                Linkage::Visible => &mut names.visible,
            }
            .insert(it.name.to_owned());
        }
        names
    }

    fn has(&self, name: &str) -> bool {
        let all = [&self.visible, &self.internal, &self.weak, &self.needed, &self.unneeded];
        all.iter().any(|names| names.contains(name))
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

/// The words of a text, and each other character by itself.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    let mut rest = text;
    iter::from_fn(move || {
        let end = match rest.chars().next()? {
            '"' => rest[1..].find('"').map_or(rest.len(), |at| at + 2),
            c if is_part(c) => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(part)
    })
}

/// Appends a text in which these names have an addition.
fn rename(text: &str, names: &BTreeSet<&str>, addition: &str, to: &mut String) {
    for part in parts(text) {
        to.push_str(part);
        if names.contains(part) {
            to.push_str(addition);
        }
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

    const INNER: &str = ".version 7.8\n.target sm_52\n.address_size 64\n\
        .func (.param .b32 r) inner (.param .b32 x);\n.visible .entry k() { ret; }\n\
        .func (.param .b32 r) inner (.param .b32 x) { st.param.b32 [r], 1; ret; }";

    fn input(name: &str, text: &str) -> Input {
        let names = Names::of(text, &parse::module(text).unwrap());
        Input { name: name.to_owned(), text: text.to_owned(), names }
    }

    #[test]
    fn inputs_become_one_text() {
        let joined = join(&[input("a", USER), input("b", MAKER)], 90);
        assert!(joined.starts_with(".version 7.8\n.target sm_70, debug"), "{joined}");
        assert!(joined.contains("mov.u32 %table, table;"), "{joined}");
        assert!(joined.contains("table$link1[1] = {6}"), "{joined}");
        let program = Program::load(&joined, 90).unwrap();
        assert_eq!(program.variables.len(), 2);
    }

    #[test]
    fn functions_can_be_declared_before_they_are_defined() {
        let names = input("a", INNER).names;
        assert!(names.needed.is_empty() && names.internal.contains("inner"));
    }
}
