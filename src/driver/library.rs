//! Our loader of shared libraries: libcuda now, NVML, NVRTC, NCCL and cuBLAS by the same rules.
//!
//! Search order: the environment's path, alone, when it is set; a copy that the process already has,
//! so that we share the one that PyTorch or the host brought along; then each name of the list.
//! A library is never unloaded, since drivers leave threads and exit handlers behind.
//!
//! Nothing here aborts when memory is short: reasons are copied fallibly, and bounded.

use crate::base::environment;
use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;

/// What to look for.
#[derive(Debug)]
pub struct Spec {
    /// What messages call it: "the CUDA driver".
    pub title: &'static str,
    /// Environment variable with a path that replaces the search; an empty value counts as unset.
    pub variable: &'static CStr,
    /// Names and paths in order of preference.
    pub names: &'static [&'static CStr],
    /// A sentence that says what to do when it is nowhere.
    pub advice: &'static str,
}

/// Why a library could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The path in the environment does not load; nothing else was tried.
    #[error(
        "{} cannot be loaded from '{path}', the value of {}: {reason}; correct or unset the variable",
        .spec.title, shown(.spec.variable)
    )]
    Override {
        /// What was looked for.
        spec: &'static Spec,
        /// The variable's value.
        path: Text,
        /// The system's explanation.
        reason: Text,
    },
    /// No name of the list loads.
    #[error(
        "{} was not found: tried {} ({reason}); {}, or set {} to its path",
        .spec.title, Names(.spec.names), .spec.advice, shown(.spec.variable)
    )]
    NotFound {
        /// What was looked for.
        spec: &'static Spec,
        /// The system's explanation for the first name, or for the first file that exists.
        reason: Text,
    },
}

/// A loaded library, for the rest of the process.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    handle: NonNull<c_void>,
}

// SAFETY: dlsym may be called with a handle from any thread, and the handle is never closed.
unsafe impl Send for Library {}
// SAFETY: as above; the handle is not written after `open`.
unsafe impl Sync for Library {}

impl Library {
    /// Opens the library that `spec` describes.
    pub fn open(spec: &'static Spec) -> Result<Library, LoadError> {
        Library::open_preferring(spec, |_| true)
    }

    /// Opens the first library that `good` accepts, else the first that loads at all: a stand-in
    /// such as a toolkit's link-time stub explains itself better than "not found" does.
    ///
    /// The environment's path is not up for judgement.
    pub fn open_preferring(
        spec: &'static Spec,
        good: impl Fn(&Library) -> bool,
    ) -> Result<Library, LoadError> {
        if let Some(path) = environment::value(spec.variable) {
            return Library::load(path, 0).ok_or_else(|| LoadError::Override {
                spec,
                path: Text::of(path),
                reason: reason(),
            });
        }
        let mut fallback = None;
        // All names are asked for a copy in use before any is searched for: two drivers in one
        // process would not share contexts.
        for name in spec.names {
            match Library::load(name, libc::RTLD_NOLOAD) {
                Some(library) if good(&library) => return Ok(library),
                found => fallback = fallback.or(found),
            }
        }
        let mut explanation = Text::default();
        let mut absent = true;
        for name in spec.names {
            match Library::load(name, 0) {
                Some(library) if good(&library) => return Ok(library),
                Some(library) => fallback = fallback.or(Some(library)),
                // A file that exists and does not load says more than names that do not exist.
                None if absent => {
                    let reason = reason();
                    absent = reason.says_absent(name);
                    if !absent || explanation.is_empty() {
                        explanation = reason;
                    }
                }
                None => {}
            }
        }
        fallback.ok_or(LoadError::NotFound { spec, reason: explanation })
    }

    fn load(name: &CStr, flags: c_int) -> Option<Library> {
        // Local: our choice of library must not decide how other libraries' symbols are bound.
        let flags = flags | libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        let _waiting = crate::base::waiting::begin();
        // SAFETY: `name` is NUL-terminated; the library's constructors are trusted, as a driver is.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        NonNull::new(handle).map(|handle| Library { handle })
    }

    /// The address of a symbol; NULL when the library lacks it.
    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open for ever and `name` is NUL-terminated.
        unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) }
    }
}

/// What this thread's last dlopen had to say.
pub(crate) fn reason() -> Text {
    // SAFETY: dlerror has no preconditions.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return Text::default();
    }
    // SAFETY: a NUL-terminated string, valid until this thread's next dl call; copied at once.
    Text::of(unsafe { CStr::from_ptr(message) })
}

/// A bounded copy of foreign text; empty when there was no memory for it.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Longest text that is kept, in bytes; PATH_MAX would be no use in a message.
    const LIMIT: usize = 512;

    pub(super) fn of(text: &CStr) -> Text {
        let bytes = text.to_bytes();
        let mut copy = String::new();
        // Replacing a bad byte by '?' never lengthens the text, so the reservation is enough.
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

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Does this say that `name` itself does not exist? (A library that lacks one of its own
    /// dependencies is reported in the same words, with the dependency's name in front.)
    fn says_absent(&self, name: &CStr) -> bool {
        self.0
            .strip_prefix(shown(name))
            .is_some_and(|rest| rest.starts_with(": cannot open shared object file: No such file"))
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

/// Names and variables are ours, and ASCII.
fn shown(name: &CStr) -> &str {
    name.to_str().unwrap_or("?")
}
