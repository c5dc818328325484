//! How pinned memory of the host is to be had.

/// Settings of the host's allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSettings {
    /// Memory of the host's own that is registered with the driver, instead of memory from it.
    pub use_host_register: bool,
    /// Threads that touch the pages of such memory: a power of two, up to 128.
    pub register_threads: u32,
    /// Work is done by a thread in the background where that is possible.
    pub background_threads: bool,
    /// Memory that is taken at once and handed out in pieces; 0: none.
    pub reserve_segment_bytes: u64,
    /// Requests up to this size are rounded up to a power of two; 0: none are.
    pub max_round_threshold: u64,
    /// Larger blocks are given back instead of cached.
    pub max_cached_bytes: u64,
}

impl HostSettings {
    /// What holds unless something else is said. Nothing is rounded to a power of two, which can take
    /// twice the memory that was asked for.
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
