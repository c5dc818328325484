//! Resources of devices as the host holds them: structures that it passes on and does not change.
//! What the structures do not show is in their padding, with a checksum.

use super::arguments::require;
use super::multiprocessors::{Grain, Multiprocessors};
use super::partition::Part;
use crate::base::code;
use std::array;
use std::ffi::c_uint;

/// `CU_DEV_RESOURCE_TYPE_...`.
pub(super) const NONE: c_uint = 0;
pub(super) const MULTIPROCESSORS: c_uint = 1;
pub(super) const WORKQUEUE_CONFIG: c_uint = 1000;
pub(super) const WORKQUEUE: c_uint = 10_000;

/// The last `CU_WORKQUEUE_SCOPE_...`.
const LAST_SCOPE: c_uint = 1;

const PAIRS: usize = 16;

/// `CUdevResource`, which has the same size in all versions of CUDA.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Resource {
    kind: c_uint,
    // The padding.
    device: c_uint,
    origin: c_uint,
    pairs: [c_uint; PAIRS],
    grain: [c_uint; 2],
    unused: c_uint,
    checksum: [c_uint; 2],
    // The union.
    fields: [c_uint; 10],
    next: [c_uint; 2],
}

const _: () = assert!(size_of::<Resource>() == 144);

/// Where multiprocessors come from, which decides whether they can be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A device or a context.
    Owner = 1,
    /// A group of a split.
    Group = 2,
    /// What `cuDevSmResourceSplit` left.
    Rest = 3,
}

/// The queues through which the streams of a context submit work. They limit nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workqueue {
    pub(super) device: usize,
    pub(super) limit: c_uint,
    pub(super) scope: c_uint,
    /// The ID of the context that has it first; 0: a new one.
    pub(super) id: u64,
}

/// What a resource is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Multiprocessors(Part, Origin),
    Workqueue(Workqueue),
}

impl Resource {
    #[cfg(test)]
    pub(super) fn has_type(&self, kind: c_uint) -> bool {
        self.kind == kind
    }

    /// The resource of type 0.
    pub(super) fn none() -> Resource {
        Resource {
            kind: NONE,
            device: 0,
            origin: 0,
            pairs: [0; PAIRS],
            grain: [0; 2],
            unused: 0,
            checksum: [0; 2],
            fields: [0; 10],
            next: [0; 2],
        }
    }

    /// Multiprocessors, with the grain that the host sees, if any.
    pub(super) fn of_part(part: &Part, origin: Origin, shown: Option<Grain>) -> Resource {
        let shown = shown.unwrap_or(Grain { least: 0, multiple: 0 });
        let pairs = part.multiprocessors.pairs();
        let half = |index: usize| (pairs[index / 2] >> (index % 2 * 32)) as c_uint;
        let count = part.multiprocessors.count();
        let fields = [count, shown.least, shown.multiple, part.flags, part.domain, 0, 0, 0, 0, 0];
        let resource = Resource {
            kind: MULTIPROCESSORS,
            device: part.device as c_uint,
            origin: origin as c_uint,
            pairs: array::from_fn(half),
            grain: [part.grain.least, part.grain.multiple],
            fields,
            ..Resource::none()
        };
        resource.sealed()
    }

    /// The settings of queues. The host may change them.
    pub(super) fn of_config(queue: &Workqueue) -> Resource {
        let fields = [queue.device as c_uint, queue.limit, queue.scope, 0, 0, 0, 0, 0, 0, 0];
        Resource { kind: WORKQUEUE_CONFIG, fields, ..Resource::none() }
    }

    /// Queues of a context.
    pub(super) fn of_workqueue(queue: &Workqueue) -> Resource {
        let id = [queue.id as c_uint, (queue.id >> 32) as c_uint];
        let fields = [id[0], id[1], queue.limit, queue.scope, 0, 0, 0, 0, 0, 0];
        let device = queue.device as c_uint;
        Resource { kind: WORKQUEUE, device, fields, ..Resource::none() }.sealed()
    }

    fn sealed(self) -> Resource {
        Resource { checksum: self.sum(), ..self }
    }

