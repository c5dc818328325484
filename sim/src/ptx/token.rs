//! The words of PTX.

use super::{LoadError, Result};

/// A word of the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A name, an opcode with its modifiers, or a directive: `%r1`, `add.s32`, `.reg`.
    Word(&'a str),
    /// A number as it is written, without a sign.
    Number(&'a str),
    /// The text between quotes.
    Text(&'a str),
    /// Punctuation.
    Mark(u8),
}

/// The words of a text, and the line of each.
pub(super) struct Tokens<'a> {
    pub(super) list: Vec<(Token<'a>, u32)>,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// Splits a text into words.
#[inline(never)]
pub(super) fn split(text: &str) -> Result<Tokens<'_>> {
    let bytes = text.as_bytes();
    let mut list = Vec::new();
    list.try_reserve(text.len() / 4).map_err(|_| LoadError::invalid(0, "out of host memory"))?;
    let (mut at, mut line) = (0, 1u32);
    while let Some(&byte) = bytes.get(at) {
        let next = bytes.get(at + 1).copied().unwrap_or(0);
        let end = match byte {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            b' ' | b'\t' | b'\r' | b'\x0b' | b'\x0c' => {
                at += 1;
                continue;
            }
            b'/' if next == b'/' => {
                at +=
                    bytes[at..].iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len() - at);
                continue;
            }
            b'/' if next == b'*' => {
                let end = text[at + 2..].find("*/").map_or(bytes.len(), |end| at + 2 + end + 2);
                line += bytes[at..end].iter().filter(|byte| **byte == b'\n').count() as u32;
                at = end;
                continue;
            }
            b'"' => {
                let length = bytes[at + 1..].iter().position(|byte| *byte == b'"');
                let length = length.ok_or_else(|| LoadError::invalid(line, "a text has no end"))?;
                list.push((Token::Text(&text[at + 1..at + 1 + length]), line));
                at += length + 2;
                continue;
            }
            b'0'..=b'9' => number_end(bytes, at),
            b'.' => directive_end(bytes, at),
            byte if is_word(byte) => word_end(bytes, at),
            byte if byte.is_ascii_graphic() => {
                list.push((Token::Mark(byte), line));
                at += 1;
                continue;
            }
            _ => return Err(LoadError::invalid(line, format!("unexpected byte {byte:#04x}"))),
        };
        let word = &text[at..end];
        let token = if byte.is_ascii_digit() { Token::Number(word) } else { Token::Word(word) };
        list.push((token, line));
        at = end;
    }
    Ok(Tokens { list })
}

/// The end of a word: names and modifiers, in which `::` may stand between letters.
fn word_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    loop {
        match bytes.get(at) {
            Some(byte) if is_word(*byte) => at += 1,
            Some(b':') if bytes.get(at + 1) == Some(&b':') => at += 2,
            _ => return at,
        }
    }
}

/// The end of a directive: `.reg.b32` is two words.
fn directive_end(bytes: &[u8], start: usize) -> usize {
    let end = word_end(bytes, start);
    bytes[start + 1..end].iter().position(|byte| *byte == b'.').map_or(end, |at| start + 1 + at)
}

/// The end of a number, in which an exponent may have a sign.
fn number_end(bytes: &[u8], start: usize) -> usize {
    let is_hexadecimal =
        matches!(bytes.get(start + 1), Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D'));
    let mut at = start;
    loop {
        match bytes.get(at) {
            Some(b'e' | b'E')
                if !is_hexadecimal && matches!(bytes.get(at + 1), Some(b'+' | b'-')) =>
            {
                at += 2;
            }
            Some(byte) if byte.is_ascii_alphanumeric() || *byte == b'.' => at += 1,
            _ => return at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_marks_differ() {
        let text = "@!%p1 ld.shared::cta.v2.u32 {%r1, _}, [a+-4]; // end\n$L1: /* \n */ 0f3F800000 \
            1.5e-3 \"x;y\"";
        let list: Vec<_> = split(text).unwrap().list;
        let words: Vec<_> = list.iter().map(|(token, _)| *token).collect();
        use Token::*;
        assert_eq!(
            words,
            [
                Mark(b'@'),
                Mark(b'!'),
                Word("%p1"),
                Word("ld.shared::cta.v2.u32"),
                Mark(b'{'),
                Word("%r1"),
                Mark(b','),
                Word("_"),
                Mark(b'}'),
                Mark(b','),
                Mark(b'['),
                Word("a"),
                Mark(b'+'),
                Mark(b'-'),
                Number("4"),
                Mark(b']'),
                Mark(b';'),
                Word("$L1"),
                Mark(b':'),
                Number("0f3F800000"),
                Number("1.5e-3"),
                Text("x;y"),
            ]
        );
        assert_eq!(list.last().unwrap().1, 3);
        assert!(split("\"open").is_err());
        let joined: Vec<_> = split(".reg.b32 %r.x;").unwrap().list.iter().map(|it| it.0).collect();
        assert_eq!(joined, [Word(".reg"), Word(".b32"), Word("%r.x"), Mark(b';')]);
    }
}
