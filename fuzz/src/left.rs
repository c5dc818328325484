//! What must be gone when a program is over: objects of the driver at each stage of a shutdown, and
//! host memory of the library.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tcuda::base::host_faults::{self, Stage};
use tcuda::driver::sim::{LiveObjects, live_objects};
use tcuda::driver::{Call, inject};

/// What the last shutdown left.
#[derive(Clone, Copy, Default)]
struct Left {
    /// When every device had given back what it held.
    closed: Option<LiveObjects>,
    /// When the contexts were gone.
    released: Option<LiveObjects>,
    /// What the driver was asked to destroy and, by a rule of failures, did not.
    refused: LiveObjects,
}

static LEFT: Mutex<Option<Left>> = Mutex::new(None);

fn left() -> MutexGuard<'static, Option<Left>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at every shutdown from now on.
pub fn observe() {
    host_faults::observe(|stage| {
        let mut guard = left();
        let left = guard.get_or_insert_default();
        if stage == Stage::Released {
            left.released = Some(live_objects());
            return;
        }
        let refused = |call| inject::refused(call) as usize;
        // What does not give a part of its memory back is not asked for more.
        let memory = match refused(Call::cuMemRelease)
            + refused(Call::cuMemUnmap)
            + refused(Call::cuMemAddressFree)
        {
            0 => 0,
            _ => usize::MAX,
        };
        left.closed = Some(live_objects());
        left.refused = LiveObjects {
            streams: refused(Call::cuStreamDestroy),
            events: refused(Call::cuEventDestroy),
            allocations: refused(Call::cuMemFree),
            handles: memory,
            mappings: memory,
            reservations: memory,
            modules: refused(Call::cuModuleUnload),
            host_allocations: refused(Call::cuMemFreeHost),
            ..LiveObjects::default()
        };
    });
}

/// Checks what the last shutdown left, and forgets it. `was_lost`: a device may have been lost, so
/// that the driver refused what it was asked.
pub fn check(was_lost: bool) {
    assert_eq!(live_objects(), LiveObjects::default(), "the machine is still on");
    let Some(Left { closed, released, refused }) = left().take() else { return };
    if was_lost {
        return;
    }
    if let Some(closed) = closed {
        compare("closed", LiveObjects { contexts: 0, ..closed }, refused);
    }
    // With a context go its streams, events, modules and plain memory, whatever was refused.
    let excused = LiveObjects { streams: 0, events: 0, allocations: 0, modules: 0, ..refused };
    if let Some(released) = released {
        compare("released", released, excused);
    }
}

fn compare(stage: &str, left: LiveObjects, excused: LiveObjects) {
    for (name, left, excused) in [
        ("contexts", left.contexts, 0),
        ("streams", left.streams, excused.streams),
        ("events", left.events, excused.events),
        ("allocations", left.allocations, excused.allocations),
        ("memory handles", left.handles, excused.handles),
        ("mappings", left.mappings, excused.mappings),
        ("reservations", left.reservations, excused.reservations),
        ("pools", left.pools, 0),
        ("modules", left.modules, excused.modules),
        ("host allocations", left.host_allocations, excused.host_allocations),
    ] {
        assert!(left <= excused, "{left} {name} are left in the driver once all is {stage}");
    }
}

/// Runs a program until the library holds no more host memory after it than before: what it keeps
/// for good is there after the second time.
pub fn steady(program: impl Fn()) {
    for _ in 0..3 {
        let before = host_faults::held();
        program();
        if host_faults::held() <= before {
            return;
        }
    }
    panic!("each run of this leaves host memory behind");
}
