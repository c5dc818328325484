//! Copies, fills, and threads.

use crate::host::{CURRENT, Done, Failed, Memory, Stream, call, copy, expect, fill, problem};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI64, Ordering};
use tcuda::driver::sys::CUstream_st;
use tcuda::ffi::copy::*;
use tcuda::ffi::device::*;
use tcuda::ffi::file::*;
use tcuda::ffi::host::{tcuda_host_register, tcuda_host_unregister};
use tcuda::ffi::managed::*;
use tcuda::ffi::mem_pool::*;
use tcuda::ffi::memory::{tcuda_free, tcuda_malloc, tcuda_record_stream};
use tcuda::ffi::pluggable::tcuda_pluggable_allocator_destroy;
use tcuda::ffi::statistics::{tcuda_memory_largest_free, tcuda_memory_segment_sizes};
use tcuda::ffi::status::tcuda_status;
use tcuda::ffi::stream::tcuda_stream;

pub fn copies() -> Done {
    const BYTES: usize = 6000;
    let stream = Stream::new(0, 0)?;
    let [a, b] = [Memory::new(BYTES, 0, stream.0)?, Memory::new(BYTES, 0, stream.0)?];
    let host: Vec<u8> = (0..BYTES).map(|i| (i % 3) as u8 + 1).collect();
    copy(a.0, host.as_ptr().cast(), BYTES, stream.0)?;
    copy(b.0, a.0, BYTES, stream.0)?;
    expect(b.0, &[1, 2, 3], BYTES / 3, stream.0)?;
    // Ten rows of 30 bytes out of rows of 300, into rows of 60.
    fill(a.0, &[9], BYTES, stream.0)?;
    call!(tcuda_copy_2d(a.0, 60, b.0, 300, 30, 10, stream.0))?;
    expect(a.0, &[1, 2, 3], 10, stream.0)?;
    expect(a.at(30), &[9], 30, stream.0)?;
    let mut rows = [0u8; 300];
    call!(tcuda_copy_2d(rows.as_mut_ptr().cast(), 30, a.0, 60, 30, 10, stream.0))?;
    stream.synchronize()?;
    if rows.chunks(3).any(|part| part != [1, 2, 3]) {
        problem("every call gave OK, but the copied rows are others".into());
    }
    let mut device = 0;
    call!(tcuda_device_of(a.0, &mut device))?;
    call!(tcuda_device_of(rows.as_ptr().cast(), &mut device))
}

pub fn peers() -> Done {
    let mut possible = false;
    call!(tcuda_device_can_access_peer(0, 1, &mut possible))?;
    let streams = [Stream::new(0, 0)?, Stream::new(1, 0)?];
    let near = Memory::new(9000, 0, streams[0].0)?;
    let far = Memory::new(9000, 1, streams[1].0)?;
    fill(near.0, &[1, 2, 3], 3000, streams[0].0)?;
    streams[0].synchronize()?;
    copy(far.0, near.0, 9000, streams[1].0)?;
    expect(far.0, &[1, 2, 3], 3000, streams[1].0)?;
    // Work of a stream on the other device's memory.
    streams[1].synchronize()?;
    fill(far.0, &[4], 9000, streams[0].0)?;
    call!(tcuda_copy_2d(near.0, 90, far.0, 90, 90, 100, streams[0].0))?;
    expect(near.0, &[4], 9000, streams[0].0)?;
    if possible {
        call!(tcuda_device_enable_peer_access(0, 1))?;
        call!(tcuda_device_enable_peer_access(1, 0))?;
    }
    fill(far.0, &[5, 6], 4500, streams[0].0)?;
    expect(far.0, &[5, 6], 4500, streams[0].0)?;
    let more = Memory::new(3 << 20, 1, streams[1].0)?;
    streams[1].synchronize()?;
    copy(more.0, far.0, 9000, streams[0].0)?;
    expect(more.0, &[5, 6], 4500, streams[0].0)?;
    copy(near.0, far.0, 9000, CURRENT)?;
    expect(near.0, &[5, 6], 4500, CURRENT)
}

