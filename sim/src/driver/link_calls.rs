//! The calls of the linker, whose inputs and results are PTX.

use super::arguments::{put, require};
use super::entry::entry;
use super::hooks;
use super::image;
use super::jit::{self, Options, Use};
use super::link::Link;
use super::machine::Machine;
use super::sync::write;
use crate::base::code;
use cudarc::driver::sys::{CUjit_option, CUlinkState};
use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::slice;
use std::time::Instant;

/// `CU_JIT_INPUT_FATBINARY`. Kinds up to it have PTX here: the result of an earlier link is of the
/// first kind.
const FAT_BINARY: c_uint = 2;
/// Number of kinds.
const KINDS: c_uint = 6;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLinkCreate_v2(
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    state: *mut CUlinkState,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        require(!state.is_null(), code::INVALID_VALUE)?;
        let start = Instant::now();
        let options = Options::read(Use::Link, count, options, values)?;
        options.report(start, "", "")?;
        let handle = write(&machine.links).insert(Link::new(options));
        put!(state, ptr::without_provenance_mut(handle))
    })
}

/// Adds an input of a kind.
fn add(
    machine: &Machine,
    state: CUlinkState,
    kind: c_uint,
    name: *const c_char,
    (count, options, values): (c_uint, *mut CUjit_option, *mut *mut c_void),
    bytes: impl FnOnce() -> Result<Cow<'static, [u8]>, i32>,
) -> Result<(), i32> {
    let mut links = write(&machine.links);
    let link = links.get_mut(state.addr()).ok_or(code::INVALID_HANDLE)?;
    require(kind < KINDS, code::INVALID_VALUE)?;
    Options::read(Use::Input, count, options, values)?;
    let bytes = bytes()?;
    if kind > FAT_BINARY {
        hooks::log_error(format_args!("an input of kind {kind} cannot be linked, only PTX can"));
        return Err(code::NO_BINARY_FOR_GPU);
    }
    let name = match name.is_null() {
        true => Cow::Borrowed("input"),
        // SAFETY: not NULL, and NUL-terminated by the caller's promise.
        false => unsafe { CStr::from_ptr(name) }.to_string_lossy(),
    };
    let text = image::parse(&bytes, link.capability(&machine.config))?;
    link.add(&machine.config, name.into_owned(), text)
}

#[allow(clippy::too_many_arguments, reason = "CUDA's own signature")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLinkAddData_v2(
    state: CUlinkState,
    kind: c_uint,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> c_int {
    entry(|machine| {
        add(machine, state, kind, name, (count, options, values), || {
            require(!data.is_null() && size > 0, code::INVALID_VALUE)?;
            // SAFETY: the caller passes data of this size.
            Ok(Cow::Borrowed(unsafe { slice::from_raw_parts(data.cast::<u8>(), size) }))
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLinkAddFile_v2(
    state: CUlinkState,
    kind: c_uint,
    path: *const c_char,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> c_int {
    entry(|machine| {
        add(machine, state, kind, path, (count, options, values), || {
            jit::read_file(path).map(Cow::Owned)
        })
    })
}

/// The result is valid until the link is destroyed.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLinkComplete(
    state: CUlinkState,
    image: *mut *mut c_void,
    size: *mut usize,
) -> c_int {
    entry(|machine| {
        let mut links = write(&machine.links);
        let link = links.get_mut(state.addr()).ok_or(code::INVALID_HANDLE)?;
        require(!image.is_null(), code::INVALID_VALUE)?;
        let text = link.complete(&machine.config)?;
        put!(image, text.as_ptr().cast_mut().cast())?;
        if !size.is_null() {
            put!(size, text.as_bytes_with_nul().len())?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLinkDestroy(state: CUlinkState) -> c_int {
    entry(|machine| {
        let removed = write(&machine.links).remove(state.addr());
        removed.map(drop).ok_or(code::INVALID_HANDLE)
    })
}
