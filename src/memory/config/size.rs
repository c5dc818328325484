//! Sizes: units, size classes, and the block that a request needs.

/// Bytes of a unit, to which every size is rounded.
pub const UNIT: u64 = 512;
/// Largest size of the small class.
pub const SMALL: u64 = 1 << 20;
/// Largest block of a small arena of mapped memory (`arena/tally.rs`).
pub const SMALL_ARENA: u64 = 64 << 10;

/// The size class of a block or of an arena. Small arenas of mapped memory have blocks of up to 64
/// KiB only (`arena/tally.rs`), so that the two may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Blocks up to 1 MiB.
    Small = 0,
    /// Larger blocks.
    Large = 1,
}

/// Both classes, in their order.
pub const CLASSES: [Class; 2] = [Class::Small, Class::Large];

impl Class {
    /// Its row in a statistic, in the order of PyTorch's StatArray.
    pub fn row(self) -> usize {
        self as usize + 1
    }
}

/// A requested block.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its length in units.
    pub units: u32,
    /// Bytes that the host requested.
    pub bytes: u64,
    /// Does it count as oversize?
    pub oversize: bool,
}

/// The block for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Its bytes.
    pub bytes: u64,
    /// Does it count as oversize?
    pub oversize: bool,
}

impl Size {
    /// The class of the arena that has the block: PyTorch's if memory comes in segments.
    #[inline(always)]
    pub fn arena_class(self, segmented: bool) -> Class {
        let most = if segmented { SMALL } else { SMALL_ARENA };
        if self.bytes <= most { Class::Small } else { Class::Large }
    }

    /// The request for this block, if the host requested so many bytes.
    #[inline(always)]
    pub fn request(self, bytes: u64) -> Request {
        Request { units: (self.bytes / UNIT) as u32, bytes, oversize: self.oversize }
    }
}

/// The size of the block for a request: at least one unit, whole units.
pub fn round_size(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(UNIT)
}
