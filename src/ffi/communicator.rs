//! Section "Communicators" of the header.

use super::boundary::{Call, boundary, out};
use super::handle::Table;
use super::status::tcuda_status;
use super::stream::{optional, tcuda_stream};
use super::tensor::{tcuda_tensor, view, writable};
use crate::base::error::{Error, Result};
use crate::base::shared::Shared;
use crate::driver::nccl as driver_nccl;
use crate::driver::nccl::UniqueId;
use crate::nccl;
use crate::nccl::verbs::{ReduceOp, Request, Verb};
use crate::nccl::{Communicator, group};
use crate::runtime;
use crate::tensor::Tensor;

/// One rank of a group of processes and devices that work together by NCCL.
pub struct tcuda_communicator {
    _private: [u8; 0],
}

/// Identifies a group. Plain data: send it to the other processes, by a pipe, a file or MPI.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_unique_id {
    /// NCCL's own.
    pub bytes: [u8; 128],
}

/// How elements are combined: TCUDA_REDUCE_...
pub type tcuda_reduce_op = i32;
/// Their sum; of bool "or".
pub const TCUDA_REDUCE_SUM: i32 = 0;
/// Their product; of bool "and".
pub const TCUDA_REDUCE_PROD: i32 = 1;
/// The largest.
pub const TCUDA_REDUCE_MAX: i32 = 2;
/// The smallest.
pub const TCUDA_REDUCE_MIN: i32 = 3;

pub(super) static COMMUNICATORS: Table<Shared<Communicator>> = Table::new(11, "communicator");

fn insert(communicator: Shared<Communicator>) -> Result<usize> {
    COMMUNICATORS.insert(communicator)
}

fn remove(handle: usize) {
    // A shutdown may have come first.
    let _ = COMMUNICATORS.remove(handle, "communicator");
}

/// The communicator of a handle, as a shared reference.
fn shared(communicator: *mut tcuda_communicator, call: &Call) -> Result<Shared<Communicator>> {
    Ok(COMMUNICATORS.get(communicator as usize, "communicator", call)?.share())
}

/// Version of NCCL: of the library that the process has loaded, else of libnccl.so.2, or of the one
/// that TCUDA_NCCL_PATH names. Does not initialise the library. (torch.cuda.nccl.version)
///
/// @param[out] major, minor, patch  2, 27, 3; TCUDA_STATUS_NO_LIBRARY where there is none
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_nccl_version(
    major: *mut i32,
    minor: *mut i32,
    patch: *mut i32,
) -> tcuda_status {
    boundary(|_| {
        let (major, minor) = (out(major, "major")?, out(minor, "minor")?);
        let patch = out(patch, "patch")?;
        let version = driver_nccl::version()?;
        major.set(version.0);
        minor.set(version.1);
        patch.set(version.2);
        Ok(())
    })
}

/// Creates the id of a new group: one process calls this and sends the id to the others. That
/// process must live until all have joined. Does not initialise CUDA, but threads that NCCL starts
/// do not exist in a forked child. (torch.cuda.nccl.unique_id)
///
/// @param[out] id  for tcuda_communicator_init_rank, on each rank
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_unique_id(id: *mut tcuda_unique_id) -> tcuda_status {
    boundary(|call| {
        let id = out(id, "id")?;
        let functions = driver_nccl::functions(runtime::simulated(call.inside())?)?;
        let UniqueId(bytes) = nccl::unique_id(call.inside(), functions)?;
        id.set(tcuda_unique_id { bytes });
        Ok(())
    })
}

