//! The loader of shared libraries: libcuda, NVML, NVRTC, nvJitLink, NCCL, cuBLAS, cuSOLVER and
//! cuFile.
//!
//! Search order: the environment's path, alone, when it is set; a copy that the process has loaded
//! already, so that the library is shared with PyTorch or the host; the folder of this library, for
//! one that is installed with it; then each name of the list. A library is never unloaded, because
//! drivers leave threads and exit handlers behind.
//!
//! Nothing here aborts when memory is short: reasons are copied fallibly, and bounded.

use crate::base::environment;
pub use crate::base::error::library::{LoadError, Spec, Text};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

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
        if let Some(name) = spec.beside {
            match Library::beside(name) {
                Some(library) if good(&library) => return Ok(library),
                Some(library) => fallback = fallback.or(Some(library)),
                None => {
                    explanation = reason();
                    absent = explanation.says_absent(name);
                }
            }
        }
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

    /// Opens a library of this name in the folder of the object that contains this function.
    fn beside(name: &CStr) -> Option<Library> {
        let mut path = Vec::new();
        // That of the current folder and a name.
        path.try_reserve_exact(2 * libc::PATH_MAX as usize).ok()?;
        folder_of_library(&mut path).or_else(|| folder_of_executable(&mut path))?;
        path.push(b'/');
        path.try_reserve(name.to_bytes_with_nul().len()).ok()?;
        path.extend_from_slice(name.to_bytes_with_nul());
        Library::load(CStr::from_bytes_with_nul(&path).ok()?, 0)
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

/// Writes the folder of the shared library that contains this function; there is room for the
/// longest path. `None`: it is linked into the executable, which has another name for the loader.
fn folder_of_library(path: &mut Vec<u8>) -> Option<()> {
    // SAFETY: a structure of pointers.
    let mut place: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address will do; `place` is writable.
    let found = unsafe { libc::dladdr(folder_of_library as *const c_void, &mut place) };
    if found == 0 || place.dli_fname.is_null() {
        return None;
    }
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
    // SAFETY: NUL-terminated, and valid as long as this object is loaded; nothing is loaded.
    let own = NonNull::new(unsafe { libc::dlopen(place.dli_fname, flags) })?.as_ptr();
    // The loader has it absolute, also if it found the library by a relative name.
    // SAFETY: the handle is open, and there is room.
    let outcome =
        unsafe { libc::dlinfo(own, libc::RTLD_DI_ORIGIN, path.as_mut_ptr().cast::<c_void>()) };
    // SAFETY: the handle is open, and not used any more.
    unsafe { libc::dlclose(own) };
    if outcome != 0 {
        return None;
    }
    // SAFETY: NUL-terminated by the call.
    let length = unsafe { CStr::from_ptr(path.as_ptr().cast()) }.to_bytes().len();
    // SAFETY: the call has written so many bytes.
    unsafe { path.set_len(length) };
    Some(())
}

/// Writes the folder of the executable.
fn folder_of_executable(path: &mut Vec<u8>) -> Option<()> {
    let own = c"/proc/self/exe";
    // SAFETY: a NUL-terminated name, and so much room.
    let length = unsafe { libc::readlink(own.as_ptr(), path.as_mut_ptr().cast(), path.capacity()) };
    let length = usize::try_from(length).ok()?;
    // SAFETY: the call has written so many bytes.
    unsafe { path.set_len(length) };
    path.truncate(path.iter().rposition(|byte| *byte == b'/')?);
    Some(())
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
