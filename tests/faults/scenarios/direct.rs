//! Backends without the library's cache: a call of the driver, of its pool or of the host for each
//! block.

use crate::host::{CURRENT, Done, Failed, Memory, Stream, call, fill, problem};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use tcuda::driver::sys::CUstream_st;
use tcuda::ffi::library::tcuda_backend_function;
use tcuda::ffi::limits::*;
use tcuda::ffi::memory::*;
use tcuda::ffi::pluggable::*;
use tcuda::ffi::snapshot::*;
use tcuda::ffi::statistics::*;
use tcuda::ffi::status::tcuda_status;

const MIB: usize = 1 << 20;

/// Blocks of two streams that use each other's, a snapshot, more than there is, and giving back.
fn use_blocks() -> Done {
    let streams = [Stream::new(0, 0)?, Stream::new(0, 0)?];
    let first = Memory::new(3 * MIB + 1, 0, streams[0].0)?;
    let second = Memory::new(1000, 0, streams[1].0)?;
    fill(first.0, &[7], 3 * MIB + 1, streams[0].0)?;
    call!(tcuda_record_stream(first.0, streams[1].0))?;
    let mut snapshot = null_mut();
    call!(tcuda_memory_snapshot_create(0, &mut snapshot))?;
    call!(tcuda_memory_snapshot_destroy(snapshot))?;
    match Memory::new(80 * MIB, 0, CURRENT) {
        Err(Failed(tcuda_status::OutOfMemory)) => (),
        other => drop(other?),
    }
    drop(first);
    drop(second);
    call!(tcuda_memory_empty_cache())
}

pub fn uncached() -> Done {
    let cached = Memory::new(2 * MIB, 0, CURRENT)?;
    call!(tcuda_memory_caching_enable(0))?;
    let done = use_blocks();
    call!(tcuda_memory_caching_enable(1))?;
    drop(cached);
    done
}

pub fn driver_pool() -> Done {
    call!(tcuda_allocator_config_set(c"backend:cudaMallocAsync".as_ptr()))?;
    let done = use_blocks();
    let mut bytes = 0;
    let told = call!(tcuda_memory_reserved(0, &mut bytes));
    done.and(told).and(call!(tcuda_memory_reset_peak(0)))
}

/// Blocks that were allocated and not freed.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// The address of a driver function, where no fault is injected.
fn function(name: &std::ffi::CStr) -> Option<*mut c_void> {
    let mut address = null_mut();
    // SAFETY: a text, and an output of ours.
    let status = unsafe { tcuda_backend_function(name.as_ptr(), &mut address) };
    (status == tcuda_status::Ok).then_some(address)
}

unsafe extern "C" fn give(bytes: isize, _: i32, _: *mut CUstream_st) -> *mut c_void {
    let Some(allocate) = function(c"cuMemAlloc") else { return null_mut() };
    // SAFETY: the driver's function of this name.
    let allocate = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, usize) -> i32>(allocate)
    };
    let mut block = 0;
    // What the machine allocates for itself is no host memory of the library.
    let _in_driver = tcuda::base::host_faults::in_driver();
    // SAFETY: `block` is writable, a context is current.
    if unsafe { allocate(&mut block, bytes as usize) } != 0 {
        return null_mut();
    }
    GIVEN.fetch_add(1, Ordering::Relaxed);
    block as *mut c_void
}

unsafe extern "C" fn take(block: *mut c_void, _: isize, _: i32, _: *mut CUstream_st) {
    if GIVEN.load(Ordering::Relaxed) == 0 {
        problem("a pluggable allocator got back what it never gave".to_string());
        return;
    }
    let Some(free) = function(c"cuMemFree") else { return };
    // SAFETY: the driver's function of this name.
    let free =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64) -> i32>(free) };
    let _in_driver = tcuda::base::host_faults::in_driver();
    // SAFETY: what `give` gave.
    if unsafe { free(block as u64) } == 0 {
        GIVEN.fetch_sub(1, Ordering::Relaxed);
    }
}

pub fn pluggable() -> Done {
    let mut allocator = null_mut();
    call!(tcuda_pluggable_allocator_create(Some(give), Some(take), &mut allocator))?;
    let done = call!(tcuda_allocator_set_current(allocator)).and_then(|()| use_blocks());
    call!(tcuda_pluggable_allocator_destroy(allocator))?;
    done
}
