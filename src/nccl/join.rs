//! Creation of communicators. NCCL is called last, after every step that can fail.

use super::context::Context;
use super::{ABORTED, Communicator, JOINING, LIVE, unusable};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::thread::{self, Inside};
use crate::driver::nccl::{self, Functions, UniqueId, code};
use crate::gpu::device::{Device, MAX_DEVICES};
use crate::gpu::gpus::Gpus;
use std::sync::atomic::Ordering;

/// A unique ID for a new group of ranks.
pub fn unique_id(inside: &Inside, functions: &'static Functions) -> Result<UniqueId> {
    // SAFETY: the GPUs are not used.
    unsafe { thread::outside(inside, || new_id(functions)) }
}

fn new_id(functions: &Functions) -> Result<UniqueId> {
    let mut id = UniqueId([0; 128]);
    // SAFETY: `id` is writable.
    let result = unsafe { (functions.get_unique_id)(&mut id) };
    functions.check("ncclGetUniqueId", result)?;
    Ok(id)
}

/// Ranks of this process that are joining now: the ID of their group, and their device.
static JOINERS: Mutex<Vec<(UniqueId, i32)>> = Mutex::new(Rank::LEAF, Vec::new());

/// Lists a rank as joining, until it is dropped.
struct Joiner(UniqueId, i32);

impl Joiner {
    /// Lists a rank. Sets `others` for the devices of the group's ranks that are joining already.
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

/// Enables peer access between two devices where possible. Within a process NCCL accesses the
/// memory of other ranks directly, as if it came from `cudaMalloc`. The library's memory is mapped
/// for its own device alone.
fn enable_peer_access(one: &Device, other: &Device) -> Result<()> {
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

/// A communicator that is about to join.
fn prepare(
    functions: &'static Functions,
    device: &Device,
    (rank, ranks): (i32, i32),
) -> Result<Shared<Communicator>> {
    let place = (device.ordinal(), rank, ranks);
    let new = Communicator::new(functions, Context::of(device)?, place);
    Shared::new(new, "a communicator")
}

/// Stores NCCL's handle, and waits if NCCL initialises in the background.
fn publish(communicator: &Communicator, comm: nccl::Comm, call: &'static str) -> Result<()> {
    communicator.comm.store(comm, Ordering::SeqCst);
    let wait_if_in_progress = communicator.wait_in_progress(call, JOINING);
    if wait_if_in_progress.is_ok() && communicator.change(JOINING, LIVE) {
        return Ok(());
    }
    communicator.state.store(ABORTED, Ordering::SeqCst);
    let _ = communicator.abort_now();
    // A shutdown came first.
    wait_if_in_progress.and(Err(unusable(ABORTED)))
}

/// Joins a group as one rank; returns when all ranks have joined. `insert` makes a handle first, so
/// that nothing can fail after NCCL has joined. `remove` drops that handle if NCCL fails.
pub fn init_rank<H: Copy>(
    inside: &Inside,
    gpus: &Gpus,
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
    let device = gpus.device(device)?;
    let functions = nccl::functions(gpus.driver().simulated())?;
    let communicator = prepare(functions, device, (rank, ranks))?;
    let mut others = [false; MAX_DEVICES];
    let joiner = Joiner::new(id, device.ordinal(), &mut others)?;
    for (ordinal, _) in others.iter().enumerate().filter(|(_, joins)| **joins) {
        if ordinal as i32 != device.ordinal() {
            enable_peer_access(device, gpus.device(ordinal as i32)?)?;
        }
    }
    let handle = insert(communicator.share())?;
    let call = "ncclCommInitRank";
    let work = || {
        let mut comm = std::ptr::null_mut();
        let result = communicator.context.within(|entered| {
            entered?;
            // SAFETY: `comm` is writable; the context is current.
            Ok::<i32, Error>(unsafe { functions.join(&mut comm, ranks, id, rank) })
        })?;
        functions.check(call, result)?;
        publish(&communicator, comm, call)
    };
    // SAFETY: the GPUs are not used after this.
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

/// Makes a group of devices of this process; the order of the devices is that of the ranks. For
/// `insert` and `remove` see [`init_rank`].
pub fn init_all<H: Copy>(
    inside: &Inside,
    gpus: &Gpus,
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
        let device = gpus.device(*device)?;
        if ordinals.contains(&device.ordinal()) {
            return Err(Error::Invalid("devices has one twice: a device is one rank of a group"));
        }
        ordinals.push(device.ordinal());
    }
    let functions = nccl::functions(gpus.driver().simulated())?;
    for (rank, ordinal) in ordinals.iter().enumerate() {
        let device = gpus.device(*ordinal)?;
        for other in &ordinals[..rank] {
            enable_peer_access(gpus.device(*other)?, device)?;
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
        // SAFETY: the GPUs are not used after this.
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
    // Publishes all of them even after a failure, so that each NCCL handle has an owner.
    let mut outcome = Ok(());
    for (member, comm) in members.iter().zip(comms) {
        outcome = outcome.and(publish(member, *comm, call));
    }
    if outcome.is_err() {
        for member in members {
            member.state.store(ABORTED, Ordering::SeqCst);
            let _ = member.abort_now();
        }
    }
    outcome
}
