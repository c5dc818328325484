//! Allocators of other libraries, and the cache turned off. No block comes from an allocator: one
//! that was made the current one is so for a moment.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::text::text_argument;
use crate::world::{Mode, World};
use std::ffi::c_void;
use tcuda::driver::sys::CUstream_st;
use tcuda::ffi::limits::*;
use tcuda::ffi::pluggable::*;

unsafe extern "C" fn give(_: isize, _: i32, _: *mut CUstream_st) -> *mut c_void {
    std::ptr::null_mut()
}

unsafe extern "C" fn take(_: *mut c_void, _: isize, _: i32, _: *mut CUstream_st) {
    panic!("nothing was given");
}

unsafe extern "C" fn init(devices: i32) {
    assert!(devices > 0);
}

/// Paths that load, and some that do not; symbols that the first of them has, and not.
const PATHS: [&[u8]; 4] = [b"libc.so.6", b"/dev/null", b"/nonexistent/allocator.so", b""];
const SYMBOLS: [&[u8]; 4] = [b"malloc", b"free", b"no such symbol", b"\xff"];

pub(super) fn load(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (path, is_right) = text_argument(i, &PATHS, 1);
    let (malloc, has_malloc) = text_argument(i, &SYMBOLS, 2);
    let (free, has_free) = text_argument(i, &SYMBOLS, 2);
    if is_right.is_none() || has_malloc.is_none() || has_free.is_none() {
        // Any other text might name a library.
        return;
    }
    if [&path, &malloc, &free].iter().any(|text| text.is_none())
        || has_malloc != Some(true)
        || has_free != Some(true)
    {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if is_right != Some(true) {
        // "" is the program itself.
        e.wrong(status::NO_LIBRARY);
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_pluggable_allocator>::required(i, &mut e);
    let text = |text: &Option<std::borrow::Cow<'static, std::ffi::CStr>>| {
        text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
    };
    let (path, malloc, free) = (text(&path), text(&malloc), text(&free));
    let status = status_of!(tcuda_pluggable_allocator_load(path, malloc, free, out.ptr()));
    // The program itself may have the symbols.
    if status == status::OK && is_right != Some(true) {
        e = Expect::default();
    }
    if let Some(allocator) = out.check(w.judge(status, &e)) {
        w.allocators.push(allocator as usize);
        w.counted += 1;
    }
}

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let malloc: tcuda_torch_malloc_fn = if i.rarely(8) { None } else { Some(give) };
    let free: tcuda_torch_free_fn = if i.rarely(8) { None } else { Some(take) };
    if malloc.is_none() || free.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_pluggable_allocator>::required(i, &mut e);
    let status = status_of!(tcuda_pluggable_allocator_create(malloc, free, out.ptr()));
    if let Some(allocator) = out.check(w.judge(status, &e)) {
        w.allocators.push(allocator as usize);
        w.counted += 1;
    }
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.allocator(i, &mut e);
    if handle == 0 {
        e = Expect::default();
    }
    let status = status_of!(tcuda_pluggable_allocator_destroy(handle as *mut _));
    if w.judge(status, &e) && handle != 0 {
        w.allocators.retain(|live| *live != handle);
        w.dead.push(handle);
        w.counted -= 1;
    }
}

pub(super) fn set_hooks(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.allocator(i, &mut e);
    // In use since it was the current one.
    e.also(&[status::INVALID_STATE]);
    let mut hooks = tcuda_pluggable_hooks {
        struct_size: size_of::<tcuda_pluggable_hooks>(),
        init: Some(init),
        reset: None,
        memory_fraction: None,
        base_alloc: None,
        record_stream: None,
    };
    if i.rarely(8) {
        hooks.struct_size = i.one_of(&[0, 7, (1 << 20) + 1, usize::MAX]);
        e.wrong(status::INVALID_ARGUMENT);
    }
    let null = i.rarely(16);
    if null {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let hooks = if null { std::ptr::null() } else { &raw const hooks };
    w.judge(status_of!(tcuda_pluggable_allocator_set_hooks(handle as *mut _, hooks)), &e);
}

pub(super) fn set_current(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.allocator(i, &mut e);
    if handle == 0 {
        e = Expect::default();
    } else if w.mode == Mode::Threads && w.allocators.contains(&handle) {
        // What others allocate meanwhile would come from it.
        return;
    }
    e.also(&[status::INVALID_STATE]);
    let status = status_of!(tcuda_allocator_set_current(handle as *mut _));
    if w.judge(status, &e) && handle != 0 {
        let back = status_of!(tcuda_allocator_set_current(std::ptr::null_mut()));
        assert_eq!(back, status::OK);
    }
}

pub(super) fn backend(_: &mut World, _: &mut Input) {
    // SAFETY: takes nothing, and gives a text that lives for ever.
    let name = unsafe { std::ffi::CStr::from_ptr(tcuda_allocator_backend()) };
    assert_eq!(name, c"native");
}

pub(super) fn caching_enable(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let enabled = w.flag(i, &mut e);
    if w.mode != Mode::Strict && e.wrong.is_empty() {
        // It would be unknown how the blocks of others are counted, nor which the driver kept.
        return;
    }
    if w.judge(status_of!(tcuda_memory_caching_enable(enabled)), &e) {
        w.is_plain = enabled == 0;
    }
}

pub(super) fn caching_is_enabled(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<u8>::required(i, &mut e);
    let status = status_of!(tcuda_memory_caching_is_enabled(out.ptr().cast()));
    if let Some(enabled) = out.check_bool(w.judge(status, &e)) {
        assert!(w.mode == Mode::Threads || enabled != w.is_plain);
    }
}
