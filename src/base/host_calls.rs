//! System calls by number: glibc 2.17, which release builds load on, has no functions for them.

use std::ffi::CStr;

/// Fills the bytes with random ones of cryptographic quality; false: the kernel gave none.
pub fn random_bytes(bytes: &mut [u8]) -> bool {
    // SAFETY: the buffer has this length.
    let given =
        unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0_u32) };
    given == bytes.len() as libc::c_long
}

/// Descriptor of a new file in memory, closed by exec; negative: `errno` says why there is none.
pub fn memory_file(name: &CStr) -> libc::c_int {
    // SAFETY: the name ends with a NUL.
    let file = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    file as libc::c_int
}
