//! Finds the files that a program includes, for its cache key.
//!
//! NVRTC does not report the files that it included. So this module reads the directives itself and
//! finds more files than the compiler: it ignores `#if`, and takes a header of the same name from
//! every search directory. A program with a directive that it cannot interpret has no key.

use super::source::blanked;
use crate::base::error::{Error, Result};
use crate::base::file;
use crate::driver::compiler::Program;
use std::ffi::CStr;

/// Limits on the number of files, and on their bytes together.
const MAX_FILES: usize = 1 << 14;
const MAX_BYTES: usize = 256 << 20;

const NO_MEMORY: Error = Error::OutOfHostMemory("the headers of a kernel");

/// The operand of an include directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named<'a> {
    /// A file name.
    File(&'a [u8]),
    /// A macro that expands to a file name.
    Macro(&'a [u8]),
    /// Anything else.
    Unknown,
}

/// The name and the value of a macro.
type Definition = (Vec<u8>, Vec<u8>);

/// Receives the content of a file; `None` for a file that does not exist.
type Take<'a> = dyn FnMut(Option<&[u8]>) + 'a;

/// A search for all included files.
struct Search<'a> {
    /// Directories; each ends with a slash unless it is empty.
    folders: Vec<&'a [u8]>,
    /// Paths that were tried, sorted, each with a NUL.
    tried: Vec<Vec<u8>>,
    /// Texts that are not scanned yet, with the directory of each.
    open: Vec<(Vec<u8>, Vec<u8>)>,
    /// Macros whose definitions are collected in `definitions`.
    wanted: &'a [Vec<u8>],
    definitions: Vec<Definition>,
    /// Macros that are used as file names, each with the directory of its use.
    macros: Vec<(Vec<u8>, Vec<u8>)>,
    files: usize,
    bytes: usize,
    is_known: bool,
}

fn copied(text: &[u8]) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(text.len()).map_err(|_| NO_MEMORY)?;
    copy.extend_from_slice(text);
    Ok(copy)
}

fn push<T>(list: &mut Vec<T>, value: T) -> Result<()> {
    list.try_reserve(1).map_err(|_| NO_MEMORY)?;
    list.push(value);
    Ok(())
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Splits the identifier off at the start.
fn name(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !is_of_name(*byte)).unwrap_or(text.len());
    text.split_at(end)
}

/// Parses the operand of a directive, after `include` or an opening parenthesis.
fn named(text: &[u8]) -> Named<'_> {
    let text = after_comments(text);
    let file = |close: u8| {
        let end = text[1..].iter().position(|byte| *byte == close || *byte == b'\n');
        let end = end.filter(|end| text[1 + end] == close);
        end.map_or(Named::Unknown, |end| Named::File(&text[1..][..end]))
    };
    match text.first() {
        Some(b'"') => file(b'"'),
        Some(b'<') => file(b'>'),
        Some(first) if is_of_name(*first) => {
            let (name, rest) = name(text);
            let is_call = rest.trim_ascii_start().starts_with(b"(");
            if is_call { Named::Unknown } else { Named::Macro(name) }
        }
        _ => Named::Unknown,
    }
}

/// Joins lines that a backslash continues.
fn unspliced(text: Vec<u8>) -> Vec<u8> {
    let is_end = |next: Option<&u8>| matches!(next, Some(b'\n' | b'\r'));
    let mut marks = text.iter().enumerate().filter(|(_, byte)| **byte == b'\\');
    if !marks.any(|(at, _)| is_end(text.get(at + 1))) {
        return text;
    }
    let mut text = text;
    let (mut from, mut to) = (0, 0);
    while from < text.len() {
        let rest = &text[from..];
        let skipped = match rest {
            [b'\\', b'\n', ..] => 2,
            [b'\\', b'\r', b'\n', ..] => 3,
            _ => 0,
        };
        from += skipped;
        if skipped == 0 {
            text[to] = text[from];
            (from, to) = (from + 1, to + 1);
        }
    }
    text.truncate(to);
    text
}

