//! System calls by number: glibc 2.17, which release builds load on, has no functions for them.

use std::ffi::CStr;

/// The kernel's number of the calling thread.
pub(super) fn thread_id() -> i32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Descriptor of a new file in memory, closed by exec; negative: `errno` says why there is none.
pub(super) fn memory_file(name: &CStr) -> i32 {
    // SAFETY: the name ends with a NUL.
    let file = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    file as i32
}
