//! The dictionary as JSON, and helpers for other JSON output. All output is ASCII.

use super::dictionary::{Notation, Shared, Sink, write, write_stack};
use super::snapshot::Snapshot;
use crate::base::error::Result;
use crate::base::frames::Stacks;
use std::fmt::{self, Write};

/// Writes a snapshot.
pub fn json(snapshot: &Snapshot, sink: &mut Sink<'_>) -> Result<()> {
    write(snapshot, &mut Json { sink, wants_comma: false })
}

/// Writes the frames of a stack.
pub fn stack(stacks: &Stacks, stack: u32, sink: &mut Sink<'_>) -> Result<()> {
    write_stack(stacks, stack, &mut Json { sink, wants_comma: false })
}

/// A short text in a fixed buffer.
struct Piece([u8; 40], usize);

impl Write for Piece {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.1 + text.len();
        self.0.get_mut(self.1..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.1 = end;
        Ok(())
    }
}

/// Writes a text shorter than 40 bytes.
pub fn short(sink: &mut Sink<'_>, arguments: fmt::Arguments<'_>) -> Result<()> {
    let mut piece = Piece([0; 40], 0);
    // All callers pass shorter texts.
    let _ = piece.write_fmt(arguments);
    sink(&piece.0[..piece.1])
}

/// Writes a text in quotes, escaped so that it is also safe inside a script element.
pub fn quoted(sink: &mut Sink<'_>, text: &[u8]) -> Result<()> {
    sink(b"\"")?;
    for piece in text.utf8_chunks() {
        let replaced = if piece.invalid().is_empty() { "" } else { "\u{fffd}" };
        for character in piece.valid().chars().chain(replaced.chars()) {
            match character {
                '"' | '\\' => sink(&[b'\\', character as u8])?,
                ' '..='~' if !matches!(character, '<' | '>' | '&') => sink(&[character as u8])?,
                _ => {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        short(sink, format_args!("\\u{unit:04x}"))?;
                    }
                }
            }
        }
    }
    sink(b"\"")
}

struct Json<'a> {
    sink: &'a mut Sink<'a>,
    /// An element was written before in this list or dictionary.
    wants_comma: bool,
}

impl Json<'_> {
    fn separate(&mut self, wants_comma: bool) -> Result<()> {
        if std::mem::replace(&mut self.wants_comma, wants_comma) {
            return (self.sink)(b",");
        }
        Ok(())
    }

    fn begin(&mut self, bracket: &[u8]) -> Result<()> {
        self.separate(false)?;
        (self.sink)(bracket)
    }

    fn end(&mut self, bracket: &[u8]) -> Result<()> {
        self.wants_comma = true;
        (self.sink)(bracket)
    }
}

impl Notation for Json<'_> {
    fn integer(&mut self, value: i64) -> Result<()> {
        self.separate(true)?;
        short(self.sink, format_args!("{value}"))
    }

    fn float(&mut self, value: f64) -> Result<()> {
        self.separate(true)?;
        short(self.sink, format_args!("{value:?}"))
    }

    fn flag(&mut self, value: bool) -> Result<()> {
        self.separate(true)?;
        short(self.sink, format_args!("{value}"))
    }

    fn text(&mut self, value: &[u8]) -> Result<()> {
        self.separate(true)?;
        quoted(self.sink, value)
    }

    fn metadata(&mut self, _id: u32, value: &[u8]) -> Result<()> {
        self.text(value)
    }

    fn word(&mut self, value: &'static str) -> Result<()> {
        self.text(value.as_bytes())
    }

    fn key(&mut self, key: &'static str) -> Result<()> {
        self.separate(false)?;
        quoted(self.sink, key.as_bytes())?;
        (self.sink)(b":")
    }

    fn pair(&mut self, first: i64, second: i64) -> Result<()> {
        self.separate(true)?;
        short(self.sink, format_args!("[{first},"))?;
        short(self.sink, format_args!("{second}]"))
    }

    fn begin_list(&mut self, _shared: Option<Shared>) -> Result<()> {
        self.begin(b"[")
    }

    fn end_list(&mut self) -> Result<()> {
        self.end(b"]")
    }

    fn begin_dictionary(&mut self, _shared: Option<Shared>) -> Result<()> {
        self.begin(b"{")
    }

    fn end_dictionary(&mut self) -> Result<()> {
        self.end(b"}")
    }

    fn again(&mut self, _shared: Shared) -> Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted() {
        let mut out = Vec::new();
        let text = b"a\"\\\n</script>&\xc3\xa9\xf0\x9f\x98\x80\xff";
        quoted(
            &mut |bytes| {
                out.extend_from_slice(bytes);
                Ok(())
            },
            text,
        )
        .unwrap();
        let expected = r#""a\"\\\u000a\u003c/script\u003e\u0026\u00e9\ud83d\ude00\ufffd""#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
