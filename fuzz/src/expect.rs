//! What a call may answer.

/// Statuses of tcuda.h, by their numbers.
pub mod status {
    #![allow(missing_docs, reason = "the names of tcuda.h, without their prefix")]
    pub const OK: i32 = 0;
    pub const INVALID_ARGUMENT: i32 = 1;
    pub const INVALID_HANDLE: i32 = 2;
    pub const INVALID_POINTER: i32 = 3;
    pub const INVALID_DEVICE: i32 = 4;
    pub const INVALID_STATE: i32 = 5;
    pub const NOT_READY: i32 = 6;
    pub const WOULD_SYNCHRONIZE: i32 = 7;
    pub const OUT_OF_MEMORY: i32 = 20;
    pub const OUT_OF_HOST_MEMORY: i32 = 21;
    pub const NO_DRIVER: i32 = 22;
    pub const NO_DEVICE: i32 = 23;
    pub const NO_LIBRARY: i32 = 24;
    pub const NOT_SUPPORTED: i32 = 25;
    pub const FILE_ERROR: i32 = 27;
    pub const CUDA_ERROR: i32 = 40;
    pub const DEVICE_LOST: i32 = 41;
    pub const COMPILE_ERROR: i32 = 43;
    pub const CALLBACK_FAILED: i32 = 47;
    pub const CAPTURING: i32 = 60;
    pub const INTERNAL: i32 = 99;
}

/// A set of statuses.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Statuses(u128);

impl Statuses {
    /// These.
    pub fn of(statuses: &[i32]) -> Statuses {
        let mut set = Statuses::default();
        statuses.iter().for_each(|status| set.add(*status));
        set
    }

    /// One more.
    pub fn add(&mut self, status: i32) {
        self.0 |= 1 << status;
    }

    /// Is it one of them?
    pub fn has(self, status: i32) -> bool {
        (0..128).contains(&status) && self.0 >> status & 1 == 1
    }

    /// Are there none?
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Collects what is wrong with the arguments of a call while they are chosen.
#[derive(Default)]
pub struct Expect {
    /// A status for each argument that is wrong; none: the arguments are right.
    pub wrong: Statuses,
    /// What right arguments may give beside OK.
    pub also: Statuses,
}

impl Expect {
    /// An argument is wrong.
    pub fn wrong(&mut self, status: i32) {
        self.wrong.add(status);
    }

    /// Adds what is expected of other arguments.
    pub fn join(&mut self, other: Expect) {
        self.wrong.0 |= other.wrong.0;
        self.also.0 |= other.also.0;
    }

    /// Right arguments may also give this.
    pub fn also(&mut self, statuses: &[i32]) {
        statuses.iter().for_each(|status| self.also.add(*status));
    }
}
