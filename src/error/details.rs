//! What errors carry besides numbers and names.

use std::fmt;

/// The numbers of an allocation that found no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Device that ran out.
    pub device: i32,
    /// Bytes that were asked of the driver.
    pub wanted: u64,
    /// Memory of the device.
    pub total: u64,
    /// What the driver said was free.
    pub free: u64,
    /// Limit of this process, if one is set.
    pub limit: Option<u64>,
    /// Held by the host.
    pub allocated: u64,
    /// Held by the cache and not by the host.
    pub cached: u64,
    /// Part of `cached`: in private pools, for their users alone.
    pub pooled: u64,
    /// Who else has memory of the device, where that is known.
    pub users: Users,
    /// Refused before the driver was asked, as `throw_on_cudamalloc_oom` wants it.
    pub rejected: bool,
    /// The cache has segments that it cannot give back in parts.
    pub segmented: bool,
}

/// Processes that have memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// What this process has, also past the library.
    pub own_bytes: Option<u64>,
    /// The first others: an error has no room for all.
    pub pids: [u32; 2],
    /// What they have.
    pub bytes: [u64; 2],
    /// How many others there are.
    pub num_others: u32,
}

/// An argument, or an element of one that is a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which {
    /// The parameter.
    pub name: &'static str,
    /// The element.
    pub index: Option<u32>,
}

impl Which {
    /// All of an argument.
    pub fn all(name: &'static str) -> Which {
        Which { name, index: None }
    }

    /// An element of a list.
    pub fn of(name: &'static str, index: usize) -> Which {
        Which { name, index: Some(u32::try_from(index).unwrap_or(u32::MAX)) }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}[{index}]", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// In what tensors may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trait {
    /// Their sizes.
    Shape,
    /// What their elements are.
    Type,
}

impl fmt::Display for Trait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trait::Shape => "shape",
            Trait::Type => "type",
        })
    }
}
