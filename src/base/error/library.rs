//! Shared libraries that cannot be opened.

use std::ffi::CStr;
use std::fmt;

/// Description of a library.
#[derive(Debug)]
pub struct Spec {
    /// Its name in messages: "the CUDA driver".
    pub title: &'static str,
    /// Environment variable with a path that replaces the search; an empty value counts as unset.
    pub variable: &'static CStr,
    /// Name in the folder of the library, or of the executable that contains it; tried before the
    /// names.
    pub beside: Option<&'static CStr>,
    /// Names and paths in order of preference.
    pub names: &'static [&'static CStr],
    /// A sentence of advice if it is not found.
    pub advice: &'static str,
}

/// Why a library could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The path in the environment does not load; nothing else was tried.
    #[error(
        "{} cannot be loaded from '{path}', the value of {}: {reason}; correct or unset the \
         variable",
        .spec.title, shown(.spec.variable)
    )]
    Override {
        /// The library.
        spec: &'static Spec,
        /// The variable's value.
        path: Text,
        /// The system's message.
        reason: Text,
    },
    /// No name of the list loads.
    #[error(
        "{} was not found: tried {} ({reason}); {}, or set {} to its path{}",
        .spec.title, Names(.spec.names), .spec.advice, shown(.spec.variable), .reason.hint()
    )]
    NotFound {
        /// The library.
        spec: &'static Spec,
        /// The system's message for the first name, or for the first file that exists.
        reason: Text,
    },
}

/// A bounded copy of a foreign text; empty if there was no memory for it.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Longest text that is kept, in bytes.
    const LIMIT: usize = 512;

    pub(crate) fn of(text: &CStr) -> Text {
        let bytes = text.to_bytes();
        let mut copy = String::new();
        // Replacing an invalid byte by '?' never lengthens the text, so the reservation is enough.
        if copy.try_reserve_exact(bytes.len().min(Self::LIMIT)).is_err() {
            return Text::default();
        }
        for chunk in bytes.utf8_chunks() {
            let bad = if chunk.invalid().is_empty() { None } else { Some('?') };
            for letter in chunk.valid().chars().chain(bad) {
                if copy.len() + letter.len_utf8() > Self::LIMIT {
                    return Text(copy);
                }
                copy.push(letter);
            }
        }
        Text(copy)
    }

    /// Advice if the system's message is that there are no descriptors left.
    fn hint(&self) -> &'static str {
        if self.0.contains("Too many open files") { super::driver::DESCRIPTORS } else { "" }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Does the message say that `name` itself, or a path that ends in it, does not exist? A
    /// missing dependency of a library has the same message, with the dependency's name in front.
    pub(crate) fn says_absent(&self, name: &CStr) -> bool {
        let missing = self.0.split_once(": cannot open shared object file: No such file");
        missing.is_some_and(|(path, _)| path.ends_with(shown(name)))
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "no explanation" } else { &self.0 })
    }
}

struct Names(&'static [&'static CStr]);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", shown(name))?;
        }
        Ok(())
    }
}

/// Names and variables are constants of this library, and ASCII.
fn shown(name: &CStr) -> &str {
    name.to_str().unwrap_or("?")
}
