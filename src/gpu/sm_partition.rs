//! Sets of multiprocessors of a device, for green contexts.

use crate::base::error::{Error, Result};
use crate::base::shared::Shared;
use crate::driver::newer::{
    self, CU_DEV_SM_RESOURCE_GROUP_PARAMS, CUdevResource, GROUP_LOCALITY_DOMAIN,
};
use crate::driver::sys::{CUdevice_attribute, CUgreenCtx};
use crate::driver::{CudaError, Driver, code};
use crate::gpu::device::Device;
use crate::gpu::green_context::NativeGreen;
use crate::gpu::stream::Stream;

/// Flag of a split by count: multiprocessors one by one, without regard to clusters.
pub const IGNORE_COSCHEDULING: u32 = 1;
/// Flag of a split by count: groups for the largest clusters.
pub const MAX_CLUSTER: u32 = 2;
/// Flag of a group: its size counts more than its other conditions.
pub const BACKFILL: u32 = 1;
/// Flag of a group: it is of one locality domain.
pub const LOCALITY_DOMAIN: u32 = GROUP_LOCALITY_DOMAIN;

/// A set of multiprocessors.
pub struct SmPartition {
    device: i32,
    resource: CUdevResource,
    /// The driver divides only what it has returned for a device or a green context.
    is_of_split: bool,
    /// The green context whose multiprocessors these are.
    _context: Option<Shared<NativeGreen>>,
}

// SAFETY: the resource is a value; its pointer is NULL.
unsafe impl Send for SmPartition {}
// SAFETY: as above.
unsafe impl Sync for SmPartition {}

/// The parts of a split, and what is left.
pub struct Split {
    /// The groups, in the order of the split.
    pub parts: Vec<SmPartition>,
    /// `None`: nothing is left.
    pub remainder: Option<SmPartition>,
}

const NO_ROOM: Error = Error::OutOfHostMemory("the parts of a split");

impl SmPartition {
    /// All multiprocessors of a device. Makes no context.
    pub fn of_device(device: &Device) -> Result<SmPartition> {
        let resource = resource_of(device, newer::RESOURCE_SM)?;
        Ok(SmPartition { device: device.ordinal(), resource, is_of_split: false, _context: None })
    }

    /// Those of a green context, which lives as long.
    pub(crate) fn of_context(
        device: i32,
        resource: CUdevResource,
        context: Shared<NativeGreen>,
    ) -> SmPartition {
        SmPartition { device, resource, is_of_split: false, _context: Some(context) }
    }

    /// The ordinal of the device.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// Number of multiprocessors.
    pub fn count(&self) -> u32 {
        self.resource.words[0]
    }

    /// The smallest part of a split; 0: the driver does not say.
    pub fn smallest_part(&self) -> u32 {
        self.resource.words[1]
    }

    /// How many multiprocessors are scheduled together; 0: the driver does not say.
    pub fn coscheduled(&self) -> u32 {
        self.resource.words[2]
    }

    /// The locality domain that all are of, if the driver says so.
    pub fn locality_domain(&self) -> Option<u32> {
        let [_, _, _, flags, domain, ..] = self.resource.words;
        (flags & GROUP_LOCALITY_DOMAIN != 0).then_some(domain)
    }

    /// The driver's description.
    pub fn resource(&self) -> &CUdevResource {
        &self.resource
    }

    /// Divides it into at most `most` groups of `least` multiprocessors or the next larger number
    /// that the driver can make.
    pub fn split(&self, device: &Device, least: u32, flags: u32, most: u32) -> Result<Split> {
        self.check_undivided()?;
        if flags & !(IGNORE_COSCHEDULING | MAX_CLUSTER) != 0 || flags.count_ones() > 1 {
            return Err(Error::OutOfRange {
                name: "flags",
                value: flags.into(),
                allowed: "use 0, TCUDA_SM_SPLIT_IGNORE_COSCHEDULING or TCUDA_SM_SPLIT_MAX_CLUSTER",
            });
        }
        if least > self.count() {
            return Err(Error::OutOfRange {
                name: "min_sm_count",
                value: least.into(),
                allowed: "the partition has fewer multiprocessors; use at most its sm_count",
            });
        }
        if most == 0 {
            return Err(Error::OutOfRange {
                name: "capacity",
                value: 0,
                allowed: "use the length of partitions, at least 1",
            });
        }
        let driver = device.driver();
        let mut possible = 0;
        self.split_by_count(driver, std::ptr::null_mut(), &mut possible, None, flags, least)?;
        let mut count = possible.min(most);
        let mut groups = list_of(CUdevResource::NONE, count as usize)?;
        let mut rest = CUdevResource::NONE;
        self.split_by_count(
            driver,
            groups.as_mut_ptr(),
            &mut count,
            Some(&mut rest),
            flags,
            least,
        )?;
        groups.truncate(count as usize);
        self.parts(&groups, rest)
    }

    fn split_by_count(
        &self,
        driver: &Driver,
        result: *mut CUdevResource,
        count: &mut u32,
        rest: Option<&mut CUdevResource>,
        flags: u32,
        least: u32,
    ) -> Result<()> {
        let rest = rest.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: `result` is NULL or has `count` elements; the others are writable or NULL.
        let outcome = unsafe {
            driver.cuDevSmResourceSplitByCount(result, count, &self.resource, rest, flags, least)
        };
        outcome.map_err(explain)
    }

