//! Recording, and snapshots as bytes.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::{Out, StructOut, TextOut};
use crate::status_of;
use crate::text::text_argument;
use crate::world::{CALLS, World, destructor};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicI64, Ordering};
use tcuda::ffi::history::*;
use tcuda::ffi::memory::tcuda_malloc;
use tcuda::ffi::memory_event::*;
use tcuda::ffi::observer::tcuda_observer;
use tcuda::ffi::snapshot::*;

/// A stack of few frames, one of which has no file.
unsafe extern "C" fn frames(_: *mut c_void, frames: *mut tcuda_frame, capacity: usize) -> usize {
    assert!(capacity > 2);
    for index in 0..2 {
        let filename = if index == 0 { c"model\xff.py".as_ptr() } else { std::ptr::null() };
        let frame = tcuda_frame { name: c"layer".as_ptr(), filename, line: index as i32 };
        // SAFETY: there is room for `capacity`.
        unsafe { frames.add(index).write(frame) };
    }
    // More than there is room for, now and then: a depth.
    if CALLS.owed.load(Ordering::Relaxed).is_multiple_of(2) { 2 } else { 0 }
}

/// An object of this program that stands for a stack. It lives for ever; its references are counted
/// in all of them together.
static CONTEXT: tcuda_frame_context =
    tcuda_frame_context { retain: Some(retain), release: Some(release) };
static REFERENCES: AtomicI64 = AtomicI64::new(0);

/// References to objects of this program that the library has.
pub(super) fn references() -> i64 {
    REFERENCES.load(Ordering::Relaxed)
}

