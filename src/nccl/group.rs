//! Groups of calls. The calls of a thread are collected, and passed to NCCL when its outermost
//! group ends. So a group with a failed call has queued nothing.

use super::Communicator;
use super::verbs::Operation;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::thread::{self, Inside};
use crate::gpu::gpus::Gpus;
use crate::sanitizer;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The open group of a thread.
struct Group {
    thread: u64,
    /// The runtime generation in which it began.
    generation: u64,
    depth: u32,
    operations: Vec<Operation>,
    /// A call in it has failed.
    has_failed: bool,
}

static GROUPS: Mutex<Vec<Group>> = Mutex::new(Rank::LEAF, Vec::new());
/// The length of `GROUPS`: a call outside groups takes no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

const NOT_OPEN: Error = Error::InvalidState(
    "no group is open on this thread: call tcuda_communicator_group_begin first",
);

/// Does this thread have an open group?
pub(super) fn is_open(gpus: &Gpus) -> bool {
    COUNT.load(Ordering::Relaxed) != 0 && with_own(gpus, |_, _| ()).is_some()
}

/// Runs `body` on this thread's group, if there is one.
fn with_own<R>(gpus: &Gpus, body: impl FnOnce(&mut Vec<Group>, usize) -> R) -> Option<R> {
    let thread = thread::number();
    let mut groups = GROUPS.lock();
    let own = |group: &Group| group.thread == thread && group.generation == gpus.generation;
    let index = groups.iter().position(own)?;
    Some(body(&mut groups, index))
}

/// Begins a group, or nests one level deeper.
pub fn begin(gpus: &Gpus) -> Result<()> {
    let deeper = with_own(gpus, |groups, index| {
        let depth = groups[index].depth.checked_add(1);
        groups[index].depth = depth.ok_or(Error::InvalidState("too many groups are open"))?;
        Ok(())
    });
    if let Some(deeper) = deeper {
        return deeper;
    }
    let (thread, generation) = (thread::number(), gpus.generation);
    let mut groups = GROUPS.lock();
    groups.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a group"))?;
    let operations = Vec::new();
    groups.push(Group { thread, generation, depth: 1, operations, has_failed: false });
    COUNT.store(groups.len(), Ordering::Relaxed);
    Ok(())
}

/// Adds an operation to this thread's group.
pub(super) fn add(gpus: &Gpus, operation: Operation) -> Result<()> {
    let added = with_own(gpus, |groups, index| {
        let group = groups.get_mut(index).ok_or(NOT_OPEN)?;
        group.operations.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a group"))?;
        group.operations.push(operation);
        Ok(())
    });
    added.unwrap_or(Err(NOT_OPEN))
}

/// Marks this thread's group as failed: nothing of it will be queued.
pub fn fail() {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let thread = thread::number();
    for group in GROUPS.lock().iter_mut().filter(|group| group.thread == thread) {
        group.has_failed = true;
    }
}

/// Ends a group. The end of the outermost group queues its operations.
pub fn end(inside: &Inside, gpus: &Gpus) -> Result<()> {
    let ended = with_own(gpus, |groups, index| {
        groups[index].depth -= 1;
        let ended = (groups[index].depth == 0).then(|| groups.swap_remove(index));
        COUNT.store(groups.len(), Ordering::Relaxed);
        ended
    });
    let group = match ended {
        None => return Err(NOT_OPEN),
        Some(None) => return Ok(()),
        Some(Some(group)) => group,
    };
    if group.has_failed {
        return Err(Error::InvalidState(
            "a call of this group failed and returned an error: nothing of the group was queued",
        ));
    }
    match group.operations.as_slice() {
        [] => Ok(()),
        [only] => {
            only.set_last_stream();
            let point = only.report(gpus);
            run_one(inside, only).inspect_err(|_| sanitizer::reached(point))
        }
        many => {
            many.iter().for_each(Operation::set_last_stream);
            let mut members = Vec::new();
            let room = members.try_reserve_exact(many.len());
            room.map_err(|_| Error::OutOfHostMemory("a group"))?;
            members.extend(many.iter().map(|operation| operation.communicator.share()));
            // All threads acquire communicators in this order, which excludes deadlocks.
            members.sort_unstable_by_key(address);
            members.dedup_by_key(|member| address(member));
            many.iter().for_each(|operation| drop(operation.report(gpus)));
            many.iter().for_each(|operation| operation.report_group_end(gpus));
            let point = sanitizer::point_of_everything();
            // SAFETY: the GPUs are not used after this.
            let outcome = unsafe { thread::outside(inside, || run_many(many, &members)) };
            outcome.inspect_err(|_| sanitizer::reached(point))
        }
    }
}

/// Drops the groups of earlier generations.
pub(crate) fn forget() {
    let all = {
        let mut groups = GROUPS.lock();
        COUNT.store(0, Ordering::Relaxed);
        std::mem::take(&mut *groups)
    };
    drop(all);
}

fn address(member: &Shared<Communicator>) -> usize {
    std::ptr::from_ref::<Communicator>(member) as usize
}

/// Passes one operation to NCCL.
pub(super) fn run_one(inside: &Inside, operation: &Operation) -> Result<()> {
    let communicator = &operation.communicator;
    let work = || {
        communicator.acquire()?;
        let outcome = communicator.context.within(|entered| {
            entered?;
            let (call, result) = operation.issue();
            communicator.functions.check(call, result)?;
            communicator.wait_if_in_progress(call, result)
        });
        communicator.release();
        outcome
    };
    // SAFETY: the GPUs are not used after this.
    unsafe { thread::outside(inside, work) }
}

/// Passes several operations to NCCL as one group.
fn run_many(operations: &[Operation], members: &[Shared<Communicator>]) -> Result<()> {
    let mut held = 0;
    let mut outcome = Ok(());
    for member in members {
        outcome = member.acquire();
        if outcome.is_err() {
            break;
        }
        held += 1;
    }
    if outcome.is_ok()
        && let Some(first) = members.first()
    {
        outcome = first.context.within(|entered| {
            entered?;
            issue_all(operations, members)
        });
    }
    members.iter().take(held).for_each(|member| member.release());
    outcome
}

fn issue_all(operations: &[Operation], members: &[Shared<Communicator>]) -> Result<()> {
    let Some(first) = members.first() else { return Ok(()) };
    let functions = first.functions;
    // SAFETY: no preconditions; NCCL's groups are per thread.
    functions.check("ncclGroupStart", unsafe { (functions.group_start)() })?;
    let mut outcome = Ok(());
    for operation in operations {
        let (call, result) = operation.issue();
        outcome = functions.check(call, result);
        if outcome.is_err() {
            break;
        }
    }
    // Also after a failure: NCCL then queues nothing, and closes its group.
    // SAFETY: as above.
    let result = unsafe { (functions.group_end)() };
    outcome?;
    functions.check("ncclGroupEnd", result)?;
    members.iter().try_for_each(|member| member.wait_if_in_progress("ncclGroupEnd", result))
}