    /// Divides it into the groups, in their order; writes the number of multiprocessors of each.
    pub fn split_groups(
        &self,
        device: &Device,
        groups: &mut [CU_DEV_SM_RESOURCE_GROUP_PARAMS],
    ) -> Result<Split> {
        self.check_undivided()?;
        check_groups(device, groups)?;
        let mut parts = list_of(CUdevResource::NONE, groups.len())?;
        let mut rest = CUdevResource::NONE;
        let count = groups.len() as u32;
        // SAFETY: both lists have `count` elements; `rest` is writable.
        let outcome = unsafe {
            device.driver().cuDevSmResourceSplit(
                parts.as_mut_ptr(),
                count,
                &self.resource,
                &mut rest,
                0,
                groups.as_mut_ptr(),
            )
        };
        outcome.map_err(explain)?;
        self.parts(&parts, rest)
    }

    fn parts(&self, groups: &[CUdevResource], rest: CUdevResource) -> Result<Split> {
        let part = |resource: &CUdevResource| SmPartition {
            device: self.device,
            resource: *resource,
            is_of_split: true,
            _context: self._context.as_ref().map(Shared::share),
        };
        let mut parts = Vec::new();
        parts.try_reserve_exact(groups.len()).map_err(|_| NO_ROOM)?;
        parts.extend(groups.iter().map(part));
        let has_rest = rest.kind == newer::RESOURCE_SM && rest.words[0] > 0;
        Ok(Split { parts, remainder: has_rest.then(|| part(&rest)) })
    }

    fn check_undivided(&self) -> Result<()> {
        if self.is_of_split {
            return Err(Error::InvalidState(
                "the partition comes from a split, and the driver divides such a one only as that \
                 of a green context: create one with it, and split tcuda_green_context_partition",
            ));
        }
        Ok(())
    }
}

fn check_groups(device: &Device, groups: &[CU_DEV_SM_RESOURCE_GROUP_PARAMS]) -> Result<()> {
    if groups.is_empty() {
        return Err(Error::OutOfRange {
            name: "count",
            value: 0,
            allowed: "a split has at least one group",
        });
    }
    let mut domains = None;
    for (index, group) in groups.iter().enumerate() {
        if group.flags & !(BACKFILL | LOCALITY_DOMAIN) != 0 {
            return Err(Error::OutOfRange {
                name: "flags of a group",
                value: group.flags.into(),
                allowed: "combine TCUDA_SM_GROUP_BACKFILL and TCUDA_SM_GROUP_LOCALITY_DOMAIN, or \
                          use 0",
            });
        }
        let takes_all = group.count == 0 && group.flags & BACKFILL != 0;
        if takes_all && index + 1 < groups.len() {
            return Err(Error::OutOfRange {
                name: "the group with sm_count 0 and TCUDA_SM_GROUP_BACKFILL",
                value: index as i64,
                allowed: "it takes all that is left: make it the last one, or give it a count",
            });
        }
        if group.flags & LOCALITY_DOMAIN != 0 {
            let count = match domains {
                Some(count) => count,
                None => *domains.insert(device.locality_domains()?),
            };
            if group.locality_domain >= count as u32 {
                return Err(Error::OutOfRange {
                    name: "locality_domain",
                    value: group.locality_domain.into(),
                    allowed: "use 0 to tcuda_device_locality_domains - 1",
                });
            }
        }
    }
    Ok(())
}

/// Number of multiprocessors that run the kernels of a stream: those of its green context, or of
/// the device.
pub fn multiprocessors(device: &Device, stream: &Stream) -> Result<u32> {
    let is_of_device =
        stream.needs_context() || !stream.is_external() && stream.green.get().is_none();
    if !is_of_device && let Some(green) = green_of(device, stream)? {
        let mut resource = CUdevResource::NONE;
        // SAFETY: `resource` is writable; the green context lives as long as its stream.
        unsafe {
            device.driver().cuGreenCtxGetDevResource(green, &mut resource, newer::RESOURCE_SM)
        }?;
        return Ok(resource.words[0]);
    }
    let count = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    Ok(count.unsigned_abs())
}

/// The green context of a stream, if it has one.
fn green_of(device: &Device, stream: &Stream) -> Result<Option<CUgreenCtx>> {
    let mut green = std::ptr::null_mut();
    // SAFETY: the stream is alive, `green` is writable.
    match unsafe { device.driver().cuStreamGetGreenCtx(stream.native(), &mut green) } {
        Ok(()) => Ok((!green.is_null()).then_some(green)),
        Err(error) if error.code == CudaError::MISSING => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A resource of a device.
pub(crate) fn resource_of(device: &Device, kind: u32) -> Result<CUdevResource> {
    let mut resource = CUdevResource::NONE;
    // SAFETY: the device exists, `resource` is writable.
    unsafe { device.driver().cuDeviceGetDevResource(device.handle(), &mut resource, kind) }?;
    Ok(resource)
}

/// `count` copies.
fn list_of<T: Copy>(value: T, count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
    list.resize(count, value);
    Ok(list)
}

fn explain(error: CudaError) -> Error {
    match error.code {
        code::INVALID_RESOURCE_CONFIGURATION | code::INVALID_VALUE => Error::Invalid(
            "the driver cannot divide the partition like this: a count is a multiple of 2 and of \
             the group's coscheduled_sm_count, which is at most 32, and all groups fit into the \
             partition",
        ),
        _ => error.into(),
    }
}
