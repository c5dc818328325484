//! What is wrong with a text of settings, in PyTorch's words where it has some.

use crate::base::text::Text;
use std::fmt;

/// A wrong text, and its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The variable or parameter.
    pub source: &'static str,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// An unknown key.
    UnknownKey(Text),
    /// A separator is missing.
    Separator {
        /// The expected separator.
        expected: char,
        /// The key of the pair.
        key: &'static str,
        /// The text found there; "": the end.
        found: Text,
    },
    /// Neither True nor False.
    NotBool {
        /// The key.
        key: &'static str,
        /// The place of the token.
        index: usize,
        /// The text found there.
        token: Text,
    },
    /// Not a number that can be used.
    NotNumber {
        /// The key.
        key: &'static str,
        /// The text found there.
        token: Text,
    },
    /// Below the least value.
    TooSmall {
        /// The key.
        key: &'static str,
        /// The least number of MiB.
        least: u64,
        /// The text found there.
        token: Text,
    },
    /// Another rule is broken.
    Rule {
        /// PyTorch's sentence.
        rule: &'static str,
        /// The key.
        key: &'static str,
        /// The text found there.
        token: Text,
    },
    /// A list without a closing bracket.
    OpenList(&'static str),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        match self.problem {
            Problem::UnknownKey(key) => write!(
                f,
                "Unrecognized key '{key}' in CUDA allocator config. docs/configuration.md lists \
                 the keys; they are written as key:value,key:value"
            ),
            Problem::Separator { expected, key, found } if found.as_str().is_empty() => write!(
                f,
                "Expected separator '{expected}' in what is said of {key}, but the text ends \
                 there; write key:value,key:value"
            ),
            Problem::Separator { expected, key, found } => write!(
                f,
                "Expected separator '{expected}' in what is said of {key}, but got '{found}'; \
                 write key:value,key:value"
            ),
            Problem::NotBool { key, index, token } => write!(
                f,
                "Expected 'True' or 'False' at index {index} in ConfigTokenizer but got '{token}' \
                 for {key}"
            ),
            Problem::NotNumber { key, token } => {
                match token.as_str() {
                    "" => write!(f, "{key} has no value")?,
                    text => write!(f, "{key} is '{text}', which is not {}", expected_of(key))?,
                }
                write!(f, "; write for example {key}:{}", example_of(key))
            }
            Problem::TooSmall { key, least, token } => write!(
                f,
                "CachingAllocator option {key} too small, must be >= {least}, got {token}"
            ),
            Problem::Rule { rule, key, token } => write!(f, "{rule}, got '{token}' for {key}"),
            Problem::OpenList(key) => write!(
                f,
                "Expected closing bracket ']' in ConfigTokenizer but reached end of config: the \
                 list of {key} has none"
            ),
        }
    }
}

/// A description of the value that a key expects, if that is not True or False.
fn expected_of(key: &str) -> &'static str {
    match key {
        "backend" => "a name",
        "expandable_segments_reserve" | "expandable_segments_reserve_by_class" => "a value",
        _ => "a number in range",
    }
}

/// An example of a value of a key, if that is not True or False.
fn example_of(key: &str) -> &'static str {
    match key {
        "backend" => "native",
        "garbage_collection_threshold" | "per_process_memory_fraction" => "0.8",
        "sharing_threshold" => "0.5",
        "pinned_num_register_threads" => "8",
        "roundup_power2_divisions" => "4, or [256:1,512:2,>:4]",
        _ => "512",
    }
}