/// Joins a group; returns when all of its ranks have joined. Other calls of the process continue
/// meanwhile. tcuda_shutdown does not wait for it: then this call fails with
/// TCUDA_STATUS_INVALID_STATE once NCCL returns. Two ranks cannot have the same device. Between
/// devices of ranks of one process, peer access is enabled where the machine has it.
/// (torch.cuda.nccl.init_rank)
///
/// @param id                 from tcuda_communicator_unique_id, of any process
/// @param num_ranks          how many join, in all processes
/// @param rank               0 to num_ranks - 1, each once
/// @param device             ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] communicator  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_init_rank(
    id: *const tcuda_unique_id,
    num_ranks: i32,
    rank: i32,
    device: i32,
    communicator: *mut *mut tcuda_communicator,
) -> tcuda_status {
    boundary(|call| {
        let communicator = out(communicator, "communicator")?;
        if id.is_null() {
            return Err(Error::Null { name: "id" });
        }
        // SAFETY: not NULL, and readable by the caller's promise.
        let id = UniqueId(unsafe { id.read_unaligned() }.bytes);
        let (inside, gpus) = (call.inside(), call.gpus()?);
        let place = (rank, num_ranks);
        let handle = nccl::init_rank(inside, gpus, id, place, device, insert, remove)?;
        communicator.set(handle as *mut tcuda_communicator);
        Ok(())
    })
}

/// Creates a group of devices of this process: rank i is devices[i]. Its collectives are queued by
/// one thread between tcuda_communicator_group_begin and _end, or by one thread for each device.
/// (+)
///
/// @param devices             `count` ordinals, each once
/// @param count               number of ranks, 1 or more
/// @param[out] communicators  room for `count`, each the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_init_all(
    devices: *const i32,
    count: usize,
    communicators: *mut *mut tcuda_communicator,
) -> tcuda_status {
    boundary(|call| {
        out(communicators, "communicators")?;
        if devices.is_null() {
            return Err(Error::Null { name: "devices" });
        }
        let gpus = call.gpus()?;
        // A device occurs at most once, so that no list can be longer.
        if !(1..=gpus.devices.len()).contains(&count) {
            return Err(Error::OutOfRange {
                name: "count",
                value: i64::try_from(count).unwrap_or(i64::MAX),
                allowed: "use 1 to the number of devices, each device once",
            });
        }
        let mut list = [0; crate::gpu::device::MAX_DEVICES];
        let list = list.get_mut(..count).unwrap_or_default();
        let bytes = size_of_val(list);
        let (from, to) = (devices.cast::<u8>(), list.as_mut_ptr().cast::<u8>());
        // SAFETY: the caller promises `count` of them; of any alignment.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        let handles = nccl::init_all(call.inside(), gpus, list, insert, remove)?;
        for (index, handle) in handles.into_iter().enumerate() {
            // SAFETY: the caller promises room for `count`.
            let place = unsafe { communicators.add(index) };
            out(place, "communicators")?.set(handle as *mut tcuda_communicator);
        }
        Ok(())
    })
}

/// Waits for this rank's queued work, then leaves the group. If that work failed, the rank is
/// aborted instead, and the status is still TCUDA_STATUS_OK. Meanwhile other calls with the
/// communicator fail with TCUDA_STATUS_INVALID_STATE, except tcuda_communicator_abort, which ends
/// the wait. Destroy graphs that captured its work before. (+)
///
/// @param communicator  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_communicator_destroy(
    communicator: *mut tcuda_communicator,
) -> tcuda_status {
    boundary(|call| {
        if communicator.is_null() {
            return Ok(());
        }
        let found = shared(communicator, call)?;
        match found.destroy(call.inside(), call.gpus()?) {
            // Another destroy is under way, which removes the handle.
            Err(error @ Error::InvalidState(_)) => Err(error),
            outcome => {
                remove(communicator as usize);
                outcome
            }
        }
    })
}

