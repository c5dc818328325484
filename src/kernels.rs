//! The kernels built in, loaded into a device at their first use.

use crate::device::Device;
use crate::driver::Driver;
use crate::driver::sys::{CUfunction, CUmodule};
use crate::error::{Error, Result};
use crate::fill;
use once_cell::sync::OnceCell;
use std::ffi::c_void;

/// The kernels of a device.
pub struct Kernels {
    driver: &'static Driver,
    module: OnceCell<usize>,
    fill: OnceCell<usize>,
}

impl Kernels {
    pub(crate) fn new(driver: &'static Driver) -> Kernels {
        Kernels { driver, module: OnceCell::new(), fill: OnceCell::new() }
    }

    /// The module, loaded now if it was not; the device's context is current. It is kept whatever
    /// fails after it: to unload it might fail too.
    fn module(&self) -> Result<CUmodule> {
        let module = self.module.get_or_try_init(|| {
            let mut module: CUmodule = std::ptr::null_mut();
            let image = fill::PTX.as_ptr().cast::<c_void>();
            // SAFETY: the image is PTX and ends with a NUL; `module` is writable.
            unsafe { self.driver.cuModuleLoadData(&mut module, image) }?;
            Ok::<_, Error>(module as usize)
        })?;
        Ok(*module as CUmodule)
    }

    /// The fill kernel.
    pub(crate) fn fill(&self, device: &Device) -> Result<CUfunction> {
        let function = self.fill.get_or_try_init(|| {
            let _relaxed = crate::memory::Relaxed::enter(self.driver);
            let _context = device.enter()?;
            let module = self.module()?;
            let mut function: CUfunction = std::ptr::null_mut();
            let name = fill::KERNEL.as_ptr();
            // SAFETY: the module is loaded; `function` is writable.
            unsafe { self.driver.cuModuleGetFunction(&mut function, module, name) }?;
            Ok::<_, Error>(function as usize)
        })?;
        Ok(*function as CUfunction)
    }

    /// Unloads what was loaded; the device's context is current and nothing runs.
    pub(crate) fn close(&self) {
        if let Some(module) = self.module.get() {
            // SAFETY: ours, and nothing of it is in use.
            let _ = unsafe { self.driver.cuModuleUnload(*module as CUmodule) };
        }
    }
}

/// Architectures of the kernels built in, as PyTorch lists its own.
pub const ARCHITECTURES: &str = "compute_52";

/// The same as compiler flags, in PyTorch's form.
pub const GENCODE_FLAGS: &str = "-gencode compute=compute_52,code=compute_52";
