//! Recording what the allocator does, and snapshots that tell it.

use crate::host::{CURRENT, Done, Memory, Stream, call, problem};
use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI64, Ordering};
use tcuda::ffi::history::*;
use tcuda::ffi::memory::*;
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
    record(TCUDA_RECORD_CLEAR, 0)?;
    let [stream, other] = [Stream::new(0, 0)?, Stream::new(0, 0)?];
    call!(tcuda_memory_metadata_set(c"a step".as_ptr()))?;
    let block = Memory::new(4000, 0, stream.0)?;
    call!(tcuda_memory_annotate(block.0, c"a weight".as_ptr()))?;
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
    call!(tcuda_memory_record_history(TCUDA_HISTORY_OFF, null()))
}