/// Aborts work that hangs, for example because another rank has ended; any thread may call it.
/// Queued work ends with unknown results, and calls that wait for other ranks return an error.
/// Afterwards only tcuda_communicator_destroy accepts the communicator. The other ranks have to
/// abort as well. A call that hangs returns once NCCL notices the abort, which may take a while;
/// with NCCL_COMM_BLOCKING=0 in the environment it returns at once, and each call costs more. No-op
/// on an aborted communicator. (+)
///
/// @param communicator  from tcuda_communicator_init_rank or _init_all
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_abort(
    communicator: *mut tcuda_communicator,
) -> tcuda_status {
    boundary(|call| shared(communicator, call)?.abort(call.inside()))
}

/// OK while the communicator has not failed, also while work is under way. Else the failure:
/// TCUDA_STATUS_NCCL_ERROR, TCUDA_STATUS_PEER_GONE where another process has ended or cannot be
/// reached, or TCUDA_STATUS_INVALID_STATE after an abort. Queued work may then never end: abort.
/// (+)
///
/// @param communicator  from tcuda_communicator_init_rank or _init_all
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_query(
    communicator: *mut tcuda_communicator,
) -> tcuda_status {
    boundary(|call| COMMUNICATORS.get(communicator as usize, "communicator", call)?.query())
}

/// From now on this thread's collectives are collected, until tcuda_communicator_group_end queues
/// all of them at once. So one thread can use several communicators, and send and receive both
/// ways. Groups nest: only the outermost end queues. (+)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_group_begin() -> tcuda_status {
    boundary(|call| group::begin(call.gpus()?))
}

/// Ends a group. The group is closed whatever the status; if a call in it failed, nothing of it was
/// queued, and the status is TCUDA_STATUS_INVALID_STATE, as without a group. (+)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_group_end() -> tcuda_status {
    boundary(|call| group::end(call.inside(), call.gpus()?))
}

/// Queues a collective. The tensors are read here; what NULL means depends on the collective.
fn run(
    communicator: *mut tcuda_communicator,
    call: &Call,
    verb: Verb,
    (input, output): (*const tcuda_tensor, *const tcuda_tensor),
    stream: *mut tcuda_stream,
) -> Result<()> {
    let queue = || {
        let found = shared(communicator, call)?;
        let (input, output) = tensors(input, output)?;
        let stream = optional(stream, call)?;
        let request = Request { verb, input: input.as_ref(), output: output.as_ref(), stream };
        Communicator::run(&found, call.inside(), call.gpus()?, &request)
    };
    queue().inspect_err(|_| group::fail())
}

type Tensors = (Option<Tensor>, Option<Tensor>);

fn tensors(input: *const tcuda_tensor, output: *const tcuda_tensor) -> Result<Tensors> {
    let input = if input.is_null() { None } else { Some(view(input, "input")?) };
    let output = if output.is_null() { None } else { Some(writable(output, "output")?) };
    Ok((input, output))
}

/// Reduces over all ranks, element by element; the result is on every rank. All ranks queue the
/// same collectives of a group in the same order, with equal numbers of elements. They are queued
/// on a stream, and graphs capture them like other work. All tensors are contiguous, and on the
/// communicator's device. Reductions are of float16, 32 and 64, bfloat16, int8, 32 and 64, uint8,
/// 32 and 64, bool, and sums of complex numbers; the order in which NCCL adds depends on size and
/// machine. (torch.cuda.nccl.all_reduce)
///
/// @param communicator  from tcuda_communicator_init_rank or _init_all
/// @param input         read: contiguous, on the communicator's device
/// @param output        of the type and number of elements of input; may be input, in place
/// @param op            TCUDA_REDUCE_...
/// @param stream        of the communicator's device; NULL is the current one of that device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_all_reduce(
    communicator: *mut tcuda_communicator,
    input: *const tcuda_tensor,
    output: *const tcuda_tensor,
    op: tcuda_reduce_op,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let verb = Verb::AllReduce(checked(op)?);
        run(communicator, call, verb, (input, output), stream)
    })
}

