//! Why the simulated machine cannot be powered on.

use std::fmt;

/// Maximum length of the invalid text that an error quotes.
const EXCERPT: usize = 40;

/// A short copy of invalid text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Excerpt {
    bytes: [u8; EXCERPT],
    length: u8,
    cut: bool,
}

impl Excerpt {
    pub(super) fn new(text: &str) -> Excerpt {
        let mut length = text.len().min(EXCERPT);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        let mut bytes = [0; EXCERPT];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        Excerpt { bytes, length: length as u8, cut: length < text.len() }
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        let text = std::str::from_utf8(kept).unwrap_or_default();
        write!(f, "{}{}", text.escape_debug(), if self.cut { "..." } else { "" })
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Advice if the system's error is that there are no descriptors left.
fn descriptor_hint(errno: i32) -> &'static str {
    match errno {
        libc::EMFILE | libc::ENFILE => "; raise the limit of open files (ulimit -n), or close some",
        _ => "",
    }
}

/// Why the machine cannot be powered on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A key that does not exist.
    #[error(
        "unknown option \"{0}\" of the simulated machine (TCUDA_SIM); accepted are gpu, devices, \
         memory, schedule, late, trace, leaks, destroyed, races, peers, virtual_memory, question, \
         kernel_time, multiprocessors, threads_per_multiprocessor, locality_domains, \
         compute_capability and name"
    )]
    UnknownKey(Excerpt),
    /// Not of the form key=value.
    #[error("option \"{0}\" of the simulated machine (TCUDA_SIM) is not of the form key=value")]
    NotAPair(Excerpt),
    /// A value that the key does not accept.
    #[error(
        "option {key} of the simulated machine (TCUDA_SIM) cannot be \"{value}\"; accepted: \
         {accepted}"
    )]
    BadValue {
        /// The key.
        key: &'static str,
        /// The value.
        value: Excerpt,
        /// What the key accepts.
        accepted: &'static str,
    },
    /// `power_on` was called while a machine is on.
    #[error(
        "a simulated machine is already on, with other options or for another library; power it \
         off first, or pass no options to share the one that a program uses"
    )]
    AlreadyOn,
    /// The file that `trace` names cannot be written.
    #[error(
        "the file that option trace of the simulated machine names cannot be opened (errno \
         {0}){hint}",
        hint = descriptor_hint(*.0)
    )]
    Trace(i32),
    /// The process's file size limit is too low for the file that backs device memory.
    #[error(
        "the simulated device memory is longer than a file of this process may be: raise the limit \
         (ulimit -f), or ask for less by memory= in TCUDA_SIM"
    )]
    FileLimit,
    /// The host could not provide memory or descriptors for the machine.
    #[error("the host could not provide the simulated device memory (errno {0}){hint}",
        hint = descriptor_hint(*.0))]
    Host(i32),
}

impl ConfigError {
    /// True if the host lacks resources; false if the options are wrong.
    pub fn is_the_hosts(&self) -> bool {
        matches!(self, ConfigError::Host(_) | ConfigError::FileLimit)
    }
}
