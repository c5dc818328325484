//! Allocators of other libraries, with the functions of PyTorch's CUDAPluggableAllocator.
//!
//! An allocator is reference-counted: by the host's handle, its live blocks, and the pools that use
//! it. Dropping the last reference closes its library. Its functions are code of the host: they are
//! called with no lock held, and with the device's context current.

use super::managed::ManagedSource;
use super::source::Source;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::text::Text;
use crate::base::thread::try_box;
use crate::base::waiting::{self, Waiting};
use crate::driver::library;
use crate::driver::sys::CUstream;
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Allocates: bytes, device, stream.
pub type MallocFn = unsafe extern "C" fn(isize, i32, CUstream) -> *mut c_void;
/// Frees: the block, and the bytes, device and stream of its allocation.
pub type FreeFn = unsafe extern "C" fn(*mut c_void, isize, i32, CUstream);

/// The optional functions of an allocator.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "PyTorch's names; the header documents them")]
pub struct Hooks {
    pub init: Option<unsafe extern "C" fn(i32)>,
    pub reset: Option<unsafe extern "C" fn()>,
    pub memory_fraction: Option<unsafe extern "C" fn(f64, i32)>,
    pub base_alloc: Option<unsafe extern "C" fn(*mut c_void, *mut usize) -> *mut c_void>,
    pub record_stream: Option<unsafe extern "C" fn(*mut c_void, CUstream)>,
}

/// The largest depth of nested calls of allocator functions on one thread.
const MOST_NESTED: u8 = 8;

thread_local! {
    static NESTED: Cell<u8> = const { Cell::new(0) };
}

/// A call of an allocator function is active until this is dropped.
struct Nested {
    _waiting: Waiting,
}

impl Nested {
    /// Fails if allocator functions call the library, which calls them again, without an end.
    fn begin() -> Result<Nested> {
        let nested = NESTED.get();
        if nested >= MOST_NESTED {
            return Err(Error::InvalidState(
                "a function of the pluggable allocator calls tcuda, which calls it again, 8 times: \
                 have it allocate elsewhere, or return without a call of tcuda where it is called \
                 by itself",
            ));
        }
        let waiting = waiting::in_host_function();
        NESTED.set(nested + 1);
        Ok(Nested { _waiting: waiting })
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        NESTED.set(NESTED.get() - 1);
    }
}

/// The part of a text of the host that is valid UTF-8, copied without heap memory.
fn lossy_text(text: &CStr) -> Text {
    let bytes = text.to_bytes().utf8_chunks().next();
    Text::new(bytes.map_or("", |chunk| chunk.valid()))
}

/// A dynamic library that was opened for an allocator; closed on drop.
struct Library(NonNull<c_void>);

// SAFETY: the handle is used only by dlsym and dlclose, which any thread may do.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    fn open(path: &CStr) -> Result<Library> {
        let _waiting = waiting::in_host_function();
        // RTLD_LOCAL, as in PyTorch: other libraries do not bind its symbols.
        // SAFETY: NUL-terminated; what the library does when it is opened is the host's choice.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle)
            .map(Library)
            .ok_or_else(|| Error::Library { path: lossy_text(path), reason: library::reason() })
    }

    fn symbol(&self, name: &CStr, parameter: &'static str) -> Result<NonNull<c_void>> {
        // SAFETY: the handle is open, `name` is NUL-terminated.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        NonNull::new(address).ok_or_else(|| Error::BadText {
            name: parameter,
            value: lossy_text(name),
            allowed: "the library has no such symbol; name a function that it exports as C",
        })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _waiting = waiting::in_host_function();
        // SAFETY: opened by `open`, closed once.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// What allocates and frees.
enum Functions {
    Host { malloc: MallocFn, free: FreeFn },
    Managed(ManagedSource),
}

struct Allocator {
    references: AtomicUsize,
    functions: Functions,
    hooks: Mutex<Hooks>,
    is_used: AtomicBool,
    /// The last field, so that it is dropped last.
    _library: Option<Library>,
}

/// A counted reference to an allocator.
#[derive(Debug)]
pub struct Pluggable(NonNull<Allocator>);

// SAFETY: all fields are atomics, locks or immutable; the host promises that its functions may
// be called on any thread.
unsafe impl Send for Pluggable {}
// SAFETY: as above.
unsafe impl Sync for Pluggable {}

impl Pluggable {
    /// An allocator of two functions of this process.
    pub fn new(malloc: MallocFn, free: FreeFn) -> Result<Pluggable> {
        Pluggable::with(Functions::Host { malloc, free }, None)
    }

    /// An allocator of managed memory.
    pub fn managed(source: ManagedSource) -> Result<Pluggable> {
        Pluggable::with(Functions::Managed(source), None)
    }

    /// Loads a library and makes an allocator of two of its functions.
    pub fn load(path: &CStr, malloc: &CStr, free: &CStr) -> Result<Pluggable> {
        let library = Library::open(path)?;
        let malloc = library.symbol(malloc, "alloc_symbol")?.as_ptr();
        let free = library.symbol(free, "free_symbol")?.as_ptr();
        // SAFETY: the host promises that the symbol has this type.
        let malloc = unsafe { std::mem::transmute::<*mut c_void, MallocFn>(malloc) };
        // SAFETY: as above.
        let free = unsafe { std::mem::transmute::<*mut c_void, FreeFn>(free) };
        Pluggable::with(Functions::Host { malloc, free }, Some(library))
    }

