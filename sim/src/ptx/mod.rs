//! PTX as text: its words, and the tree of a module that they form.

pub mod parse;
mod token;
pub mod tree;
pub mod types;

use std::fmt;

/// Why a module cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// What kind of failure it is.
    pub kind: LoadErrorKind,
    /// The line of the text, from 1; 0 if none is to blame.
    pub line: u32,
    /// What is wrong, for people.
    pub message: String,
}

/// The kinds of failures of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadErrorKind {
    /// The text does not begin as PTX does.
    NotPtx,
    /// The text is not valid PTX, or not for this device.
    Invalid,
    /// The version of PTX is newer than this driver.
    Version,
    /// An instruction that the software GPU does not execute.
    Unsupported,
    /// A function that is called is defined nowhere.
    Unresolved,
}

impl LoadError {
    /// An invalid text.
    pub fn invalid(line: u32, message: impl Into<String>) -> LoadError {
        LoadError { kind: LoadErrorKind::Invalid, line, message: message.into() }
    }

    /// An instruction or feature that is not executed here.
    pub fn unsupported(line: u32, message: impl Into<String>) -> LoadError {
        LoadError { kind: LoadErrorKind::Unsupported, line, message: message.into() }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.message),
            line => write!(f, "line {line}: {}", self.message),
        }
    }
}

/// A result of reading PTX.
pub type Result<T> = std::result::Result<T, LoadError>;