unsafe extern "C" fn retain(context: *mut c_void) {
    assert!(std::ptr::eq(context.cast(), &CONTEXT));
    REFERENCES.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn release(context: *mut c_void) {
    assert!(std::ptr::eq(context.cast(), &CONTEXT));
    assert!(REFERENCES.fetch_sub(1, Ordering::Relaxed) > 0, "a reference too many is dropped");
}

unsafe extern "C" fn make_context(_: *mut c_void) -> *mut tcuda_frame_context {
    REFERENCES.fetch_add(1, Ordering::Relaxed);
    (&raw const CONTEXT).cast_mut()
}

/// Lists that are right, and some that are not.
const SKIPPED: [&[u8]; 5] = [b"", b"alloc", b"snapshot, segment_map,oom,", b"malloc", b"alloc;oom"];

pub(super) fn record_history(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mode = i.one_of(&[2, 2, 2, 1, 0, 3, -1, i32::MAX]);
    if !(0..=2).contains(&mode) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let (skipped, known) = text_argument(i, &SKIPPED, 3);
    let without = i.rarely(32);
    let destroys = !without && !i.rarely(64);
    let mut options = tcuda_history_options {
        struct_size: size_of::<tcuda_history_options>(),
        max_entries: i.one_of(&[0, 1, 7, 1000, usize::MAX]),
        frames_for: i.one_of(&[0, 0, 1, 2, 3, 4, -1]),
        flags: i.one_of(&[0, 1, 2, 4, 8, 15, 16, u32::MAX]),
        skip_actions: skipped.as_ref().map_or(std::ptr::null(), |text| text.as_ptr()),
        frames: if i.rarely(64) { None } else { Some(frames) },
        user_data: std::ptr::from_ref(&CALLS).cast_mut().cast::<c_void>(),
        destroy: destroys.then_some(destructor as unsafe extern "C" fn(_)),
        context: if i.rarely(4) { Some(make_context) } else { None },
    };
    if i.rarely(16) {
        options.struct_size = i.one_of(&[0, 7, (1 << 20) + 1, usize::MAX]);
        if !without {
            e.wrong(status::INVALID_ARGUMENT);
        }
    }
    let is_wrong = options.frames_for < 0 || options.frames_for > 3 || options.flags > 15;
    // NULL is a right list.
    if !without && (is_wrong || (known == Some(false) && skipped.is_some())) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if known.is_none() {
        e.also(&[status::INVALID_ARGUMENT]);
    }
    let owed = usize::from(destroys);
    CALLS.owed.fetch_add(owed, Ordering::Relaxed);
    let options = if without { std::ptr::null() } else { &raw const options };
    let status = status_of!(tcuda_memory_record_history(mode, options));
    if !w.judge(status, &e) {
        CALLS.owed.fetch_sub(owed, Ordering::Relaxed);
    }
}

pub(super) fn pickle(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.snapshot(i, &mut e);
    let mut room = vec![0u8; i.one_of(&[0, 1, 100, 4096, 1 << 20])];
    let null = i.rarely(16);
    if null && !room.is_empty() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let buf = if null { std::ptr::null_mut() } else { room.as_mut_ptr().cast::<c_void>() };
    let mut needed = Out::<usize>::optional(i);
    let len = room.len();
    let status = status_of!(tcuda_memory_snapshot_pickle(handle as *mut _, buf, len, needed.ptr()));
    if let Some(needed) = needed.check(w.judge(status, &e))
        && needed <= len
        && !null
    {
        assert!(room[..needed].starts_with(&[0x80, 4]) && room[..needed].ends_with(b"."));
        assert!(room[needed..].iter().all(|byte| *byte == 0), "written behind a pickle");
    }
}

pub(super) fn json(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.snapshot(i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status =
        status_of!(tcuda_memory_snapshot_json(handle as *mut _, buf, len, out.needed.ptr()));
    if let Some(json) = out.check(w.judge(status, &e)) {
        assert!(json.starts_with("{\"segments\":[") && json.ends_with("]}"), "{json}");
    }
}

pub(super) fn html(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.snapshot(i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status =
        status_of!(tcuda_memory_snapshot_html(handle as *mut _, buf, len, out.needed.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn save(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    // Nothing is left behind by what is called by the thousand: no path can be written.
    let paths: [&[u8]; 4] =
        [b"/nonexistent/a.pickle", b"/nonexistent/a.json", b"/dev/null/a.html", b"/nonexistent/a"];
    let (path, right) = text_argument(i, &paths, 3);
    e.wrong(if right == Some(true) { status::FILE_ERROR } else { status::INVALID_ARGUMENT });
    if right.is_none() {
        // Arbitrary bytes may name a file that can be written.
        return;
    }
    let handle = w.snapshot(i, &mut e);
    let path = path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
    let status = status_of!(tcuda_memory_snapshot_save(handle as *mut _, path));
    w.judge(status, &e);
}

pub(super) fn frames_of(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.address(i, &mut e);
    if ptr.is_null() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_memory_frames_of(ptr, buf, len, out.needed.ptr()));
    if let Some(json) = out.check(w.judge(status, &e)) {
        assert!(json.starts_with('[') && json.ends_with(']'), "{json}");
    }
}

/// Texts, all of them right.
const METADATA: [&[u8]; 4] = [b"", b"step 7", b"{\"layer\":3}", b"\xc3\xa9"];

/// Is a text wrong? NULL is, if `required`; of arbitrary bytes it depends.
fn expect_text(e: &mut Expect, text: Option<&std::ffi::CStr>, required: bool) {
    let is_wrong = text.map_or(required, |text| text.to_str().is_err());
    if is_wrong {
        e.wrong(status::INVALID_ARGUMENT);
    }
}

pub(super) fn metadata_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (text, _) = text_argument(i, &METADATA, 4);
    expect_text(&mut e, text.as_deref(), false);
    let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let status = status_of!(tcuda_memory_metadata_set(text));
    w.judge(status, &e);
}

pub(super) fn metadata_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_memory_metadata_get(buf, len, out.needed.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn annotate(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.address(i, &mut e);
    if ptr.is_null() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let (text, _) = text_argument(i, &METADATA, 4);
    expect_text(&mut e, text.as_deref(), true);
    let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let status = status_of!(tcuda_memory_annotate(ptr, text));
    w.judge(status, &e);
}

unsafe extern "C" fn listen(_: *mut c_void, event: *const tcuda_memory_event) {
    // SAFETY: the event is valid during this call.
    let event = unsafe { &*event };
    assert!((TCUDA_ACTION_ALLOC..=TCUDA_ACTION_ANNOTATE).contains(&event.action));
    // SAFETY: a text that ends in a NUL.
    let texts = [event.metadata, event.compile_context].map(|text| unsafe { CStr::from_ptr(text) });
    assert!(texts.iter().all(|text| text.count_bytes() < 1 << 20));
    let mut ptr = std::ptr::null_mut();
    let refused = status_of!(tcuda_malloc(1, 0, std::ptr::null_mut(), &mut ptr));
    assert!(refused == status::INVALID_STATE && ptr.is_null(), "a listener allocated");
}

pub(super) fn on_event(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let callback: tcuda_memory_event_fn = if i.rarely(8) { None } else { Some(listen) };
    if callback.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_observer>::optional(i);
    let data = std::ptr::from_ref(&CALLS).cast_mut().cast::<c_void>();
    let destroy = Some(destructor as unsafe extern "C" fn(*mut c_void));
    CALLS.owed.fetch_add(1, Ordering::Relaxed);
    let status = status_of!(tcuda_memory_on_event(callback, data, destroy, out.ptr()));
    let ok = w.judge(status, &e);
    if !ok {
        CALLS.owed.fetch_sub(1, Ordering::Relaxed);
    }
    if let Some(observer) = out.check(ok) {
        w.observers.push(observer as usize);
        w.counted += 1;
    }
}

/// A device of a snapshot, or pinned memory; whether it is one is not the model's.
fn device_of_snapshot(i: &mut Input, e: &mut Expect) -> i32 {
    e.also(&[status::INVALID_ARGUMENT]);
    i.one_of(&[0, 0, -2, 1, -1, i32::MAX])
}

pub(super) fn event_count(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, device) = (w.snapshot(i, &mut e), device_of_snapshot(i, &mut e));
    let mut out = Out::<usize>::required(i, &mut e);
    let snapshot = handle as *mut _;
    let status = status_of!(tcuda_memory_snapshot_event_count(snapshot, device, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn event(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, device) = (w.snapshot(i, &mut e), device_of_snapshot(i, &mut e));
    let index = i.one_of(&[0, 1, 7, 1000, usize::MAX]);
    let mut out = StructOut::new(i, &mut e, size_of::<tcuda_memory_event>());
    let snapshot = handle as *mut _;
    let status = status_of!(tcuda_memory_snapshot_event(snapshot, device, index, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn context_of(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.address(i, &mut e);
    if ptr.is_null() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_frame_context>::required(i, &mut e);
    let status = status_of!(tcuda_memory_context_of(ptr, out.ptr()));
    if let Some(context) = out.check(w.judge(status, &e))
        && !context.is_null()
    {
        // SAFETY: the reference that the call gave.
        unsafe { release(context.cast()) };
    }
}

pub(super) fn compile_context_push(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (text, _) = text_argument(i, &METADATA, 4);
    expect_text(&mut e, text.as_deref(), true);
    let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    w.judge(status_of!(tcuda_memory_compile_context_push(text)), &e);
}

pub(super) fn compile_context_pop(w: &mut World, _: &mut Input) {
    let mut e = Expect::default();
    // Earlier programs on this thread may have pushed some.
    e.also(&[status::INVALID_STATE]);
    w.judge(status_of!(tcuda_memory_compile_context_pop()), &e);
}