    fn with(functions: Functions, library: Option<Library>) -> Result<Pluggable> {
        let allocator = Allocator {
            references: AtomicUsize::new(1),
            functions,
            hooks: Mutex::new(Rank::LEAF, Hooks::default()),
            is_used: AtomicBool::new(false),
            _library: library,
        };
        let allocator = Box::leak(try_box(allocator, "a pluggable allocator")?);
        Ok(Pluggable(NonNull::from(allocator)))
    }

    #[inline]
    fn allocator(&self) -> &Allocator {
        // SAFETY: this reference keeps it alive.
        unsafe { self.0.as_ref() }
    }

    /// Adds a reference.
    pub fn share(&self) -> Pluggable {
        self.allocator().references.fetch_add(1, Ordering::Relaxed);
        Pluggable(self.0)
    }

    /// Is its memory managed, so that the library frees it as the driver's?
    pub fn is_managed(&self) -> bool {
        matches!(self.allocator().functions, Functions::Managed(_))
    }

    /// Is it the same allocator?
    pub fn is(&self, other: &Pluggable) -> bool {
        self.0 == other.0
    }

    /// Sets the optional functions, before the first use.
    pub fn set_hooks(&self, hooks: Hooks) -> Result<()> {
        let mut set = self.allocator().hooks.lock();
        if self.allocator().is_used.load(Ordering::Relaxed) {
            return Err(Error::InvalidState(
                "the allocator is in use already; set its hooks before \
                 tcuda_allocator_set_current and before pools are made with it",
            ));
        }
        *set = hooks;
        Ok(())
    }

    fn hooks(&self) -> Hooks {
        *self.allocator().hooks.lock()
    }

    /// Marks the allocator as used: its hooks can no longer change.
    pub fn begin_use(&self) {
        let _hooks = self.allocator().hooks.lock();
        self.allocator().is_used.store(true, Ordering::Relaxed);
    }

    /// Passes the number of devices to the `init` hook.
    pub fn init(&self, devices: usize) -> Result<()> {
        if let Some(init) = self.hooks().init {
            let _nested = Nested::begin()?;
            // SAFETY: the host's own function.
            unsafe { init(devices as i32) };
        }
        Ok(())
    }

    /// Has the allocator free its cache; false: it has no `reset` hook.
    pub fn reset(&self) -> Result<bool> {
        let Some(reset) = self.hooks().reset else { return Ok(false) };
        let _nested = Nested::begin()?;
        // SAFETY: the host's own function.
        unsafe { reset() };
        Ok(true)
    }

    /// Passes the fraction of the device's memory that the allocator may use to its hook.
    pub fn set_fraction(&self, fraction: f64, device: i32) -> Result<()> {
        if let Some(memory_fraction) = self.hooks().memory_fraction {
            let _nested = Nested::begin()?;
            // SAFETY: the host's own function.
            unsafe { memory_fraction(fraction, device) };
        }
        Ok(())
    }

    /// The address and length of the driver allocation that holds a block; `None`: not known.
    pub fn base_of(&self, address: u64) -> Result<Option<(u64, u64)>> {
        let Some(base_alloc) = self.hooks().base_alloc else { return Ok(None) };
        let mut bytes = 0;
        let _nested = Nested::begin()?;
        // SAFETY: the host's own function; `bytes` is writable.
        let base = unsafe { base_alloc(address as *mut c_void, &mut bytes) };
        Ok((!base.is_null()).then_some((base as u64, bytes as u64)))
    }

    /// Reports to the allocator that a block is used on another stream as well.
    pub fn record_stream(&self, address: u64, stream: &Stream) -> Result<()> {
        if let Some(record_stream) = self.hooks().record_stream {
            let stream = stream.native();
            let _nested = Nested::begin()?;
            // SAFETY: the host's own function, with a block that it allocated.
            unsafe { record_stream(address as *mut c_void, stream) };
        }
        Ok(())
    }
}

impl Drop for Pluggable {
    fn drop(&mut self) {
        if self.allocator().references.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: from a box, and this was the last reference.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

impl Source for Pluggable {
    fn allocate(&self, device: &Device, stream: &Stream, bytes: u64) -> Result<u64> {
        let _context = device.enter()?;
        if !self.allocator().is_used.load(Ordering::Relaxed) {
            self.begin_use();
        }
        let malloc = match &self.allocator().functions {
            Functions::Host { malloc, .. } => malloc,
            Functions::Managed(source) => return source.allocate(device, stream, bytes),
        };
        let (bytes, device, stream) = (bytes as isize, device.ordinal(), stream.native());
        let _nested = Nested::begin()?;
        // SAFETY: the host's own function.
        let block = unsafe { malloc(bytes, device, stream) };
        if block.is_null() {
            return Err(Error::DriverOutOfMemory { call: "the pluggable allocator" });
        }
        Ok(block as u64)
    }

    fn free(&self, device: &Device, stream: &Stream, address: u64, bytes: u64) -> Result<()> {
        let free = match &self.allocator().functions {
            Functions::Host { free, .. } => free,
            Functions::Managed(source) => return source.free(device, stream, address, bytes),
        };
        let _context = device.enter()?;
        let (block, bytes) = (address as *mut c_void, bytes as isize);
        let (device, stream) = (device.ordinal(), stream.native());
        let _nested = Nested::begin()?;
        // SAFETY: the host's own function, with a block that it allocated.
        unsafe { free(block, bytes, device, stream) };
        Ok(())
    }

    fn name(&self) -> &'static str {
        match &self.allocator().functions {
            Functions::Host { .. } => "the pluggable allocator",
            Functions::Managed(source) => source.name(),
        }
    }
}
