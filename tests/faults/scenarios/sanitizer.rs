//! The stream sanitizer: it fails no call, and forgets all where there is no host memory for it.

use crate::host::{Done, Memory, Stream, call, problem};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI64, Ordering};
use tcuda::ffi::event::*;
use tcuda::ffi::history::tcuda_frame;
use tcuda::ffi::memory::*;
use tcuda::ffi::sanitizer::*;
use tcuda::ffi::stream::*;

/// Registrations that the library took and has not let go of.
static TAKEN: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" fn stack(_: *mut c_void, frames: *mut tcuda_frame, _: usize) -> usize {
    let frame = tcuda_frame { name: c"layer".as_ptr(), filename: null(), line: 0 };
    // SAFETY: there is room for more than one.
    unsafe { frames.write(frame) };
    1
}

unsafe extern "C" fn report(_: *mut c_void, report: *const tcuda_sanitizer_report) {
    // SAFETY: the library's for the time of the call.
    if unsafe { &*report }.bytes != 1 << 12 {
        problem("a report of other bytes".into());
    }
}

unsafe extern "C" fn let_go(_: *mut c_void) {
    if TAKEN.fetch_sub(1, Ordering::Relaxed) <= 0 {
        problem("a failed registration was taken".into());
    }
}

fn enable() -> Done {
    let options = tcuda_sanitizer_options {
        struct_size: size_of::<tcuda_sanitizer_options>(),
        max_reports: 0,
        report: Some(report),
        frames: Some(stack),
        user_data: null_mut(),
        destroy: Some(let_go),
    };
    TAKEN.fetch_add(1, Ordering::Relaxed);
    let enabled = call!(tcuda_sanitizer_enable(&options));
    if enabled.is_err() {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
    enabled
}

fn access(stream: &Stream, memory: &Memory, mode: i32) -> Done {
    call!(tcuda_sanitizer_access(stream.0, memory.0, 1 << 12, mode, c"step".as_ptr()))
}

/// One race, and what is in order.
pub fn sanitizer() -> Done {
    enable()?;
    let [stream, other] = [Stream::new(0, 0)?, Stream::new(0, 0)?];
    let memory = Memory::new(1 << 12, 0, stream.0)?;
    access(&stream, &memory, 2)?;
    access(&other, &memory, 1)?;
    let mut event = null_mut();
    call!(tcuda_event_create(0, &mut event))?;
    let recorded = call!(tcuda_event_record(event, other.0));
    let waited = recorded.and_then(|()| call!(tcuda_event_wait(event, stream.0)));
    call!(tcuda_event_destroy(event))?;
    waited?;
    call!(tcuda_record_stream(memory.0, other.0))?;
    access(&stream, &memory, 3)?;
    drop(memory);
    let memory = Memory::new(1 << 12, 0, stream.0)?;
    access(&stream, &memory, 2)?;
    call!(tcuda_stream_synchronize(stream.0))?;
    access(&other, &memory, 2)?;
    let mut count = 0;
    call!(tcuda_sanitizer_report_count(&mut count))?;
    if count > 1 {
        problem(format!("{count} reports of one race"));
    }
    for index in 0..count {
        let mut needed = 0;
        call!(tcuda_sanitizer_report_text(index, null_mut(), 0, &mut needed))?;
    }
    drop(memory);
    enable()?;
    call!(tcuda_sanitizer_disable())
}

/// Another scenario while it watches: what it finds there is none of this one's business.
pub fn watched(scenario: fn() -> Done) -> Done {
    call!(tcuda_sanitizer_enable(null()))?;
    let done = scenario();
    call!(tcuda_sanitizer_disable())?;
    done
}
