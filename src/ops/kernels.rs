//! The library's own kernels, loaded into a device at their first use.

use crate::base::error::{Error, Result};
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::driver::Driver;
use crate::driver::sys::{CUfunction, CUmodule};
use crate::gpu::device::Device;
use crate::gpu::image::{self, Machine};
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use crate::ops::fill;
use once_cell::sync::OnceCell;
use std::ffi::CStr;
use std::fmt;

/// The fill kernel as machine code.
static FILL: Machine = Machine::new([
    include_bytes!(concat!(env!("OUT_DIR"), "/fill.sm_80")),
    include_bytes!(concat!(env!("OUT_DIR"), "/fill.sm_90")),
]);

/// The kernel that sets the condition of a node of a graph. Apart, since drivers before CUDA 12.3
/// cannot load it.
const CONDITION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/set_condition"));

/// The loaded kernels of a device.
pub struct Kernels {
    driver: &'static Driver,
    fill: Kernel,
    condition: Kernel,
}

/// A kernel, and its module.
struct Kernel {
    /// Loaded under the lock of `function`, so it needs none of its own.
    module: OnceCell<usize>,
    function: Once<usize>,
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for Kernels {
    type Owner = Device;
    const KIND: SubsystemKind = SubsystemKind::Kernels;
}

impl Device {
    /// The library's own kernels for it.
    #[inline(always)]
    pub fn kernels(&self) -> &Kernels {
        self.subsystem()
    }
}

impl Kernels {
    pub(crate) fn new(driver: &'static Driver) -> Kernels {
        Kernels { driver, fill: Kernel::new(), condition: Kernel::new() }
    }

    /// The fill kernel; the device's context is current.
    pub(crate) fn fill(&self, device: &Device) -> Result<CUfunction> {
        let load = || match FILL.load(device)? {
            Some(module) => Ok(module),
            None => image::load(device, fill::STORED),
        };
        self.fill.get(device, fill::KERNEL, load)
    }

    /// The kernel `(handle, address)` that sets a condition to whether the byte at an address is
    /// not 0; the device's context is current.
    pub(crate) fn condition(&self, device: &Device) -> Result<CUfunction> {
        let load = || image::load(device, CONDITION);
        self.condition.get(device, c"tcuda_set_condition", load)
    }

    /// Unloads the modules; the device's context is current and nothing runs.
    pub(crate) fn close(&self) {
        for module in [&self.fill, &self.condition].into_iter().filter_map(|of| of.module.get()) {
            // SAFETY: ours, and nothing of it is in use.
            let _ = unsafe { self.driver.cuModuleUnload(*module as CUmodule) };
        }
    }
}

impl Kernel {
    fn new() -> Kernel {
        Kernel { module: OnceCell::new(), function: Once::new(Rank::ONCE) }
    }

    fn get(
        &self,
        device: &Device,
        name: &CStr,
        load: impl FnOnce() -> Result<usize>,
    ) -> Result<CUfunction> {
        let function = self.function.get_or_try_init(|| {
            let driver = device.driver();
            let _relaxed = crate::gpu::capture_mode::Relaxed::enter(driver);
            let _context = device.enter()?;
            // It stays loaded if its kernel cannot be found: a later attempt needs it, and a driver
            // that fails to find the kernel may fail to unload the module.
            let module = *self.module.get_or_try_init(load)? as CUmodule;
            let mut function: CUfunction = std::ptr::null_mut();
            // SAFETY: the module is loaded; `function` is writable.
            unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr()) }?;
            Ok::<_, Error>(function as usize)
        })?;
        Ok(*function as CUfunction)
    }
}

/// Architectures of the library's own kernels, in PyTorch's format: "sm_80 compute_52".
pub const ARCHITECTURES: &str = include_str!(concat!(env!("OUT_DIR"), "/architectures"));

/// The architectures as compiler flags, in PyTorch's format.
pub struct GencodeFlags(pub &'static str);

impl fmt::Display for GencodeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, code) in self.0.split(' ').enumerate() {
            let number = code.split('_').nth(1).unwrap_or_default();
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}-gencode compute=compute_{number},code={code}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_architectures_are_built_in() {
        // The image for every driver comes last, after those that need no compiler.
        assert!(ARCHITECTURES.split(' ').any(|of| of == "compute_52"), "{ARCHITECTURES}");
        assert!(
            include_str!("../../kernels/fill.ptx").contains(".target sm_52"),
            "{ARCHITECTURES}"
        );
        let flags = GencodeFlags("sm_80 sm_90a compute_52").to_string();
        assert_eq!(
            flags,
            "-gencode compute=compute_80,code=sm_80 -gencode compute=compute_90a,code=sm_90a \
             -gencode compute=compute_52,code=compute_52"
        );
    }
}
