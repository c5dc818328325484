//! Switches of the library for a case, and objects that are left in the driver after a shutdown.

use crate::base::host_faults::{self, Stage};
use crate::driver::sim::{LiveObjects, live_objects};
use std::sync::{Mutex, PoisonError};

use super::api::Outcome;
use crate::collectives::dispatch;
use crate::collectives::path::limits::*;

/// Objects that existed just before the contexts were destroyed.
static LEFT: Mutex<Option<LiveObjects>> = Mutex::new(None);

/// Sets of limits other than those for GPUs: low thresholds, and thresholds with which kernels do
/// all but the smallest work.
const LIMITS: [[u64; 8]; 2] =
    [[256, 256, 256, 3000, 512, 1024, 3, 64], [0, 0, 0, MANY, 512, 1024, 2, MANY]];
const MANY: u64 = 1 << 40;

fn limits() -> [&'static Limit; 8] {
    [
        &SMALL_BROADCAST,
        &SMALL_SUM,
        &SMALL_COPIES,
        &LARGE_BROADCAST,
        &MIN_CHUNK,
        &MAX_CHUNK,
        &LANES,
        &WIDE_ROW,
    ]
}

/// Restores the limits when dropped.
pub struct Switches([u64; 8]);

/// Selects the fallback, or one of three sets of limits.
pub fn set(fallback_only: bool, which: usize) -> Switches {
    host_faults::observe(|stage| {
        if stage == Stage::Closed {
            *LEFT.lock().unwrap_or_else(PoisonError::into_inner) = Some(live_objects());
        }
    });
    dispatch::disable_fast_paths(fallback_only);
    let all = limits();
    let before = all.map(Limit::get);
    if let Some(values) = which.checked_sub(1).and_then(|which| LIMITS.get(which)) {
        for (limit, value) in all.iter().zip(values) {
            limit.set(*value);
        }
    }
    Switches(before)
}

impl Drop for Switches {
    fn drop(&mut self) {
        dispatch::disable_fast_paths(false);
        for (limit, value) in limits().iter().zip(self.0) {
            limit.set(value);
        }
    }
}

/// Only contexts may outlive a shutdown.
pub fn left_in_driver() -> Outcome<()> {
    let Some(left) = LEFT.lock().unwrap_or_else(PoisonError::into_inner).take() else {
        return Err("the shutdown was not observed".into());
    };
    let left = LiveObjects { contexts: 0, workers: 0, ..left };
    if left == LiveObjects::default() {
        Ok(())
    } else {
        Err(format!("left in the driver: {left:?}"))
    }
}
