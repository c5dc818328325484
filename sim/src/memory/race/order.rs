//! Which order an instruction's accesses have with those of other threads.

/// What an access, as its instruction names it, does besides reading and writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// A plain access.
    #[default]
    Weak,
    /// An access that does not race with others of its sort, such as a volatile one or `atom`.
    Relaxed,
    /// A relaxed access after which the thread sees what was released with the value that it read.
    Acquire,
    /// A relaxed access that releases what happened before it.
    Release,
    /// Both.
    AcquireRelease,
    /// Copies that run beside the thread that starts them.
    Copy,
}

impl Order {
    /// The order in an instruction's name.
    pub fn of(name: &str) -> Order {
        let mut parts = name.split('.');
        let base = parts.next().unwrap_or_default();
        let has = |list: &[&str]| name.split('.').skip(1).any(|part| list.contains(&part));
        if has(&["async"]) && matches!(base, "cp" | "st" | "red") {
            // The thread has to wait for groups of bulk copies as well, but their numbers are not
            // those of other copies.
            return if has(&["bulk_group"]) { Order::Weak } else { Order::Copy };
        }
        match base {
            "ld" | "st" | "atom" | "red" if has(&["acq_rel"]) => Order::AcquireRelease,
            "ld" | "st" | "atom" | "red" if has(&["acquire"]) => Order::Acquire,
            "ld" | "st" | "atom" | "red" if has(&["release"]) => Order::Release,
            "atom" | "red" => Order::Relaxed,
            // .cv and .wt were the volatile accesses of older compilers.
            "ld" | "st" if has(&["relaxed", "volatile", "mmio", "cv", "wt"]) => Order::Relaxed,
            _ => Order::Weak,
        }
    }

    pub(in crate::memory) fn effects(self) -> Effects {
        let (is_strong, is_copy) = (self != Order::Weak && self != Order::Copy, false);
        let effects =
            Effects { is_strong, is_copy, acquires: Acquires::No, releases: Releases::No };
        let (acquires, releases) = match self {
            Order::Weak => return effects,
            Order::Copy => return Effects { is_copy: true, ..effects },
            Order::Relaxed => (Acquires::AtFence, Releases::Fenced),
            Order::Acquire => (Acquires::Now, Releases::Fenced),
            Order::Release => (Acquires::AtFence, Releases::Now),
            Order::AcquireRelease => (Acquires::Now, Releases::Now),
        };
        Effects { acquires, releases, ..effects }
    }
}

/// What an access does to the clocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Effects {
    /// It does not race with others of its sort.
    pub(in crate::memory) is_strong: bool,
    /// A copy of the thread does it.
    pub(in crate::memory) is_copy: bool,
    pub(in crate::memory) acquires: Acquires,
    pub(in crate::memory) releases: Releases,
}

/// When a thread sees what was released with the value that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) enum Acquires {
    No,
    /// After the next fence.
    AtFence,
    Now,
}

/// What a write releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) enum Releases {
    No,
    /// What happened before the thread's last fence.
    Fenced,
    /// What happened before.
    Now,
    /// The same, and the copies that the thread started.
    Copies,
}

impl Effects {
    /// Of an arrival at a barrier object.
    pub(in crate::memory) const ARRIVAL: Effects = Effects {
        is_strong: true,
        is_copy: false,
        acquires: Acquires::No,
        releases: Releases::Now,
    };

    /// Of an arrival of copies at a barrier object.
    pub(in crate::memory) const COPIES: Effects =
        Effects { releases: Releases::Copies, ..Effects::ARRIVAL };

    /// Of a test of a barrier object.
    pub(in crate::memory) fn test(is_complete: bool) -> Effects {
        let acquires = if is_complete { Acquires::Now } else { Acquires::No };
        Effects { acquires, releases: Releases::No, ..Effects::ARRIVAL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_order() {
        for (name, order) in [
            ("ld.global.u32", Order::Weak),
            ("ld.volatile.global.u32", Order::Relaxed),
            ("ld.acquire.gpu.global.u32", Order::Acquire),
            ("st.release.gpu.u32", Order::Release),
            ("st.shared.v2.u32", Order::Weak),
            ("atom.global.add.u32", Order::Relaxed),
            ("atom.acq_rel.gpu.global.cas.b32", Order::AcquireRelease),
            ("red.release.gpu.global.add.u32", Order::Release),
            ("cp.async.ca.shared.global", Order::Copy),
            ("cp.async.bulk.global.shared::cta.bulk_group", Order::Weak),
            ("ldmatrix.sync.aligned.m8n8.x1.shared.b16", Order::Weak),
        ] {
            assert_eq!(Order::of(name), order, "{name}");
        }
    }
}
