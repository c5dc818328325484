//! A short text stored by value, so that messages need no host memory.

use std::ffi::c_char;
use std::fmt::{self, Write};

/// Up to 62 bytes of UTF-8, or another capacity; longer texts end in "...".
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const CAPACITY: usize = 62> {
    len: u8,
    bytes: [u8; CAPACITY],
}

impl<const CAPACITY: usize> Text<CAPACITY> {
    /// Copies a text; shortens it if necessary.
    pub fn new(text: &str) -> Text<CAPACITY> {
        let mut short = Text { len: 0, bytes: [0; CAPACITY] };
        if text.len() <= CAPACITY {
            short.push(text);
        } else {
            let mut end = CAPACITY - 3;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            short.push(&text[..end]);
            short.push("...");
        }
        short
    }

    /// Copies a text without C's blanks; shortens it if necessary.
    pub fn without_blanks(text: &str) -> Text<CAPACITY> {
        let mut short = Text { len: 0, bytes: [0; CAPACITY] };
        for character in text.chars().filter(|character| !is_blank(*character)) {
            let end = short.len as usize + character.len_utf8();
            if end > CAPACITY - 3 && !fits_whole(text, CAPACITY) {
                short.push("...");
                return short;
            }
            short.push(character.encode_utf8(&mut [0; 4]));
        }
        short
    }

    /// What is displayed; cut to one byte less than the capacity.
    pub fn of(value: &impl fmt::Display) -> Text<CAPACITY> {
        let mut bytes = [0; CAPACITY];
        let mut buffer = Buffer(&mut bytes, 0);
        let _ = write!(buffer, "{value}");
        let len = buffer.1 as u8;
        Text { len, bytes }
    }

    fn push(&mut self, text: &str) {
        let start = self.len as usize;
        let end = start + text.len();
        if let Some(room) = self.bytes.get_mut(start..end) {
            room.copy_from_slice(text.as_bytes());
            self.len = end as u8;
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len as usize]).unwrap_or("")
    }
}

/// A number of things, "1 block" or "2 blocks".
pub struct Count(pub usize, pub &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// C's isspace.
fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

fn fits_whole(text: &str, capacity: usize) -> bool {
    let bytes = text.chars().filter(|character| !is_blank(*character)).map(char::len_utf8);
    bytes.sum::<usize>() <= capacity
}

impl<const CAPACITY: usize> fmt::Display for Text<CAPACITY> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const CAPACITY: usize> fmt::Debug for Text<CAPACITY> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Reads a NUL-terminated buffer that the driver wrote.
pub fn text_of(buffer: &[c_char]) -> &str {
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    // SAFETY: c_char and u8 have the same layout; the range is inside the buffer.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), end) };
    std::str::from_utf8(bytes).unwrap_or("")
}

/// Writes into a buffer, cut at its end, between characters.
struct Buffer<'a>(&'a mut [u8], usize);

impl Write for Buffer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.0.len() - 1 - self.1;
        let mut take = text.len().min(room);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        self.0[self.1..self.1 + take].copy_from_slice(&text.as_bytes()[..take]);
        self.1 += take;
        Ok(())
    }
}

/// Writes a text into zeroed bytes, cut between characters if necessary; the last byte stays 0.
pub fn write(bytes: &mut [u8], text: fmt::Arguments<'_>) {
    // Only the buffer's end could stop it, which the buffer handles.
    let _ = Buffer(bytes, 0).write_fmt(text);
}

/// The C function around a closure, of the path of its type, which ends like
/// "ffi::stream::tcuda_stream_query::{{closure}}", or has that as a parameter of what the function
/// calls.
pub(crate) fn function_of(path: &str) -> &str {
    let name = path.rfind("::tcuda_").and_then(|at| path.get(at + 2..)).unwrap_or(path);
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.split(|c| !is_of_name(c)).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    const CAPACITY: usize = 62;

    type Text = super::Text<CAPACITY>;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = Text::new(&"é".repeat(40));
        assert!(text.as_str().ends_with("..."));
        assert!(text.as_str().len() <= CAPACITY);
        assert_eq!(Text::new("short").as_str(), "short");
    }

    #[test]
    fn one_thing_is_no_plural() {
        let texts = [0, 1, 2].map(|count| super::Count(count, "block").to_string());
        assert_eq!(texts, ["0 blocks", "1 block", "2 blocks"]);
    }

    #[test]
    fn blanks_go_wherever_they_are() {
        assert_eq!(Text::without_blanks(" a b\t\n\x0bc\r").as_str(), "abc");
        let exact = "x".repeat(CAPACITY);
        assert_eq!(Text::without_blanks(&format!(" {exact} ")).as_str(), exact);
        let long = Text::without_blanks(&"x ".repeat(CAPACITY + 1));
        assert_eq!(long.as_str(), format!("{}...", "x".repeat(CAPACITY - 3)));
    }
}
