//! Outputs with canaries inside and around: a call writes all of an output or nothing, and nothing
//! beside it.

use crate::expect::{Expect, status};
use crate::input::Input;
use std::ffi::c_char;
use std::marker::PhantomData;

const CANARY: u8 = 0xC5;
const AROUND: usize = 32;

/// An output of one value, of at most so many bytes, at any alignment.
#[repr(C, align(16))]
pub struct Out<T> {
    bytes: [u8; 2 * AROUND],
    /// Where it begins.
    start: usize,
    null: bool,
    of: PhantomData<T>,
}

/// Types of which every pattern of bytes is a value.
///
/// # Safety
/// That must be so, and there must be no padding.
pub unsafe trait Plain: Copy {}
// SAFETY: integers, floats and pointers have no invalid patterns.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i64 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for usize {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}
// SAFETY: as above.
unsafe impl<T> Plain for *mut T {}

impl<T: Plain> Out<T> {
    /// An output that is there.
    pub fn new() -> Out<T> {
        const { assert!(size_of::<T>() <= AROUND / 2) };
        Out { bytes: [CANARY; 2 * AROUND], start: AROUND, null: false, of: PhantomData }
    }

    /// An output that is now and then NULL, which is wrong.
    pub fn required(input: &mut Input, expect: &mut Expect) -> Out<T> {
        let out = Out::optional(input);
        if out.null {
            expect.wrong(status::INVALID_ARGUMENT);
        }
        out
    }

    /// An output that is now and then NULL, which is right, or not aligned, which is right as well.
    pub fn optional(input: &mut Input) -> Out<T> {
        let choice = input.u8();
        let shift = if choice & 0xF8 == 0xF0 { usize::from(choice & 7) } else { 0 };
        Out { null: choice >= 0xF8, start: AROUND + shift, ..Out::new() }
    }

    /// What the call gets.
    pub fn ptr(&mut self) -> *mut T {
        if self.null { std::ptr::null_mut() } else { self.bytes[self.start..].as_mut_ptr().cast() }
    }

    /// The value after a call; `None` if it failed or there was no place for it.
    pub fn check(&self, succeeded: bool) -> Option<T> {
        let end = self.start + size_of::<T>();
        assert!(is_untouched(&self.bytes[..self.start]), "written before an output");
        assert!(is_untouched(&self.bytes[end..]), "written behind an output");
        let value = &self.bytes[self.start..end];
        if succeeded && !self.null {
            // SAFETY: so many bytes, and any pattern is a value.
            return Some(unsafe { value.as_ptr().cast::<T>().read_unaligned() });
        }
        assert!(is_untouched(value), "an output was written by a call that failed");
        None
    }
}

impl<T: Plain> Default for Out<T> {
    fn default() -> Out<T> {
        Out::new()
    }
}

impl Out<u8> {
    /// A bool, which C can only give as 0 or 1.
    pub fn check_bool(&self, succeeded: bool) -> Option<bool> {
        let value = self.check(succeeded)?;
        assert!(value <= 1, "a bool of {value}");
        Some(value == 1)
    }
}

/// Are they all canaries? By one comparison with themselves, moved by a byte: a loop here would be
/// most of what an instrumented program does.
fn is_untouched(bytes: &[u8]) -> bool {
    match bytes.split_first() {
        Some((first, rest)) => *first == CANARY && *rest == bytes[..rest.len()],
        None => true,
    }
}

/// The most that is passed to a call.
const ROOM: usize = 8192;

/// Bytes with canaries inside and behind, for texts and structs.
pub struct Room {
    bytes: Vec<u8>,
}

impl Room {
    fn new(bytes: usize) -> Room {
        Room { bytes: vec![CANARY; bytes + AROUND] }
    }

    fn is_untouched_from(&self, start: usize) -> bool {
        is_untouched(&self.bytes[start..])
    }
}

/// Where a text goes: (buf, len, needed).
pub struct TextOut {
    room: Room,
    /// Is buf NULL?
    null: bool,
    /// What is passed to the call.
    pub len: usize,
    /// How long the text is.
    pub needed: Out<usize>,
}

impl TextOut {
    /// A place of some size.
    pub fn new(input: &mut Input, expect: &mut Expect) -> TextOut {
        let len = input.one_of(&[0, 256, 1, 2, 3, 16, 100, 4096, ROOM]);
        let null = input.rarely(24);
        if null && len > 0 {
            expect.wrong(status::INVALID_ARGUMENT);
        }
        TextOut { room: Room::new(len), null, len, needed: Out::optional(input) }
    }

    /// The pointer that the call gets.
    pub fn buf(&mut self) -> *mut c_char {
        if self.null { std::ptr::null_mut() } else { self.room.bytes.as_mut_ptr().cast() }
    }

    /// The text after a call, if it fits.
    pub fn check(&self, succeeded: bool) -> Option<&str> {
        let needed = self.needed.check(succeeded);
        if !succeeded || self.null || self.len == 0 {
            assert!(self.room.is_untouched_from(0), "a text was written where it must not be");
            return None;
        }
        assert!(self.room.is_untouched_from(self.len), "written behind a text");
        let written = &self.room.bytes[..self.len];
        let end = written.iter().position(|byte| *byte == 0).expect("a text without its NUL");
        let text = std::str::from_utf8(&written[..end]).expect("a text that is not UTF-8");
        let needed = needed?;
        assert!(end <= needed && (needed < self.len) == (end == needed), "{end} of {needed}");
        (end == needed).then_some(text)
    }
}

/// Where a struct with a struct_size goes.
pub struct StructOut {
    room: Room,
    size: usize,
    known: usize,
    null: bool,
}

impl StructOut {
    /// A place for a struct of which `known` bytes are known today.
    pub fn new(input: &mut Input, expect: &mut Expect, known: usize) -> StructOut {
        let sizes =
            [known, known, 8, 0, 7, 9, 40, known - 1, known + 64, 1 << 20, (1 << 20) + 1, !0];
        let mut size = input.one_of(&sizes);
        // By its own word the struct has so many bytes.
        if size == 1 << 20 {
            size = ROOM;
        }
        let mut room = Room::new(if size <= ROOM { size.max(known) } else { known });
        room.bytes[..8].copy_from_slice(&size.to_ne_bytes());
        let null = input.rarely(8);
        if null || !(8..=ROOM).contains(&size) {
            expect.wrong(status::INVALID_ARGUMENT);
        }
        StructOut { room, size, known, null }
    }

    /// The pointer that the call gets.
    pub fn ptr<T>(&mut self) -> *mut T {
        if self.null { std::ptr::null_mut() } else { self.room.bytes.as_mut_ptr().cast() }
    }

    /// Checks it after a call.
    pub fn check(&self, succeeded: bool) {
        assert_eq!(self.room.bytes[..8], self.size.to_ne_bytes(), "struct_size was changed");
        let end = if succeeded && !self.null { self.size.min(self.known) } else { 8 };
        assert!(self.room.is_untouched_from(end), "written behind what a struct may hold");
    }
}
