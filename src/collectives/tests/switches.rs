//! What of the library a case turns off or makes small, and what a shutdown left in the driver.

use crate::base::host_faults::{self, Stage};
use crate::sim::{LiveObjects, live_objects};
use std::sync::{Mutex, PoisonError};

use super::api::Outcome;
use crate::collectives::dispatch;
use crate::collectives::path::limits::*;

/// What was alive when the contexts were about to go.
static LEFT: Mutex<Option<LiveObjects>> = Mutex::new(None);

/// From where on which way is taken: as it is found on GPUs; soon, so that little is much; or such that
/// kernels do all but what is smallest.
const LIMITS: [[u64; 8]; 2] =
    [[256, 256, 256, 3000, 512, 1024, 3, 64], [0, 0, 0, MANY, 512, 1024, 2, MANY]];
const MANY: u64 = 1 << 40;

fn limits() -> [&'static Limit; 8] {
    [
        &SMALL_BROADCAST,
        &SMALL_SUM,
        &SMALL_COPIES,
        &LARGE_BROADCAST,
        &LEAST_CHUNK,
        &MOST_CHUNK,
        &LANES,
        &WIDE_ROW,
    ]
}

/// Until it is dropped.
pub struct Switches([u64; 8]);

/// Without the fast ways, or with one of three sets of limits.
pub fn set(plain: bool, which: usize) -> Switches {
    host_faults::observe(|stage| {
        if stage == Stage::Closed {
            *LEFT.lock().unwrap_or_else(PoisonError::into_inner) = Some(live_objects());
        }
    });
    dispatch::use_plain_only(plain);
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
        dispatch::use_plain_only(false);
        for (limit, value) in limits().iter().zip(self.0) {
            limit.set(value);
        }
    }
}

/// Contexts alone outlive what the library gives back before a shutdown.
pub fn left_in_driver() -> Outcome<()> {
    let Some(left) = LEFT.lock().unwrap_or_else(PoisonError::into_inner).take() else {
        return Err("nobody looked at the shutdown".into());
    };
    let left = LiveObjects { contexts: 0, workers: 0, ..left };
    if left == LiveObjects::default() {
        Ok(())
    } else {
        Err(format!("left in the driver: {left:?}"))
    }
}
