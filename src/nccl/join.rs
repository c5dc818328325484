//! Joining a group: NCCL's handles come where everything else is ready.

use super::context::Context;
use super::{ABORTED, Communicator, JOINING, LIVE, unusable};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::thread::{self, Inside};
use crate::driver::nccl::{self, Functions, UniqueId, code};
use crate::gpu::device::{Device, MAX_DEVICES};
use crate::runtime::Runtime;
use std::sync::atomic::Ordering;

/// A name for a new group.
pub fn unique_id(inside: &Inside, functions: &'static Functions) -> Result<UniqueId> {
    // SAFETY: nothing of the runtime is used.
    unsafe { thread::outside(inside, || new_id(functions)) }
}

fn new_id(functions: &Functions) -> Result<UniqueId> {
    let mut id = UniqueId([0; 128]);
    // SAFETY: `id` is writable.
    let result = unsafe { (functions.get_unique_id)(&mut id) };
    functions.check("ncclGetUniqueId", result)?;
    Ok(id)
}

/// Ranks of this process that are joining now: the name of the group, and the device.
static JOINERS: Mutex<Vec<(UniqueId, i32)>> = Mutex::new(Rank::LEAF, Vec::new());

/// Notes that a rank is joining, until it is dropped.
struct Joiner(UniqueId, i32);

impl Joiner {
    /// Now. Gives the devices of those that are.
    fn new(id: UniqueId, device: i32, others: &mut [bool; MAX_DEVICES]) -> Result<Joiner> {
        let mut joiners = JOINERS.lock();
        joiners.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a communicator"))?;
        for (_, other) in joiners.iter().filter(|(known, _)| *known == id) {
            if let Some(place) = others.get_mut(*other as usize) {
                *place = true;
            }
        }
        joiners.push((id, device));
        Ok(Joiner(id, device))
    }
}

impl Drop for Joiner {
    fn drop(&mut self) {
        let mut joiners = JOINERS.lock();
        let own = joiners.iter().position(|(id, device)| *id == self.0 && *device == self.1);
        if let Some(own) = own {
            joiners.swap_remove(own);
        }
        if joiners.is_empty() {
            *joiners = Vec::new();
        }
    }
}

/// Lets two devices use each other's memory where they can: within a process NCCL writes to the memory
/// of other ranks directly, as if it came from cudaMalloc, and ours is mapped for its own device alone.
fn connect(one: &Device, other: &Device) -> Result<()> {
    for (from, to) in [(one, other), (other, one)] {
        if !from.has_peer(to.ordinal()) && from.can_access(to)? {
            from.enable_peer(to)?;
        }
    }
    Ok(())
}

fn no_memory(_: impl Sized) -> Error {
    Error::OutOfHostMemory("a communicator")
}

/// A rank that is about to join; `insert` gives it a handle, which comes back.
fn prepare(
    functions: &'static Functions,
    device: &Device,
    (rank, ranks): (i32, i32),
) -> Result<Shared<Communicator>> {
    let place = (device.ordinal(), rank, ranks);
    let new = Communicator::new(functions, Context::of(device)?, place);
    Shared::new(new, "a communicator")
}

/// Takes NCCL's handle, and waits where NCCL works in the background.
fn publish(communicator: &Communicator, comm: nccl::Comm, call: &'static str) -> Result<()> {
    communicator.comm.store(comm, Ordering::SeqCst);
    let settled = communicator.settle(call, JOINING);
    if settled.is_ok() && communicator.change(JOINING, LIVE) {
        return Ok(());
    }
    communicator.state.store(ABORTED, Ordering::SeqCst);
    let _ = communicator.end_at_once();
    // A shutdown came first.
    settled.and(Err(unusable(ABORTED)))
}

