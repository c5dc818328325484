//! The allocator: reuse, growth, its end, and what it says of itself.

use crate::host::{CURRENT, Done, Failed, Memory, Stream, call, destroy, expect, fill, problem};
use std::ffi::{CString, c_char};
use std::ptr::null_mut;
use tcuda::ffi::limits::*;
use tcuda::ffi::memory::*;
use tcuda::ffi::statistics::*;
use tcuda::ffi::status::tcuda_status;
use tcuda::ffi::stream::*;

const MIB: usize = 1 << 20;
/// Of a large block so much is written and read: all of it would make a run slow, not better.
const PART: usize = 9000;

pub fn record_stream() -> Done {
    let [a, b, c] = [Stream::new(0, 0)?, Stream::new(0, 0)?, Stream::new(0, -1)?];
    for round in 1..3u8 {
        let blocks = [Memory::new(4000, 0, a.0)?, Memory::new(2 * MIB, 0, a.0)?];
        for block in &blocks {
            fill(block.0, &[round], 4000, a.0)?;
            call!(tcuda_stream_wait_stream(b.0, a.0))?;
            call!(tcuda_record_stream(block.0, b.0))?;
            call!(tcuda_record_stream(block.0, c.0))?;
            fill(block.0, &[round, 7], 2000, b.0)?;
        }
        expect(blocks[1].0, &[round, 7], 2000, b.0)?;
        drop(blocks);
        let again = Memory::new(4000, 0, a.0)?;
        fill(again.0, &[round + 100], 4000, a.0)?;
        expect(again.0, &[round + 100], 4000, a.0)?;
    }
    call!(tcuda_memory_empty_cache())
}

pub fn growth() -> Done {
    let mut kept = Vec::new();
    for (index, mib) in [1, 3, 24, 40, 2].into_iter().enumerate() {
        let memory = Memory::new(mib * MIB, 0, CURRENT)?;
        fill(memory.at(MIB / 2), &[index as u8], PART, CURRENT)?;
        kept.push(memory);
        kept.push(Memory::new(700 * (index + 1), 0, CURRENT)?);
    }
    for index in 0..5 {
        expect(kept[2 * index].at(MIB / 2), &[index as u8], PART, CURRENT)?;
    }
    drop(kept.remove(4));
    let part = Memory::new(10 * MIB, 0, CURRENT)?;
    fill(part.at(9 * MIB), &[9], PART, CURRENT)?;
    expect(part.at(9 * MIB), &[9], PART, CURRENT)
}

/// What is idle in two places serves one block, is used where it was, and serves again.
pub fn aliases() -> Done {
    call!(tcuda_allocator_config_set(c"lend_idle_memory:True".as_ptr()))?;
    let stream = Stream::new(0, 0)?;
    let [first, _above, second, _last] =
        [24, 2, 24, 2].map(|mib| Memory::new(mib * MIB, 0, stream.0));
    drop((first?, second?));
    for round in 1..4u8 {
        let large = Memory::new(40 * MIB, 0, stream.0)?;
        fill(large.at(39 * MIB), &[round], PART, stream.0)?;
        expect(large.at(39 * MIB), &[round], PART, stream.0)?;
        if round == 2 {
            call!(tcuda_record_stream(large.0, CURRENT))?;
        }
        drop(large);
        let home = Memory::new(24 * MIB, 0, stream.0)?;
        fill(home.at(23 * MIB), &[round + 10], PART, stream.0)?;
        expect(home.at(23 * MIB), &[round + 10], PART, stream.0)?;
    }
    let others = [Memory::new(30 * MIB, 0, stream.0)?, Memory::new(16 * MIB, 0, stream.0)?];
    fill(others[0].at(29 * MIB), &[7], PART, stream.0)?;
    call!(tcuda_memory_empty_cache())?;
    expect(others[0].at(29 * MIB), &[7], PART, stream.0)
}

/// What one stream left serves others in place, in part and in pieces that belong to several.
pub fn sharing() -> Done {
    call!(tcuda_allocator_config_set(c"sharing_threshold:0".as_ptr()))?;
    let streams = [Stream::new(0, 0)?, Stream::new(0, 0)?, Stream::new(0, 0)?];
    drop(Memory::new(24 * MIB, 0, streams[0].0)?);
    for round in 0..4u8 {
        let mut parts = Vec::new();
        for (index, stream) in streams.iter().enumerate() {
            let byte = [10 * round + index as u8];
            parts.push(Memory::new(8 * MIB, 0, stream.0)?);
            fill(parts[index].at(7 * MIB), &byte, PART, stream.0)?;
            let small = Memory::new(3000, 0, stream.0)?;
            fill(small.0, &byte, 3000, stream.0)?;
            expect(small.0, &byte, 3000, stream.0)?;
            if round == 2 {
                call!(tcuda_record_stream(parts[index].0, streams[0].0))?;
            }
        }
        for (index, stream) in streams.iter().enumerate() {
            let byte = [10 * round + index as u8];
            expect(parts[index].at(7 * MIB), &byte, PART, stream.0)?;
        }
        drop(parts);
        let next = &streams[(round as usize + 1) % 3];
        let whole = Memory::new(26 * MIB, 0, next.0)?;
        fill(whole.at(25 * MIB), &[round + 100], PART, next.0)?;
        expect(whole.at(25 * MIB), &[round + 100], PART, next.0)?;
    }
    call!(tcuda_memory_empty_cache())
}

