//! Private pools: where a thread is routed is the model's; a pool sleeps within one step, so that
//! no block is without memory when another step uses it.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::{CALLS, Mode, World, destructor};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use tcuda::driver::sys::CUstream_st;
use tcuda::ffi::mem_pool::*;
use tcuda::ffi::memory::tcuda_free;
use tcuda::ffi::snapshot::tcuda_memory_snapshot;

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let allocator = if i.rarely(8) { w.some_bits(i) } else { 0 };
    if allocator != 0 {
        e.wrong(status::INVALID_HANDLE);
    }
    let flags = i.one_of(&[0, 1, 0, 1, 2, 3, u32::MAX]);
    if flags > TCUDA_MEM_POOL_USE_ON_OOM | TCUDA_MEM_POOL_NO_SPLIT {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_mem_pool>::required(i, &mut e);
    let status = status_of!(tcuda_mem_pool_create(allocator as *mut _, flags, out.ptr()));
    if let Some(pool) = out.check(w.judge(status, &e)) {
        w.pools.push(pool as usize);
        w.has_whole |= flags & TCUDA_MEM_POOL_NO_SPLIT != 0;
        w.counted += 1;
    }
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.pool(i, &mut e);
    if handle == 0 {
        e = Expect::default();
    }
    let status = status_of!(tcuda_mem_pool_destroy(handle as *mut _));
    w.judge(status, &e);
    if status == status::INVALID_HANDLE {
        return;
    }
    if let Some(index) = w.pools.iter().position(|pool| *pool == handle) {
        w.dead.push(w.pools.swap_remove(index));
        w.counted -= 1;
    }
}

/// The device that is meant, where that is known.
fn meant(w: &World, device: i32) -> Option<i32> {
    if w.devices() == 1 && device == -1 { Some(0) } else { (device >= 0).then_some(device) }
}

pub(super) fn begin(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, device) = (w.pool(i, &mut e), w.device(i, &mut e));
    // Where -1 is not known, `end` could not be judged.
    let Some(known) = meant(w, device).or((device == -1).then_some(0)) else {
        w.judge(status_of!(tcuda_mem_pool_begin(handle as *mut _, device)), &e);
        return;
    };
    let status = status_of!(tcuda_mem_pool_begin(handle as *mut _, known));
    if w.judge(status, &e) {
        w.routes.push((handle, known));
    }
}

pub(super) fn end(w: &mut World, i: &mut Input) {
    let (mut e, mut of_device) = (Expect::default(), Expect::default());
    let (handle, device) = (w.pool(i, &mut e), w.device(i, &mut of_device));
    let device = meant(w, device).unwrap_or(if device == -1 { 0 } else { device });
    let last = w.routes.iter().rposition(|route| route.1 == device);
    let may_be_same = |begun: usize| {
        let of_graph = |pool: &usize| *pool == begun || *pool == handle;
        w.pools.contains(&handle) && w.pools_of_graphs.iter().any(of_graph)
    };
    let ends = last.filter(|index| w.routes[*index].0 == handle || may_be_same(w.routes[*index].0));
    // A handle of a pool that was destroyed since still ends what it began.
    if ends.is_some_and(|index| w.routes[index].0 == handle) {
        e = Expect::default();
    }
    e.join(of_device);
    match ends {
        None => e.wrong(status::INVALID_STATE),
        Some(index) if w.routes[index].0 != handle => e.also(&[status::INVALID_STATE]),
        Some(_) => (),
    }
    let status = status_of!(tcuda_mem_pool_end(handle as *mut _, device));
    if w.judge(status, &e)
        && let Some(index) = ends
    {
        w.routes.remove(index);
    }
}

pub(super) fn sleep(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.pool(i, &mut e);
    let keep = if i.rarely(8) { w.flag(i, &mut e) } else { 1 };
    if w.mode != Mode::Strict || w.lost {
        // Others may use its blocks, or a fault or the end of a device leave it asleep.
        return;
    }
    // Segments do not sleep.
    e.also(&[status::OUT_OF_HOST_MEMORY, status::OUT_OF_MEMORY, status::INVALID_STATE]);
    let status = status_of!(tcuda_mem_pool_sleep(handle as *mut _, keep));
    w.judge(status, &e);
    if keep == 0 {
        w.forget_contents();
    }
    let woken = status_of!(tcuda_mem_pool_wake(handle as *mut _));
    let mut e = Expect::default();
    if !w.pools.contains(&handle) {
        e.wrong(status::INVALID_HANDLE);
    }
    w.judge(woken, &e);
}

