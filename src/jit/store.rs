//! The compiled kernels of a device. Each program is compiled or read from disk once. Kernels stay
//! loaded until shutdown, because graphs and queued work may use them.

use super::cache::{self, Key};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::text::Text;
use crate::driver::compiler::{self, Image, Linkage, Log, Program};
use crate::driver::linker::{Input, Kind as ImageKind};
use crate::driver::sys::{CUdevice_attribute, CUfunction, CUfunction_attribute, CUmodule};
use crate::driver::{CudaError, Driver, code};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The most parameters of a kernel that are counted.
pub const MAX_PARAMETERS: usize = 64;

/// A loaded kernel.
pub struct Loaded {
    function: usize,
    /// Number of parameters; `None`: the driver does not report it.
    pub parameters: Option<usize>,
    /// Dynamic shared memory that a launch may use per block, in bytes; 0: not queried yet.
    max_shared: AtomicU32,
    /// May clusters be larger than every device with clusters supports?
    allows_large_clusters: AtomicBool,
}

impl Loaded {
    /// The function to launch.
    pub fn function(&self) -> CUfunction {
        self.function as CUfunction
    }

    /// Allows launches with this much dynamic shared memory per block. Above the default limit the
    /// driver requires an attribute. It is set to the maximum of the device, so that the order of
    /// threads does not matter.
    #[inline]
    pub fn allow_shared(&self, device: &Device, bytes: u32) -> Result<()> {
        if bytes <= self.max_shared.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.raise_shared(device, bytes)
    }

