//! The calls for operations of streams and of graphs on single values in memory.

use super::address_space::Accessor;
use super::arguments::{peek, require};
use super::entry::entry;
use super::graph::{Task, Work};
use super::machine::Machine;
use super::node_tasks::Made;
use super::queue::Action;
use super::sync::read;
use super::transfer_calls::is_mapped;
use super::value::{Batch, Described, ValueOperation};
use crate::base::code;
use cudarc::driver::sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUdeviceptr, CUstream, CUstreamBatchMemOpParams, cuuint32_t,
    cuuint64_t,
};
use std::ffi::{c_int, c_uint};

/// The most operations of a batch (580.159).
const MOST: c_uint = 255;

/// `CU_STREAM_MEM_OP_...`.
const WAIT_32: u64 = 1;
const WRITE_32: u64 = 2;
const WAIT_64: u64 = 4;
const WRITE_64: u64 = 5;

const _: () = assert!(size_of::<CUstreamBatchMemOpParams>() == size_of::<Described>());

/// Reads the operations of a batch.
fn described(
    operations: *const CUstreamBatchMemOpParams,
    count: c_uint,
    flags: c_uint,
) -> Result<Vec<Described>, i32> {
    require(count <= MOST && flags == 0, code::INVALID_VALUE)?;
    let operations: *const Described = operations.cast();
    (0..count as usize).map(|index| peek!(operations.wrapping_add(index))).collect()
}

/// Checks that a device can access the value, which is in its memory or in pinned memory.
fn check_address(machine: &Machine, device: usize, value: &ValueOperation) -> Result<(), i32> {
    let (address, bytes) = (value.address, value.bytes());
    if bytes == 0 {
        return Ok(());
    }
    let space = read(&machine.memory.space);
    // The driver refuses managed memory (580.159).
    let is_device = space.contains(address) && !space.managed.contains(address);
    drop(space);
    require(is_device || machine.memory.is_pinned(address, bytes), code::INVALID_VALUE)?;
    let accessor = Accessor { device, write: value.is_write(), staged: false };
    is_mapped(machine, accessor, address, bytes)
}

/// Queues operations: all of them, or none if one is refused.
fn queue(stream: CUstream, described: impl FnOnce() -> Result<Vec<Described>, i32>) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let records = machine.captures.records(&stream)?;
        let batch = Batch::new(stream.context, described()?)?;
        if records {
            // A capture does not check addresses.
            return machine.captures.add(&machine.graphs, &stream, Work::Values(batch));
        }
        let check = |value| check_address(machine, stream.device, value);
        batch.operations.iter().try_for_each(check)?;
        let submit = |value| machine.submit(&stream, Vec::new(), Action::Value(value));
        batch.operations.into_iter().try_for_each(|value| submit(value).map(drop))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamWaitValue32_v2(
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> c_int {
    queue(stream, || Ok(vec![[WAIT_32, address, value.into(), flags.into(), 0, 0]]))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamWriteValue32_v2(
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> c_int {
    queue(stream, || Ok(vec![[WRITE_32, address, value.into(), flags.into(), 0, 0]]))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamWaitValue64_v2(
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint64_t,
    flags: c_uint,
) -> c_int {
    queue(stream, || Ok(vec![[WAIT_64, address, value, flags.into(), 0, 0]]))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamWriteValue64_v2(
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint64_t,
    flags: c_uint,
) -> c_int {
    queue(stream, || Ok(vec![[WRITE_64, address, value, flags.into(), 0, 0]]))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: c_uint,
    operations: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
) -> c_int {
    queue(stream, || described(operations, count, flags))
}

/// The task of a node with operations on values. Their addresses are used at a launch only.
pub(super) fn task(
    machine: &Machine,
    params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> Result<Made, i32> {
    let given = peek!(params)?;
    require(!given.ctx.is_null(), code::INVALID_VALUE)?;
    let context = machine.context(given.ctx)?;
    require(context.is_active(), code::INVALID_CONTEXT)?;
    let batch = Batch::new(context.number, described(given.paramArray, given.count, given.flags)?)?;
    Ok((context.device, Work::Values(batch).into()))
}

/// The parameters of such a node, which keeps the operations.
pub(super) fn parameters(
    machine: &Machine,
    task: &Task,
) -> Result<CUDA_BATCH_MEM_OP_NODE_PARAMS, i32> {
    let Work::Values(batch) = &task.work else { return Err(code::INVALID_VALUE) };
    Ok(CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: machine.hardware.owner(batch.context).handle(),
        count: batch.described.len() as c_uint,
        paramArray: batch.described.as_ptr().cast_mut().cast(),
        flags: 0,
    })
}
