//! The calls for resources of devices: what a device, a context or a stream has, splits of
//! multiprocessors, and descriptions.

use super::arguments::{peek, put, require};
use super::entry::entry;
use super::environment;
use super::green::{Description, Green, Scope};
use super::machine::Machine;
use super::multiprocessors::{Domains, Grain, Group, Multiprocessors, OF_DOMAIN, split};
use super::newer::CU_DEV_SM_RESOURCE_GROUP_PARAMS;
use super::partition::Part;
use super::resource::{
    Kind, MULTIPROCESSORS, Origin, Resource, WORKQUEUE, WORKQUEUE_CONFIG, Workqueue,
};
use crate::base::code;
use cudarc::driver::sys::{
    CUcontext, CUdevResource, CUdevResourceDesc, CUdevice, CUgreenCtx, CUstream,
};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

/// `CU_DEV_SM_RESOURCE_SPLIT_...`, of which only one may be set. The driver ignores others
/// (580.159).
const IGNORE_COSCHEDULING: c_uint = 1;
const SPLIT_FLAGS: c_uint = 3;

/// The queues that submit work, unless CUDA_DEVICE_MAX_CONNECTIONS says another number, and the
/// most.
const CONNECTIONS: c_uint = 8;
const MOST_CONNECTIONS: c_uint = 32;

/// The multiprocessors of each device.
fn multiprocessors(machine: &Machine) -> c_uint {
    machine.config.multiprocessors.unsigned_abs()
}

/// All multiprocessors of a device.
fn whole(machine: &Machine, device: usize) -> Part {
    let grain = Grain::of_device(machine.config.compute_capability);
    let multiprocessors = Multiprocessors::all(multiprocessors(machine));
    Part { device, multiprocessors, grain, flags: 0, domain: 0 }
}

/// The queues of a device's contexts.
fn workqueue(device: usize, id: u64) -> Workqueue {
    let named = environment::text("CUDA_DEVICE_MAX_CONNECTIONS");
    let number = named.and_then(|text| text.trim().parse::<c_uint>().ok());
    let limit = number.map_or(CONNECTIONS, |number| number.clamp(1, MOST_CONNECTIONS));
    Workqueue { device, limit, scope: 0, id }
}

/// What a green context without a description has.
pub(super) fn everything(machine: &Machine, device: usize) -> Description {
    let id = machine.hardware.devices[device].context.id.load(Ordering::Relaxed);
    Description { part: whole(machine, device), workqueue: workqueue(device, id) }
}

fn resource_of(part: &Part) -> Resource {
    Resource::of_part(part, Origin::Owner, Some(part.grain))
}

/// The resource of a type that a context has.
fn resource_of_context(
    machine: &Machine,
    scope: &Scope<'_>,
    kind: c_uint,
) -> Result<Resource, i32> {
    if let Some(green) = &scope.green {
        return resource_of_green(green, kind);
    }
    let (device, id) = (scope.context.device, scope.context.id.load(Ordering::Relaxed));
    match kind {
        MULTIPROCESSORS => Ok(resource_of(&whole(machine, device))),
        WORKQUEUE_CONFIG => Ok(Resource::of_config(&workqueue(device, id))),
        WORKQUEUE => Ok(Resource::of_workqueue(&workqueue(device, id))),
        _ => Err(code::INVALID_RESOURCE_TYPE),
    }
}