/// Is it a directive that names a file?
fn names_file(word: &[u8]) -> bool {
    matches!(word, b"include" | b"include_next" | b"import" | b"embed")
}

/// Calls `body` with each directive: its word, and the rest of its line. `is_exact` ignores
/// comments and literals, and takes ten times as long.
fn for_each_directive<'t>(
    text: &'t [u8],
    is_exact: bool,
    body: &mut dyn FnMut(&'t [u8], &'t [u8]) -> Result<()>,
) -> Result<()> {
    // Headers need not be UTF-8. Offsets are equal in both texts.
    let mut room = Vec::new();
    let plain = if is_exact { blanked(text, &mut room)? } else { text };
    let mut from = 0;
    while let Some(found) = plain[from..].iter().position(|byte| matches!(byte, b'#' | b'%')) {
        let mark = from + found;
        from = mark + 1;
        if plain[mark] == b'%' && plain.get(from) != Some(&b':') {
            continue;
        }
        let start = plain[..mark].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let before = plain[start..mark].trim_ascii();
        // A comment may precede the directive.
        if !before.is_empty() && !before.ends_with(b"*/") {
            continue;
        }
        let at = mark + if plain[mark] == b'%' { 2 } else { 1 };
        let end = text[at..].iter().position(|byte| *byte == b'\n');
        let line = &text[at..end.map_or(text.len(), |end| at + end)];
        let (word, rest) = name(after_comments(line));
        body(word, rest)?;
    }
    Ok(())
}

/// Removes blanks and complete comments at the start of a line.
fn after_comments(line: &[u8]) -> &[u8] {
    let mut line = line.trim_ascii_start();
    while let Some(comment) = line.strip_prefix(b"/*") {
        let Some(end) = comment.windows(2).position(|pair| pair == b"*/") else { return b"" };
        line = comment[end + 2..].trim_ascii_start();
    }
    line
}

/// Is an inexact scan sufficient? True if every include directive names a file.
fn is_clear(text: &[u8]) -> bool {
    let mut is_clear = true;
    let seen = for_each_directive(text, false, &mut |word, rest| {
        is_clear &= !names_file(word) || matches!(named(rest), Named::File(_));
        Ok(())
    });
    is_clear && seen.is_ok()
}

/// Calls `body` with the text after each `__has_include(` of a line.
fn for_each_has_include<'t>(
    mut rest: &'t [u8],
    body: &mut dyn FnMut(&'t [u8]) -> Result<()>,
) -> Result<()> {
    const WORD: &[u8] = b"__has_include";
    while let Some(at) = rest.windows(WORD.len()).position(|word| word == WORD) {
        rest = &rest[at + WORD.len()..];
        let (_, after) = name(rest);
        if let Some(after) = after.trim_ascii_start().strip_prefix(b"(") {
            body(after)?;
        }
    }
    Ok(())
}

/// A directory as the start of a path.
fn as_folder(path: &[u8]) -> Result<Vec<u8>> {
    let mut folder = copied(path)?;
    if !folder.is_empty() && !folder.ends_with(b"/") {
        push(&mut folder, b'/')?;
    }
    Ok(folder)
}

