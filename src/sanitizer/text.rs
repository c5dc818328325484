//! Texts: each is kept once, until the library is shut down, so that what was handed out stays
//! valid.

use super::clock::{NO_MEMORY, Table, insert, push};
use crate::base::error::Result;
use crate::memory::trace::frames::Stacks;
use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::hash::Hasher;

/// What an operation is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Label {
    /// By the library.
    Library(&'static str),
    /// By the host; a text that is kept.
    Host(TextId),
}

/// The number of a text that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TextId(u32);

/// Where a text is, for hosts: with a NUL, until the library is shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CText(pub *const c_char);

// SAFETY: texts do not change.
unsafe impl Send for CText {}

/// The texts, each with a NUL.
pub(super) struct Texts {
    list: Vec<Vec<u8>>,
    by_hash: Table<u32>,
}

impl Texts {
    pub(super) const fn new() -> Texts {
        let by_hash = Table::with_hasher(std::hash::BuildHasherDefault::new());
        Texts { list: Vec::new(), by_hash }
    }

    /// Keeps a text, up to a NUL in it.
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

    /// A label of the host's, cut where it is long. A host that has ever new ones gets no more at some
    /// point.
    pub(super) fn label_of(&mut self, name: &str) -> Result<Label> {
        const LONGEST: usize = 200;
        const MOST: usize = 1 << 16;
        if self.list.len() >= MOST {
            return Ok(Label::Library("kernel"));
        }
        let end = (0..=LONGEST.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
        self.keep(&name[..end.unwrap_or(0)]).map(Label::Host)
    }

    pub(super) fn get(&self, text: TextId) -> &CStr {
        let bytes = self.list.get(text.0 as usize).map_or(&b"\0"[..], |text| text);
        CStr::from_bytes_with_nul(bytes).unwrap_or(c"")
    }

    /// Where it is, for hosts.
    pub(super) fn address(&self, text: TextId) -> CText {
        CText(self.get(text).as_ptr())
    }

    pub(super) fn text(&self, text: TextId) -> &str {
        self.get(text).to_str().unwrap_or("")
    }

    /// A label as a text, with what was launched before it if it is one of a graph.
    pub(super) fn label(&self, label: Label) -> &str {
        match label {
            Label::Library(text) => text,
            Label::Host(text) => self.text(text),
        }
    }
}

/// A text that grows; without host memory that is an error.
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

/// A stack as lines, the innermost frame first.
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

/// Bytes that should be UTF-8; what is not is left out.
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
