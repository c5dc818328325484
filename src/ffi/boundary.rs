//! The boundary that every C call passes. It enters the library, catches panics, turns errors into
//! statuses and this thread's last error, and turns raw pointers into references.

use super::status::{record, status_of, tcuda_status};
use crate::base::error::{Error, Result, note_refused};
use crate::base::pin_outermost;
use crate::base::text::Text;
use crate::base::thread::{self, Inside};
use crate::base::waiting;
use crate::gpu::gpus::Gpus;
use crate::profiling::nvtx::own;
use crate::runtime;
use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A call that is inside the library.
pub struct Call {
    inside: Inside,
}

impl Call {
    /// The GPUs; initialises the library.
    #[inline]
    pub fn gpus(&self) -> Result<&Gpus> {
        runtime::get(&self.inside)
    }

    /// [`Call::gpus`], or `None` where there is no device to initialise it for.
    #[cold]
    pub fn gpus_if_any(&self) -> Result<Option<&Gpus>> {
        match self.gpus() {
            Ok(gpus) => Ok(Some(gpus)),
            Err(Error::NoDriver(_) | Error::NoDevice(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The proof that this thread is inside.
    pub fn inside(&self) -> &Inside {
        &self.inside
    }
}

/// The usual boundary: runs `body` inside the library and returns its status. The thread cannot be
/// cancelled meanwhile, because most calls may reach a cancellation point: in a driver, a file or a
/// host function.
#[inline]
pub fn boundary(body: impl FnOnce(&Call) -> Result<()>) -> tcuda_status {
    let _uncancelled = waiting::uncancelled();
    boundary_outside(|| run(body))
}

/// [`boundary`] for calls that reach no cancellation point, or that disable cancellation where they
/// wait (`waiting::begin`).
#[inline]
pub fn boundary_without_guard(body: impl FnOnce(&Call) -> Result<()>) -> tcuda_status {
    boundary_outside(|| run(body))
}

/// A boundary with a fast path for the usual case. `fast` returning `None` means that it has done
/// nothing: then `slow` runs, a boundary of its own that is not inlined, so that the fast path
/// keeps only the caller's arguments alive for it. The fast path is skipped while any flag of
/// `watchers` is set.
#[inline(always)]
pub fn boundary_with_fast_path(
    watchers: u64,
    fast: impl FnOnce(&Inside) -> Option<()>,
    slow: impl FnOnce() -> tcuda_status,
) -> tcuda_status {
    let outcome = catch_unwind(AssertUnwindSafe(|| fast(&*pin_outermost::enter(watchers)?)));
    match outcome {
        Ok(Some(())) => tcuda_status::Ok,
        Ok(None) => slow(),
        Err(panic) => caught(panic),
    }
}

#[inline(always)]
fn run<F: FnOnce(&Call) -> Result<()>>(body: F) -> Result<()> {
    let call = Call { inside: runtime::enter()? };
    let _range = own::Range::of::<F>();
    body(&call)
}

/// [`boundary`] for calls that also have a result in a forked child, where no thread can enter the
/// library.
#[inline]
pub fn boundary_with_forked(
    forked: impl FnOnce() -> Result<()>,
    body: impl FnOnce(&Call) -> Result<()>,
) -> tcuda_status {
    if thread::is_forked() { boundary_outside(forked) } else { boundary(body) }
}

/// A boundary that does not enter the library: `body` uses only this thread's own state.
#[inline]
pub fn boundary_outside<B: FnOnce() -> Result<()>>(body: B) -> tcuda_status {
    // The error becomes a status in here, so that a call that succeeds moves no space for one.
    let outcome = catch_unwind(AssertUnwindSafe(|| match body() {
        Ok(()) => tcuda_status::Ok,
        Err(error) => fail(error, std::any::type_name::<B>),
    }));
    outcome.unwrap_or_else(caught)
}

#[cold]
fn caught(panic: Box<dyn Any + Send>) -> tcuda_status {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let error = Error::Internal(Text::new(text.unwrap_or("a panic")));
    record(&error);
    // Its destructor is foreign code, which may panic again.
    std::mem::forget(panic);
    status_of(&error)
}

/// `body` returns the type name of the failed closure; that name contains the C function's name.
#[cold]
fn fail(error: Error, body: fn() -> &'static str) -> tcuda_status {
    if let Error::Cuda(error) = &error {
        note_refused(error, body);
    }
    let error = error.of_function(body);
    record(&error);
    status_of(&error)
}

/// An output of the caller, written only after everything else has succeeded.
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    #[inline]
    pub fn set(&self, value: T) {
        // Unaligned, as an output in a host's buffer or packed struct may be.
        // SAFETY: `out` found it not NULL; the caller promises that it is writable.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// A required output.
#[inline]
pub fn out<T>(ptr: *mut T, name: &'static str) -> Result<Out<T>> {
    if ptr.is_null() { Err(Error::Null { name }) } else { Ok(Out(ptr)) }
}

/// A list of the caller with room for the first `capacity` items, written like an [`Out`].
pub struct OutList<T> {
    first: *mut T,
    capacity: usize,
}

/// A list of outputs; it may be NULL if its capacity is 0.
pub fn out_list<T>(first: *mut T, capacity: usize, name: &'static str) -> Result<OutList<T>> {
    match first.is_null() && capacity > 0 {
        true => Err(Error::Null { name }),
        false => Ok(OutList { first, capacity }),
    }
}

impl<T> OutList<T> {
    /// Writes the items for which there is room.
    pub fn set(&self, items: impl IntoIterator<Item = T>) {
        for (index, item) in items.into_iter().take(self.capacity).enumerate() {
            let place = self.first.wrapping_add(index);
            // SAFETY: the caller promises that `capacity` items are writable.
            unsafe { place.write_unaligned(item) };
        }
    }
}

/// [`out`] without an error message: `None` if the pointer is NULL.
#[inline(always)]
pub fn known_out<T>(ptr: *mut T) -> Option<Out<T>> {
    (!ptr.is_null()).then_some(Out(ptr))
}

/// A required input, copied out of the caller's memory.
#[inline]
pub fn given<T: Copy>(ptr: *const T, name: &'static str) -> Result<T> {
    if ptr.is_null() {
        return Err(Error::Null { name });
    }
    // Unaligned, as in a message that was received.
    // SAFETY: not NULL, and readable by the caller's promise.
    Ok(unsafe { ptr.read_unaligned() })
}

/// A required list; NULL is fine when it is empty.
pub fn bytes<'a>(ptr: *const u8, len: usize, name: &'static str) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if ptr.is_null() {
        return Err(Error::Null { name });
    }
    if len > isize::MAX as usize {
        return Err(Error::OutOfRange { name, value: -1, allowed: "it is longer than memory" });
    }
    // SAFETY: not NULL, and readable for `len` bytes by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len) })
}

/// A required text.
pub fn text<'a>(ptr: *const c_char, name: &'static str) -> Result<&'a str> {
    optional_text(ptr, name)?.ok_or(Error::Null { name })
}

/// A text that may be NULL.
pub fn optional_text<'a>(ptr: *const c_char, name: &'static str) -> Result<Option<&'a str>> {
    if ptr.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, and NUL-terminated by the caller's promise.
    let text = unsafe { CStr::from_ptr(ptr) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let valid = &text.to_bytes()[..error.valid_up_to()];
            let valid = std::str::from_utf8(valid).unwrap_or("");
            let allowed = "what follows there is not UTF-8, which it must be";
            Err(Error::BadText { name, value: Text::new(valid), allowed })
        }
    }
}

