//! Seeds and states that a host sets before the library is initialised: remembered, and set then in the
//! order of the calls.
//!
//! A later change of the same device replaces an earlier one, and a change of all devices replaces every
//! earlier one, so that the list stays short.

use super::generator::Position;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::gpu::device::{CURRENT, require_possible};
use crate::runtime::Runtime;

/// Whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Of one device, perhaps that which is current when the library is initialised.
    Device(i32),
    /// Of all.
    All,
}

/// What is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose.
    pub target: Target,
    /// Is it a seed that the host chose? Then it is accepted in a capture if it is the present one.
    pub is_seed: bool,
    /// What it becomes.
    pub position: Position,
}

static CHANGES: Mutex<Vec<Change>> = Mutex::new(Rank::LEAF, Vec::new());

/// Remembers a change; the library is not initialised meanwhile.
pub fn remember(change: Change) -> Result<()> {
    if let Target::Device(device) = change.target {
        require_possible(device)?;
    }
    let mut changes = CHANGES.lock();
    let no_room = |_| Error::OutOfHostMemory("a seed");
    changes.try_reserve(1).map_err(no_room)?;
    match change.target {
        Target::All => changes.clear(),
        Target::Device(_) => changes.retain(|known| known.target != change.target),
    }
    changes.push(change);
    Ok(())
}

/// Refuses a change of a device that does not exist, once: it is forgotten.
pub(crate) fn check(count: i32) -> Result<()> {
    let mut changes = CHANGES.lock();
    let missing = |change: &Change| match change.target {
        Target::Device(device) if device >= count => Some(device),
        _ => None,
    };
    let Some(device) = changes.iter().find_map(missing) else { return Ok(()) };
    changes.retain(|change| missing(change).is_none());
    Err(Error::SeededDevice { device, count })
}

/// Makes the changes, in a runtime that nobody uses yet.
pub(crate) fn apply(runtime: &Runtime) {
    // Unlocked again before the generators' locks.
    let changes = std::mem::take(&mut *CHANGES.lock());
    for change in changes {
        let devices = match change.target {
            Target::All => &runtime.devices[..],
            Target::Device(device) => {
                let current = || runtime.current_device().unwrap_or(0);
                let device = if device == CURRENT { current() } else { device };
                runtime.devices.get(device as usize).map_or(&[][..], std::slice::from_ref)
            }
        };
        devices.iter().for_each(|device| device.generator.put(change.position));
    }
}
