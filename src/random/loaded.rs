//! The random kernels of a device, loaded at their first use, and the geometry of PyTorch's
//! launches.

use super::plan::{Geometry, Image};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::driver::Driver;
use crate::driver::sys::{CUdevice_attribute, CUfunction, CUmodule};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use std::ffi::{CStr, c_void};

/// The random kernels of a device.
pub struct Loaded {
    driver: &'static Driver,
    geometry: Once<Geometry>,
    /// Indexed by the numbers of the images.
    modules: [Once<usize>; Image::ALL.len()],
    functions: Mutex<Vec<(&'static CStr, usize)>>,
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for Loaded {
    type Owner = Device;
    const KIND: SubsystemKind = SubsystemKind::Random;
}

impl Device {
    /// Modules and state for random numbers.
    #[inline(always)]
    pub fn random(&self) -> &Loaded {
        self.subsystem()
    }
}

impl Loaded {
    pub(crate) fn new(driver: &'static Driver) -> Loaded {
        Loaded {
            driver,
            geometry: Once::new(Rank::ONCE),
            modules: [const { Once::new(Rank::ONCE) }; Image::ALL.len()],
            functions: Mutex::new(Rank::LEAF, Vec::new()),
        }
    }

    /// The properties on which PyTorch's launch geometry depends.
    pub fn geometry(&self, device: &Device) -> Result<&Geometry> {
        use CUdevice_attribute::*;
        self.geometry.get_or_try_init(|| {
            let number = |attribute| device.attribute(attribute).map(|value| value.max(0) as u32);
            let (major, minor) = device.capability()?;
            Ok(Geometry {
                multiprocessors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
                threads_per_multiprocessor: number(
                    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                )?,
                major: major as u32,
                minor: minor as u32,
            })
        })
    }

    /// A kernel function. The device's context must be current.
    pub fn function(
        &self,
        device: &Device,
        image: Image,
        name: &'static CStr,
    ) -> Result<CUfunction> {
        let found = self.functions.lock().iter().find(|known| known.0 == name).map(|known| known.1);
        match found {
            Some(function) => Ok(function as CUfunction),
            None => self.find(device, image, name),
        }
    }

    #[cold]
    fn find(&self, device: &Device, image: Image, name: &'static CStr) -> Result<CUfunction> {
        let module = *self.modules[image as usize].get_or_try_init(|| self.load(device, image))?;
        let _relaxed = Relaxed::enter(self.driver);
        let mut function: CUfunction = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a NUL; `function` is writable.
        unsafe {
            self.driver.cuModuleGetFunction(&mut function, module as CUmodule, name.as_ptr())
        }?;
        let mut functions = self.functions.lock();
        let no_room = |_| Error::OutOfHostMemory("the kernels of a device");
        functions.try_reserve(1).map_err(no_room)?;
        functions.push((name, function as usize));
        Ok(function)
    }

    fn load(&self, device: &Device, image: Image) -> Result<usize> {
        let text = image.ptx()?;
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        let mut module: CUmodule = std::ptr::null_mut();
        let text = text.as_ptr().cast::<c_void>();
        // SAFETY: the image is PTX and ends with a NUL; `module` is writable.
        unsafe { self.driver.cuModuleLoadData(&mut module, text) }?;
        Ok(module as usize)
    }

    /// Unloads all modules. The device's context must be current, and nothing runs.
    pub(crate) fn close(&self) {
        for module in self.modules.iter().filter_map(Once::get) {
            // SAFETY: loaded here, and not in use.
            let _ = unsafe { self.driver.cuModuleUnload(*module as CUmodule) };
        }
    }
}
