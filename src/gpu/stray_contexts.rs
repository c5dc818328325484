//! Primary contexts of devices that the host did not choose. Something that runs before the host
//! chooses its device makes one on device 0, where it takes hundreds of MB.

use super::device::Device;
use super::gpus::Gpus;
use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::log::{self, Level};
use std::sync::atomic::{AtomicI32, Ordering};

/// They are not looked for.
pub const DEFAULT: i32 = 0;
/// They are logged.
pub const WARN: i32 = 1;
/// The choice of another device fails.
pub const ERROR: i32 = 2;

/// The mode was not set, nor read from the environment.
const UNKNOWN: i32 = -1;

static MODE: AtomicI32 = AtomicI32::new(UNKNOWN);

/// What happens if there are any. Unless it was set, the environment decides.
pub fn mode() -> Result<i32> {
    let known = MODE.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return Ok(known);
    }
    let own = environment::text(c"TCUDA_CHECK_STRAY_CONTEXT")?;
    let text = match own.is_empty() {
        true => environment::text(c"TORCH_CUDA_CHECK_STRAY_CONTEXT")?,
        false => own,
    };
    let found = match text {
        _ if text.eq_ignore_ascii_case("warn") => WARN,
        _ if text.eq_ignore_ascii_case("error") => ERROR,
        _ => DEFAULT,
    };
    // A mode that was set meanwhile stays.
    let set = MODE.compare_exchange(UNKNOWN, found, Ordering::Relaxed, Ordering::Relaxed);
    Ok(set.map_or_else(|set| set, |_| found))
}

/// Sets the mode of the process.
pub fn set_mode(mode: i32) -> Result<()> {
    if !(DEFAULT..=ERROR).contains(&mode) {
        return Err(Error::OutOfRange {
            name: "mode",
            value: mode.into(),
            allowed: "use TCUDA_CONTEXT_CHECK_DEFAULT, _WARN or _ERROR",
        });
    }
    MODE.store(mode, Ordering::Relaxed);
    Ok(())
}

/// At the end of the library: the environment decides again.
pub(crate) fn forget() {
    MODE.store(UNKNOWN, Ordering::Relaxed);
}

impl Gpus {
    /// The devices with a primary context, also one that another library created.
    pub fn with_primary_context(&self) -> impl Iterator<Item = Result<&Device>> {
        self.devices.iter().filter_map(|device| match device.has_active_context() {
            Ok(false) => None,
            Ok(true) => Some(Ok(device)),
            Err(error) => Some(Err(error)),
        })
    }

    /// Checks, before a device is used for the first time, that no other one has a primary context.
    /// A device that the library uses already was chosen on purpose, and may be chosen again.
    pub fn check_primary_contexts(&self, chosen: i32) -> Result<()> {
        let mode = mode()?;
        let device = self.device(chosen)?;
        if mode == DEFAULT || device.has_context() {
            return Ok(());
        }
        let chosen = device.ordinal();
        for device in self.with_primary_context() {
            let stray = device?.ordinal();
            if stray == chosen {
                continue;
            }
            let error = Error::StrayContext { chosen, stray };
            if mode == ERROR {
                return Err(error);
            }
            log::write(Level::Warning, format_args!("{error}"));
        }
        Ok(())
    }
}
