//! Parses the code of a function in PyTorch's form: a template with one type parameter, whose last
//! function is the one to call.

use crate::base::error::{Error, Result};
use crate::base::text::Text;

/// Longer code is refused.
pub const MAX_BYTES: usize = 1 << 20;

/// What [`parse`] found in a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature<'a> {
    /// Name of the function.
    pub name: &'a str,
    /// It writes its outputs to its last parameters; its return value is ignored.
    pub by_reference: bool,
}

fn malformed(code: &str) -> Error {
    Error::BadText {
        name: "code",
        value: Text::new(code.trim_start()),
        allowed: "couldn't parse code: it must begin with template <typename T>, and end with a \
                  function, as \"template <typename T> T f(T x, T y) { return x + y; }\"",
    }
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Splits the last word off.
fn last_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_end();
    let start = text
        .rfind(|character| !is_word(character))
        .map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    let (before, word) = text.split_at(start);
    (!word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit())).then_some((before, word))
}

/// Position of the bracket that matches the one at the end of `text`, in which comments and
/// literals are blanked.
fn opening(text: &[u8], open: u8, close: u8) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.iter().enumerate().rev() {
        if *byte == close {
            depth += 1;
        } else if depth == 0 {
            return None;
        } else if *byte == open {
            depth -= 1;
            if depth == 0 {
                return Some(at);
            }
        }
    }
    None
}

/// The code with blanks in place of comments and literals. The length and all offsets stay the
/// same.
pub(super) fn blanked<'a>(code: &[u8], room: &'a mut Vec<u8>) -> Result<&'a [u8]> {
    room.try_reserve_exact(code.len()).map_err(|_| Error::OutOfHostMemory("a code"))?;
    room.extend_from_slice(code);
    let mut at = 0;
    while at < room.len() {
        let rest = &room[at..];
        let length = match rest {
            [b'/', b'/', ..] => line(rest),
            [b'/', b'*', ..] => {
                let end = rest[2..].windows(2).position(|pair| pair == b"*/");
                end.map_or(rest.len(), |end| end + 4)
            }
            [b'R', b'"', ..] => raw(rest),
            [quote @ (b'"' | b'\''), ..] => literal(rest, *quote),
            // A number or a word; quotes between digits belong to the number.
            [first, ..] if is_of_word(*first) => {
                at += word(rest);
                continue;
            }
            _ => {
                at += 1;
                continue;
            }
        };
        room[at..at + length].fill(b' ');
        at += length;
    }
    Ok(room)
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Bytes of the number or word at the start. `1'000` is one number. The prefix of a literal, as in
/// `u8"x"` and `R"(x)"`, is a word of its own.
fn word(text: &[u8]) -> usize {
    let is_number = text.first().is_some_and(u8::is_ascii_digit);
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        let starts_raw = *byte == b'R' && text.get(at + 1) == Some(&b'"');
        let parts = *byte == b'\'' && text.get(at + 1).is_some_and(|next| is_of_word(*next));
        if !(is_of_word(*byte) || is_number && parts) || starts_raw {
            break;
        }
        at += 1;
    }
    at
}

/// Bytes of the line comment at the start; a backslash at the end of a line continues it.
fn line(text: &[u8]) -> usize {
    let is_end = |at: &usize| {
        let before = text[..*at].strip_suffix(b"\r").unwrap_or(&text[..*at]);
        text[*at] == b'\n' && !before.ends_with(b"\\")
    };
    (0..text.len()).find(is_end).unwrap_or(text.len())
}

/// Bytes of the raw literal `R"x(...)x"` at the start, with at most 16 bytes as `x`; 1: not a raw
/// literal.
fn raw(text: &[u8]) -> usize {
    let Some(open) = text.iter().take(19).position(|byte| *byte == b'(') else { return 1 };
    let mark = &text[2..open];
    let is_end = |at: &usize| {
        let end = text[at + 1..].strip_prefix(mark);
        text[*at] == b')' && end.is_some_and(|end| end.starts_with(b"\""))
    };
    let end = (open..text.len()).find(is_end);
    end.map_or(text.len(), |end| end + mark.len() + 2)
}

/// Bytes of the literal at the start.
fn literal(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            b'\n' => return at,
            _ => at += 1,
        }
    }
    text.len()
}

/// Parses the form of a code.
pub fn parse(code: &str) -> Result<Signature<'_>> {
    if code.len() > MAX_BYTES {
        return Err(Error::OutOfRange {
            name: "code",
            value: code.len() as i64,
            allowed: "a code of so many bytes is no function of elements; use at most a mebibyte",
        });
    }
    let mut room = Vec::new();
    let text = blanked(code.as_bytes(), &mut room)?;
    find(code, text).ok_or_else(|| malformed(code))
}