fn resource_of_green(green: &Green, kind: c_uint) -> Result<Resource, i32> {
    match kind {
        MULTIPROCESSORS => Ok(resource_of(&green.partition.part)),
        WORKQUEUE_CONFIG => Ok(Resource::of_config(&green.workqueue)),
        WORKQUEUE => Ok(Resource::of_workqueue(&green.workqueue)),
        _ => Err(code::INVALID_RESOURCE_TYPE),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetDevResource(
    device: CUdevice,
    resource: *mut CUdevResource,
    kind: c_uint,
) -> c_int {
    entry(|machine| {
        require(!resource.is_null(), code::INVALID_VALUE)?;
        let device = machine.device(device)?.context.device;
        let found = match kind {
            MULTIPROCESSORS => resource_of(&whole(machine, device)),
            WORKQUEUE_CONFIG => Resource::of_config(&workqueue(device, 0)),
            _ => return Err(code::INVALID_RESOURCE_TYPE),
        };
        put!(resource.cast::<Resource>(), found)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetDevResource(
    context: CUcontext,
    resource: *mut CUdevResource,
    kind: c_uint,
) -> c_int {
    entry(|machine| {
        require(!context.is_null(), code::INVALID_CONTEXT)?;
        require(!resource.is_null(), code::INVALID_VALUE)?;
        let found = resource_of_context(machine, &machine.scope(context)?, kind)?;
        put!(resource.cast::<Resource>(), found)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGreenCtxGetDevResource(
    green: CUgreenCtx,
    resource: *mut CUdevResource,
    kind: c_uint,
) -> c_int {
    entry(|machine| {
        let green = machine.greens.find(green)?;
        require(!resource.is_null(), code::INVALID_VALUE)?;
        put!(resource.cast::<Resource>(), resource_of_green(&green, kind)?)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetDevResource(
    stream: CUstream,
    resource: *mut CUdevResource,
    kind: c_uint,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.records(&stream)?;
        require(!resource.is_null(), code::INVALID_VALUE)?;
        require(kind == MULTIPROCESSORS, code::INVALID_RESOURCE_TYPE)?;
        let part = stream.partition.as_ref().map(|partition| partition.part);
        let part = part.unwrap_or_else(|| whole(machine, stream.device));
        put!(resource.cast::<Resource>(), resource_of(&part))
    })
}

/// The kind of a resource of the host.
fn kind_of(machine: &Machine, resource: *const CUdevResource) -> Result<Kind, i32> {
    let resource = peek!(resource.cast::<Resource>())?;
    resource.kind(machine.hardware.devices.len(), multiprocessors(machine))
}

/// Multiprocessors of the host, which come from one of these origins.
fn splittable(
    machine: &Machine,
    input: *const CUdevResource,
    origins: &[Origin],
) -> Result<Part, i32> {
    match kind_of(machine, input)? {
        Kind::Multiprocessors(part, origin) => {
            require(origins.contains(&origin), code::INVALID_RESOURCE_CONFIGURATION)?;
            Ok(part)
        }
        Kind::Workqueue(_) => Err(code::INVALID_RESOURCE_TYPE),
    }
}

/// Writes what a split left, if the host wants it.
fn put_rest(remainder: *mut CUdevResource, rest: Part, origin: Origin) -> Result<(), i32> {
    let found = match rest.multiprocessors.count() {
        0 => Resource::none(),
        _ => Resource::of_part(&rest, origin, None),
    };
    if remainder.is_null() { Ok(()) } else { put!(remainder.cast::<Resource>(), found) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDevSmResourceSplitByCount(
    result: *mut CUdevResource,
    groups: *mut c_uint,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: c_uint,
    minimum: c_uint,
) -> c_int {
    entry(|machine| {
        let most = peek!(groups)?;
        require(!input.is_null() && (result.is_null() || most > 0), code::INVALID_VALUE)?;
        let part = splittable(machine, input, &[Origin::Owner])?;
        let flags = flags & SPLIT_FLAGS;
        require(flags != SPLIT_FLAGS, code::INVALID_VALUE)?;
        let grain = if flags == IGNORE_COSCHEDULING { Grain::PAIRS } else { part.grain };
        let available = &part.multiprocessors;
        let size = grain.group_size(minimum, available.count())?;
        if result.is_null() {
            return put!(groups, available.groups(size) as c_uint);
        }
        let (members, rest) = available.split(size, most as usize);
        put!(groups, members.len() as c_uint)?;
        for (index, multiprocessors) in members.into_iter().enumerate() {
            let group = Part { multiprocessors, grain, ..part };
            let resource = Resource::of_part(&group, Origin::Group, None);
            put!(result.cast::<Resource>().wrapping_add(index), resource)?;
        }
        let rest = Part { multiprocessors: rest, grain: Grain::PAIRS, ..part };
        put_rest(remainder, rest, Origin::Group)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDevSmResourceSplit(
    result: *mut CUdevResource,
    number: c_uint,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: c_uint,
    parameters: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS,
) -> c_int {
    entry(|machine| {
        let is_valid = !input.is_null() && !parameters.is_null() && number > 0 && flags == 0;
        // A group has at least two.
        require(is_valid && number <= multiprocessors(machine), code::INVALID_VALUE)?;
        let part = splittable(machine, input, &[Origin::Owner, Origin::Rest])?;
        let given = (0..number as usize).map(|index| peek!(parameters.wrapping_add(index)));
        let given = given.collect::<Result<Vec<_>, i32>>()?;
        let mut groups: Vec<Group> = given.iter().map(Group::from).collect();
        let grain = Grain::of_device(machine.config.compute_capability);
        let domains = Domains::new(machine.config.locality_domains, multiprocessors(machine));
        let input = &part.multiprocessors;
        let (members, rest) = split(input, &mut groups, grain, domains, result.is_null())?;
        let all = given.into_iter().zip(groups).zip(members).enumerate();
        for (index, ((given, group), multiprocessors)) in all {
            let filled = CU_DEV_SM_RESOURCE_GROUP_PARAMS { smCount: group.count, ..given };
            put!(parameters.wrapping_add(index), filled)?;
            if !result.is_null() {
                let multiple = group.multiple(grain);
                let is_of_domain = group.flags & OF_DOMAIN != 0;
                let group = Part {
                    multiprocessors,
                    grain: if multiple >= grain.multiple { grain } else { Grain::PAIRS },
                    flags: group.flags,
                    domain: if is_of_domain { group.domain } else { 0 },
                    ..part
                };
                let shown = Some(Grain { least: 0, multiple });
                let resource = Resource::of_part(&group, Origin::Group, shown);
                put!(result.cast::<Resource>().wrapping_add(index), resource)?;
            }
        }
        let rest = Part { multiprocessors: rest, grain: Grain::PAIRS, ..part };
        put_rest(remainder, rest, Origin::Rest)
    })
}

impl From<&CU_DEV_SM_RESOURCE_GROUP_PARAMS> for Group {
    fn from(given: &CU_DEV_SM_RESOURCE_GROUP_PARAMS) -> Group {
        Group {
            count: given.smCount,
            coscheduled: given.coscheduledSmCount,
            flags: given.flags,
            domain: given.localityDomainId,
        }
    }
}

/// Adds multiprocessors to those of a description. They may overlap (580.159).
fn union(all: Option<Part>, other: Part) -> Result<Part, i32> {
    let Some(all) = all else { return Ok(other) };
    let of_domain = |part: &Part| (part.flags & OF_DOMAIN, part.domain);
    let is_alike = all.device == other.device && of_domain(&all) == of_domain(&other);
    require(is_alike, code::INVALID_RESOURCE_CONFIGURATION)?;
    let multiprocessors = all.multiprocessors.union(&other.multiprocessors);
    let grain = if all.grain.multiple < other.grain.multiple { all.grain } else { other.grain };
    Ok(Part { multiprocessors, grain, ..all })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDevResourceGenerateDesc(
    description: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    number: c_uint,
) -> c_int {
    entry(|machine| {
        let is_valid = !description.is_null() && !resources.is_null() && number > 0;
        require(is_valid, code::INVALID_VALUE)?;
        let (mut part, mut queue) = (None, None);
        for index in 0..number as usize {
            match kind_of(machine, resources.wrapping_add(index))? {
                Kind::Multiprocessors(found, _) => part = Some(union(part, found)?),
                Kind::Workqueue(found) => {
                    let before = queue.replace(found);
                    require(before.is_none(), code::INVALID_RESOURCE_CONFIGURATION)?;
                }
            }
        }
        let device = part.map(|part| part.device).or(queue.map(|queue| queue.device)).unwrap_or(0);
        let default = everything(machine, device);
        let queue = queue.unwrap_or(default.workqueue);
        require(queue.device == device, code::INVALID_RESOURCE_CONFIGURATION)?;
        let part = part.unwrap_or(default.part);
        let made = machine.greens.describe(Description { part, workqueue: queue })?;
        put!(description, made)
    })
}
