//! What a device has for collective calls: kernels, each loaded at its first use, and nothing else, so
//! that the first call waits for no kernel but its own.

use super::Number;
use crate::device::Device;
use crate::driver::Driver;
use crate::driver::sys::{CUfunction, CUmodule};
use crate::error::{Error, Result};
use crate::memory::Relaxed;
use crate::once::Once;
use crate::random::image::inflated;
use crate::rank::Rank;
use once_cell::sync::OnceCell;
use std::ffi::{CStr, c_void};
use std::sync::atomic::AtomicU64;

/// A kernel; each is there twice, for short tables and for long ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Ranges, each to several places.
    Spread,
    /// Rows of bytes.
    Rows,
    /// Elements in any order.
    Strided,
    /// Sums.
    Sum(Number),
}

/// A kernel's name and image, for short tables and for long ones.
struct Image {
    names: [&'static CStr; 2],
    stored: [&'static [u8]; 2],
}

/// Kernels.
const COUNT: usize = 12;

macro_rules! images {
    ($($name:literal),*) => {
        [$(Image {
            names: [
                name(concat!("tcuda_comm_", $name, "\0")),
                name(concat!("tcuda_comm_", $name, "_many\0")),
            ],
            stored: [
                include_bytes!(concat!(env!("OUT_DIR"), "/tcuda_comm_", $name)),
                include_bytes!(concat!(env!("OUT_DIR"), "/tcuda_comm_", $name, "_many")),
            ],
        }),*]
    };
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

static IMAGES: [Image; COUNT] = images![
    "spread", "rows", "strided", "sum_bool", "sum_b8", "sum_b16", "sum_b32", "sum_b64", "sum_f16",
    "sum_bf16", "sum_f32", "sum_f64"
];

impl Kernel {
    fn index(self) -> usize {
        match self {
            Kernel::Spread => 0,
            Kernel::Rows => 1,
            Kernel::Strided => 2,
            Kernel::Sum(number) => 3 + number as usize,
        }
    }

    /// Its name, for short tables or long ones.
    pub fn name(self, is_long: bool) -> &'static CStr {
        IMAGES[self.index()].names[usize::from(is_long)]
    }
}

/// What a device has for collective calls.
pub struct Loaded {
    driver: &'static Driver,
    /// Loaded by whoever finds the function, so that nobody waits for it alone.
    modules: [[OnceCell<usize>; 2]; COUNT],
    functions: [[Once<usize>; 2]; COUNT],
    /// Other devices that it cannot reach, a bit each.
    pub(crate) refused_peers: AtomicU64,
}

impl Loaded {
    pub(crate) fn new(driver: &'static Driver) -> Loaded {
        Loaded {
            driver,
            modules: [const { [const { OnceCell::new() }; 2] }; COUNT],
            functions: [const { [const { Once::new(Rank::ONCE) }; 2] }; COUNT],
            refused_peers: AtomicU64::new(0),
        }
    }

    /// A kernel.
    pub fn function(&self, device: &Device, kernel: Kernel, is_long: bool) -> Result<CUfunction> {
        let (index, long) = (kernel.index(), usize::from(is_long));
        let function = self.functions[index][long].get_or_try_init(|| {
            let _relaxed = Relaxed::enter(self.driver);
            let _context = device.enter()?;
            // It stays when its kernel cannot be found: who tries again needs it.
            let stored = IMAGES[index].stored[long];
            let module = *self.modules[index][long].get_or_try_init(|| self.load(stored))?;
            let (module, name) = (module as CUmodule, kernel.name(is_long).as_ptr());
            let mut function: CUfunction = std::ptr::null_mut();
            // SAFETY: the module is loaded, the name ends with a NUL; `function` is writable.
            unsafe { self.driver.cuModuleGetFunction(&mut function, module, name) }?;
            Ok::<_, Error>(function as usize)
        })?;
        Ok(*function as CUfunction)
    }

    fn load(&self, stored: &[u8]) -> Result<usize> {
        let text = inflated(stored)?;
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: the image is PTX and ends with a NUL; `module` is writable.
        unsafe { self.driver.cuModuleLoadData(&mut module, text.as_ptr().cast::<c_void>()) }?;
        Ok(module as usize)
    }

    /// Unloads what was loaded; the device's context is current and nothing runs.
    pub(crate) fn close(&self) {
        for module in self.modules.iter().flatten().filter_map(OnceCell::get) {
            // SAFETY: ours, and nothing of it is in use.
            let _ = unsafe { self.driver.cuModuleUnload(*module as CUmodule) };
        }
    }
}