impl Search<'_> {
    /// Looks for a file in all directories, and passes each result to `take`.
    fn find(&mut self, file: &[u8], from: &[u8], take: &mut Take<'_>) -> Result<()> {
        let only_itself: [&[u8]; 1] = [b""];
        let is_absolute = file.starts_with(b"/");
        let count = if is_absolute { 1 } else { self.folders.len() + 1 };
        for index in 0..count {
            let folder = match index.checked_sub(1) {
                _ if is_absolute => only_itself[0],
                None => from,
                Some(index) => self.folders[index],
            };
            let mut path = as_folder(folder)?;
            path.try_reserve(file.len() + 1).map_err(|_| NO_MEMORY)?;
            path.extend_from_slice(file);
            path.push(0);
            self.try_path(path, take)?;
        }
        Ok(())
    }

    fn try_path(&mut self, path: Vec<u8>, take: &mut Take<'_>) -> Result<()> {
        let Err(place) = self.tried.binary_search(&path) else { return Ok(()) };
        let text = match CStr::from_bytes_with_nul(&path) {
            Ok(path) => file::read_regular(path, MAX_BYTES - self.bytes),
            Err(_) => return Ok(()),
        };
        let end = path.iter().rposition(|byte| *byte == b'/').map_or(0, |end| end + 1);
        let folder = copied(&path[..end])?;
        self.tried.try_reserve(1).map_err(|_| NO_MEMORY)?;
        self.tried.insert(place, path);
        let Some(text) = text? else {
            // A missing file affects the key too.
            take(None);
            return Ok(());
        };
        (self.files, self.bytes) = (self.files + 1, self.bytes + text.len());
        if self.files > MAX_FILES {
            self.is_known = false;
            return Ok(());
        }
        take(Some(&text));
        push(&mut self.open, (unspliced(text), folder))
    }

    /// Scans the directives of a text, and finds the files that they name.
    fn scan(&mut self, text: &[u8], folder: &[u8], take: &mut Take<'_>) -> Result<()> {
        let mut include = |search: &mut Self, rest| match named(rest) {
            Named::File(file) => search.find(file, folder, take),
            Named::Macro(name) => {
                let found = (copied(name)?, copied(folder)?);
                push(&mut search.macros, found)
            }
            Named::Unknown => {
                search.is_known = false;
                Ok(())
            }
        };
        for_each_directive(text, !is_clear(text), &mut |word, rest| match word {
            word if names_file(word) => include(self, rest),
            b"define" => {
                let (name, value) = name(rest.trim_ascii_start());
                self.define(name, value.trim_ascii())
            }
            b"if" | b"elif" => for_each_has_include(rest, &mut |rest| include(self, rest)),
            _ => Ok(()),
        })
    }

    fn define(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        if !self.wanted.iter().any(|wanted| wanted == name) {
            return Ok(());
        }
        push(&mut self.definitions, (copied(name)?, copied(value)?))
    }

    /// Scans all pending texts.
    fn scan_open(&mut self, take: &mut Take<'_>) -> Result<()> {
        while let Some((text, folder)) = self.open.pop() {
            self.scan(&text, &folder, take)?;
        }
        Ok(())
    }

    /// Finds the files of macros, for every definition of each. Returns macros whose definitions
    /// were not collected.
    fn resolve(&mut self, take: &mut Take<'_>) -> Result<Vec<Vec<u8>>> {
        let mut others = Vec::new();
        while let Some((name, folder)) = self.macros.pop() {
            if !self.wanted.contains(&name) {
                push(&mut others, name)?;
                continue;
            }
            let mut values = Vec::new();
            for (_, value) in self.definitions.iter().filter(|(known, _)| *known == name) {
                push(&mut values, copied(value)?)?;
            }
            self.is_known &= !values.is_empty();
            for value in values {
                match named(&value) {
                    Named::File(file) => self.find(file, &folder, take)?,
                    // It expands to another macro, or to something that only a compiler can
                    // evaluate.
                    Named::Macro(_) | Named::Unknown => self.is_known = false,
                }
            }
            self.scan_open(take)?;
        }
        Ok(others)
    }
}

