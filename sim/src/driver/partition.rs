//! The part of a device on which the kernels of a green context run. Its streams and the launches
//! on them refer to it.

use super::multiprocessors::{Grain, Multiprocessors};
use std::ffi::c_uint;

/// Multiprocessors of a device, and what queries tell of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) device: usize,
    pub(super) multiprocessors: Multiprocessors,
    /// How a green context of it can be split.
    pub(super) grain: Grain,
    /// `CU_DEV_SM_RESOURCE_GROUP_...`.
    pub(super) flags: c_uint,
    /// The locality domain, if the flags name one.
    pub(super) domain: c_uint,
}

/// The part of a device that a green context has.
pub(super) struct Partition {
    /// The ID of the green context.
    pub(super) id: u64,
    /// The handle of the green context.
    pub(super) green: usize,
    pub(super) part: Part,
    /// The numbers of the multiprocessors.
    pub(super) numbers: Vec<u32>,
}

impl Partition {
    pub(super) fn new(id: u64, green: usize, part: Part) -> Partition {
        let numbers = part.multiprocessors.numbers().collect();
        Partition { id, green, part, numbers }
    }
}
