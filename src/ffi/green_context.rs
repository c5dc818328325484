//! Section "Green contexts" of the header.

use super::boundary::{Call, Sized_, boundary, bytes_out, given, out, struct_in, struct_out};
use super::handle::Table;
use super::status::tcuda_status;
use super::stream::{own, tcuda_stream};
use crate::base::error::{Error, Result};
use crate::driver::newer::CU_DEV_SM_RESOURCE_GROUP_PARAMS;
use crate::driver::sys::{CUctx_st, CUgreenCtx_st};
use crate::gpu::device::{CURRENT, Device};
use crate::gpu::gpus::Gpus;
use crate::gpu::green_context::{self, GreenContext, Workqueues};
use crate::gpu::sm_partition::{self, SmPartition, Split};
use crate::gpu::stream::Stream;
use std::ffi::c_void;

/// Flag of tcuda_sm_partition_split: multiprocessors one by one, so that parts may be smaller, but
/// hold no larger clusters.
pub const TCUDA_SM_SPLIT_IGNORE_COSCHEDULING: u32 = 1;
/// Flag of tcuda_sm_partition_split: parts that hold the largest clusters.
pub const TCUDA_SM_SPLIT_MAX_CLUSTER: u32 = 2;

/// Flag of a group: multiprocessors that do not meet its other conditions fill it up.
pub const TCUDA_SM_GROUP_BACKFILL: u32 = 1;
/// Flag of a group: all of one locality domain. CUDA 13.4.
pub const TCUDA_SM_GROUP_LOCALITY_DOMAIN: u32 = 2;

/// Work queues as the driver chooses.
pub const TCUDA_WORKQUEUE_DEFAULT: i32 = 0;
/// Work queues that all contexts of the device share. (torch: "device_ctx")
pub const TCUDA_WORKQUEUE_DEVICE: i32 = 1;
/// If possible, work queues that no other balanced green context uses. (torch: "balanced")
pub const TCUDA_WORKQUEUE_BALANCED: i32 = 2;

const _: () = assert!(TCUDA_SM_SPLIT_IGNORE_COSCHEDULING == sm_partition::IGNORE_COSCHEDULING);
const _: () = assert!(TCUDA_SM_SPLIT_MAX_CLUSTER == sm_partition::MAX_CLUSTER);
const _: () = assert!(TCUDA_SM_GROUP_BACKFILL == sm_partition::BACKFILL);
const _: () = assert!(TCUDA_SM_GROUP_LOCALITY_DOMAIN == sm_partition::LOCALITY_DOMAIN);

/// A set of multiprocessors of a device. It describes them and does not reserve them.
pub struct tcuda_sm_partition {
    _private: [u8; 0],
}

/// A context with a part of a device's multiprocessors.
pub struct tcuda_green_context {
    _private: [u8; 0],
}

/// What a partition or a green context consists of.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_sm_partition_info {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Ordinal.
    pub device: i32,
    /// Number of multiprocessors.
    pub sm_count: u32,
    /// The smallest part of a split; 0: not known, as of parts of a split.
    pub min_part_sm_count: u32,
    /// How many multiprocessors are scheduled together, which sizes of parts are multiples of; 0:
    /// not known.
    pub coscheduled_sm_count: u32,
    /// The locality domain of all; -1: none, or not known.
    pub locality_domain: i32,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_sm_partition_info {}

/// A group of tcuda_sm_partition_split_groups; zero is the default of each field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_sm_group {
    /// Number of multiprocessors, a multiple of 2 and of coscheduled_sm_count; 0: as many as are
    /// left.
    pub sm_count: u32,
    /// How many are scheduled together, for clusters: 2 to 32; 0: the driver's default.
    pub coscheduled_sm_count: u32,
    /// How many if possible; 0: the driver's default.
    pub preferred_coscheduled_sm_count: u32,
    /// TCUDA_SM_GROUP_... combined, or 0.
    pub flags: u32,
    /// With TCUDA_SM_GROUP_LOCALITY_DOMAIN: 0 to tcuda_device_locality_domains - 1.
    pub locality_domain: u32,
}

/// Options of tcuda_green_context_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_green_context_options {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Without a partition: at least so many multiprocessors, rounded up as by
    /// tcuda_sm_partition_split; 0: all.
    pub sm_count: u32,
    /// TCUDA_WORKQUEUE_...; others than DEFAULT need CUDA 13.1.
    pub workqueue_scope: i32,
    /// With a scope: the number of streams whose work is expected to run at a time, up to
    /// tcuda_device_workqueue_concurrency; 0: the driver's default.
    pub workqueue_concurrency: u32,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_green_context_options {}

