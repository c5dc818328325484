//! The kernels of a device for collectives. Each is loaded at its first use, so that the first call
//! loads no other kernel.

use super::Number;
use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::base::rank::Rank;
use crate::driver::Driver;
use crate::driver::sys::{CUfunction, CUmodule};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::image::{self, Machine};
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use once_cell::sync::OnceCell;
use std::ffi::CStr;
use std::sync::atomic::AtomicU64;

/// A kernel. Each exists in two variants, for short tables and for long ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Copies ranges, each to several places.
    Spread,
    /// Copies rows of bytes.
    Rows,
    /// Copies elements with strides.
    Strided,
    /// Adds.
    Sum(Number),
}

/// Names of a kernel, for short tables and for long ones, and the image of both.
struct Image {
    names: [&'static CStr; 2],
    stored: &'static [u8],
}

/// Number of kernels.
const COUNT: usize = 12;

macro_rules! images {
    ($($name:literal),*) => {
        [$(Image {
            names: [
                name(concat!("tcuda_comm_", $name, "\0")),
                name(concat!("tcuda_comm_", $name, "_many\0")),
            ],
            stored: include_bytes!(concat!(env!("OUT_DIR"), "/tcuda_comm_", $name)),
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

/// The files of kernels as machine code.
static MACHINES: [Machine; 3] = {
    macro_rules! machine {
        ($name:literal) => {
            Machine::new([
                include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".sm_80")),
                include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".sm_90")),
            ])
        };
    }
    [machine!("comm_copy"), machine!("comm_sum_floats"), machine!("comm_sum_integers")]
};

impl Kernel {
    /// Index of its file in [`MACHINES`].
    fn file(self) -> usize {
        match self {
            Kernel::Spread | Kernel::Rows | Kernel::Strided => 0,
            Kernel::Sum(Number::F16 | Number::BF16 | Number::F32 | Number::F64) => 1,
            Kernel::Sum(_) => 2,
        }
    }

    fn index(self) -> usize {
        match self {
            Kernel::Spread => 0,
            Kernel::Rows => 1,
            Kernel::Strided => 2,
            Kernel::Sum(number) => 3 + number as usize,
        }
    }

    /// Its name in the variant for short or long tables.
    pub fn name(self, is_long: bool) -> &'static CStr {
        IMAGES[self.index()].names[usize::from(is_long)]
    }
}

/// The collective state of a device: its kernels, and its unreachable peers.
pub struct Loaded {
    driver: &'static Driver,
    /// Modules by file, if there is machine code for the device; otherwise `modules` by kernel.
    /// Loaded while `loading` is held.
    machines: [OnceCell<Option<usize>>; MACHINES.len()],
    modules: [OnceCell<usize>; COUNT],
    loading: Lock,
    functions: [[OnceCell<usize>; 2]; COUNT],
    /// Bit set of devices that refused peer access.
    pub(crate) unreachable_peers: AtomicU64,
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for Loaded {
    type Owner = Device;
    const KIND: SubsystemKind = SubsystemKind::Collectives;
}

impl Device {
    /// Modules and state for collective calls.
    #[inline(always)]
    pub fn comm(&self) -> &Loaded {
        self.subsystem()
    }
}

impl Loaded {
    pub(crate) fn new(driver: &'static Driver) -> Loaded {
        Loaded {
            driver,
            machines: [const { OnceCell::new() }; MACHINES.len()],
            loading: Lock::new(Rank::ONCE),
            modules: [const { OnceCell::new() }; COUNT],
            functions: [const { [const { OnceCell::new() }; 2] }; COUNT],
            unreachable_peers: AtomicU64::new(0),
        }
    }

    /// The function of a kernel; loads it at first use.
    pub fn function(&self, device: &Device, kernel: Kernel, is_long: bool) -> Result<CUfunction> {
        let (index, long) = (kernel.index(), usize::from(is_long));
        if let Some(function) = self.functions[index][long].get() {
            return Ok(*function as CUfunction);
        }
        let _loading = self.loading.guard();
        let function = self.functions[index][long].get_or_try_init(|| {
            let _relaxed = Relaxed::enter(self.driver);
            let _context = device.enter()?;
            let file = kernel.file();
            // The module stays loaded even if the kernel is not found, because a retry needs it.
            let machine = self.machines[file].get_or_try_init(|| MACHINES[file].load(device))?;
            let module = match machine {
                Some(module) => *module,
                None => {
                    let stored = IMAGES[index].stored;
                    *self.modules[index].get_or_try_init(|| image::load(device, stored))?
                }
            };
            let (module, name) = (module as CUmodule, kernel.name(is_long).as_ptr());
            let mut function: CUfunction = std::ptr::null_mut();
            // SAFETY: the module is loaded, the name ends with a NUL; `function` is writable.
            unsafe { self.driver.cuModuleGetFunction(&mut function, module, name) }?;
            Ok::<_, Error>(function as usize)
        })?;
        Ok(*function as CUfunction)
    }

    /// Unloads all modules. The device's context must be current, and nothing runs.
    pub(crate) fn close(&self) {
        let machines = self.machines.iter().filter_map(OnceCell::get).flatten();
        for module in self.modules.iter().filter_map(OnceCell::get).chain(machines) {
            // SAFETY: loaded here, and not in use.
            let _ = unsafe { self.driver.cuModuleUnload(*module as CUmodule) };
        }
    }
}
