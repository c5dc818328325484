//! Which locks a thread may hold during which driver call, checked in debug builds.
//!
//! A call that waits for the device, or that may run a host function, is made without locks that
//! other calls need. Otherwise those calls would wait for the device as well, and a host function
//! that waits for another thread could wait for ever.

use super::Call;
use crate::base::rank::Rank;

/// The locks of initialisation, shutdown and first uses, and others that are allowed besides.
macro_rules! first_uses_and {
    ($($rank:ident),*) => {
        &[
            Rank::LIFE, Rank::CALLABLE, Rank::TEMPLATES, Rank::GRAPH, Rank::POOL, Rank::IPC,
            Rank::ONCE,
            $(Rank::$rank),*
        ]
    };
}

/// The locks of initialisation, shutdown and first uses: only threads that need their result wait
/// for them.
const FIRST_USES: &[Rank] = first_uses_and!();

/// The locks that a thread may hold during a call.
fn allowed(call: Call) -> &'static [Rank] {
    use Call::*;
    match call {
        // They wait for work of the device, or run or end host functions.
        cuStreamSynchronize
        | cuLaunchHostFunc
        | cuGraphLaunch
        | cuGraphExecDestroy
        | cuMemFree
        | cuIpcCloseMemHandle
        | cuMemFreeHost
        | cuMemHostUnregister
        | cuModuleLoadData
        | cuModuleUnload
        | cuStreamDestroy
        | cuDevicePrimaryCtxRelease => FIRST_USES,
        // The holder of an arena is parked: the ledger and snapshots can continue. The host waits
        // for the whole device only if a stream is gone whose end has no event.
        cuEventSynchronize | cuCtxSynchronize => first_uses_and!(PARKED),
        // The table of reservations grows under the ledger, so that a slot has one owner.
        cuMemAddressReserve | cuMemAddressFree => first_uses_and!(LEDGER, LEAF),
        cuDevicePrimaryCtxRetain => first_uses_and!(ARENA, HOST, STREAM, CONTEXT),
        // The events of pools that are closed.
        cuEventDestroy => first_uses_and!(ARENA, LEAF),
        _ => first_uses_and!(ARENA, HOST, STREAM),
    }
}

/// Checks, before a call, that this thread only holds allowed locks.
pub(super) fn check(call: Call) {
    let held = crate::base::rank::held_besides(allowed(call)).unwrap_or("");
    assert!(held.is_empty(), "{call:?} is called with {held} held");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::lock::{Lock, Mutex};
    use crate::memory::arena::arena_lock::ArenaLock;

    #[test]
    fn memory_is_mapped_with_an_arena_held() {
        let (life, arena) = (Mutex::new(Rank::LIFE, ()), Lock::new(Rank::ARENA));
        let _life = life.lock();
        let _arena = arena.guard();
        check(Call::cuMemMap);
    }

    #[test]
    #[should_panic(expected = "cuEventQuery is called with LEAF held")]
    fn a_call_under_a_leaf_is_caught() {
        let leaf = Mutex::new(Rank::LEAF, ());
        let _leaf = leaf.lock();
        check(Call::cuEventQuery);
    }

    #[test]
    #[should_panic(expected = "cuEventSynchronize is called with ARENA held")]
    fn waiting_without_parking_is_caught() {
        let arena = ArenaLock::new();
        let mut guard = arena.guard();
        guard.parked(|| check(Call::cuEventSynchronize));
        check(Call::cuEventSynchronize);
    }

    #[test]
    #[should_panic(expected = "cuStreamSynchronize is called with PARKED held")]
    fn waiting_for_a_whole_stream_with_an_arena_is_caught() {
        let arena = ArenaLock::new();
        let mut guard = arena.guard();
        guard.parked(|| check(Call::cuStreamSynchronize));
    }
}
