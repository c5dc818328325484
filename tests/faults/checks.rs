//! One run of a scenario with a fault, and what must hold after it.

use crate::host::{self, Failed, call, problem};
use crate::scenarios::{self, Scenario};
use std::ffi::CString;
use std::sync::Mutex;
use tcuda::base::host_faults::{self, Stage};
use tcuda::driver::sim::{LiveObjects, live_objects};
use tcuda::driver::{Call, inject};
use tcuda::ffi::library::{
    tcuda_backend_fault_count, tcuda_backend_faults, tcuda_backend_select, tcuda_shutdown,
};
use tcuda::ffi::memory::tcuda_memory_empty_cache;
use tcuda::ffi::statistics::{
    tcuda_memory_statistics, tcuda_memory_stats, tcuda_stat, tcuda_stat_by_pool,
};

/// How a run went.
pub struct Outcome {
    pub problems: Vec<String>,
    /// Calls and allocations that were made to fail.
    pub fired: u64,
}

/// What was alive when the contexts were about to go, and when the machine was.
static LEFT: Mutex<[Option<LiveObjects>; 2]> = Mutex::new([None; 2]);
/// Calls that destroy and were refused, as a lost device does.
static REFUSED: Mutex<LiveObjects> = Mutex::new(NOTHING);

const NOTHING: LiveObjects = LiveObjects {
    contexts: 0,
    streams: 0,
    events: 0,
    allocations: 0,
    pool_blocks: 0,
    handles: 0,
    mappings: 0,
    reservations: 0,
    pools: 0,
    modules: 0,
    graphs: 0,
    host_allocations: 0,
    workers: 0,
};

pub fn begin() {
    host_faults::observe(|stage| {
        let index = usize::from(stage == Stage::Released);
        host::lock(&LEFT)[index] = Some(live_objects());
        if stage == Stage::Released {
            return;
        }
        let refused = |call| inject::refused(call) as usize;
        // The memory of a device that does not take a part of it back is not asked for any further.
        let took_all = refused(Call::cuMemRelease)
            + refused(Call::cuMemUnmap)
            + refused(Call::cuMemAddressFree)
            == 0;
        let memory = if took_all { 0 } else { usize::MAX };
        *host::lock(&REFUSED) = LiveObjects {
            streams: refused(Call::cuStreamDestroy),
            events: refused(Call::cuEventDestroy),
            allocations: refused(Call::cuMemFree),
            pool_blocks: refused(Call::cuMemFree) + refused(Call::cuMemFreeAsync),
            handles: memory,
            mappings: memory,
            reservations: memory,
            modules: refused(Call::cuModuleUnload),
            graphs: refused(Call::cuGraphDestroy) + refused(Call::cuGraphExecDestroy),
            host_allocations: refused(Call::cuMemFreeHost) + refused(Call::cuMemHostUnregister),
            ..NOTHING
        };
    });
}

fn fired() -> u64 {
    let mut count = 0;
    let _ = call!(tcuda_backend_fault_count(&mut count));
    count
}

fn arm(rule: &str) {
    let Ok(rule) = CString::new(rule) else { return };
    if call!(tcuda_backend_faults(rule.as_ptr())).is_err() {
        problem(format!("a rule is refused: {}", host::last_failure()));
    }
}

fn require(result: Result<(), Failed>, what: &str) {
    if result.is_err() {
        problem(format!("{what}: {}", host::last_failure()));
    }
}

/// Runs a scenario with a fault, or with none; what the library keeps for good is there when
/// `is_warm`, and host bytes that it holds after the run are lost.
pub fn run(scenario: &Scenario, rule: &str, is_warm: bool) -> Outcome {
    let (Ok(backend), Ok(options)) = (CString::new("sim"), CString::new(scenario.options)) else {
        return Outcome { problems: vec!["bad options".into()], fired: 0 };
    };
    require(call!(tcuda_backend_select(backend.as_ptr(), options.as_ptr())), "cannot begin");
    let (before, held) = (fired(), host_faults::held());
    arm(rule);
    let outcome = (scenario.run)();
    arm("");
    let fired = fired() - before;
    match outcome {
        Err(_) if fired == 0 => problem(format!("fails without a fault: {}", host::last_failure())),
        _ => (),
    }
    let is_lost = inject::has_lost_device();
    host::free_the_rest(is_lost);
    if !is_lost {
        require(host::smoke(), "does not work again before a shutdown");
        require(call!(tcuda_memory_empty_cache()), "cannot give memory back");
        check_statistics(scenario);
    }
    shut_down(scenario.leaves, is_lost);
    scenarios::check_callbacks();
    require(host::smoke(), "does not work again after a shutdown");
    shut_down(0, false);
    let lost = host_faults::held() - held;
    if is_warm && lost > 0 {
        problem(format!("{lost} bytes of host memory are lost"));
    }
    Outcome { problems: host::take_problems(), fired }
}

