//! The details of errors, besides numbers and names.

/// A call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// "tcuda_stream_synchronize".
    pub what: &'static str,
    /// What to do instead, as the end of a sentence.
    pub instead: &'static str,
}

/// Any other wait of the library, for example before memory is given back.
pub const OTHER_WAITS: Wait =
    Wait { what: "this call", instead: "make it when the streams that it waits for have finished" };

use crate::base::ordinal::CPU;
#[cfg(test)]
use crate::base::text::Text;
use std::fmt;

/// What a file could not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Opened.
    Open,
    /// Read at this byte.
    Read(u64),
    /// Written at this byte.
    Write(u64),
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::Open => f.write_str("opened"),
            Access::Read(at) => write!(f, "read at byte {at}"),
            Access::Write(at) => write!(f, "written at byte {at}"),
        }
    }
}

/// A size in x, y and z, as "4 x 2 x 1".
pub(super) struct Extent(pub(super) [u32; 3]);

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "{x} x {y} x {z}")
    }
}

/// The numbers of an allocation that ran out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Device that ran out.
    pub device: i32,
    /// Bytes that were requested from the driver.
    pub wanted: u64,
    /// Memory of the device.
    pub total: u64,
    /// Bytes that the driver reported as free.
    pub free: u64,
    /// Limit of this process; `u64::MAX`: none is set.
    pub limit: u64,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes of the cache that are not allocated.
    pub cached: u64,
    /// Part of `cached`: in private pools, only for allocations routed to them.
    pub pooled: u64,
    /// Part of `cached`: freed, but still used by streams.
    pub pending: u64,
    /// Captures are under way, so that memory is not given back.
    pub captured: bool,
    /// The processes that use the device's memory, where they are known.
    pub users: Users,
    /// Refused without a call of the driver, because of `throw_on_cudamalloc_oom`.
    pub rejected: bool,
    /// The cache has segments that it cannot give back in parts.
    pub segmented: bool,
}

/// Processes that have memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Bytes of this process, including memory outside the library.
    pub own_bytes: Option<u64>,
    /// The first other processes: an error has no room for all.
    pub pids: [u32; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// Number of other processes.
    pub num_others: u32,
}

/// An argument, or an element of a list argument.
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

/// A property in which tensors may differ.
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

/// The name of a device, or of the host.
pub(super) struct PlaceName(pub(super) i32);

impl fmt::Display for PlaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            CPU => f.write_str("the host"),
            device => write!(f, "device {device}"),
        }
    }
}

/// The number of devices, and their ordinals.
pub(super) struct Present(pub(super) i32);

impl fmt::Display for Present {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ..=0 => f.write_str("there is none"),
            1 => f.write_str("1 present; use 0, or -1 for the current one"),
            count => {
                write!(f, "{count} present; use 0 to {}, or -1 for the current one", count - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;

    /// Messages with more than one case.
    #[test]
    fn every_case_reads_well() {
        let which = Which::of("tensors", 1);
        let elsewhere = |place, expected| Error::Elsewhere { which, place, expected };
        let piece = |stream, piece| Error::PieceDevice { index: 2, stream, piece };
        let missing = |count| Error::InvalidDevice { device: 7, count };
        let shape = |which, what| {
            let (expected, got) = (Text::new("[2]"), Text::new("[3]"));
            Error::TensorMismatch { which, what, expected, got }
        };
        for (error, sentence) in [
            (elsewhere(0, -2), "tensors[1] is on device 0, and the host was expected"),
            (elsewhere(-2, 3), "tensors[1] is on the host, and device 3 was expected"),
            (
                piece(0, 1),
                "streams[2] is of device 0, and that piece goes to device 1; pass a stream of that \
                 device, or NULL",
            ),
            (piece(0, -2), "streams[2] is of device 0, and that piece goes to the host; pass NULL"),
            (missing(0), "device 7 does not exist: there is none"),
            (missing(1), "device 7 does not exist: 1 present; use 0, or -1 for the current one"),
            (
                missing(4),
                "device 7 does not exist: 4 present; use 0 to 3, or -1 for the current one",
            ),
            (
                Error::Elements { input: 1, output: 2, rule: "pass as many" },
                "input has 1 element, and output 2; pass as many",
            ),
            (
                Error::Elements { input: 3, output: 1, rule: "pass as many" },
                "input has 3 elements, and output 1; pass as many",
            ),
            (shape(which, Trait::Shape), "tensors[1] has shape [3], and [2] was expected"),
            (shape(Which::all("out"), Trait::Type), "out has type [3], and [2] was expected"),
        ] {
            assert_eq!(error.to_string(), sentence);
        }
    }
}
