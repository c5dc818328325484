//! Texts for the library: right ones, wrong ones, and arbitrary bytes.

use crate::input::Input;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// A text argument; `None` is NULL. With it: is it right, as far as that is known?
pub fn text_argument(
    input: &mut Input,
    texts: &[&[u8]],
    right: usize,
) -> (Option<Cow<'static, CStr>>, Option<bool>) {
    static LONG: OnceLock<CString> = OnceLock::new();
    let cut = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        CString::new(&bytes[..end]).ok().map(Cow::Owned)
    };
    match input.u8() {
        0..=7 => (None, Some(false)),
        8..=23 => {
            let length = input.u8();
            (cut(input.take(length.into())), None)
        }
        24..=31 => {
            let long = LONG.get_or_init(|| CString::new(vec![b'x'; 100_000]).unwrap_or_default());
            (Some(Cow::Borrowed(long.as_c_str())), Some(false))
        }
        choice => {
            let index = usize::from(choice) % texts.len();
            (cut(texts[index]), Some(index < right))
        }
    }
}