pub(super) static SM_PARTITIONS: Table<SmPartition> = Table::new(15, "partition");
pub(super) static GREEN_CONTEXTS: Table<GreenContext> = Table::new(0, "green context");

/// Number of locality domains of a device: parts of its multiprocessors with memory nearby. 1 where
/// the driver is older than CUDA 13.4, or the device has no parts.
/// (torch.cuda.green_contexts.get_num_locality_domains; torch.cuda.green_contexts.
/// is_localization_supported is whether there are more than 1)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] count  1 or more
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_locality_domains(
    device: i32,
    count: *mut i32,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        count.set(call.gpus()?.device(device)?.locality_domains()?);
        Ok(())
    })
}

/// The greatest concurrency of work queues: streams whose work the driver can submit side by side.
/// TCUDA_STATUS_NOT_SUPPORTED before CUDA 13.1.
/// (torch.cuda.green_contexts.GreenContext.max_workqueue_concurrency)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] count  1 or more
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_workqueue_concurrency(
    device: i32,
    count: *mut u32,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        count.set(green_context::workqueue_concurrency(call.gpus()?.device(device)?)?);
        Ok(())
    })
}

fn insert(partition: SmPartition) -> Result<*mut tcuda_sm_partition> {
    Ok(SM_PARTITIONS.insert(partition)? as *mut tcuda_sm_partition)
}

/// All multiprocessors of a device. TCUDA_STATUS_NOT_SUPPORTED before CUDA 12.4.
/// (torch.cuda.green_contexts.SMPartition.from_device)
///
/// @param device          ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] partition  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sm_partition_from_device(
    device: i32,
    partition: *mut *mut tcuda_sm_partition,
) -> tcuda_status {
    boundary(|call| {
        let partition = out(partition, "partition")?;
        partition.set(insert(SmPartition::of_device(call.gpus()?.device(device)?)?)?);
        Ok(())
    })
}

/// Handles of the parts of a split, for a caller with room for them; all or none.
fn hand_out(
    split: Split,
    partitions: *mut *mut tcuda_sm_partition,
    remainder: *mut *mut tcuda_sm_partition,
) -> Result<()> {
    let mut handles = Vec::new();
    let wanted = split.parts.len() + 1;
    handles.try_reserve_exact(wanted).map_err(|_| Error::OutOfHostMemory("parts of a split"))?;
    let count = split.parts.len();
    let rest = split.remainder.filter(|_| !remainder.is_null());
    for part in split.parts.into_iter().chain(rest) {
        match insert(part) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                for handle in handles {
                    SM_PARTITIONS.remove(handle as usize, "partition")?;
                }
                return Err(error);
            }
        }
    }
    let rest = handles.get(count).copied().unwrap_or(std::ptr::null_mut());
    for (index, handle) in handles.into_iter().take(count).enumerate() {
        // SAFETY: the caller has room for as many.
        let place = unsafe { partitions.add(index) };
        out(place, "partitions")?.set(handle);
    }
    if !remainder.is_null() {
        out(remainder, "remainder")?.set(rest);
    }
    Ok(())
}

/// Divides a partition into disjoint parts of one size: min_sm_count, or the next larger number
/// that the device can schedule together (on compute capability 9.0 a multiple of 8, without
/// coscheduling of 2). TCUDA_STATUS_INVALID_STATE for a part of a split: create a green context
/// with it, and split tcuda_green_context_partition.
/// (torch.cuda.green_contexts.SMPartition.split, of one group;
/// torch.cuda.green_contexts.GreenContext.split)
///
/// @param partition        not NULL
/// @param min_sm_count     0 to the partition's sm_count; 0: the smallest part
/// @param flags            a TCUDA_SM_SPLIT_... flag, or 0
/// @param capacity         the length of `partitions`, at least 1
/// @param[out] partitions  the caller's, each to be destroyed
/// @param[out] count       number of parts, at most `capacity`
/// @param[out] remainder   what is left, the caller's; NULL if nothing is; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sm_partition_split(
    partition: *mut tcuda_sm_partition,
    min_sm_count: u32,
    flags: u32,
    capacity: u32,
    partitions: *mut *mut tcuda_sm_partition,
    count: *mut u32,
    remainder: *mut *mut tcuda_sm_partition,
) -> tcuda_status {
    boundary(|call| {
        out(partitions, "partitions")?;
        let count = out(count, "count")?;
        let whole = SM_PARTITIONS.get(partition as usize, "partition", call)?;
        let device = call.gpus()?.device(whole.device())?;
        let split = whole.split(device, min_sm_count, flags, capacity)?;
        let number = split.parts.len() as u32;
        hand_out(split, partitions, remainder)?;
        count.set(number);
        Ok(())
    })
}