pub fn out_of_memory() -> Done {
    let stream = Stream::new(0, 0)?;
    let mut blocks = Vec::new();
    loop {
        match Memory::new(9 * MIB, 0, stream.0) {
            Ok(memory) => blocks.push(memory),
            Err(Failed(tcuda_status::OutOfMemory)) => break,
            Err(failed) => return Err(failed),
        }
        if blocks.len() > 20 {
            problem("more memory than the device has".into());
            break;
        }
    }
    drop(blocks.pop());
    drop(blocks.pop());
    // What is free lies in another stream's cache.
    let memory = Memory::new(12 * MIB, 0, CURRENT)?;
    fill(memory.at(11 * MIB), &[3], PART, CURRENT)?;
    expect(memory.at(11 * MIB), &[3], PART, CURRENT)
}

/// Cached memory goes from stream to stream as the device fills up.
pub fn reclaim() -> Done {
    let streams = [Stream::new(0, 0)?, Stream::new(0, 0)?, Stream::new(0, 0)?];
    for (index, stream) in streams.iter().enumerate() {
        let [large, small] = [Memory::new(30 * MIB, 0, stream.0)?, Memory::new(900, 0, stream.0)?];
        let byte = [index as u8 + 1];
        fill(large.at(29 * MIB), &byte, PART, stream.0)?;
        call!(tcuda_stream_wait_stream(streams[0].0, stream.0))?;
        call!(tcuda_record_stream(large.0, streams[0].0))?;
        fill(small.0, &byte, 900, stream.0)?;
        expect(large.at(29 * MIB), &byte, PART, stream.0)?;
        expect(small.0, &byte, 900, stream.0)?;
    }
    let most = Memory::new(50 * MIB, 0, CURRENT)?;
    fill(most.at(49 * MIB), &[7], PART, CURRENT)?;
    expect(most.at(49 * MIB), &[7], PART, CURRENT)
}

pub fn empty_cache() -> Done {
    for device in 0..2 {
        let stream = Stream::new(device, 0)?;
        let kept = Memory::new(1000, device, stream.0)?;
        fill(kept.0, &[5], 1000, stream.0)?;
        drop(Memory::new(20 * MIB, device, stream.0)?);
        drop(Memory::new(5 * MIB, device, stream.0)?);
        call!(tcuda_memory_empty_cache())?;
        let again = Memory::new(20 * MIB, device, stream.0)?;
        fill(again.at(19 * MIB), &[6], PART, stream.0)?;
        expect(again.at(19 * MIB), &[6], PART, stream.0)?;
        expect(kept.0, &[5], 1000, stream.0)?;
    }
    call!(tcuda_memory_empty_cache())
}

/// A block as an object.
struct Allocation(*mut tcuda_allocation);

impl Drop for Allocation {
    fn drop(&mut self) {
        destroy(self.0);
    }
}

pub fn allocations() -> Done {
    let (stream, other) = (Stream::new(0, 0)?, Stream::new(0, 0)?);
    let mut all = Vec::new();
    for bytes in [0, 1, 5000, 3 * MIB] {
        let mut made = null_mut();
        call!(tcuda_allocation_create(bytes, 0, stream.0, &mut made))?;
        let allocation = Allocation(made);
        let (mut memory, mut size, mut device, mut own) = (null_mut(), 0, -1, null_mut());
        call!(tcuda_allocation_pointer(allocation.0, &mut memory))?;
        call!(tcuda_allocation_bytes(allocation.0, &mut size))?;
        call!(tcuda_allocation_device(allocation.0, &mut device))?;
        call!(tcuda_allocation_stream(allocation.0, &mut own))?;
        if (size, device) != (bytes, 0) {
            problem(format!("{bytes} bytes became {size} on device {device}"));
        }
        if bytes > 0 {
            fill(memory, &[8], bytes, own)?;
            expect(memory, &[8], bytes, stream.0)?;
            // So that there is something about destroying it that can fail.
            call!(tcuda_record_stream(memory, other.0))?;
        }
        all.push(allocation);
    }
    Ok(())
}

pub fn statistics() -> Done {
    let memory = Memory::new(3 * MIB, 0, CURRENT)?;
    let small = Memory::new(600, 0, CURRENT)?;
    let (mut bytes, mut value) = (0, 0);
    call!(tcuda_memory_allocated(0, &mut bytes))?;
    if bytes != 3 * MIB + 1024 {
        problem(format!("{bytes} bytes are allocated instead of 3 MiB + 1024"));
    }
    call!(tcuda_memory_max_allocated(0, &mut bytes))?;
    call!(tcuda_memory_reserved(0, &mut bytes))?;
    call!(tcuda_memory_max_reserved(0, &mut bytes))?;
    let mut text = vec![0 as c_char; 1 << 16];
    call!(tcuda_memory_stats_json(0, text.as_mut_ptr(), text.len(), null_mut()))?;
    call!(tcuda_memory_stat_keys(0, text.as_mut_ptr(), text.len(), null_mut()))?;
    call!(tcuda_memory_summary(0, 0, text.as_mut_ptr(), text.len(), null_mut()))?;
    if let Ok(key) = CString::new("allocated_bytes.all.peak") {
        call!(tcuda_memory_stat(0, key.as_ptr(), &mut value))?;
    }
    drop(memory);
    call!(tcuda_memory_reset_peak(0))?;
    call!(tcuda_memory_reset_accumulated(0))?;
    let mut stream = null_mut();
    call!(tcuda_stream_current(0, &mut stream))?;
    fill(small.0, &[1], 600, stream)?;
    expect(small.0, &[1], 600, stream)
}
