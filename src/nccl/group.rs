//! Groups of calls: noted by thread, and handed to NCCL together when the outermost group ends. So one
//! that fails has queued nothing, and a communicator that is destroyed meanwhile is one that fails.

use super::Communicator;
use super::verbs::Operation;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::thread::{self, Inside};
use crate::runtime::Runtime;
use crate::sanitizer;
use std::cell::Cell;

/// A thread's open group.
struct Group {
    thread: u64,
    /// The life of the library in which it began.
    generation: u64,
    depth: u32,
    operations: Vec<Operation>,
    /// A call in it has failed.
    is_broken: bool,
}

static GROUPS: Mutex<Vec<Group>> = Mutex::new(Rank::LEAF, Vec::new());

thread_local! {
    /// The life of the library in which this thread has an open group; 0: none.
    static OPEN: Cell<u64> = const { Cell::new(0) };
}

const NOT_OPEN: Error = Error::InvalidState(
    "no group is open on this thread: call tcuda_communicator_group_begin first",
);

/// Is a group of this thread open?
pub(super) fn is_open(runtime: &Runtime) -> bool {
    OPEN.get() == runtime.generation
}

/// Runs `body` on this thread's group, if there is one.
fn with_own<R>(runtime: &Runtime, body: impl FnOnce(&mut Vec<Group>, usize) -> R) -> Option<R> {
    let thread = thread::number();
    let mut groups = GROUPS.lock();
    let own = |group: &Group| group.thread == thread && group.generation == runtime.generation;
    let index = groups.iter().position(own)?;
    Some(body(&mut groups, index))
}

/// Begins a group, or one more in it.
pub fn begin(runtime: &Runtime) -> Result<()> {
    let deeper = with_own(runtime, |groups, index| {
        let depth = groups[index].depth.checked_add(1);
        groups[index].depth = depth.ok_or(Error::InvalidState("too many groups are open"))?;
        Ok(())
    });
    if let Some(deeper) = deeper {
        return deeper;
    }
    let (thread, generation) = (thread::number(), runtime.generation);
    let mut groups = GROUPS.lock();
    groups.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a group"))?;
    let operations = Vec::new();
    groups.push(Group { thread, generation, depth: 1, operations, is_broken: false });
    OPEN.set(generation);
    Ok(())
}

/// Notes an operation.
pub(super) fn add(runtime: &Runtime, operation: Operation) -> Result<()> {
    let noted = with_own(runtime, |groups, index| {
        let group = groups.get_mut(index).ok_or(NOT_OPEN)?;
        group.operations.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a group"))?;
        group.operations.push(operation);
        Ok(())
    });
    noted.unwrap_or(Err(NOT_OPEN))
}

/// A call of this thread has failed: nothing of its open group is to be queued.
pub fn fail() {
    if OPEN.get() == 0 {
        return;
    }
    let thread = thread::number();
    for group in GROUPS.lock().iter_mut().filter(|group| group.thread == thread) {
        group.is_broken = true;
    }
}

/// Ends a group; the outermost queues what was noted.
pub fn end(inside: &Inside, runtime: &Runtime) -> Result<()> {
    let ended = with_own(runtime, |groups, index| {
        groups[index].depth -= 1;
        (groups[index].depth == 0).then(|| groups.swap_remove(index))
    });
    let group = match ended {
        None => return Err(NOT_OPEN),
        Some(None) => return Ok(()),
        Some(Some(group)) => group,
    };
    OPEN.set(0);
    if group.is_broken {
        return Err(Error::InvalidState(
            "a call of this group failed, as it told then: nothing of the group was queued",
        ));
    }
    match group.operations.as_slice() {
        [] => Ok(()),
        [only] => {
            only.note_stream();
            let refused = only.tell(runtime);
            run_one(inside, only).inspect_err(|_| sanitizer::reached(refused))
        }
        many => {
            many.iter().for_each(Operation::note_stream);
            let mut members = Vec::new();
            let room = members.try_reserve_exact(many.len());
            room.map_err(|_| Error::OutOfHostMemory("a group"))?;
            members.extend(many.iter().map(|operation| operation.communicator.share()));
            // In one order on all threads, so that no two wait for each other.
            members.sort_unstable_by_key(address);
            members.dedup_by_key(|member| address(member));
            many.iter().for_each(|operation| drop(operation.tell(runtime)));
            many.iter().for_each(|operation| operation.tell_end(runtime));
            let refused = sanitizer::point_of_everything();
            // SAFETY: nothing of the runtime is used any more.
            let outcome = unsafe { thread::outside(inside, || run_many(many, &members)) };
            outcome.inspect_err(|_| sanitizer::reached(refused))
        }
    }
}

/// Forgets the groups of an earlier life of the library.
pub(crate) fn forget() {
    let all = std::mem::take(&mut *GROUPS.lock());
    drop(all);
}

fn address(member: &Shared<Communicator>) -> usize {
    std::ptr::from_ref::<Communicator>(member) as usize
}

/// Hands one operation to NCCL.
pub(super) fn run_one(inside: &Inside, operation: &Operation) -> Result<()> {
    let communicator = &operation.communicator;
    let work = || {
        communicator.hold()?;
        let outcome = communicator.context.within(|entered| {
            entered?;
            let (call, result) = operation.issue();
            communicator.functions.check(call, result)?;
            communicator.settled(call, result)
        });
        communicator.let_go();
        outcome
    };
    // SAFETY: nothing of the runtime is used any more.
    unsafe { thread::outside(inside, work) }
}

/// Hands several to NCCL at once.
fn run_many(operations: &[Operation], members: &[Shared<Communicator>]) -> Result<()> {
    let mut held = 0;
    let mut outcome = Ok(());
    for member in members {
        outcome = member.hold();
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
    members.iter().take(held).for_each(|member| member.let_go());
    outcome
}

fn issue_all(operations: &[Operation], members: &[Shared<Communicator>]) -> Result<()> {
    let Some(first) = members.first() else { return Ok(()) };
    let functions = first.functions;
    // SAFETY: no preconditions; NCCL's groups are a thread's own.
    functions.check("ncclGroupStart", unsafe { (functions.group_start)() })?;
    let mut outcome = Ok(());
    for operation in operations {
        let (call, result) = operation.issue();
        outcome = functions.check(call, result);
        if outcome.is_err() {
            break;
        }
    }
    // Also after a failure: NCCL queues nothing then, and its group is closed.
    // SAFETY: as above.
    let result = unsafe { (functions.group_end)() };
    outcome?;
    functions.check("ncclGroupEnd", result)?;
    members.iter().try_for_each(|member| member.settled("ncclGroupEnd", result))
}
