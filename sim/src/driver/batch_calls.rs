//! The calls that queue several copies, in their order, up to the first that is refused. The driver
//! does so with contiguous copies (580.159).

use super::arguments::{peek, peek_checked, put, require};
use super::context::has_own_default_stream;
use super::copy::{Copy, Place, Side};
use super::entry::entry;
use super::machine::Machine;
use super::queue::{Kind, Stream};
use super::transfer_calls::{both_within_reach, classify, flat, queue};
use crate::base::code;
use cudarc::driver::sys::{
    CUDA_MEMCPY3D_BATCH_OP, CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemcpy3DOperand,
    CUmemcpy3DOperandType, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUstream,
};
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;

/// The index of a refused copy, where the call is refused for another reason.
const NONE: usize = usize::MAX;

/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`, the only flag. It changes nothing here.
const PREFER_OVERLAP: c_uint = 1;

/// Writes the index of a copy that is refused. A host may not want it.
fn blame(index: *mut usize, refused: usize) {
    let _ = put!(index, refused);
}

/// The stream of a batch, which must be named.
fn named(machine: &Machine, stream: CUstream) -> Result<Arc<Stream>, i32> {
    require(!stream.is_null() || has_own_default_stream(), code::INVALID_VALUE)?;
    machine.stream(stream)
}

/// Refuses the legacy default stream, and threads without a context.
fn check_stream(machine: &Machine, stream: &Stream) -> Result<(), i32> {
    let is_usable = stream.kind != Kind::Legacy && machine.current().is_ok();
    require(is_usable, code::INVALID_VALUE)
}

/// Refuses captures, which are not invalidated (580.159).
fn check_capture(machine: &Machine, stream: &Stream) -> Result<(), i32> {
    require(!machine.captures.records(stream)?, code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Queues a copy whose source is read in an order relative to the call and to earlier work.
fn queue_ordered(
    machine: &Machine,
    stream: &Arc<Stream>,
    copy: Copy,
    order: CUmemcpySrcAccessOrder,
) -> Result<(), i32> {
    use CUmemcpySrcAccessOrder::*;
    both_within_reach(machine, &copy, machine.current()?.device)?;
    let (_, is_pageable) = classify(machine, &copy, false)?;
    // Pageable memory is read in the call: in the order of the stream after its earlier work.
    if is_pageable && order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM {
        machine.wait(&stream.tail())?;
    }
    queue(machine, stream, copy)?;
    if !is_pageable && order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL {
        machine.wait(&stream.tail())?;
    }
    Ok(())
}

/// Checks where the host expects memory to be.
fn check_hint(machine: &Machine, hint: &CUmemLocation) -> Result<(), i32> {
    match hint.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
            machine.device(hint.id).map(drop).map_err(|_| code::INVALID_VALUE)
        }
        _ => Ok(()),
    }
}

/// The orders of a batch, each with the index of the first copy to which it applies.
fn orders(
    machine: &Machine,
    attributes: *const CUmemcpyAttributes,
    starts: *const usize,
    count: usize,
    copies: usize,
) -> Result<Vec<(usize, CUmemcpySrcAccessOrder)>, i32> {
    require((1..=copies).contains(&count), code::INVALID_VALUE)?;
    let mut orders = Vec::new();
    for index in 0..count {
        let start = peek!(starts.wrapping_add(index))?;
        let follows = match orders.last() {
            None => start == 0,
            Some((before, _)) => *before < start && start < copies,
        };
        require(follows, code::INVALID_VALUE)?;
        let given = peek_checked!(
            attributes.wrapping_add(index),
            srcAccessOrder,
            srcLocHint.type_,
            dstLocHint.type_
        )?;
        require(given.flags & !PREFER_OVERLAP == 0, code::INVALID_VALUE)?;
        check_hint(machine, &given.srcLocHint)?;
        check_hint(machine, &given.dstLocHint)?;
        orders.push((start, given.srcAccessOrder));
    }
    Ok(orders)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyBatchAsync(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    starts: *mut usize,
    num_attributes: usize,
    refused: *mut usize,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let stream = named(machine, stream)?;
        blame(refused, NONE);
        check_stream(machine, &stream)?;
        check_capture(machine, &stream)?;
        let is_given = !dsts.is_null() && !srcs.is_null() && !sizes.is_null();
        require(count > 0 && is_given, code::INVALID_VALUE)?;
        let orders = orders(machine, attributes, starts, num_attributes, count)?;
        for index in 0..count {
            let dst = peek!(dsts.wrapping_add(index))?;
            let (src, bytes) =
                (peek!(srcs.wrapping_add(index))?, peek!(sizes.wrapping_add(index))?);
            // The first order is that of copy 0.
            let (_, order) = orders[orders.partition_point(|(start, _)| *start <= index) - 1];
            require(bytes > 0, code::INVALID_VALUE)
                .and_then(|()| queue_ordered(machine, &stream, flat(dst, src, bytes), order))
                .inspect_err(|_| blame(refused, index))?;
        }
        Ok(())
    })
}

/// A side of a copy of three dimensions.
fn side(operand: &CUmemcpy3DOperand, [width, height]: [usize; 2]) -> Result<Side, i32> {
    // There are no arrays.
    let is_pointer = operand.type_ == CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_POINTER;
    require(is_pointer, code::INVALID_VALUE)?;
    // The hint after these may have any number (580.159).
    let [address, row, layer] = peek!((&raw const operand.op).cast::<[u64; 3]>())?;
    let or = |given: u64, least: usize| if given == 0 { least } else { given as usize };
    let (row, layer) = (or(row, width), or(layer, height));
    require(row >= width && layer >= height, code::INVALID_VALUE)?;
    let plane = row.checked_mul(layer).ok_or(code::INVALID_VALUE)?;
    Ok(Side { place: Place::Host(address as usize), pitch: row, plane })
}

/// One copy of a batch, and the order in which its source is read.
fn copy_of(
    operation: *const CUDA_MEMCPY3D_BATCH_OP,
) -> Result<(Copy, CUmemcpySrcAccessOrder), i32> {
    let given = peek_checked!(operation, src.type_, dst.type_, srcAccessOrder)?;
    let (width, rows, depth) = (given.extent.width, given.extent.height, given.extent.depth);
    let is_valid = width > 0 && rows > 0 && depth > 0 && given.flags & !PREFER_OVERLAP == 0;
    require(is_valid, code::INVALID_VALUE)?;
    let source = side(&given.src, [width, rows])?;
    let target = side(&given.dst, [width, rows])?;
    Ok((Copy { source, target, width, rows, depth, is_unified: false }, given.srcAccessOrder))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy3DBatchAsync(
    count: usize,
    operations: *mut CUDA_MEMCPY3D_BATCH_OP,
    refused: *mut usize,
    flags: c_ulonglong,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let stream = named(machine, stream)?;
        check_capture(machine, &stream)?;
        blame(refused, NONE);
        check_stream(machine, &stream)?;
        require(count > 0 && flags == 0 && !operations.is_null(), code::INVALID_VALUE)?;
        for index in 0..count {
            let copy = copy_of(operations.wrapping_add(index));
            let (copy, order) = copy.inspect_err(|_| blame(refused, index))?;
            // The driver blames no copy for its addresses (580.159).
            queue_ordered(machine, &stream, copy, order)?;
        }
        Ok(())
    })
}
