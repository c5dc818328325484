//! Interned texts. They stay valid until the library is shut down, because the host has their
//! addresses.

use super::clock::{NO_MEMORY, Table, insert, push};
use crate::base::error::Result;
use crate::base::frames::Stacks;
use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::hash::Hasher;

/// The name of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Label {
    /// A name of the library.
    Library(&'static str),
    /// A name that the host chose.
    Host(TextId),
}

/// The number of an interned text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TextId(u32);

/// The address of a NUL-terminated text, valid until the library is shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CText(pub *const c_char);

// SAFETY: texts do not change.
unsafe impl Send for CText {}

/// The interned texts; each ends with a NUL.
pub(super) struct Texts {
    list: Vec<Vec<u8>>,
    by_hash: Table<u32>,
}

impl Texts {
    pub(super) const fn new() -> Texts {
        let by_hash = Table::with_hasher(std::hash::BuildHasherDefault::new());
        Texts { list: Vec::new(), by_hash }
    }

    /// Interns a text, up to its first NUL.
    pub(super) fn keep(&mut self, text: &str) -> Result<TextId> {
        let text = text.split('\0').next().unwrap_or("");
        let mut hasher = super::clock::Mixed::default();
        hasher.write(text.as_bytes());
        let mut hash = hasher.finish();
        while let Some(place) = self.by_hash.get(&hash) {
            if self.get(TextId(*place)).to_bytes() == text.as_bytes() {
                return Ok(TextId(*place));
            }
            hash = hash.wrapping_add(1);
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(text.len() + 1).map_err(|_| NO_MEMORY)?;
        copy.extend_from_slice(text.as_bytes());
        copy.push(0);
        let place = u32::try_from(self.list.len()).map_err(|_| NO_MEMORY)?;
        push(&mut self.list, copy)?;
        if let Err(error) = insert(&mut self.by_hash, hash, place) {
            self.list.pop();
            return Err(error);
        }
        Ok(TextId(place))
    }

    /// Interns a label of the host, cut to `MAX_BYTES` bytes. Beyond `MAX` texts all labels are
    /// "kernel".
    pub(super) fn label_of(&mut self, name: &str) -> Result<Label> {
        const MAX_BYTES: usize = 200;
        const MAX: usize = 1 << 16;
        if self.list.len() >= MAX {
            return Ok(Label::Library("kernel"));
        }
        let end = (0..=MAX_BYTES.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
        self.keep(&name[..end.unwrap_or(0)]).map(Label::Host)
    }

    pub(super) fn get(&self, text: TextId) -> &CStr {
        let bytes = self.list.get(text.0 as usize).map_or(&b"\0"[..], |text| text);
        CStr::from_bytes_with_nul(bytes).unwrap_or(c"")
    }

    /// The address of a text, for the host.
    pub(super) fn address(&self, text: TextId) -> CText {
        CText(self.get(text).as_ptr())
    }

    pub(super) fn text(&self, text: TextId) -> &str {
        self.get(text).to_str().unwrap_or("")
    }

    pub(super) fn label(&self, label: Label) -> &str {
        match label {
            Label::Library(text) => text,
            Label::Host(text) => self.text(text),
        }
    }
}

/// A string whose growth fails without host memory.
#[derive(Default)]
pub(super) struct TextBuffer(pub(super) String);

impl Write for TextBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(text);
        Ok(())
    }
}

impl TextBuffer {
    pub(super) fn add(&mut self, text: fmt::Arguments<'_>) -> Result<()> {
        self.write_fmt(text).map_err(|_| NO_MEMORY)
    }
}

/// Appends a stack, one frame per line, innermost first.
pub(super) fn add_stack(line: &mut TextBuffer, stacks: &Stacks, id: u32) -> Result<()> {
    let mut is_first = true;
    for frame in stacks.stack(id) {
        let frame = stacks.frame(frame);
        let name = Lossy(stacks.name(frame));
        let file = Lossy(stacks.filename(frame));
        let end = if is_first { "" } else { "\n" };
        is_first = false;
        match file.0.is_empty() {
            true => line.add(format_args!("{end}{name}"))?,
            false => line.add(format_args!("{end}{name} ({file}:{})", frame.line))?,
        }
    }
    Ok(())
}

/// Shows bytes as UTF-8, without the invalid ones.
struct Lossy<'a>(&'a [u8]);

impl fmt::Display for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.utf8_chunks().try_for_each(|chunk| f.write_str(chunk.valid()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once() {
        let mut texts = Texts::new();
        let first = texts.keep("one").unwrap();
        let address = texts.address(first);
        let other = texts.keep("two\0three").unwrap();
        for number in 0..1000 {
            texts.keep(&number.to_string()).unwrap();
        }
        assert_eq!(texts.keep("one").unwrap(), first);
        assert_eq!((texts.address(first), texts.text(other)), (address, "two"));
    }
}
