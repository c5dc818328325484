//! The attributes of streams. They are hints: nothing depends on them.

use std::ffi::{c_uint, c_void};
use std::ptr;

/// `CU_LAUNCH_ATTRIBUTE_...` of streams.
pub(super) const WINDOW: c_uint = 1;
pub(super) const POLICY: c_uint = 3;
pub(super) const PRIORITY: c_uint = 8;
pub(super) const DOMAINS: c_uint = 9;
pub(super) const DOMAIN: c_uint = 10;

/// `CU_ACCESS_PROPERTY_PERSISTING`, the last property. A miss cannot have it.
const PERSISTING: c_uint = 2;
/// `CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE`.
const LARGEST_WINDOW: usize = 134_217_728;
/// `CU_SYNC_POLICY_AUTO` and `CU_SYNC_POLICY_BLOCKING_SYNC`.
const AUTO: c_uint = 1;
const BLOCKING: c_uint = 4;
/// Domains of a device.
const DOMAIN_COUNT: u8 = 4;

/// `CUaccessPolicyWindow`, with numbers in place of enums.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Window {
    base: *mut c_void,
    bytes: usize,
    hit_ratio: f32,
    hit: c_uint,
    miss: c_uint,
}

// SAFETY: the address is only stored.
unsafe impl Send for Window {}

impl Window {
    /// True if CUDA defines all values.
    pub(super) fn is_valid(&self) -> bool {
        self.bytes <= LARGEST_WINDOW
            && (0.0..=1.0).contains(&self.hit_ratio)
            && self.hit <= PERSISTING
            && self.miss < PERSISTING
    }
}

/// The attributes of a stream.
#[derive(Clone, Copy)]
pub(super) struct Attributes {
    pub(super) window: Window,
    /// `CU_SYNC_POLICY_...`.
    pub(super) policy: c_uint,
    /// The domain of the device for each domain of launches.
    pub(super) domains: [u8; 2],
    /// The domain of launches: `CU_LAUNCH_MEM_SYNC_DOMAIN_...`.
    pub(super) domain: c_uint,
}

impl Attributes {
    pub(super) fn new() -> Attributes {
        let window = Window { base: ptr::null_mut(), bytes: 0, hit_ratio: 0.0, hit: 0, miss: 0 };
        Attributes { window, policy: AUTO, domains: [0, 1], domain: 0 }
    }

    /// True if CUDA defines all values.
    pub(super) fn are_valid(&self) -> bool {
        self.window.is_valid()
            && (AUTO..=BLOCKING).contains(&self.policy)
            && self.domains.iter().all(|domain| *domain < DOMAIN_COUNT)
            && self.domain < 2
    }
}
