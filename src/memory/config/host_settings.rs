//! The settings of pinned host memory.

/// The settings as numbers. The allocator does not depend on their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSettings {
    /// Is memory of the system pinned afterwards, instead of memory of the driver?
    pub use_host_register: bool,
    /// The number of threads that touch the pages of such memory first.
    pub register_threads: u32,
    /// Does a thread allocate the next segment before it is needed?
    pub background_threads: bool,
    /// Bytes of a first range, from which segments are cut until it is used up, and which is kept;
    /// 0: none.
    pub reserve_segment_bytes: u64,
    /// Requests up to this size are rounded to a power of two; 0: none is.
    pub max_round_threshold: u64,
    /// Blocks above this size return to the driver when they are free; `u64::MAX`: none does.
    pub max_cached_bytes: u64,
}

impl HostSettings {
    /// The default: exact sizes, everything cached, nothing allocated ahead.
    pub const DEFAULT: HostSettings = HostSettings {
        use_host_register: false,
        register_threads: 1,
        background_threads: false,
        reserve_segment_bytes: 0,
        max_round_threshold: 0,
        max_cached_bytes: u64::MAX,
    };
}

impl Default for HostSettings {
    fn default() -> HostSettings {
        HostSettings::DEFAULT
    }
}
