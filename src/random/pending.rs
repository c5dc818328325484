//! Seeds and states that the host sets before initialisation. They are applied at initialisation,
//! in the order of the calls.
//!
//! A later change of a device replaces an earlier one. A change of all devices replaces all earlier
//! ones. So the list stays short.

use super::generator::Position;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::gpu::device::{CURRENT, require_possible};
use crate::gpu::gpus::Gpus;

/// The generators that a change applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The generator of a device. `CURRENT`: the device that is current at initialisation.
    Device(i32),
    /// The generators of all devices.
    All,
}

/// A change of generators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The generators that it applies to.
    pub target: Target,
    /// True for a seed that the host chose: a capture accepts it if it equals the present one.
    pub is_seed: bool,
    /// The new position.
    pub position: Position,
}

static CHANGES: Mutex<Vec<Change>> = Mutex::new(Rank::LEAF, Vec::new());

/// Stores a change, while the library is not initialised.
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

/// Returns an error for a change of a device that does not exist, once: the change is dropped.
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

/// Applies the changes to a runtime that no other thread uses yet.
pub(crate) fn apply(gpus: &Gpus) {
    // The lock is released before the generators are locked.
    let changes = std::mem::take(&mut *CHANGES.lock());
    for change in changes {
        let devices = match change.target {
            Target::All => &gpus.devices[..],
            Target::Device(device) => {
                let current = || gpus.current_device().unwrap_or(0);
                let device = if device == CURRENT { current() } else { device };
                gpus.devices.get(device as usize).map_or(&[][..], std::slice::from_ref)
            }
        };
        devices.iter().for_each(|device| device.generator().put(change.position));
    }
}