/// The meaning of a compiler option for the search.
enum Flag<'a> {
    /// Adds a search directory.
    Folder(&'a [u8]),
    /// Includes a header before the source.
    Before(&'a [u8]),
    /// Defines a macro.
    Define(&'a [u8]),
    /// Refers to files that this module cannot determine.
    Unknown,
}

/// The value of an option, which may be the next argument.
fn value_of<'a>(flag: &'a [u8], names: &[&str], next: Option<&'a [u8]>) -> Option<&'a [u8]> {
    for name in names {
        match flag.strip_prefix(name.as_bytes()) {
            Some([]) => return next,
            Some([b'=', value @ ..]) => return Some(value),
            // "-Ifolder" matches "-I"; "-include" does not.
            Some(value) if name.len() == 2 => return Some(value.trim_ascii()),
            _ => (),
        }
    }
    None
}

fn flag_of<'a>(flag: &'a [u8], next: Option<&'a [u8]>) -> Option<Flag<'a>> {
    let value = |names| value_of(flag, names, next);
    if let Some(file) = value(&["-include", "--pre-include", "-imacros"]) {
        return Some(Flag::Before(file));
    }
    if let Some(folder) = value(&["-I", "--include-path", "-isystem", "-iquote", "-idirafter"]) {
        return Some(Flag::Folder(folder));
    }
    if let Some(definition) = value(&["-D", "--define-macro"]) {
        return Some(Flag::Define(definition));
    }
    let names_files = [&b"-optf"[..], b"--options-file", b"--use-pch", b"--pch", b"-pch"];
    names_files.iter().any(|name| flag.starts_with(name)).then_some(Flag::Unknown)
}

/// Does the source include no file? True for nearly all sources.
fn is_plain(source: &[u8]) -> bool {
    let words = [&b"inc"[..], b"imp", b"emb", b"\\\n", b"\\\r"];
    let mut at = source.iter().enumerate().filter(|(_, byte)| matches!(byte, b'i' | b'e' | b'\\'));
    !at.any(|(at, _)| words.iter().any(|word| source[at..].starts_with(word)))
}

/// Passes the content of every file that a program may include to `take`, in a deterministic order.
/// `false`: the files cannot all be determined.
pub fn for_each(program: &Program<'_>, take: &mut Take<'_>) -> Result<bool> {
    const ROUNDS: usize = 4;
    let mut wanted = Vec::new();
    for _ in 0..ROUNDS {
        let (is_known, others) = search(program, &wanted, take)?;
        if !is_known || others.is_empty() {
            return Ok(is_known);
        }
        for other in others {
            push(&mut wanted, other)?;
        }
    }
    Ok(false)
}

/// One search. Returns the macros whose definitions a further search must collect.
fn search(
    program: &Program<'_>,
    wanted: &[Vec<u8>],
    take: &mut Take<'_>,
) -> Result<(bool, Vec<Vec<u8>>)> {
    let mut search = Search {
        folders: Vec::new(),
        tried: Vec::new(),
        open: Vec::new(),
        wanted,
        definitions: Vec::new(),
        macros: Vec::new(),
        files: 0,
        bytes: 0,
        is_known: true,
    };
    let source = program.source.to_bytes();
    let mut before: Vec<&[u8]> = Vec::new();
    for (index, flag) in program.flags.iter().enumerate() {
        let next = program.flags.get(index + 1).map(|next| next.to_bytes());
        match flag_of(flag.to_bytes(), next) {
            Some(Flag::Folder(folder)) => push(&mut search.folders, folder)?,
            Some(Flag::Before(file)) => push(&mut before, file)?,
            Some(Flag::Define(definition)) => {
                let (name, value) = name(definition);
                search.define(name, value.strip_prefix(b"=").unwrap_or(value))?;
            }
            Some(Flag::Unknown) => search.is_known = false,
            None => (),
        }
    }
    if before.is_empty() && is_plain(source) {
        return Ok((search.is_known, Vec::new()));
    }
    for file in before {
        search.find(file, b"", take)?;
    }
    push(&mut search.open, (unspliced(copied(source)?), Vec::new()))?;
    search.scan_open(take)?;
    let others = search.resolve(take)?;
    Ok((search.is_known && search.bytes < MAX_BYTES, others))
}

#[cfg(test)]
#[path = "includes_tests.rs"]
mod tests;
