//! Recording what the allocator does, and snapshots that tell it.

use crate::host::{CURRENT, Done, Memory, Stream, call, problem};
use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI64, Ordering};
use tcuda::ffi::history::*;
use tcuda::ffi::memory::*;
use tcuda::ffi::memory_event::*;
use tcuda::ffi::observer::*;
use tcuda::ffi::snapshot::*;

/// Registrations that the library took and has not let go of.
static TAKEN: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" fn stack(_: *mut c_void, frames: *mut tcuda_frame, capacity: usize) -> usize {
    for index in 0..3.min(capacity) {
        let frame =
            tcuda_frame { name: c"layer".as_ptr(), filename: null::<c_char>(), line: index as i32 };
        // SAFETY: there is room for `capacity`.
        let place = unsafe { frames.add(index) };
        // SAFETY: as above.
        unsafe { place.write(frame) };
    }
    3
}

/// An object that stands for a stack, with the number of its references.
static CONTEXT: tcuda_frame_context =
    tcuda_frame_context { retain: Some(retain), release: Some(release) };
static REFERENCES: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" fn retain(_: *mut c_void) {
    REFERENCES.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn release(_: *mut c_void) {
    if REFERENCES.fetch_sub(1, Ordering::Relaxed) <= 0 {
        problem("a reference too many to a context was dropped".into());
    }
}

unsafe extern "C" fn make_context(_: *mut c_void) -> *mut tcuda_frame_context {
    REFERENCES.fetch_add(1, Ordering::Relaxed);
    (&raw const CONTEXT).cast_mut()
}

unsafe extern "C" fn count(_: *mut c_void, event: *const tcuda_memory_event) {
    // SAFETY: valid during this call.
    if unsafe { (*event).bytes } == 0 {
        problem("an event of no bytes".into());
    }
}

/// A listener while another host function listens, too; both end with the call.
fn listen(work: impl Fn() -> Done) -> Done {
    let mut observers = [null_mut(); 2];
    let mut done = Ok(());
    for observer in &mut observers {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        done = call!(tcuda_memory_on_event(Some(count), null_mut(), Some(let_go), observer));
        if done.is_err() {
            TAKEN.fetch_sub(1, Ordering::Relaxed);
            break;
        }
    }
    done = done.and_then(|()| work());
    for observer in observers {
        call!(tcuda_observer_destroy(observer))?;
    }
    done
}

unsafe extern "C" fn let_go(_: *mut c_void) {
    if TAKEN.fetch_sub(1, Ordering::Relaxed) <= 0 {
        problem("a failed registration was taken".into());
    }
}

fn record(flags: u32, max_entries: usize) -> Done {
    let options = tcuda_history_options {
        struct_size: size_of::<tcuda_history_options>(),
        max_entries,
        frames_for: TCUDA_FRAMES_ALL,
        flags,
        skip_actions: null(),
        frames: Some(stack),
        user_data: null_mut(),
        destroy: Some(let_go),
        context: Some(make_context),
    };
    TAKEN.fetch_add(1, Ordering::Relaxed);
    let recorded = call!(tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
    if recorded.is_err() {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
    recorded
}

fn look() -> Done {
    let mut snapshot = null_mut();
    call!(tcuda_memory_snapshot_create(1, &mut snapshot))?;
    let read = read(snapshot);
    call!(tcuda_memory_snapshot_destroy(snapshot))?;
    read
}

fn read(snapshot: *mut tcuda_memory_snapshot) -> Done {
    let mut needed = 0;
    call!(tcuda_memory_snapshot_pickle(snapshot, null_mut(), 0, &mut needed))?;
    let mut pickle = vec![0u8; needed];
    call!(tcuda_memory_snapshot_pickle(snapshot, pickle.as_mut_ptr().cast(), needed, null_mut()))?;
    if !pickle.starts_with(&[0x80, 4]) || !pickle.ends_with(b".") {
        problem("half a pickle".into());
    }
    call!(tcuda_memory_snapshot_event_count(snapshot, 0, &mut needed))?;
    call!(tcuda_memory_snapshot_json(snapshot, null_mut(), 0, &mut needed))?;
    call!(tcuda_memory_snapshot_html(snapshot, null_mut(), 0, &mut needed))
}

pub fn history() -> Done {
    let done = record_and_look();
    // The thread would keep its text.
    call!(tcuda_memory_metadata_set(null()))?;
    done
}

fn record_and_look() -> Done {
    let left = [&REFERENCES, &TAKEN].map(|count| count.load(Ordering::Relaxed));
    if left != [0, 0] {
        problem(format!("{left:?} references and registrations outlived a shutdown"));
    }
    record(TCUDA_RECORD_CLEAR, 0)?;
    let [stream, other] = [Stream::new(0, 0)?, Stream::new(0, 0)?];
    call!(tcuda_memory_metadata_set(c"a step".as_ptr()))?;
    let block = Memory::new(4000, 0, stream.0)?;
    call!(tcuda_memory_annotate(block.0, c"a weight".as_ptr()))?;
    let mut context = null_mut();
    call!(tcuda_memory_context_of(block.0, &mut context))?;
    if !context.is_null() {
        // SAFETY: the reference that the call gave.
        unsafe { release(context.cast()) };
    }
    call!(tcuda_memory_compile_context_push(c"0/0".as_ptr()))?;
    let listened = listen(|| Memory::new(2 << 20, 0, stream.0).map(drop));
    call!(tcuda_memory_compile_context_pop())?;
    listened?;
    call!(tcuda_record_stream(block.0, other.0))?;
    drop(block);
    drop(Memory::new(3 << 20, 0, CURRENT)?);
    look()?;
    record(TCUDA_RECORD_NATIVE_FRAMES, 4)?;
    let kept = Memory::new(700, 0, stream.0)?;
    call!(tcuda_memory_empty_cache())?;
    look()?;
    drop(kept);
    let mut needed = 0;
    call!(tcuda_memory_metadata_get(null_mut(), 0, &mut needed))?;
    let options = tcuda_history_options {
        struct_size: size_of::<tcuda_history_options>(),
        max_entries: 0,
        frames_for: TCUDA_FRAMES_ALL,
        flags: TCUDA_RECORD_CLEAR,
        skip_actions: null(),
        frames: None,
        user_data: null_mut(),
        destroy: None,
        context: None,
    };
    call!(tcuda_memory_record_history(TCUDA_HISTORY_OFF, &options))?;
    Ok(())
}