    /// FNV-1a of what the host must not change.
    fn sum(&self) -> [c_uint; 2] {
        let head = [self.kind, self.device, self.origin];
        let words = head.iter().chain(&self.pairs).chain(&self.grain).chain(&self.fields);
        let sum = words.fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| {
            (sum ^ u64::from(*word)).wrapping_mul(0x0100_0000_01b3)
        });
        [sum as c_uint, (sum >> 32) as c_uint]
    }

    /// What it is, on a machine with so many devices with so many multiprocessors.
    pub(super) fn kind(&self, devices: usize, multiprocessors: c_uint) -> Result<Kind, i32> {
        let is_sealed = || self.checksum == self.sum();
        let refused = code::INVALID_RESOURCE_CONFIGURATION;
        match self.kind {
            MULTIPROCESSORS => {
                require(is_sealed(), refused)?;
                let origin = match self.origin {
                    1 => Origin::Owner,
                    2 => Origin::Group,
                    3 => Origin::Rest,
                    _ => return Err(refused),
                };
                let half = |index: usize| u64::from(self.pairs[index]);
                let pairs = array::from_fn(|word| half(2 * word) | half(2 * word + 1) << 32);
                let members = Multiprocessors::from_pairs(pairs, multiprocessors);
                let device = self.device as usize;
                require(device < devices, refused)?;
                let part = Part {
                    device,
                    multiprocessors: members.ok_or(refused)?,
                    grain: Grain { least: self.grain[0], multiple: self.grain[1] },
                    flags: self.fields[3],
                    domain: self.fields[4],
                };
                Ok(Kind::Multiprocessors(part, origin))
            }
            WORKQUEUE_CONFIG => {
                let [device, limit, scope, ..] = self.fields;
                let is_valid = (device as usize) < devices && limit > 0 && scope <= LAST_SCOPE;
                require(is_valid, refused)?;
                let device = device as usize;
                Ok(Kind::Workqueue(Workqueue { device, limit, scope, id: 0 }))
            }
            WORKQUEUE => {
                require(is_sealed() && (self.device as usize) < devices, refused)?;
                let [low, high, limit, scope, ..] = self.fields;
                let id = u64::from(high) << 32 | u64::from(low);
                let device = self.device as usize;
                Ok(Kind::Workqueue(Workqueue { device, limit, scope, id }))
            }
            _ => Err(code::INVALID_RESOURCE_TYPE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_resources_are_refused() {
        let multiprocessors = Multiprocessors::all(7);
        let grain = Grain { least: 8, multiple: 4 };
        let part = Part { device: 1, multiprocessors, grain, flags: 2, domain: 3 };
        let resource = Resource::of_part(&part, Origin::Rest, None);
        let kind = Ok(Kind::Multiprocessors(part, Origin::Rest));
        assert_eq!(resource.kind(2, 7), kind);
        let refused = Err(code::INVALID_RESOURCE_CONFIGURATION);
        assert_eq!(resource.kind(1, 7), refused, "no such device");
        assert_eq!(resource.kind(2, 5), refused, "no such multiprocessors");
        let mut changed = resource;
        changed.fields[0] = 6;
        assert_eq!(changed.kind(2, 7), refused);
        changed = resource;
        changed.pairs[0] = 1;
        assert_eq!(changed.kind(2, 7), refused);
        changed = resource;
        changed.kind = NONE;
        assert_eq!(changed.kind(2, 7), Err(code::INVALID_RESOURCE_TYPE));

        let queue = Workqueue { device: 1, limit: 8, scope: 1, id: 1 << 40 };
        let resource = Resource::of_workqueue(&queue);
        assert_eq!(resource.kind(2, 7), Ok(Kind::Workqueue(queue)));
        let config = Resource::of_config(&queue);
        assert_eq!(config.kind(2, 7), Ok(Kind::Workqueue(Workqueue { id: 0, ..queue })));
        changed = config;
        changed.fields[2] = 2;
        assert_eq!(changed.kind(2, 7), refused);
    }
}
