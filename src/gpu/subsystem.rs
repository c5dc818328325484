//! State that the layers above keep for a device, or once for all devices. This layer owns it by
//! address and does not know its type; the layer that defines the type finds it by its kind.

use std::ffi::c_void;
use std::marker::PhantomData;

/// The kinds of state; each belongs to one type.
#[derive(Clone, Copy)]
pub enum Kind {
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
    /// Of all devices: the state of cuFile.
    Files,
}

const KINDS: usize = Kind::Files as usize + 1;

/// State of a layer above.
///
/// # Safety
/// No other type has its kind, and the runtime sets it for each owner before a call can use it.
pub unsafe trait Subsystem: Send + Sync + 'static {
    /// `Device`, or `Gpus` if there is one for all devices.
    type Owner;
    /// Its kind.
    const KIND: Kind;
}

/// The subsystems of a device, or of all devices.
pub struct Subsystems<Owner> {
    /// By kind: from Box::into_raw, or NULL.
    addresses: [*mut c_void; KINDS],
    drops: [Option<unsafe fn(*mut c_void)>; KINDS],
    owner: PhantomData<fn(Owner)>,
}

// SAFETY: every value is Send, as `Subsystem` requires.
unsafe impl<Owner> Send for Subsystems<Owner> {}
// SAFETY: every value is Sync, as `Subsystem` requires.
unsafe impl<Owner> Sync for Subsystems<Owner> {}

impl<Owner> Subsystems<Owner> {
    pub(crate) fn new() -> Subsystems<Owner> {
        let addresses = [std::ptr::null_mut(); KINDS];
        Subsystems { addresses, drops: [None; KINDS], owner: PhantomData }
    }

    /// Adds a subsystem, once.
    pub(crate) fn set<S: Subsystem<Owner = Owner>>(&mut self, value: Box<S>) {
        let kind = S::KIND as usize;
        debug_assert!(self.drops[kind].is_none(), "a kind that is set already");
        self.addresses[kind] = Box::into_raw(value).cast();
        self.drops[kind] = Some(drop_box::<S>);
    }

    /// The subsystem of this type.
    #[inline(always)]
    pub(crate) fn get<S: Subsystem<Owner = Owner>>(&self) -> &S {
        let address = self.addresses[S::KIND as usize].cast::<S>();
        debug_assert!(!address.is_null(), "a subsystem that was not set");
        // SAFETY: `set` stored a boxed value of the only type of this kind.
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

impl<Owner> Drop for Subsystems<Owner> {
    fn drop(&mut self) {
        for (address, drop) in self.addresses.into_iter().zip(self.drops) {
            if let Some(drop) = drop {
                // SAFETY: stored by `set` with this function, and dropped once.
                unsafe { drop(address) };
            }
        }
    }
}