/// A required text that goes to the system, which accepts any bytes.
pub fn terminated<'a>(ptr: *const c_char, name: &'static str) -> Result<&'a CStr> {
    if ptr.is_null() {
        return Err(Error::Null { name });
    }
    // SAFETY: not NULL, and NUL-terminated by the caller's promise.
    Ok(unsafe { CStr::from_ptr(ptr) })
}

/// A bool from C: an integer until it is checked.
pub fn flag(value: i32, name: &'static str) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::OutOfRange { name, value: value.into(), allowed: "use 0 or 1" }),
    }
}

/// The destination of a text: (buf, len, needed), as in snprintf.
pub struct TextOut {
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
}

/// Checks the destination of a text.
pub fn text_out(buf: *mut c_char, len: usize, needed: *mut usize) -> Result<TextOut> {
    if buf.is_null() && len > 0 {
        Err(Error::Null { name: "buf" })
    } else {
        Ok(TextOut { buf, len, needed })
    }
}

impl TextOut {
    /// Writes the text; cuts it between characters if the buffer is too small.
    pub fn set(self, text: impl fmt::Display) -> Result<()> {
        let mut cursor = Cursor { out: &self, written: 0, needed: 0, full: false };
        write!(cursor, "{text}")
            .map_err(|_| Error::Internal(Text::new("a text that cannot be written")))?;
        let Cursor { written, needed, .. } = cursor;
        if self.len > 0 {
            // SAFETY: the cursor leaves room for the NUL.
            let end = unsafe { self.buf.add(written) };
            // SAFETY: inside the caller's buffer.
            unsafe { end.write(0) };
        }
        if !self.needed.is_null() {
            // SAFETY: not NULL, and writable by the caller's promise.
            unsafe { self.needed.write_unaligned(needed) };
        }
        Ok(())
    }
}

/// The destination of bytes: (buf, len, needed), without a NUL.
pub struct BytesOut {
    buf: *mut u8,
    len: usize,
    needed: *mut usize,
}

/// Checks the destination of bytes.
pub fn bytes_out(buf: *mut c_void, len: usize, needed: *mut usize) -> Result<BytesOut> {
    if buf.is_null() && len > 0 {
        Err(Error::Null { name: "buf" })
    } else {
        Ok(BytesOut { buf: buf.cast(), len, needed })
    }
}

/// Receives the pieces that a writer produces, in order.
type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