/// Divides a partition into disjoint parts with conditions of their own, in the order of `groups`.
/// TCUDA_STATUS_NOT_SUPPORTED before CUDA 13.1; TCUDA_STATUS_INVALID_STATE for a part of a split,
/// as for tcuda_sm_partition_split. (torch.cuda.green_contexts.SMPartition.split)
///
/// @param partition        not NULL
/// @param groups           `count` groups
/// @param count            at least 1
/// @param[out] partitions  `count` parts, the caller's, each to be destroyed
/// @param[out] remainder   what is left, the caller's; NULL if nothing is; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sm_partition_split_groups(
    partition: *mut tcuda_sm_partition,
    groups: *const tcuda_sm_group,
    count: u32,
    partitions: *mut *mut tcuda_sm_partition,
    remainder: *mut *mut tcuda_sm_partition,
) -> tcuda_status {
    boundary(|call| {
        out(partitions, "partitions")?;
        let whole = SM_PARTITIONS.get(partition as usize, "partition", call)?;
        let mut list = Vec::new();
        list.try_reserve_exact(count as usize)
            .map_err(|_| Error::OutOfHostMemory("groups of a split"))?;
        for index in 0..count as usize {
            let group = given(groups.wrapping_add(index), "groups")?;
            list.push(CU_DEV_SM_RESOURCE_GROUP_PARAMS {
                count: group.sm_count,
                coscheduled: group.coscheduled_sm_count,
                preferred_coscheduled: group.preferred_coscheduled_sm_count,
                flags: group.flags,
                locality_domain: group.locality_domain,
                ..Default::default()
            });
        }
        let device = call.gpus()?.device(whole.device())?;
        hand_out(whole.split_groups(device, &mut list)?, partitions, remainder)
    })
}

fn info_of(partition: &SmPartition) -> tcuda_sm_partition_info {
    tcuda_sm_partition_info {
        struct_size: size_of::<tcuda_sm_partition_info>(),
        device: partition.device(),
        sm_count: partition.count(),
        min_part_sm_count: partition.smallest_part(),
        coscheduled_sm_count: partition.coscheduled(),
        locality_domain: partition.locality_domain().map_or(-1, |domain| domain as i32),
    }
}

/// What a partition consists of. (torch.cuda.green_contexts.SMPartition.sm_count, .device_id,
/// .coscheduled_sm_count, .locality_domain_id)
///
/// @param partition     not NULL
/// @param[in,out] info  start from TCUDA_INIT(tcuda_sm_partition_info)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sm_partition_properties(
    partition: *mut tcuda_sm_partition,
    info: *mut tcuda_sm_partition_info,
) -> tcuda_status {
    boundary(|call| {
        let info = struct_out(info, "info")?;
        info.set(&info_of(SM_PARTITIONS.get(partition as usize, "partition", call)?));
        Ok(())
    })
}

/// The driver's description of a partition, a CUdevResource, for cuDevResourceGenerateDesc. (+)
///
/// @param partition    not NULL
/// @param[out] buf     may be NULL if len is 0; cut to `len` bytes
/// @param len          room in buf, in bytes
/// @param[out] needed  144 bytes; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sm_partition_native(
    partition: *mut tcuda_sm_partition,
    buf: *mut c_void,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = bytes_out(buf, len, needed)?;
        let found = SM_PARTITIONS.get(partition as usize, "partition", call)?;
        out.fill(|sink| sink(found.resource().bytes()))
    })
}

/// Destroys a partition; green contexts of it stay.
/// (the end of a torch.cuda.green_contexts.SMPartition)
///
/// @param partition  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sm_partition_destroy(
    partition: *mut tcuda_sm_partition,
) -> tcuda_status {
    boundary(|_| match partition.is_null() {
        true => Ok(()),
        false => SM_PARTITIONS.remove(partition as usize, "partition"),
    })
}

/// The queues of the options; `None`: the driver's choice.
fn workqueues(options: &tcuda_green_context_options) -> Result<Option<Workqueues>> {
    let concurrency = options.workqueue_concurrency;
    let scope = match options.workqueue_scope {
        TCUDA_WORKQUEUE_DEFAULT if concurrency > 0 => {
            return Err(Error::OutOfRange {
                name: "workqueue_concurrency",
                value: concurrency.into(),
                allowed: "it needs a workqueue_scope other than TCUDA_WORKQUEUE_DEFAULT",
            });
        }
        TCUDA_WORKQUEUE_DEFAULT => return Ok(None),
        TCUDA_WORKQUEUE_DEVICE => 0,
        TCUDA_WORKQUEUE_BALANCED => 1,
        other => {
            return Err(Error::OutOfRange {
                name: "workqueue_scope",
                value: other.into(),
                allowed: "use TCUDA_WORKQUEUE_DEFAULT, _DEVICE or _BALANCED",
            });
        }
    };
    Ok(Some(Workqueues { scope, concurrency }))
}

