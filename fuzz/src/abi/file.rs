//! Files: /dev/zero reads as zeros and takes everything, so that runs leave nothing on a disk.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::World;
use std::ffi::{CStr, c_void};
use tcuda::ffi::file::*;

pub(super) fn is_supported(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<u8>::required(i, &mut e);
    let status = status_of!(tcuda_file_is_supported(out.ptr().cast()));
    if let Some(answer) = out.check_bool(w.judge(status, &e)) {
        // The simulated machine has no cuFile.
        assert!(!answer);
    }
}

pub(super) fn open(w: &mut World, i: &mut Input) {
    const PATHS: [&CStr; 4] = [c"/dev/zero", c"/dev/zero", c"/nonexistent/\xff", c"/"];
    let mut e = Expect::default();
    let path = i.one_of(&PATHS);
    let flags = i.one_of(&[16 | 1, 16 | 2, 16 | 3, 16 | 15, 3, 16, 17 | 4, 32 | 1, u32::MAX]);
    let ptr = if i.rarely(16) { std::ptr::null() } else { path.as_ptr() };
    if ptr.is_null() || !matches!(flags, 17..=19 | 31 | 3) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if flags & 16 == 0 {
        e.wrong(status::NOT_SUPPORTED);
    }
    if path != PATHS[0] {
        e.wrong(status::FILE_ERROR);
    }
    let mut out = Out::<*mut tcuda_file>::required(i, &mut e);
    let status = status_of!(tcuda_file_open(ptr, flags, out.ptr()));
    if let Some(file) = out.check(w.judge(status, &e)) {
        w.files.push((file as usize, flags));
        w.counted += 1;
    }
}

/// A file, and how it was opened; NULL is wrong.
fn file(w: &World, i: &mut Input, e: &mut Expect) -> (*mut tcuda_file, u32) {
    let live: Vec<usize> = w.files.iter().map(|file| file.0).collect();
    let handle = w.handle(i, &live, &w.events);
    match w.files.iter().find(|file| file.0 == handle) {
        Some(file) => (handle as *mut tcuda_file, file.1),
        None => {
            e.wrong(status::INVALID_HANDLE);
            (handle as *mut tcuda_file, 0)
        }
    }
}

pub(super) fn close(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, _) = file(w, i, &mut e);
    if handle.is_null() {
        e = Expect::default();
    }
    let status = status_of!(tcuda_file_close(handle));
    w.judge(status, &e);
    let index = w.files.iter().position(|file| file.0 == handle as usize);
    if let (Some(index), true) = (index, status != status::INVALID_HANDLE) {
        w.dead.push(w.files.swap_remove(index).0);
        w.counted -= 1;
    }
}

pub(super) fn native(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, _) = file(w, i, &mut e);
    let mut descriptor = Out::<i32>::optional(i);
    let mut of_cufile = Out::<*mut c_void>::optional(i);
    let status = status_of!(tcuda_file_native(handle, descriptor.ptr(), of_cufile.ptr()));
    let ok = w.judge(status, &e);
    if let Some(number) = descriptor.check(ok) {
        assert!(number >= 0);
    }
    if let Some(handle) = of_cufile.check(ok) {
        assert!(handle.is_null(), "a staged file has no handle of cuFile");
    }
}

/// A part of a block, or what is wrong.
fn memory(w: &World, i: &mut Input, e: &mut Expect) -> (usize, usize) {
    let blocks: Vec<_> = w.blocks.iter().filter(|block| block.ptr != 0).collect();
    let bytes = i.one_of(&[16, 1, 0, 4096, 100, 3]);
    if w.lost {
        e.also(&[status::INVALID_POINTER]);
    }
    if blocks.is_empty() || i.rarely(16) {
        if bytes > 0 {
            e.wrong(status::INVALID_POINTER);
        }
        return (w.host.as_ptr().addr(), bytes);
    }
    let block = blocks[i.below(blocks.len())];
    let offset = i.below(block.bytes);
    let most = block.bytes - offset;
    if i.rarely(16) {
        e.wrong(status::INVALID_ARGUMENT);
        return (block.ptr + offset, most + 1);
    }
    (block.ptr + offset, bytes.min(most))
}

fn offset(i: &mut Input, e: &mut Expect, bytes: usize) -> i64 {
    let offset = i.one_of(&[0, 0, 1, 4096, 1 << 40, -1, i64::MIN, i64::MAX]);
    if offset < 0 || offset.checked_add(bytes as i64).is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    offset
}

/// What a stream that is captured, or sync debug mode, may answer besides.
const REFUSED: &[i32] = &[status::CAPTURING, status::WOULD_SYNCHRONIZE, status::INVALID_STATE];

pub(super) fn read(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, flags) = file(w, i, &mut e);
    if flags & TCUDA_FILE_READ == 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let (ptr, bytes) = memory(w, i, &mut e);
    let at = offset(i, &mut e, bytes);
    let stream = w.stream(i, &mut e);
    let mut done = Out::<usize>::required(i, &mut e);
    e.also(REFUSED);
    let status = status_of!(tcuda_file_read(handle, ptr as *mut _, bytes, at, stream, done.ptr()));
    let ok = w.judge(status, &e);
    w.forget_contents();
    if let Some(done) = done.check(ok) {
        assert_eq!(done, bytes);
    }
}

pub(super) fn write(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, flags) = file(w, i, &mut e);
    if flags & TCUDA_FILE_WRITE == 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let (ptr, bytes) = memory(w, i, &mut e);
    let at = offset(i, &mut e, bytes);
    let stream = w.stream(i, &mut e);
    let mut done = Out::<usize>::required(i, &mut e);
    e.also(REFUSED);
    let status = status_of!(tcuda_file_write(handle, ptr as *mut _, bytes, at, stream, done.ptr()));
    if let Some(done) = done.check(w.judge(status, &e)) {
        assert_eq!(done, bytes);
    }
}

pub(super) fn register_buffer(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (ptr, bytes) = memory(w, i, &mut e);
    e.wrong(status::NOT_SUPPORTED);
    if bytes == 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if w.lost {
        e.wrong(status::INVALID_POINTER);
    }
    w.judge(status_of!(tcuda_file_register_buffer(ptr as *mut _, bytes)), &e);
}

pub(super) fn unregister_buffer(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.address(i, &mut Expect::default());
    if !ptr.is_null() {
        e.wrong(status::INVALID_POINTER);
    }
    w.judge(status_of!(tcuda_file_unregister_buffer(ptr)), &e);
}