pub fn fills() -> Done {
    const VALUE: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    let stream = Stream::new(0, -1)?;
    let memory = Memory::new(16 * 200, 0, stream.0)?;
    for width in [1, 2, 4, 8, 16, 3] {
        let value = &VALUE[..width];
        fill(memory.0, value, 200, stream.0)?;
        expect(memory.0, value, 200, stream.0)?;
    }
    match call!(tcuda_fill(memory.0, VALUE.as_ptr().cast(), 17, 1, stream.0)) {
        Err(Failed(tcuda_status::Ok)) | Ok(()) => problem("a value of 17 bytes was taken".into()),
        Err(_) => (),
    }
    call!(tcuda_fill(null_mut(), VALUE.as_ptr().cast(), 1, 0, stream.0))
}

/// Each of two threads in turn has its own current stream and its own memory.
pub fn threads() -> Done {
    for round in 0..2u8 {
        let body = move || -> Done {
            let stream = Stream::new(0, 0)?;
            call!(tcuda::ffi::stream::tcuda_stream_set_current(stream.0))?;
            let memory = Memory::new(40_000, 0, CURRENT)?;
            fill(memory.0, &[round], 40_000, CURRENT)?;
            expect(memory.0, &[round], 40_000, CURRENT)
        };
        match std::thread::spawn(body).join() {
            Ok(done) => done?,
            Err(_) => problem("a thread panicked".into()),
        }
    }
    Ok(())
}