/// The part of a device with at least `count` multiprocessors.
fn part_of(device: &Device, count: u32) -> Result<SmPartition> {
    let whole = SmPartition::of_device(device)?;
    if count > whole.count() {
        return Err(Error::OutOfRange {
            name: "sm_count",
            value: count.into(),
            allowed: "the device has fewer multiprocessors; use at most its \
                      multi_processor_count",
        });
    }
    let mut split = whole.split(device, count, 0, 1)?;
    split.parts.pop().ok_or(Error::Invalid("the driver can make no part of such a size"))
}

/// Creates a green context: its streams run kernels on the multiprocessors of a partition and
/// nowhere else. Memory, events, kernels and graphs are those of the device; work that is captured
/// on its streams runs on its multiprocessors at each replay, on whatever stream. Contexts of one
/// partition share its multiprocessors. Makes the device's primary context.
/// TCUDA_STATUS_NOT_SUPPORTED before CUDA 12.4.
/// (torch.cuda.green_contexts.GreenContext, torch.cuda.green_contexts.GreenContext.create)
///
/// @param device        ordinal, or TCUDA_CURRENT_DEVICE; with a partition it is that of the
///                      partition, or TCUDA_CURRENT_DEVICE
/// @param partition     may be NULL: options->sm_count, or all multiprocessors
/// @param options       may be NULL: defaults; without a partition it has sm_count or a
///                      workqueue_scope
/// @param[out] context  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_green_context_create(
    device: i32,
    partition: *mut tcuda_sm_partition,
    options: *const tcuda_green_context_options,
    context: *mut *mut tcuda_green_context,
) -> tcuda_status {
    boundary(|call| {
        let context = out(context, "context")?;
        let mut chosen = tcuda_green_context_options {
            struct_size: size_of::<tcuda_green_context_options>(),
            sm_count: 0,
            workqueue_scope: TCUDA_WORKQUEUE_DEFAULT,
            workqueue_concurrency: 0,
        };
        if !options.is_null() {
            chosen = struct_in(options, chosen, "options")?;
        }
        let queues = workqueues(&chosen)?;
        let gpus = call.gpus()?;
        let named = gpus.device(device)?;
        let made = match partition.is_null() {
            true if chosen.sm_count > 0 => {
                let part = part_of(named, chosen.sm_count)?;
                GreenContext::create(named, Some(&part), queues)?
            }
            true if queues.is_none() => {
                return Err(Error::Invalid(
                    "a green context needs a partition, an sm_count or a workqueue_scope",
                ));
            }
            true => GreenContext::create(named, None, queues)?,
            false => {
                let part = SM_PARTITIONS.get(partition as usize, "partition", call)?;
                if chosen.sm_count > 0 {
                    return Err(Error::OutOfRange {
                        name: "sm_count",
                        value: chosen.sm_count.into(),
                        allowed: "with a partition it is 0: the partition has its own",
                    });
                }
                if device != CURRENT && device != part.device() {
                    return Err(Error::OutOfRange {
                        name: "device",
                        value: device.into(),
                        allowed: "use the device of the partition, or TCUDA_CURRENT_DEVICE",
                    });
                }
                GreenContext::create(gpus.device(part.device())?, Some(part), queues)?
            }
        };
        forget_ended(gpus, &made)?;
        context.set(GREEN_CONTEXTS.insert(made)? as *mut tcuda_green_context);
        Ok(())
    })
}

/// Ends streams of destroyed contexts to which nothing refers any more.
fn forget_ended(gpus: &Gpus, context: &GreenContext) -> Result<()> {
    gpus.device(context.partition().device())?.streams.forget_ended(gpus, true);
    Ok(())
}

fn get(context: *mut tcuda_green_context, call: &Call) -> Result<&GreenContext> {
    GREEN_CONTEXTS.get(context as usize, "context", call)
}

/// What a green context consists of. (torch.cuda.green_contexts.GreenContext.sm_count, .device_id,
/// .locality_domain_id)
///
/// @param context       not NULL
/// @param[in,out] info  start from TCUDA_INIT(tcuda_sm_partition_info)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_green_context_properties(
    context: *mut tcuda_green_context,
    info: *mut tcuda_sm_partition_info,
) -> tcuda_status {
    boundary(|call| {
        let info = struct_out(info, "info")?;
        info.set(&info_of(&get(context, call)?.partition()));
        Ok(())
    })
}