fn shut_down(leaves: usize, is_lost: bool) {
    *host::lock(&LEFT) = [None; 2];
    let mut live = usize::MAX;
    require(call!(tcuda_shutdown(&mut live)), "cannot shut down");
    if live > leaves {
        problem(format!("{live} handles are alive at shutdown, expected {leaves}"));
    }
    let excused = if is_lost { *host::lock(&REFUSED) } else { NOTHING };
    let [closed, released] = *host::lock(&LEFT);
    if let Some(closed) = closed {
        check_left("closed", closed, excused);
    }
    // With a context go its streams, events, modules and plain memory, whatever was refused.
    let excused = LiveObjects { streams: 0, events: 0, allocations: 0, modules: 0, ..excused };
    if let Some(released) = released {
        check_left("released", released, excused);
    }
}

fn check_left(stage: &str, left: LiveObjects, excused: LiveObjects) {
    let contexts = if stage == "closed" { 0 } else { left.contexts };
    let pairs = [
        ("contexts", contexts, 0),
        ("streams", left.streams, excused.streams),
        ("events", left.events, excused.events),
        ("allocations", left.allocations, excused.allocations),
        ("blocks of pools", left.pool_blocks, excused.pool_blocks),
        ("memory handles", left.handles, excused.handles),
        ("mappings", left.mappings, excused.mappings),
        ("reservations", left.reservations, excused.reservations),
        ("pools", left.pools, excused.pools),
        ("modules", left.modules, excused.modules),
        ("host allocations", left.host_allocations, excused.host_allocations),
    ];
    for (name, left, excused) in pairs {
        if left > excused {
            problem(format!(
                "{left} {name} are left in the driver once all is {stage}, {excused} excused"
            ));
        }
    }
}

fn check_statistics(scenario: &Scenario) {
    for device in 0..scenario.devices() {
        // SAFETY: plain data, for which zero is a value.
        let mut stats: tcuda_memory_statistics = unsafe { std::mem::zeroed() };
        stats.struct_size = size_of::<tcuda_memory_statistics>();
        require(call!(tcuda_memory_stats(device, &mut stats)), "statistics");
        let sums = !scenario.resets;
        let pools = [
            ("allocation", stats.allocation, Some(0)),
            ("allocated_bytes", stats.allocated_bytes, Some(0)),
            ("requested_bytes", stats.requested_bytes, Some(0)),
            ("active", stats.active, Some(0)),
            ("active_bytes", stats.active_bytes, Some(0)),
            ("segment", stats.segment, None),
            ("reserved_bytes", stats.reserved_bytes, Some(0)),
            ("inactive_split", stats.inactive_split, None),
            ("inactive_split_bytes", stats.inactive_split_bytes, None),
        ];
        for (name, stat, expected) in pools {
            check_pool(device, name, &stat, sums);
            if scenario.leaves == 0 && expected.is_some_and(|expected| expected != stat.all.current)
            {
                problem(format!("{name} of device {device} is {} at rest", stat.all.current));
            }
        }
        let (active, reserved) = (stats.active_bytes.all.current, stats.reserved_bytes.all.current);
        if active > reserved {
            problem(format!("{active} active bytes in {reserved} reserved ones"));
        }
    }
}

fn check_pool(device: i32, name: &str, stat: &tcuda_stat_by_pool, sums: bool) {
    let parts = |of: fn(&tcuda_stat) -> u64| {
        let (small, large) = (of(&stat.small_pool), of(&stat.large_pool));
        if of(&stat.all) != small + large {
            problem(format!(
                "{name} of device {device}: {} is not {small} + {large}",
                of(&stat.all)
            ));
        }
    };
    parts(|stat| stat.current);
    parts(|stat| stat.allocated);
    parts(|stat| stat.freed);
    for stat in [&stat.all, &stat.small_pool, &stat.large_pool] {
        if sums && stat.allocated.wrapping_sub(stat.freed) != stat.current {
            problem(format!(
                "{name} of device {device}: {} - {} is not {}",
                stat.allocated, stat.freed, stat.current
            ));
        }
        if stat.peak < stat.current {
            problem(format!("{name} of device {device}: peak {} < {}", stat.peak, stat.current));
        }
    }
}