impl BytesOut {
    /// Writes what `body` produces, cut to the length of the buffer.
    pub fn fill(self, body: impl FnOnce(&mut Sink<'_>) -> Result<()>) -> Result<()> {
        let mut needed = 0usize;
        body(&mut |bytes: &[u8]| {
            let room = self.len.saturating_sub(needed).min(bytes.len());
            if room > 0 {
                // SAFETY: below `len`, inside the caller's buffer.
                let to = unsafe { self.buf.add(needed) };
                // SAFETY: `room` bytes fit, and the two do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, room) };
            }
            needed += bytes.len();
            Ok(())
        })?;
        if !self.needed.is_null() {
            // SAFETY: not NULL, and writable by the caller's promise.
            unsafe { self.needed.write_unaligned(needed) };
        }
        Ok(())
    }
}

impl TextOut {
    /// Writes the ASCII text that `body` produces, cut to the length of the buffer.
    pub fn fill(self, body: impl FnOnce(&mut Sink<'_>) -> Result<()>) -> Result<()> {
        let mut needed = 0;
        let room = self.len.saturating_sub(1);
        let bytes = BytesOut { buf: self.buf.cast(), len: room, needed: &mut needed };
        bytes.fill(body)?;
        if self.len > 0 {
            // SAFETY: at most the last byte of the caller's buffer.
            let end = unsafe { self.buf.add(needed.min(room)) };
            // SAFETY: as above.
            unsafe { end.write(0) };
        }
        if !self.needed.is_null() {
            // SAFETY: not NULL, and writable by the caller's promise.
            unsafe { self.needed.write_unaligned(needed) };
        }
        Ok(())
    }
}

struct Cursor<'a> {
    out: &'a TextOut,
    written: usize,
    needed: usize,
    full: bool,
}

impl Write for Cursor<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.needed += text.len();
        if self.full || self.out.len == 0 {
            return Ok(());
        }
        let room = self.out.len - 1 - self.written;
        let mut take = text.len().min(room);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        self.full = take < text.len();
        // SAFETY: `written` is inside the caller's buffer.
        let to = unsafe { self.out.buf.add(self.written) };
        // SAFETY: `take` bytes fit, and the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), take) };
        self.written += take;
        Ok(())
    }
}

/// A struct that begins with its size and grows at the end.
///
/// # Safety
/// The type is `repr(C)`, its first field is `struct_size: usize`, and it is plain data.
pub unsafe trait Sized_: Copy {}

/// A required struct of the caller's; fields that it lacks keep their values of `value`.
pub fn struct_in<T: Sized_>(ptr: *const T, mut value: T, name: &'static str) -> Result<T> {
    let known = struct_out(ptr.cast_mut(), name)?.size.min(size_of::<T>());
    let to = (&raw mut value).cast::<u8>();
    // SAFETY: the caller's struct has so many bytes, by its struct_size, and ours has them.
    unsafe { std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), to, known) };
    Ok(value)
}

/// The destination of such a struct.
pub struct StructOut<T: Sized_> {
    ptr: *mut T,
    size: usize,
}

/// Checks the destination of a struct.
pub fn struct_out<T: Sized_>(ptr: *mut T, name: &'static str) -> Result<StructOut<T>> {
    if ptr.is_null() {
        return Err(Error::Null { name });
    }
    // SAFETY: not NULL; the caller promises at least a struct_size.
    let size = unsafe { ptr.cast::<usize>().read_unaligned() };
    // No struct of this library is so large: this one is uninitialised.
    if !(size_of::<usize>()..=1 << 20).contains(&size) {
        return Err(Error::OutOfRange {
            name: "struct_size",
            value: size as i64,
            allowed: "set it to the size of the struct, as TCUDA_INIT(type) does",
        });
    }
    Ok(StructOut { ptr, size })
}

impl<T: Sized_> StructOut<T> {
    /// Writes the fields that both sides have, except the size.
    pub fn set(self, value: &T) {
        const SKIP: usize = size_of::<usize>();
        let bytes = self.size.min(size_of::<T>()) - SKIP;
        // SAFETY: the first field is a usize, so this is inside the value.
        let from = unsafe { std::ptr::from_ref(value).cast::<u8>().add(SKIP) };
        // SAFETY: the caller's struct has `size` bytes, by its struct_size.
        let to = unsafe { self.ptr.cast::<u8>().add(SKIP) };
        // SAFETY: both have so many bytes left, and they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters_and_tell_their_length() {
        let mut buf = [1 as c_char; 8];
        let mut needed = 0;
        text_out(buf.as_mut_ptr(), 4, &mut needed).unwrap().set("ab€").unwrap();
        assert_eq!(needed, 5);
        assert_eq!(&buf[..3], &[97, 98, 0]);
        assert_eq!(buf[4], 1);
        text_out(std::ptr::null_mut(), 0, &mut needed).unwrap().set("four").unwrap();
        assert_eq!(needed, 4);
        assert!(text_out(std::ptr::null_mut(), 1, &mut needed).is_err());
    }

    #[test]
    fn panics_become_a_status() {
        let status = boundary(|_| panic!("for the test"));
        assert_eq!(status as i32, tcuda_status::Internal as i32);
    }
}
