//! What of the library a case turns off or makes small, and what a shutdown left in the driver.

use crate::driver::sim::{LiveObjects, live_objects};
use crate::host_faults::{self, Stage};
use std::sync::{Mutex, PoisonError};

use super::api::Outcome;

/// What was alive when the contexts were about to go.
static LEFT: Mutex<Option<LiveObjects>> = Mutex::new(None);

pub fn set(_plain: bool, _small_limits: bool) {
    host_faults::observe(|stage| {
        if stage == Stage::Closed {
            *LEFT.lock().unwrap_or_else(PoisonError::into_inner) = Some(live_objects());
        }
    });
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