/// The multiprocessors of a green context, which can be split further. The driver's context lives
/// as long as this partition and its parts. (torch.cuda.green_contexts.GreenContext.sm_partition)
///
/// @param context         not NULL
/// @param[out] partition  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_green_context_partition(
    context: *mut tcuda_green_context,
    partition: *mut *mut tcuda_sm_partition,
) -> tcuda_status {
    boundary(|call| {
        let partition = out(partition, "partition")?;
        partition.set(insert(get(context, call)?.partition())?);
        Ok(())
    })
}

/// One of 32 streams of a green context, round robin: the 33rd is the first again. It is not
/// ordered relative to the default stream. (torch.cuda.green_contexts.GreenContext.Stream)
///
/// @param context      not NULL
/// @param[out] stream  the caller's, to be destroyed; it may outlive the green context's handle
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_green_context_stream_create(
    context: *mut tcuda_green_context,
    stream: *mut *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = out(stream, "stream")?;
        stream.set(own(get(context, call)?.next_stream(call.gpus()?)?)?);
        Ok(())
    })
}

fn wait_for(gpus: &Gpus) -> impl Fn(&Stream, &Stream) -> Result<()> + '_ {
    |later, earlier| later.wait_stream_for_host(gpus, earlier)
}

/// Makes the green context the current context of this thread, in the driver as well, its device
/// the current one, and one of its streams the current stream, which waits for the one that was
/// current. Work of tcuda on the current stream then runs on its multiprocessors, and so does work
/// that the host gives CUDA itself, also on the NULL stream. tcuda_stream_default stays the stream
/// of the primary context.
/// TCUDA_STATUS_INVALID_STATE if it is set already, here or on another thread.
/// (torch.cuda.green_contexts.GreenContext.set_context)
///
/// @param context  not NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_green_context_set(
    context: *mut tcuda_green_context,
) -> tcuda_status {
    boundary(|call| {
        let gpus = call.gpus()?;
        get(context, call)?.set(gpus, &wait_for(gpus))
    })
}

/// Undoes tcuda_green_context_set on the same thread: the stream that was current then waits for
/// the current one, and is current again. TCUDA_STATUS_INVALID_STATE, and nothing changes, if it is
/// not set on this thread or another context is current.
/// (torch.cuda.green_contexts.GreenContext.pop_context)
///
/// @param context  not NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_green_context_pop(
    context: *mut tcuda_green_context,
) -> tcuda_status {
    boundary(|call| {
        let gpus = call.gpus()?;
        get(context, call)?.pop(gpus, &wait_for(gpus))
    })
}

/// The driver's green context, and the CUcontext that stands for it. Both are valid until the green
/// context is destroyed. The host removes the CUcontext from each thread's stack before: a driver
/// ends the process where one is popped that was destroyed. (+)
///
/// @param context          not NULL
/// @param[out] green       borrowed; may be NULL
/// @param[out] cu_context  borrowed; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_green_context_native(
    context: *mut tcuda_green_context,
    green: *mut *mut CUgreenCtx_st,
    cu_context: *mut *mut CUctx_st,
) -> tcuda_status {
    boundary(|call| {
        let native = get(context, call)?.native();
        if !green.is_null() {
            out(green, "green")?.set(native.0);
        }
        if !cu_context.is_null() {
            out(cu_context, "cu_context")?.set(native.1);
        }
        Ok(())
    })
}

/// Destroys a green context; queued work continues. If it is set on this thread, it is popped
/// first; TCUDA_STATUS_INVALID_STATE if another thread has set it. The driver's context ends when
/// its streams have no handles, no thread's current stream is one of them, and no allocated or
/// cached memory belongs to them: not before the next tcuda_green_context_create or _destroy, or
/// tcuda_shutdown. (the end of a torch.cuda.green_contexts.GreenContext)
///
/// @param context  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_green_context_destroy(
    context: *mut tcuda_green_context,
) -> tcuda_status {
    boundary(|call| {
        if context.is_null() {
            return Ok(());
        }
        let gpus = call.gpus()?;
        let found = get(context, call)?;
        found.require_unset_elsewhere()?;
        let waited = found.unset(gpus, &wait_for(gpus));
        let outcome = waited.and(found.end(gpus));
        forget_ended(gpus, found)?;
        GREEN_CONTEXTS.remove(context as usize, "context")?;
        outcome
    })
}