/// Copies the root's elements, of any type, to all ranks. (torch.cuda.nccl.broadcast)
///
/// @param communicator  from tcuda_communicator_init_rank or _init_all
/// @param input         read on root; elsewhere it is ignored and may be NULL
/// @param output        written on every rank; on root it may be input
/// @param root          0 to num_ranks - 1
/// @param stream        NULL is the current one of the communicator's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_broadcast(
    communicator: *mut tcuda_communicator,
    input: *const tcuda_tensor,
    output: *const tcuda_tensor,
    root: i32,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| run(communicator, call, Verb::Broadcast(root), (input, output), stream))
}

/// tcuda_communicator_all_reduce with the result on one rank. (torch.cuda.nccl.reduce)
///
/// @param communicator  from tcuda_communicator_init_rank or _init_all
/// @param input         read: contiguous, of as many elements on each rank
/// @param output        written on root; elsewhere it is ignored and may be NULL
/// @param op            TCUDA_REDUCE_...
/// @param root          0 to num_ranks - 1
/// @param stream        NULL is the current one of the communicator's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_reduce(
    communicator: *mut tcuda_communicator,
    input: *const tcuda_tensor,
    output: *const tcuda_tensor,
    op: tcuda_reduce_op,
    root: i32,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let verb = Verb::Reduce(checked(op)?, root);
        run(communicator, call, verb, (input, output), stream)
    })
}

/// Concatenates the elements of all ranks, of any type, in the order of ranks, on each of them.
/// (torch.cuda.nccl.all_gather)
///
/// @param communicator  from tcuda_communicator_init_rank or _init_all
/// @param input         read: contiguous, of as many elements on each rank
/// @param output        num_ranks times the elements of input; input may be the rank's own part of
///                      it
/// @param stream        NULL is the current one of the communicator's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_all_gather(
    communicator: *mut tcuda_communicator,
    input: *const tcuda_tensor,
    output: *const tcuda_tensor,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| run(communicator, call, Verb::AllGather, (input, output), stream))
}

/// Reduces over all ranks, and gives each rank its part of the result, in the order of ranks.
/// (torch.cuda.nccl.reduce_scatter)
///
/// @param communicator  from tcuda_communicator_init_rank or _init_all
/// @param input         num_ranks times the elements of output
/// @param output        may be the rank's own part of input
/// @param op            TCUDA_REDUCE_...
/// @param stream        NULL is the current one of the communicator's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_reduce_scatter(
    communicator: *mut tcuda_communicator,
    input: *const tcuda_tensor,
    output: *const tcuda_tensor,
    op: tcuda_reduce_op,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let verb = Verb::ReduceScatter(checked(op)?);
        run(communicator, call, verb, (input, output), stream)
    })
}

/// Sends elements of any type to a rank, which receives as many. Messages between two ranks arrive
/// in order. Messages that go both ways, or round a ring, must be one group on each rank, or they
/// wait for ever. (+)
///
/// @param communicator  from tcuda_communicator_init_rank or _init_all
/// @param input         read: contiguous
/// @param peer          0 to num_ranks - 1
/// @param stream        NULL is the current one of the communicator's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_send(
    communicator: *mut tcuda_communicator,
    input: *const tcuda_tensor,
    peer: i32,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| run(communicator, call, Verb::Send(peer), (input, std::ptr::null()), stream))
}

/// Receives what a rank sends. (+)
///
/// @param communicator  from tcuda_communicator_init_rank or _init_all
/// @param output        written: contiguous, of as many elements as are sent
/// @param peer          0 to num_ranks - 1
/// @param stream        NULL is the current one of the communicator's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_communicator_recv(
    communicator: *mut tcuda_communicator,
    output: *const tcuda_tensor,
    peer: i32,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| run(communicator, call, Verb::Recv(peer), (std::ptr::null(), output), stream))
}

/// Checks an operation; an invalid one fails the group, as any failed call does.
fn checked(op: tcuda_reduce_op) -> Result<ReduceOp> {
    ReduceOp::of(op).inspect_err(|_| group::fail())
}