pub(super) fn wake(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.pool(i, &mut e);
    w.judge(status_of!(tcuda_mem_pool_wake(handle as *mut _)), &e);
}

pub(super) fn id(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.pool(i, &mut e);
    let (mut first, mut second) =
        (Out::<u64>::required(i, &mut e), Out::<u64>::required(i, &mut e));
    let status = status_of!(tcuda_mem_pool_id(handle as *mut _, first.ptr(), second.ptr()));
    let ok = w.judge(status, &e);
    if let Some((first, second)) = first.check(ok).zip(second.check(ok)) {
        // Of the host's, or of a graph.
        assert!((first == 0) != (second == 0));
    }
}

pub(super) fn use_count(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.pool(i, &mut e);
    let mut count = Out::<u32>::required(i, &mut e);
    let status = status_of!(tcuda_mem_pool_use_count(handle as *mut _, count.ptr()));
    if let Some(count) = count.check(w.judge(status, &e)) {
        assert!(count > 0);
    }
}

pub(super) fn snapshot(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, with_history) = (w.pool(i, &mut e), w.flag(i, &mut e));
    let mut out = Out::<*mut tcuda_memory_snapshot>::required(i, &mut e);
    let status = status_of!(tcuda_mem_pool_snapshot(handle as *mut _, with_history, out.ptr()));
    if let Some(snapshot) = out.check(w.judge(status, &e)) {
        w.add_snapshot(snapshot as usize);
    }
}

pub(super) fn malloc_at(w: &mut World, i: &mut Input) {
    let (mut e, mut of_address) = (Expect::default(), Expect::default());
    let handle = w.pool(i, &mut e);
    let ptr = w.address(i, &mut of_address);
    let bytes = i.one_of(&[1, 512, 4000, 1 << 20, 3 << 20, 0, usize::MAX]);
    if ptr.is_null() || bytes == 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // Most addresses are those of live blocks; others may be free.
    e.also(&[status::INVALID_POINTER, status::INVALID_STATE]);
    let status = status_of!(tcuda_mem_pool_malloc_at(handle as *mut _, ptr, bytes));
    if w.judge(status, &e) {
        assert_eq!(status_of!(tcuda_free(ptr)), status::OK);
    }
}

const NO_BLOCK: tcuda_pool_block =
    tcuda_pool_block { ptr: std::ptr::null_mut(), requested_bytes: 7, bytes: 7, stream_id: 7 };

pub(super) fn blocks(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, device) = (w.pool(i, &mut e), w.device(i, &mut e));
    let mut found = [NO_BLOCK; 4];
    let capacity = i.below(5);
    let null = i.rarely(16);
    if null && capacity > 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let list = if null { std::ptr::null_mut() } else { found.as_mut_ptr() };
    let mut count = Out::<usize>::required(i, &mut e);
    let pool = handle as *mut _;
    let status = status_of!(tcuda_mem_pool_blocks(pool, device, list, capacity, count.ptr()));
    let count = count.check(w.judge(status, &e)).unwrap_or(0);
    let written = if null { 0 } else { count.min(capacity) };
    for (index, block) in found.iter().enumerate() {
        assert_eq!(block.ptr.is_null(), index >= written);
        assert!(block.requested_bytes <= block.bytes);
    }
}

/// To the present state, so that no block of this program is freed.
pub(super) fn restore(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, device) = (w.pool(i, &mut e), w.device(i, &mut e));
    if w.mode != Mode::Strict || w.lost {
        // Others may allocate meanwhile.
        return;
    }
    let mut list = [NO_BLOCK; 64];
    let mut count = 0;
    let pool = handle as *mut _;
    let list_at = list.as_mut_ptr();
    let listed = status_of!(tcuda_mem_pool_blocks(pool, device, list_at, 64, &mut count));
    w.judge(listed, &e);
    if listed == status::OK && count > 64 {
        return;
    }
    let null = i.rarely(16);
    if null && (count > 0 || listed != status::OK) {
        e.wrong(status::INVALID_ARGUMENT);
        count = count.max(1);
    }
    e.also(&[status::INVALID_STATE]);
    let blocks = if null { std::ptr::null() } else { list.as_ptr() };
    let status = status_of!(tcuda_mem_pool_restore(pool, device, blocks, count));
    w.judge(status, &e);
}