/// Three threads at once, which free what the others allocated. Which of them the k-th call belongs
/// to is another in each run.
pub fn threads_at_once() -> Done {
    let shared = Stream::new(0, 0)?;
    let (stream, left) = (&shared, std::sync::Mutex::new(Vec::<Memory>::new()));
    let left = &left;
    let body = move |byte: u8| -> Done {
        let own = Stream::new(0, 0)?;
        for _ in 0..3 {
            let memory = Memory::new(30_000, 0, own.0)?;
            fill(memory.0, &[byte], 30_000, own.0)?;
            expect(memory.0, &[byte], 30_000, own.0)?;
            call!(tcuda_record_stream(memory.0, stream.0))?;
            let before = crate::host::lock(left).pop();
            drop(before);
            crate::host::lock(left).push(memory);
        }
        own.synchronize()
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..4).map(|byte| scope.spawn(move || body(byte))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for outcome in outcomes {
        match outcome {
            Ok(done) => done?,
            Err(_) => problem("a thread panicked".into()),
        }
    }
    Ok(())
}

/// Managed memory: a block, and a pool.
pub fn managed() -> Done {
    const BYTES: usize = 1 << 20;
    let stream = Stream::new(0, 0)?;
    let mut block = Memory(null_mut());
    call!(tcuda_managed_malloc(BYTES, 0, stream.0, TCUDA_MANAGED_PREFETCH, &mut block.0))?;
    fill(block.0, &[1, 2], BYTES / 2, stream.0)?;
    call!(tcuda_memory_advise(block.0, BYTES, TCUDA_ADVISE_SET_READ_MOSTLY, 0))?;
    call!(tcuda_memory_prefetch(block.0, BYTES, -2, stream.0))?;
    expect(block.0, &[1, 2], BYTES / 2, stream.0)?;
    let mut allocator = null_mut();
    call!(tcuda_pluggable_allocator_managed(0, &mut allocator))?;
    let mut pool = null_mut();
    let made = call!(tcuda_mem_pool_create(allocator, 0, &mut pool));
    let _ = call!(tcuda_pluggable_allocator_destroy(allocator));
    made?;
    let used = call!(tcuda_mem_pool_begin(pool, 0)).and_then(|()| {
        let outcome = Memory::new(BYTES, 0, stream.0)
            .and_then(|memory| fill(memory.0, &[3], BYTES, stream.0));
        call!(tcuda_mem_pool_end(pool, 0))?;
        outcome
    });
    let _ = call!(tcuda_mem_pool_destroy(pool));
    used
}

/// A pool returns to a list of its blocks: all of it, or nothing.
pub fn checkpoint() -> Done {
    let stream = Stream::new(0, 0)?;
    let mut pool = null_mut();
    call!(tcuda_mem_pool_create(null_mut(), 0, &mut pool))?;
    let mut made = Vec::with_capacity(8);
    let done = return_to_checkpoint(pool, stream.0, &mut made);
    let emptied = call!(tcuda_mem_pool_restore(pool, 0, null(), 0));
    if emptied.is_err() {
        // A restore needs host memory, and a free does not. Some of them are not live.
        for block in made {
            let _ = call!(tcuda_free(block));
        }
    }
    let _ = call!(tcuda_mem_pool_destroy(pool));
    done.and(emptied)
}

fn return_to_checkpoint(
    pool: *mut tcuda_mem_pool,
    stream: *mut tcuda_stream,
    all: &mut Vec<*mut c_void>,
) -> Done {
    let mut allocate = |bytes| {
        call!(tcuda_mem_pool_begin(pool, 0))?;
        let mut block = null_mut();
        let made = call!(tcuda_malloc(bytes, 0, stream, &mut block));
        let ended = call!(tcuda_mem_pool_end(pool, 0));
        all.push(block);
        made.and(ended).map(|()| block)
    };
    let none = tcuda_pool_block { ptr: null_mut(), requested_bytes: 0, bytes: 0, stream_id: 0 };
    let list = || {
        let (mut list, mut count) = ([none; 8], 0);
        call!(tcuda_mem_pool_blocks(pool, 0, list.as_mut_ptr(), 8, &mut count))?;
        Ok((list, count))
    };
    let blocks = [allocate(1000)?, allocate(3 << 20)?, allocate(5000)?];
    let (checkpoint, count) = list()?;
    call!(tcuda_free(blocks[0]))?;
    call!(tcuda_free(blocks[1]))?;
    call!(tcuda_mem_pool_malloc_at(pool, blocks[0], 600))?;
    allocate(2 << 20)?;
    let (before, before_count) = list()?;
    let restored = call!(tcuda_mem_pool_restore(pool, 0, checkpoint.as_ptr(), count));
    let (after, after_count) = list()?;
    let (wanted, wanted_count) = match restored {
        Ok(()) => (checkpoint, count),
        Err(_) => (before, before_count),
    };
    let key = |block: &tcuda_pool_block| (block.ptr, block.requested_bytes);
    if after_count != wanted_count || !after.iter().map(key).eq(wanted.iter().map(key)) {
        problem("a pool is neither as it was nor as its checkpoint".into());
    }
    let mut equal = false;
    let ptrs = blocks.map(<*mut c_void>::cast_const);
    call!(tcuda_mem_pool_check_live(pool, 0, ptrs.as_ptr(), 3, &mut equal))?;
    restored
}

/// Memory of the host that is registered; the last is left to the shutdown.
pub fn registered() -> Done {
    static PAGES: [Page; 3] = [const { Page(UnsafeCell::new([0; 4096])) }; 3];
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(4096, 0, stream.0)?;
    let address = |index: usize| PAGES[index].0.get().cast::<c_void>();
    call!(tcuda_host_register(address(0), 4096, 0))?;
    let done = (|| {
        call!(tcuda_host_register(address(1), 4096, 1))?;
        let copied = call!(tcuda_copy(memory.0, address(1), 4096, stream.0));
        call!(tcuda_host_unregister(address(1)))?;
        copied
    })();
    call!(tcuda_host_unregister(address(0)))?;
    done?;
    // Whether it is registered from an earlier round depends on what failed there.
    let _ = call!(tcuda_host_register(address(2), 4096, 0));
    stream.synchronize()
}

/// A file that is written and read through pinned memory, by two chunks and by one.
pub fn files() -> Done {
    const BYTES: usize = (8 << 20) + 5;
    let path = format!("{}/tcuda_faults_{}\0", std::env::temp_dir().display(), std::process::id());
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(BYTES, 0, stream.0)?;
    let mut file = null_mut();
    let flags = TCUDA_FILE_READ
        | TCUDA_FILE_WRITE
        | TCUDA_FILE_CREATE
        | TCUDA_FILE_TRUNCATE
        | TCUDA_FILE_STAGING;
    call!(tcuda_file_open(path.as_ptr().cast(), flags, &mut file))?;
    let done = (|| {
        let mut count = 0;
        fill(memory.0, &[7], BYTES, stream.0)?;
        call!(tcuda_file_write(file, memory.0, BYTES, 3, stream.0, &mut count))?;
        fill(memory.0, &[8], BYTES, stream.0)?;
        call!(tcuda_file_read(file, memory.0, BYTES, 3, stream.0, &mut count))?;
        if count != BYTES {
            problem(format!("{count} bytes were read"));
        }
        expect(memory.0, &[7], 100, stream.0)?;
        expect(memory.at(BYTES - 100), &[7], 100, stream.0)?;
        call!(tcuda_file_read(file, memory.0, 100, BYTES as i64, null_mut(), &mut count))?;
        if count != 3 {
            problem(format!("{count} bytes were read at the end"));
        }
        Ok(())
    })();
    let closed = call!(tcuda_file_close(file));
    let _ = std::fs::remove_file(path.trim_end_matches('\0'));
    done.and(closed)
}

#[repr(align(4096))]
struct Page(UnsafeCell<[u8; 4096]>);

// SAFETY: only copies of the driver touch it.
unsafe impl Sync for Page {}

/// A pool by its numbers, to which streams are routed.
pub fn stream_routes() -> Done {
    let stream = Stream::new(0, 0)?;
    let mut pool = null_mut();
    call!(tcuda_mem_pool_from_id(0, 7, null_mut(), &mut pool))?;
    let done = (|| {
        let mut same = null_mut();
        call!(tcuda_mem_pool_from_id(0, 7, null_mut(), &mut same))?;
        let set = call!(tcuda_mem_pool_set_flags(same, TCUDA_MEM_POOL_USE_ON_OOM));
        call!(tcuda_mem_pool_destroy(same))?;
        set?;
        let filter = Some(is_any as unsafe extern "C" fn(_, _) -> _);
        FILTERS.fetch_add(1, Ordering::Relaxed);
        let begun =
            call!(tcuda_mem_pool_begin_streams(pool, 0, filter, null_mut(), Some(filter_ends)));
        if begun.is_err() {
            FILTERS.fetch_sub(1, Ordering::Relaxed);
        }
        begun?;
        let block = Memory::new(1000, 0, stream.0);
        let (mut largest, mut count) = (0, 0);
        let looked = call!(tcuda_memory_largest_free(0, &mut largest))
            .and_then(|()| call!(tcuda_memory_segment_sizes(0, null_mut(), 0, &mut count)));
        call!(tcuda_mem_pool_end_streams(pool, 0))?;
        if FILTERS.load(Ordering::Relaxed) != 0 {
            problem("a filter outlives its route".into());
        }
        looked?;
        drop(block?);
        Ok(())
    })();
    call!(tcuda_mem_pool_destroy(pool))?;
    done
}

/// Filters that the library owns.
static FILTERS: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" fn is_any(_: *mut c_void, _: *mut CUstream_st) -> i32 {
    1
}

unsafe extern "C" fn filter_ends(_: *mut c_void) {
    if FILTERS.fetch_sub(1, Ordering::Relaxed) <= 0 {
        problem("a failed route was taken".into());
    }
}
