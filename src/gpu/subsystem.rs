//! State that the layers above keep for a device, or once for all devices. This layer owns it by
//! address and does not know its type; the layer that defines the type finds it by its slot.

use std::ffi::c_void;

/// The slots; each belongs to one type.
#[derive(Clone, Copy)]
pub enum Slot {
    /// Of a device: its memory.
    Memory,
    /// Of a device: the kernels of copies and fills.
    Kernels,
    /// Of a device: the kernels of random numbers.
    Random,
    /// Of a device: its default generator.
    Generator,
    /// Of a device: the kernels that were compiled for it.
    CompiledKernels,
    /// Of a device: the kernels and buffers of collective calls.
    Collectives,
    /// Of all devices: pinned memory.
    PinnedMemory,
    /// Of all devices: active captures.
    Captures,
    /// Of all devices: what could not be released when a graph ended.
    UnreleasedGraphs,
    /// Of all devices: exports to other processes, and imports.
    Ipc,
    /// Of all devices: private pools that PyTorch uses.
    TorchPools,
}

const SLOTS: usize = Slot::TorchPools as usize + 1;

/// State of a layer above.
///
/// # Safety
/// No other type has its slot, and it is set before it is used.
pub unsafe trait Subsystem: Send + Sync + 'static {
    /// Its slot.
    const SLOT: Slot;
}

/// The subsystems of a device, or of all devices.
pub struct Subsystems {
    /// By slot: from Box::into_raw, or NULL.
    addresses: [*mut c_void; SLOTS],
    drops: [Option<unsafe fn(*mut c_void)>; SLOTS],
}

// SAFETY: every value is Send, as `Subsystem` requires.
unsafe impl Send for Subsystems {}
// SAFETY: every value is Sync, as `Subsystem` requires.
unsafe impl Sync for Subsystems {}

impl Subsystems {
    pub(crate) fn new() -> Subsystems {
        Subsystems { addresses: [std::ptr::null_mut(); SLOTS], drops: [None; SLOTS] }
    }

    /// Adds a subsystem, once.
    pub(crate) fn set<S: Subsystem>(&mut self, value: Box<S>) {
        let slot = S::SLOT as usize;
        debug_assert!(self.drops[slot].is_none(), "the slot of another subsystem");
        self.addresses[slot] = Box::into_raw(value).cast();
        self.drops[slot] = Some(drop_box::<S>);
    }

    /// The subsystem of this type.
    #[inline(always)]
    pub(crate) fn get<S: Subsystem>(&self) -> &S {
        let address = self.addresses[S::SLOT as usize].cast::<S>();
        debug_assert!(!address.is_null(), "a subsystem that was not set");
        // SAFETY: `set` stored a boxed value of the only type that has this slot.
        unsafe { &*address }
    }
}

/// Drops a value that `set` stored.
///
/// # Safety
/// `address` is from Box::into_raw of a `Box<S>`, and is not used again.
unsafe fn drop_box<S>(address: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(address.cast::<S>()) });
}

impl Drop for Subsystems {
    fn drop(&mut self) {
        for (address, drop) in self.addresses.into_iter().zip(self.drops) {
            if let Some(drop) = drop {
                // SAFETY: stored by `set` with this function, and dropped once.
                unsafe { drop(address) };
            }
        }
    }
}