    /// An attribute of the function. The device's context is current.
    pub fn attribute(&self, device: &Device, attribute: CUfunction_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` is writable; the function stays loaded until the store is closed.
        unsafe { device.driver().cuFuncGetAttribute(&mut value, attribute, self.function()) }?;
        Ok(value)
    }

    /// The blocks of a cluster in x, y and z, if the code determines them (`__cluster_dims__`);
    /// zeros: it does not. The device's context is current.
    pub fn required_cluster(&self, device: &Device) -> Result<[u32; 3]> {
        use CUfunction_attribute::*;
        let mut cluster = [0; 3];
        let attributes = [
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
        ];
        for (size, attribute) in cluster.iter_mut().zip(attributes) {
            *size = match self.attribute(device, attribute) {
                Ok(size) => size.unsigned_abs(),
                // A driver older than CUDA 11.8 has no clusters.
                Err(Error::Cuda(CudaError { code: code::INVALID_VALUE, .. })) => 0,
                Err(error) => return Err(error),
            };
        }
        Ok(cluster)
    }

    /// Allows clusters of as many blocks as the device supports. The device's context is current.
    pub fn allow_large_clusters(&self, device: &Device) -> Result<()> {
        if self.allows_large_clusters.load(Ordering::Relaxed) {
            return Ok(());
        }
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        // SAFETY: the function stays loaded until the store is closed.
        unsafe { device.driver().cuFuncSetAttribute(self.function(), attribute, 1) }?;
        self.allows_large_clusters.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The most dynamic shared memory of a block that a launch can have, in bytes. The device's
    /// context is current.
    pub fn most_shared(&self, device: &Device) -> Result<i32> {
        use CUfunction_attribute::*;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let of_device = device.attribute_or(attribute, 0)?;
        let all = of_device - self.attribute(device, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let now = self.attribute(device, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?;
        Ok(all.max(now))
    }

    #[cold]
    fn raise_shared(&self, device: &Device, bytes: u32) -> Result<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let _context = device.enter()?;
        let mut most = self.attribute(device, attribute)?;
        if i64::from(bytes) > i64::from(most) {
            let all = self.most_shared(device)?;
            if i64::from(bytes) > i64::from(all) {
                return Err(Error::OutOfRange {
                    name: "shared_bytes",
                    value: bytes.into(),
                    allowed: "a block has at most shared_memory_per_block_optin_bytes of the \
                        device's tcuda_device_info, with what the kernel declares",
                });
            }
            // SAFETY: the function stays loaded until the store is closed.
            unsafe { device.driver().cuFuncSetAttribute(self.function(), attribute, all) }?;
            most = all;
        }
        self.max_shared.store(most.unsigned_abs(), Ordering::Relaxed);
        Ok(())
    }
}

/// A program, and its kernel once it is loaded.
pub struct Entry {
    key: Key,
    made: Once<Loaded>,
}

impl Entry {
    /// The kernel, if it is loaded.
    pub fn get(&self) -> Option<&Loaded> {
        self.made.get()
    }
}

/// The kernels of a device.
pub struct Store {
    driver: &'static Driver,
    entries: Mutex<Vec<Shared<Entry>>>,
    /// All loaded modules.
    modules: Mutex<Vec<usize>>,
}

const NO_MEMORY: Error = Error::OutOfHostMemory("a kernel");

fn copied(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| NO_MEMORY)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for Store {
    type Owner = Device;
    const KIND: SubsystemKind = SubsystemKind::CompiledKernels;
}

impl Device {
    /// The kernels that were compiled for it.
    #[inline(always)]
    pub fn compiled(&self) -> &Store {
        self.subsystem()
    }
}

impl Store {
    pub(crate) fn new(driver: &'static Driver) -> Store {
        Store {
            driver,
            entries: Mutex::new(Rank::LEAF, Vec::new()),
            modules: Mutex::new(Rank::LEAF, Vec::new()),
        }
    }

    fn entry(&self, key: Key) -> Result<Shared<Entry>> {
        let found = |entries: &[Shared<Entry>]| {
            entries.iter().find(|entry| entry.key == key).map(Shared::share)
        };
        if let Some(entry) = found(&self.entries.lock()) {
            return Ok(entry);
        }
        let fresh = Shared::new(Entry { key, made: Once::new(Rank::ONCE) }, "a kernel")?;
        let mut entries = self.entries.lock();
        // Another thread may have added it meanwhile.
        if let Some(entry) = found(&entries) {
            return Ok(entry);
        }
        entries.try_reserve(1).map_err(|_| NO_MEMORY)?;
        entries.push(fresh.share());
        Ok(fresh)
    }

    /// Removes the entry of a program that failed to compile.
    fn remove_unmade(&self, entry: &Shared<Entry>) {
        let mut entries = self.entries.lock();
        if entry.get().is_none() {
            entries.retain(|known| !known.is(entry));
        }
    }

    /// The kernel of a program; makes it if necessary.
    pub fn find(&self, device: &Device, program: &Program<'_>) -> Result<Shared<Entry>> {
        let Some(key) = Key::of(program, self.driver)? else {
            self.find_tools(program)?;
            return self.find_image(device, &self.build(device, program)?);
        };
        let entry = self.entry(key)?;
        if entry.get().is_some() {
            return Ok(entry);
        }
        let made = self.make(device, program, &entry);
        if !matches!(made, Ok(None)) {
            self.remove_unmade(&entry);
        }
        match made? {
            None => Ok(entry),
            Some(image) => self.find_image(device, &image),
        }
    }

    /// The kernel of an image whose program has no key.
    fn find_image(&self, device: &Device, image: &Image) -> Result<Shared<Entry>> {
        let entry = self.entry(Key::of_image(image))?;
        let made = entry.made.get_or_try_init(|| self.load(device, image)).map(|_| ());
        if made.is_err() {
            self.remove_unmade(&entry);
        }
        made.map(|()| entry)
    }

    /// Makes the kernel of an entry. Returns an image instead if an included file changed during
    /// the compilation, so that the image does not match the key.
    fn make(&self, device: &Device, program: &Program<'_>, entry: &Entry) -> Result<Option<Image>> {
        // Without a source there is nothing to compile, which takes the time.
        let is_kept = program.has_source();
        if let Some(image) = is_kept.then(|| cache::load(&entry.key, compiler::version())).flatten()
        {
            match entry.made.get_or_try_init(|| self.load(device, &image)) {
                Ok(_) => return Ok(None),
                // It may be from another driver.
                Err(Error::Cuda(error)) if is_image_error(&error) => cache::forget(&entry.key),
                Err(error) => return Err(error),
            }
        }
        // These locks have the same rank as the entry's, so they are taken first.
        self.find_tools(program)?;
        let mut others = None;
        let made = entry.made.get_or_try_init(|| {
            let image = self.build(device, program)?;
            if Key::of(program, self.driver)? != Some(entry.key) {
                others = Some(image);
                return Err(Error::Invalid("a header of the kernel changed while it was compiled"));
            }
            let loaded = self.load(device, &image);
            let loaded =
                loaded.map_err(|error| if is_kept { error } else { of_image(error, program) })?;
            if is_kept {
                cache::store(&entry.key, &image);
            }
            Ok::<_, Error>(loaded)
        });
        match others {
            Some(image) => Ok(Some(image)),
            None => made.map(|_| None),
        }
    }

    /// Loads the compiler and the linker that a program needs.
    fn find_tools(&self, program: &Program<'_>) -> Result<()> {
        if program.has_source() {
            self.driver.find_compiler()?;
        }
        if program.linkage == Linkage::Optimized {
            self.driver.find_linker()?;
        }
        Ok(())
    }

    /// Compiles a program's source, and links it with its images.
    fn build(&self, device: &Device, program: &Program<'_>) -> Result<Image> {
        if program.linkage == Linkage::Whole {
            return Ok(self.driver.compile(program)?);
        }
        let mut image = match program.has_source() {
            true => self.driver.compile(program)?,
            false => Image {
                bytes: Vec::new(),
                entry: copied(program.entry.to_bytes_with_nul())?,
                version: 0,
            },
        };
        if let ([only], false) = (program.images, program.has_source())
            && program.linkage == Linkage::Linked
            && only.kind.is_loadable()
        {
            image.bytes = copied(only.bytes)?;
            return Ok(image);
        }
        let mut inputs = Vec::new();
        inputs.try_reserve_exact(program.images.len() + 1).map_err(|_| NO_MEMORY)?;
        if program.has_source() {
            let kind = match program.linkage {
                Linkage::Optimized => ImageKind::LtoIr,
                _ if image.bytes.starts_with(b"\x7fELF") => ImageKind::Cubin,
                _ => ImageKind::Ptx,
            };
            inputs.push(Input { kind, bytes: &image.bytes, name: program.title });
        }
        inputs.extend_from_slice(program.images);
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        let is_optimized = program.linkage == Linkage::Optimized;
        let linked = self.driver.link(&inputs, is_optimized, program.capability)?;
        image.bytes = linked;
        Ok(image)
    }

    fn load(&self, device: &Device, image: &Image) -> Result<Loaded> {
        let name = CStr::from_bytes_with_nul(&image.entry)
            .map_err(|_| Error::Invalid("the name of a kernel has a NUL inside"))?;
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        let module = self.load_module(image)?;
        let mut function: CUfunction = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a NUL; `function` is writable.
        let found =
            unsafe { self.driver.cuModuleGetFunction(&mut function, module, name.as_ptr()) };
        let parameters = found.map_err(Error::from).and_then(|()| self.count(function));
        if parameters.is_err() {
            self.unload(module);
        }
        parameters.map(|parameters| Loaded {
            function: function as usize,
            parameters,
            max_shared: AtomicU32::new(0),
            allows_large_clusters: AtomicBool::new(false),
        })
    }

    /// Loads an image. `close` unloads the module even after a later failure.
    fn load_module(&self, image: &Image) -> Result<CUmodule> {
        let mut modules = self.modules.lock();
        modules.try_reserve(1).map_err(|_| NO_MEMORY)?;
        // Reserves a place that no other thread uses.
        modules.push(0);
        drop(modules);
        let mut module: CUmodule = std::ptr::null_mut();
        let bytes = image.bytes.as_ptr().cast::<c_void>();
        // SAFETY: made by a compiler for this driver, or verified by a checksum; `module` is
        // writable.
        let loaded = unsafe { self.driver.cuModuleLoadData(&mut module, bytes) };
        let mut modules = self.modules.lock();
        let place = modules.iter().position(|known| *known == 0);
        match (place, &loaded) {
            (Some(place), Ok(())) => modules[place] = module as usize,
            (Some(place), Err(_)) => drop(modules.swap_remove(place)),
            (None, _) => (),
        }
        drop(modules);
        loaded?;
        Ok(module)
    }

    /// Unloads an unused module. If the driver fails, `close` unloads it.
    fn unload(&self, module: CUmodule) {
        // SAFETY: loaded here, and not in use.
        if unsafe { self.driver.cuModuleUnload(module) }.is_ok() {
            self.modules.lock().retain(|known| *known != module as usize);
        }
    }

    /// Number of parameters of a kernel.
    fn count(&self, function: CUfunction) -> Result<Option<usize>> {
        for index in 0..MAX_PARAMETERS {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the kernel is loaded; both are writable.
            let unchecked =
                unsafe { self.driver.cuFuncGetParamInfo(function, index, &mut offset, &mut size) };
            match unchecked {
                Ok(()) => (),
                Err(error) if error.code == code::INVALID_VALUE => return Ok(Some(index)),
                // Drivers before CUDA 12.4.
                Err(error) if error.code == CudaError::MISSING => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Unloads all modules. The device's context must be current, and nothing runs.
    pub(crate) fn close(&self) {
        let entries = std::mem::take(&mut *self.entries.lock());
        drop(entries);
        let modules = std::mem::take(&mut *self.modules.lock());
        for module in modules {
            // SAFETY: loaded here, and not in use.
            let _ = unsafe { self.driver.cuModuleUnload(module as CUmodule) };
        }
    }
}

/// Does the error mean that the driver rejects the image?
/// An error of loading images of the caller.
fn of_image(error: Error, program: &Program<'_>) -> Error {
    match error {
        Error::Cuda(CudaError { code: code::NOT_FOUND, .. }) => Error::BadText {
            name: "name",
            value: Text::new(program.entry.to_str().unwrap_or("")),
            allowed: "no image has a kernel of this name; C++ mangles names, extern \"C\" does not",
        },
        Error::Cuda(error) if is_image_error(&error) && error.code != code::INVALID_VALUE => {
            let log = Log::of(b"an image is damaged, or not for this device");
            compiler::Failure::Link(log).into()
        }
        error => error,
    }
}

fn is_image_error(error: &CudaError) -> bool {
    const NO_BINARY: i32 = 209;
    matches!(
        error.code,
        code::INVALID_IMAGE
            | NO_BINARY
            | code::INVALID_PTX
            | code::UNSUPPORTED_PTX_VERSION
            | code::NOT_FOUND
            | code::INVALID_VALUE
    )
}
