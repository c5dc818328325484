//! What the host can set of a context: flags, limits, and preferences that change nothing here.

use super::arguments::require;
use crate::base::code;
use std::ffi::c_uint;

/// `CU_LIMIT_...`.
const STACK: usize = 0;
pub(super) const HEAP: usize = 2;
const SYNC_DEPTH: usize = 3;
const FETCH_GRANULARITY: usize = 5;
const PERSISTING_CACHE: usize = 6;
const COUNT: usize = 7;
/// The last limit, of contexts that share a device with graphics.
const LAST: usize = 9;

/// The values of new contexts on an H100.
const DEFAULTS: [usize; COUNT] = [1024, 7_340_032, 8 << 20, 2, 2048, 64, 0];
/// The largest stack of a thread.
const LARGEST_STACK: usize = 512 << 10;
const LARGEST_GRANULARITY: usize = 128;
/// `CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE`.
const LARGEST_PERSISTING_CACHE: usize = 32_768_000;

/// `CU_CTX_...`: the ways to wait, of which a context has at most one, and the other flags: map
/// host, local memory, core dumps, synchronous operations.
const WAYS_TO_WAIT: [c_uint; 4] = [0, 1, 2, 4];
const WAIT_MASK: c_uint = 7;
const OTHER_FLAGS: c_uint = 0xf8;

/// The settings of a context.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) flags: c_uint,
    limits: [usize; COUNT],
    /// `CU_FUNC_CACHE_PREFER_...`.
    pub(super) cache: c_uint,
}

impl Settings {
    pub(super) fn new(flags: c_uint) -> Settings {
        Settings { flags, limits: DEFAULTS, cache: 0 }
    }

    /// The number of a limit that devices of a compute capability have.
    fn known(limit: c_uint, capability: (i32, i32)) -> Result<usize, i32> {
        let limit = limit as usize;
        require(limit <= LAST, code::INVALID_VALUE)?;
        let is_known = limit < COUNT && (limit != SYNC_DEPTH || capability < (9, 0));
        require(is_known, code::UNSUPPORTED_LIMIT)?;
        Ok(limit)
    }

    pub(super) fn limit(&self, limit: c_uint, capability: (i32, i32)) -> Result<usize, i32> {
        Self::known(limit, capability).map(|limit| self.limits[limit])
    }

    /// Sets a limit; returns its number.
    pub(super) fn set_limit(
        &mut self,
        limit: c_uint,
        value: usize,
        capability: (i32, i32),
    ) -> Result<usize, i32> {
        let limit = Self::known(limit, capability)?;
        require(limit != STACK || value <= LARGEST_STACK, code::INVALID_VALUE)?;
        self.limits[limit] = match limit {
            STACK => value.next_multiple_of(16),
            FETCH_GRANULARITY => value.min(LARGEST_GRANULARITY),
            PERSISTING_CACHE => value.min(LARGEST_PERSISTING_CACHE),
            _ => value,
        };
        Ok(limit)
    }
}

/// Checks the flags of a context.
pub(super) fn check_flags(flags: c_uint) -> Result<(), i32> {
    require(WAYS_TO_WAIT.contains(&(flags & WAIT_MASK)), code::INVALID_VALUE)?;
    require(flags & !(WAIT_MASK | OTHER_FLAGS) == 0, code::INVALID_VALUE)
}