fn find<'a>(code: &'a str, blanked: &[u8]) -> Option<Signature<'a>> {
    // Only ASCII blanks are inserted, so that the rest stays valid UTF-8.
    let text = std::str::from_utf8(blanked).ok()?.trim_end();
    let after = text.trim_start().strip_prefix("template")?.trim_start();
    if !after.starts_with('<') {
        return None;
    }
    let body = opening(text.as_bytes(), b'{', b'}')?;
    let head = text[..body].trim_end();
    let parameters = opening(head.as_bytes(), b'(', b')')?;
    let (before, name) = last_word(&head[..parameters])?;
    // A blank, a reference or the end of a type separates them.
    let returned = before.trim_end();
    let (_, word) = last_word(returned).unwrap_or(("", ""));
    if returned.is_empty() || (returned.ends_with(is_word) && returned.len() == before.len()) {
        return None;
    }
    // The template parameters are not a return type.
    let angle = opening(returned.as_bytes(), b'<', b'>').map(|at| &returned[..at]);
    if angle.and_then(last_word).is_some_and(|(_, word)| word == "template") {
        return None;
    }
    let start = name.as_ptr() as usize - text.as_ptr() as usize;
    Some(Signature { name: &code[start..start + name.len()], by_reference: word == "void" })
}

/// Number of parameters of the last function; `None` if it depends on the call.
pub fn parameters(code: &str) -> Option<usize> {
    let mut room = Vec::new();
    let text = std::str::from_utf8(blanked(code.as_bytes(), &mut room).ok()?).ok()?.trim_end();
    let head = text[..opening(text.as_bytes(), b'{', b'}')?].trim_end();
    let list = head[opening(head.as_bytes(), b'(', b')')? + 1..].strip_suffix(')')?.trim();
    if list.contains(['=', '.']) {
        return None;
    }
    let mut depth = 0usize;
    let commas = list.bytes().filter(|byte| {
        match byte {
            b'<' | b'(' | b'[' => depth += 1,
            b'>' | b')' | b']' => depth = depth.saturating_sub(1),
            _ => (),
        }
        *byte == b',' && depth == 0
    });
    let commas = commas.count();
    Some(if matches!(list, "" | "void") { 0 } else { commas + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(code: &str) -> Option<&str> {
        parse(code).ok().map(|signature| signature.name)
    }

    #[test]
    fn parameters_are_counted() {
        let count = |list: &str| parameters(&format!("template <typename T> T f({list}) {{ }}"));
        assert_eq!([count(""), count("void"), count("T x")], [Some(0), Some(0), Some(1)]);
        assert_eq!(count("T x /* , */, const std::pair<T, T>& y, T (&z)[2]"), Some(3));
        assert_eq!([count("T x, T y = 1"), count("T x, ...")], [None, None]);
    }

    #[test]
    fn the_last_function_is_called() {
        let plain = "template <typename T> T add(T x, T y, T alpha) { return x + alpha * y; }";
        assert_eq!(name(plain), Some("add"));
        let two = "\n template<class T>T half_of(T x){return x/T(2);}\n\
            template <typename T>\nT f ( T x ) {\n if (x > T(0)) { return half_of(x); } return \
            x;\n}\n";
        assert_eq!(name(two), Some("f"));
        let commented = "template <typename T> T f(T x) { return x; /* } */ } // T g(T x) { }";
        assert_eq!(name(commented), Some("f"));
        let literal = "template <typename T> T f(T x) { return x == T('}') ? x : T('\\''); }";
        assert_eq!(name(literal), Some("f"));
        for body in [
            "return x + T(1'000);",
            "return x + T(0xff'ff) + T(1'0'0);",
            "return x + T(u8'}' + L'{' + '\\'');",
            "auto s = u8R\"x(\"})}\" }( )x\"; return x + T(s[0]);",
            "// what \\\n } } ( \n return x;",
            "// what \\\r\n } } ( \r\n return x;",
            "int fooR = 1; return x * T(fooR);",
        ] {
            let code = format!("template <typename T> T f(T x) {{ {body} }}");
            assert_eq!(name(&code), Some("f"), "{body}");
        }
        let void = "template <typename T> void split(T x, T& a, T& b) { a = x; b = -x; }";
        assert_eq!(parse(void).unwrap(), Signature { name: "split", by_reference: true });
        assert!(!parse(plain).unwrap().by_reference);
    }

    #[test]
    fn malformed_code_is_refused() {
        for wrong in [
            "",
            "T f(T x) { return x; }",
            "template <typename T>",
            "template <typename T> T f(T x)",
            "template <typename T> f(T x) { return x; } ;",
            "template <typename T> T (T x) { return x; }",
            "template <typename T> T 1f(T x) { return x; }",
            "template T f(T x) { return x; }",
            "template <typename T> T f { return x; }",
            "template <typename T> T f(T x) { return x; ",
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("couldn't parse code"), "{wrong}: {error}");
        }
    }
}