/// A rank of a group; comes back when all have joined. `insert` makes a handle of it and `remove` takes
/// that back, so that nothing can fail once NCCL has done its part.
pub fn init_rank<H: Copy>(
    inside: &Inside,
    runtime: &Runtime,
    id: UniqueId,
    (rank, ranks): (i32, i32),
    device: i32,
    insert: impl FnOnce(Shared<Communicator>) -> Result<H>,
    remove: impl FnOnce(H),
) -> Result<H> {
    if ranks < 1 {
        let allowed = "a group has at least one rank";
        return Err(Error::OutOfRange { name: "num_ranks", value: ranks.into(), allowed });
    }
    if !(0..ranks).contains(&rank) {
        let allowed = "use 0 to num_ranks - 1, each once";
        return Err(Error::OutOfRange { name: "rank", value: rank.into(), allowed });
    }
    let device = runtime.device(device)?;
    let functions = nccl::functions(runtime.driver().is_simulated())?;
    let communicator = prepare(functions, device, (rank, ranks))?;
    let mut others = [false; MAX_DEVICES];
    let joiner = Joiner::new(id, device.ordinal(), &mut others)?;
    for (ordinal, _) in others.iter().enumerate().filter(|(_, joins)| **joins) {
        if ordinal as i32 != device.ordinal() {
            connect(device, runtime.device(ordinal as i32)?)?;
        }
    }
    let handle = insert(communicator.share())?;
    let call = "ncclCommInitRank";
    let work = || {
        let mut comm = std::ptr::null_mut();
        let result = communicator.context.within(|entered| {
            entered?;
            // SAFETY: `comm` is writable; the context was entered.
            Ok::<i32, Error>(unsafe { functions.join(&mut comm, ranks, id, rank) })
        })?;
        functions.check(call, result)?;
        publish(&communicator, comm, call)
    };
    // SAFETY: nothing of the runtime is used any more.
    let outcome = unsafe { thread::outside(inside, work) };
    drop(joiner);
    match outcome {
        Ok(()) => Ok(handle),
        Err(error) => {
            remove(handle);
            Err(error)
        }
    }
}

/// A group of devices of this process, in their order. `insert` and `remove` as for one rank.
pub fn init_all<H: Copy>(
    inside: &Inside,
    runtime: &Runtime,
    devices: &[i32],
    mut insert: impl FnMut(Shared<Communicator>) -> Result<H>,
    mut remove: impl FnMut(H),
) -> Result<Vec<H>> {
    let count = i32::try_from(devices.len()).unwrap_or(i32::MAX);
    let (mut members, mut handles, mut comms) = (Vec::new(), Vec::new(), Vec::new());
    let mut ordinals: Vec<i32> = Vec::new();
    members.try_reserve_exact(devices.len()).map_err(no_memory)?;
    handles.try_reserve_exact(devices.len()).map_err(no_memory)?;
    comms.try_reserve_exact(devices.len()).map_err(no_memory)?;
    ordinals.try_reserve_exact(devices.len()).map_err(no_memory)?;
    for device in devices {
        let device = runtime.device(*device)?;
        if ordinals.contains(&device.ordinal()) {
            return Err(Error::Invalid("devices has one twice: a device is one rank of a group"));
        }
        ordinals.push(device.ordinal());
    }
    let functions = nccl::functions(runtime.driver().is_simulated())?;
    for (rank, ordinal) in ordinals.iter().enumerate() {
        let device = runtime.device(*ordinal)?;
        for other in &ordinals[..rank] {
            connect(runtime.device(*other)?, device)?;
        }
        members.push(prepare(functions, device, (rank as i32, count))?);
        comms.push(std::ptr::null_mut());
    }
    let mut outcome = Ok(());
    for member in &members {
        match insert(member.share()) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    if outcome.is_ok() {
        // SAFETY: nothing of the runtime is used any more.
        outcome = unsafe { thread::outside(inside, || join_all(&members, &ordinals, &mut comms)) };
    }
    match outcome {
        Ok(()) => Ok(handles),
        Err(error) => {
            handles.drain(..).for_each(&mut remove);
            Err(error)
        }
    }
}

fn join_all(
    members: &[Shared<Communicator>],
    ordinals: &[i32],
    comms: &mut [nccl::Comm],
) -> Result<()> {
    let call = "ncclCommInitAll";
    let Some(first) = members.first() else { return Ok(()) };
    let functions = first.functions;
    let count = members.len() as i32;
    let result = first.context.within(|entered| {
        entered?;
        // SAFETY: both lists have `count` entries.
        let result = unsafe { (functions.init_all)(comms.as_mut_ptr(), count, ordinals.as_ptr()) };
        Ok::<i32, Error>(result)
    })?;
    functions.check(call, result)?;
    debug_assert!(matches!(result, code::SUCCESS | code::IN_PROGRESS));
    // All of them, so that each handle of NCCL's has an owner that ends it.
    let mut outcome = Ok(());
    for (member, comm) in members.iter().zip(comms) {
        outcome = outcome.and(publish(member, *comm, call));
    }
    if outcome.is_err() {
        for member in members {
            member.state.store(ABORTED, Ordering::SeqCst);
            let _ = member.end_at_once();
        }
    }
    outcome
}
