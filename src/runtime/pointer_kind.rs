//! Pointers that were passed to a function for another kind of memory: the error names the
//! functions that take them.

use crate::base::error::Error;
use crate::gpu::gpus::Gpus;
use crate::memory;

/// A kind of memory, with functions of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Device memory of this process.
    Device,
    /// Pinned memory of the host.
    Pinned,
    /// Memory of another process.
    Imported,
}

impl Kind {
    /// The kind of an address, if it is in the library's memory.
    fn of(gpus: &Gpus, address: usize) -> Option<Kind> {
        if gpus.pinned().has(address) {
            return Some(Kind::Pinned);
        }
        if gpus.ipc().has_import(address as u64) {
            return Some(Kind::Imported);
        }
        memory::device_of(address as u64).map(|_| Kind::Device)
    }

    fn taken_by(self) -> &'static str {
        match self {
            Kind::Device => {
                "is device memory of tcuda_malloc; tcuda_free and tcuda_record_stream take it"
            }
            Kind::Pinned => {
                "is pinned memory of tcuda_host_malloc; tcuda_host_free and tcuda_host_record \
                 take it"
            }
            Kind::Imported => "is memory of another process; tcuda_ipc_close takes it",
        }
    }
}

/// Changes the error of a function that takes memory of one kind, if the pointer is of another. The
/// caller holds no lock.
#[cold]
pub fn name_kind(gpus: &Gpus, taken: Kind, error: Error) -> Error {
    let (Error::InvalidPointer { ptr, .. } | Error::InvalidHostPointer { ptr, .. }) = error else {
        return error;
    };
    match Kind::of(gpus, ptr) {
        Some(kind) if kind != taken => match error {
            Error::InvalidHostPointer { .. } => {
                Error::InvalidHostPointer { ptr, why: kind.taken_by() }
            }
            _ => Error::InvalidPointer { ptr, why: kind.taken_by() },
        },
        _ => error,
    }
}
