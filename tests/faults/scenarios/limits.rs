//! Limits, settings, observers and scopes of statistics.

use crate::host::{CURRENT, Done, Failed, Memory, Stream, call, problem};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use tcuda::ffi::limits::*;
use tcuda::ffi::memory::*;
use tcuda::ffi::observer::*;
use tcuda::ffi::statistics::*;
use tcuda::ffi::status::tcuda_status;

const MIB: usize = 1 << 20;

/// Memory that the observer frees.
static HELD: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static DESTROYED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn frees(_: *mut c_void, device: i32, _: usize, _: usize, _: usize) -> i32 {
    let mut ptr = null_mut();
    // SAFETY: a device, the current stream, and an output of ours.
    let status = unsafe { tcuda_malloc(512, device, null_mut(), &mut ptr) };
    if status == tcuda_status::Ok {
        problem("an observer allocated".to_string());
    }
    let held = HELD.swap(null_mut(), Ordering::Relaxed);
    // SAFETY: live memory, or NULL.
    let freed = unsafe { tcuda_free(held) };
    i32::from(freed == tcuda_status::Ok && !held.is_null())
}

unsafe extern "C" fn destroyed(_: *mut c_void) {
    if DESTROYED.swap(true, Ordering::Relaxed) {
        problem("the data of an observer were destroyed twice".to_string());
    }
}

pub fn limits() -> Done {
    let text =
        c"garbage_collection_threshold:0.5,roundup_power2_divisions:[16:4],max_split_size_mb:20";
    call!(tcuda_allocator_config_set(text.as_ptr()))?;
    call!(tcuda_memory_fraction_set(0, 0.75))?;
    call!(tcuda_memory_stats_push(0))?;
    let streams = [Stream::new(0, 0)?, Stream::new(0, 0)?];
    drop(Memory::new(20 * MIB, 0, streams[0].0)?);
    drop(Memory::new(9 * MIB, 0, streams[1].0)?);
    let kept = Memory::new(21 * MIB, 0, streams[1].0)?;
    drop(Memory::new(40 * MIB, 0, CURRENT).or_else(|failed| match failed {
        Failed(tcuda_status::OutOfMemory) => Memory::new(512, 0, CURRENT),
        _ => Err(failed),
    })?);
    drop(kept);
    let mut stats =
        tcuda_memory_statistics { struct_size: size_of::<tcuda_memory_statistics>(), ..ZERO };
    call!(tcuda_memory_stats_pop(0, &mut stats))?;
    let [held, freed] = [stats.allocation.all.allocated, stats.allocation.all.freed];
    if held != freed || held < 4 {
        problem(format!("a scope saw {held} allocations and {freed} frees"));
    }
    call!(tcuda_allocator_config_set(c"throw_on_cudamalloc_oom:False".as_ptr()))?;
    call!(tcuda_memory_fraction_set(0, 1.0))
}

// SAFETY: integers alone.
const ZERO: tcuda_memory_statistics = unsafe { std::mem::zeroed() };

unsafe extern "C" fn sees(_: *mut c_void, _: i32, bytes: usize, _: usize, _: usize) {
    if bytes < 60 * MIB {
        problem(format!("{bytes} bytes were rejected"));
    }
}

/// An allocation beyond the fraction, with an observer that sees it.
fn rejection() -> Done {
    DESTROYED.store(false, Ordering::Relaxed);
    call!(tcuda_allocator_config_set(c"throw_on_cudamalloc_oom:True".as_ptr()))?;
    let mut observer = null_mut();
    let data = null_mut();
    call!(tcuda_memory_on_rejection(Some(sees), data, Some(destroyed), &mut observer))?;
    let outcome = Memory::new(60 * MIB, 0, CURRENT).map(drop);
    call!(tcuda_observer_destroy(observer))?;
    match outcome {
        Err(Failed(tcuda_status::OutOfMemory)) => Ok(()),
        outcome => outcome,
    }
}

pub fn observers() -> Done {
    call!(tcuda_memory_fraction_set(0, 0.5))?;
    let rejected = rejection();
    call!(tcuda_allocator_config_set(c"throw_on_cudamalloc_oom:False".as_ptr()))?;
    call!(tcuda_memory_fraction_set(0, 1.0))?;
    rejected?;
    DESTROYED.store(false, Ordering::Relaxed);
    let stream = Stream::new(0, 0)?;
    let mut observer = null_mut();
    let data = null_mut();
    call!(tcuda_memory_on_out_of_memory(Some(frees), data, Some(destroyed), &mut observer))?;
    let mut held = null_mut();
    // SAFETY: a live stream, and an output of ours.
    let status = unsafe { tcuda_malloc(48 * MIB, 0, stream.0, &mut held) };
    HELD.store(held, Ordering::Relaxed);
    let outcome = match status {
        tcuda_status::Ok => Memory::new(40 * MIB, 0, CURRENT).map(drop),
        _ => Ok(()),
    };
    // SAFETY: live memory, or NULL.
    let freed = unsafe { tcuda_free(HELD.swap(null_mut(), Ordering::Relaxed)) };
    call!(tcuda_observer_destroy(observer))?;
    match (outcome, freed) {
        (Err(Failed(tcuda_status::OutOfMemory)), tcuda_status::Ok) => Ok(()),
        (outcome, tcuda_status::Ok) => outcome,
        (_, freed) => Err(Failed(freed)),
    }
}