pub(super) fn check_live(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, device) = (w.pool(i, &mut e), w.device(i, &mut e));
    let ptrs: Vec<*const std::ffi::c_void> =
        w.blocks.iter().take(i.below(4)).map(|block| block.ptr as *const _).collect();
    let null = i.rarely(16);
    if null && !ptrs.is_empty() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let list = if null { std::ptr::null() } else { ptrs.as_ptr() };
    let mut equal = Out::<u8>::required(i, &mut e);
    let (pool, at) = (handle as *mut _, equal.ptr().cast());
    let status = status_of!(tcuda_mem_pool_check_live(pool, device, list, ptrs.len(), at));
    equal.check_bool(w.judge(status, &e));
}

pub(super) fn from_id(w: &mut World, i: &mut Input) {
    // Numbers of their own, so that no two handles of the model are of one pool.
    static LAST: AtomicU64 = AtomicU64::new(1 << 20);
    let mut e = Expect::default();
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let (id0, id1) = i.one_of(&[(0, number), (number, 0), (0, 0), (number, number), (u64::MAX, 0)]);
    if id0 == id1 || id0 == u64::MAX {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let allocator = if i.rarely(8) { w.some_bits(i) } else { 0 };
    if allocator != 0 {
        e.wrong(status::INVALID_HANDLE);
    }
    let mut out = Out::<*mut tcuda_mem_pool>::required(i, &mut e);
    let status = status_of!(tcuda_mem_pool_from_id(id0, id1, allocator as *mut _, out.ptr()));
    let Some(pool) = out.check(w.judge(status, &e)) else { return };
    w.pools.push(pool as usize);
    w.counted += 1;
    let mut same = std::ptr::null_mut();
    let again = status_of!(tcuda_mem_pool_from_id(id0, id1, std::ptr::null_mut(), &mut same));
    if w.judge(again, &Expect::default()) {
        assert!(!same.is_null() && same != pool);
        assert_eq!(status_of!(tcuda_mem_pool_destroy(same)), status::OK);
        w.dead.push(same as usize);
    }
}

pub(super) fn set_flags(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.pool(i, &mut e);
    let flags = i.one_of(&[0, 1, 0, 1, 2, 3, u32::MAX]);
    if flags > TCUDA_MEM_POOL_USE_ON_OOM | TCUDA_MEM_POOL_NO_SPLIT {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // It may have what cannot be taken back.
    e.also(&[status::INVALID_STATE]);
    let status = status_of!(tcuda_mem_pool_set_flags(handle as *mut _, flags));
    if w.judge(status, &e) {
        w.has_whole |= flags & TCUDA_MEM_POOL_NO_SPLIT != 0;
    }
}

/// The default stream, or all others: an input gives the same each time.
unsafe extern "C" fn is_routed(_: *mut c_void, stream: *mut CUstream_st) -> i32 {
    i32::from(!stream.is_null())
}

pub(super) fn begin_streams(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, device) = (w.pool(i, &mut e), w.device(i, &mut e));
    let filter: tcuda_stream_filter_fn = if i.rarely(8) { None } else { Some(is_routed) };
    if filter.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // They may be routed to it already.
    e.also(&[status::INVALID_STATE]);
    let data = std::ptr::from_ref(&CALLS).cast_mut().cast::<c_void>();
    let destroy = Some(destructor as unsafe extern "C" fn(*mut c_void));
    CALLS.owed.fetch_add(1, Ordering::Relaxed);
    let pool = handle as *mut _;
    let status = status_of!(tcuda_mem_pool_begin_streams(pool, device, filter, data, destroy));
    if !w.judge(status, &e) {
        CALLS.owed.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn end_streams(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, device) = (w.pool(i, &mut e), w.device(i, &mut e));
    e.also(&[status::INVALID_STATE]);
    w.judge(status_of!(tcuda_mem_pool_end_streams(handle as *mut _, device)), &e);
}
