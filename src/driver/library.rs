//! The loader of shared libraries: libcuda, NVML, NVRTC, NCCL and cuBLAS.
//!
//! Search order: the environment's path, alone, when it is set; a copy that the process has loaded
//! already, so that the library is shared with PyTorch or the host; then each name of the list. A
//! library is never unloaded, because drivers leave threads and exit handlers behind.
//!
//! Nothing here aborts when memory is short: reasons are copied fallibly, and bounded.

use crate::base::environment;
use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;

/// Description of a library.
#[derive(Debug)]
pub struct Spec {
    /// Its name in messages: "the CUDA driver".
    pub title: &'static str,
    /// Environment variable with a path that replaces the search; an empty value counts as unset.
    pub variable: &'static CStr,
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
        "{} was not found: tried {} ({reason}); {}, or set {} to its path",
        .spec.title, Names(.spec.names), .spec.advice, shown(.spec.variable)
    )]
    NotFound {
        /// The library.
        spec: &'static Spec,
        /// The system's message for the first name, or for the first file that exists.
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

    /// Opens the first library that `good` accepts, else the first that can be loaded: the error of
    /// a stand-in, such as a toolkit's link-time stub, is better than "not found".
    ///
    /// The environment's path is not checked by `good`.
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
        // First tries for all names whether a copy is loaded already: two drivers in one process
        // would not share contexts.
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
                // The error of a file that exists is better than that of missing names.
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
        // Local: the choice of library must not affect the symbols of other libraries.
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

/// The message of this thread's last dlopen.
pub(crate) fn reason() -> Text {
    // SAFETY: dlerror has no preconditions.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return Text::default();
    }
    // SAFETY: a NUL-terminated string, valid until this thread's next dl call; copied at once.
    Text::of(unsafe { CStr::from_ptr(message) })
}

/// A bounded copy of a foreign text; empty if there was no memory for it.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Longest text that is kept, in bytes.
    const LIMIT: usize = 512;

    pub(super) fn of(text: &CStr) -> Text {
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

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Does the message say that `name` itself does not exist? A missing dependency of a library
    /// has the same message, with the dependency's name in front.
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

/// Names and variables are constants of this library, and ASCII.
fn shown(name: &CStr) -> &str {
    name.to_str().unwrap_or("?")
}
