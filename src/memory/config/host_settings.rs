//! What can be chosen about pinned memory of the host.

/// The choices, as numbers; where they come from is no matter of the allocator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSettings {
    /// Memory of the system's that is pinned afterwards, instead of the driver's own.
    pub use_host_register: bool,
    /// Threads that touch its pages first.
    pub register_threads: u32,
    /// A thread gets the next segment before it is needed.
    pub background_threads: bool,
    /// A first range, from which segments are cut as long as it lasts, and which is kept; 0: none.
    pub reserve_segment_bytes: u64,
    /// Requests up to this are rounded to a power of two; 0: none is.
    pub max_round_threshold: u64,
    /// Blocks above this go back to the driver when they are free; `u64::MAX`: none does.
    pub max_cached_bytes: u64,
}

impl HostSettings {
    /// Exact sizes, everything cached, nothing ahead.
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
