//! Seeds and states that a host sets before the library is initialised: remembered, as by PyTorch.
//!
//! States and seeds from the system take effect in the order in which they were set, seeds of the host's
//! own after them, whenever they were set: that is PyTorch's order. Of two for the same devices the later
//! one counts, so that the list stays short.

use super::generator::Position;
use crate::device::{CURRENT, MAX_DEVICES};
use crate::error::{Error, Result};
use crate::lock::Mutex;
use crate::log::{self, Level};
use crate::rank::Rank;
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
    /// Is it a seed that the host chose?
    pub is_seed: bool,
    /// What it becomes.
    pub position: Position,
}

static CHANGES: Mutex<Vec<Change>> = Mutex::new(Rank::LEAF, Vec::new());

/// Remembers a change; the library is not initialised meanwhile.
pub fn remember(change: Change) -> Result<()> {
    if let Target::Device(device) = change.target
        && !(CURRENT..MAX_DEVICES as i32).contains(&device)
    {
        return Err(Error::InvalidDevice { device, count: MAX_DEVICES as i32 });
    }
    let mut changes = CHANGES.lock();
    let no_room = |_| Error::OutOfHostMemory("a seed");
    changes.try_reserve(1).map_err(no_room)?;
    changes.retain(|known| (known.target, known.is_seed) != (change.target, change.is_seed));
    changes.push(change);
    Ok(())
}

/// Makes the changes, in a runtime that nobody uses yet.
pub(crate) fn apply(runtime: &Runtime) {
    let changes = std::mem::take(&mut *CHANGES.lock());
    let in_order = |is_seed| changes.iter().filter(move |change| change.is_seed == is_seed);
    for change in in_order(false).chain(in_order(true)) {
        let devices = match change.target {
            Target::All => &runtime.devices[..],
            Target::Device(device) => {
                let current = || runtime.current_device().unwrap_or(0);
                let device = if device == CURRENT { current() } else { device };
                let found = runtime.devices.get(device as usize);
                if found.is_none() {
                    log::write(
                        Level::Warning,
                        format_args!(
                            "device {device} was seeded before initialisation, and there are {}",
                            runtime.devices.len()
                        ),
                    );
                }
                found.map_or(&[][..], std::slice::from_ref)
            }
        };
        devices.iter().for_each(|device| device.generator.put(change.position));
    }
}
