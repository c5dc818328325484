//! Partitions of multiprocessors and green contexts.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::{Mode, World};
use std::ptr::{null, null_mut};
use tcuda::ffi::green_context::*;
use tcuda::ffi::stream::tcuda_stream;

/// Multiprocessors of a simulated device.
const ALL: u32 = 132;

fn add_partition(w: &mut World, handle: *mut tcuda_sm_partition) {
    assert!(!handle.is_null());
    w.partitions.push(handle as usize);
    w.counted += 1;
}

pub(super) fn locality_domains(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_device_locality_domains(device, out.ptr()));
    if let Some(count) = out.check(w.judge(status, &e)) {
        assert_eq!(count, 1);
    }
}

pub(super) fn workqueue_concurrency(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<u32>::required(i, &mut e);
    let status = status_of!(tcuda_device_workqueue_concurrency(device, out.ptr()));
    if let Some(count) = out.check(w.judge(status, &e)) {
        assert!((1..=32).contains(&count));
    }
}

pub(super) fn from_device(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<*mut tcuda_sm_partition>::required(i, &mut e);
    let status = status_of!(tcuda_sm_partition_from_device(device, out.ptr()));
    if let Some(partition) = out.check(w.judge(status, &e)) {
        add_partition(w, partition);
    }
}

pub(super) fn split(w: &mut World, i: &mut Input) {
    const MOST: usize = 8;
    let mut e = Expect::default();
    let partition = w.partition(i, &mut e);
    // A part of a split is not split again, and others have fewer multiprocessors.
    e.also(&[status::INVALID_STATE, status::INVALID_ARGUMENT]);
    let least = i.one_of(&[0, 1, 8, 9, 16, 40, 130, ALL, ALL + 1, u32::MAX]);
    if least > ALL {
        e.wrong(status::INVALID_ARGUMENT);
        e.wrong(status::INVALID_STATE);
    }
    let flags = i.one_of(&[0, 0, 1, 2, 3, u32::MAX]);
    if flags > 2 {
        e.wrong(status::INVALID_ARGUMENT);
        e.wrong(status::INVALID_STATE);
    }
    let capacity = i.below(MOST + 1) as u32;
    if capacity == 0 {
        e.wrong(status::INVALID_ARGUMENT);
        e.wrong(status::INVALID_STATE);
    }
    let mut parts = [null_mut(); MOST + 1];
    let mut count = Out::<u32>::required(i, &mut e);
    let mut rest = Out::<*mut tcuda_sm_partition>::optional(i);
    let status = status_of!(tcuda_sm_partition_split(
        partition as *mut _,
        least,
        flags,
        capacity,
        parts.as_mut_ptr(),
        count.ptr(),
        rest.ptr()
    ));
    let ok = w.judge(status, &e);
    let (count, rest) = (count.check(ok), rest.check(ok));
    if ok {
        let count = count.unwrap_or(0);
        assert!((1..=capacity).contains(&count));
        parts[..count as usize].iter().for_each(|part| add_partition(w, *part));
        rest.filter(|rest| !rest.is_null()).into_iter().for_each(|rest| add_partition(w, rest));
        parts[..count as usize].fill(null_mut());
    }
    assert!(parts.iter().all(|part| part.is_null()), "a part that does not count");
}

pub(super) fn split_groups(w: &mut World, i: &mut Input) {
    const MOST: usize = 3;
    let mut e = Expect::default();
    let partition = w.partition(i, &mut e);
    e.also(&[status::INVALID_STATE, status::INVALID_ARGUMENT]);
    let mut groups = [tcuda_sm_group {
        sm_count: 0,
        coscheduled_sm_count: 0,
        preferred_coscheduled_sm_count: 0,
        flags: 0,
        locality_domain: 0,
    }; MOST];
    for group in &mut groups {
        group.sm_count = i.one_of(&[0, 2, 8, 16, 17, 64, u32::MAX]);
        group.coscheduled_sm_count = i.one_of(&[0, 2, 8, 3, 32, u32::MAX]);
        group.preferred_coscheduled_sm_count = i.one_of(&[0, 0, 16, u32::MAX]);
        group.flags = i.one_of(&[0, 0, 1, 2, 3, 4, u32::MAX]);
        group.locality_domain = i.one_of(&[0, 0, 1, u32::MAX]);
    }
    let count = i.below(MOST + 1);
    if count == 0 {
        e.wrong(status::INVALID_ARGUMENT);
        e.wrong(status::INVALID_STATE);
    }
    let mut parts = [null_mut(); MOST + 1];
    let mut rest = Out::<*mut tcuda_sm_partition>::optional(i);
    let status = status_of!(tcuda_sm_partition_split_groups(
        partition as *mut _,
        groups.as_ptr(),
        count as u32,
        parts.as_mut_ptr(),
        rest.ptr()
    ));
    let ok = w.judge(status, &e);
    let rest = rest.check(ok);
    if ok {
        parts[..count].iter().for_each(|part| add_partition(w, *part));
        rest.filter(|rest| !rest.is_null()).into_iter().for_each(|rest| add_partition(w, rest));
        parts[..count].fill(null_mut());
    }
    assert!(parts.iter().all(|part| part.is_null()), "a part that does not count");
}

fn empty_info() -> tcuda_sm_partition_info {
    tcuda_sm_partition_info {
        struct_size: size_of::<tcuda_sm_partition_info>(),
        device: -1,
        sm_count: 0,
        min_part_sm_count: 0,
        coscheduled_sm_count: 0,
        locality_domain: -1,
    }
}

fn check_info(w: &World, ok: bool, info: &tcuda_sm_partition_info) {
    if ok {
        assert!((1..=ALL).contains(&info.sm_count));
        assert!(info.device >= 0 && (w.mode == Mode::Threads || info.device < w.devices()));
    } else {
        assert!(info.sm_count == 0 && info.device == -1);
    }
}

pub(super) fn partition_properties(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let partition = w.partition(i, &mut e);
    let mut info = empty_info();
    let status = status_of!(tcuda_sm_partition_properties(partition as *mut _, &mut info));
    let ok = w.judge(status, &e);
    check_info(w, ok, &info);
}

pub(super) fn partition_native(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let partition = w.partition(i, &mut e);
    let mut resource = [0u64; 18];
    let to = resource.as_mut_ptr().cast();
    let status = status_of!(tcuda_sm_partition_native(partition as *mut _, to, 144, null_mut()));
    let ok = w.judge(status, &e);
    // CU_DEV_RESOURCE_TYPE_SM
    assert_eq!(resource[0] as u32, u32::from(ok));
}

pub(super) fn partition_destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut handle = w.partition(i, &mut e);
    if i.rarely(16) {
        handle = 0;
    }
    if handle == 0 {
        e = Expect::default();
    }
    let ok = w.judge(status_of!(tcuda_sm_partition_destroy(handle as *mut _)), &e);
    if ok && let Some(index) = w.partitions.iter().position(|live| *live == handle) {
        w.dead.push(w.partitions.swap_remove(index));
        w.counted -= 1;
    }
}

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut options = tcuda_green_context_options {
        struct_size: size_of::<tcuda_green_context_options>(),
        sm_count: 0,
        workqueue_scope: i.one_of(&[0, 0, 0, 1, 2, 3, -1]),
        workqueue_concurrency: i.one_of(&[0, 0, 1, 8, u32::MAX]),
    };
    let mut partition = 0;
    let mut device = -1;
    if i.rarely(2) {
        partition = w.partition(i, &mut e);
    } else {
        device = w.device(i, &mut e);
        options.sm_count = i.one_of(&[8, 1, 16, ALL, 0, ALL + 1, u32::MAX]);
    }
    let has_scope = options.workqueue_scope != 0;
    let is_wrong = !(0..=2).contains(&options.workqueue_scope)
        || !has_scope && options.workqueue_concurrency > 0
        || options.sm_count > ALL
        || partition == 0 && options.sm_count == 0 && !has_scope;
    if is_wrong {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // More than the device has.
    e.also(&[status::INVALID_ARGUMENT, status::CUDA_ERROR]);
    let mut out = Out::<*mut tcuda_green_context>::required(i, &mut e);
    let options = if options.sm_count == 0 && !has_scope && i.rarely(2) {
        null()
    } else {
        &raw const options
    };
    if options.is_null() && partition == 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let status =
        status_of!(tcuda_green_context_create(device, partition as *mut _, options, out.ptr()));
    if let Some(context) = out.check(w.judge(status, &e)) {
        w.greens.push(context as usize);
        w.counted += 1;
    }
}

pub(super) fn properties(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let context = w.green(i, &mut e);
    let mut info = empty_info();
    let status = status_of!(tcuda_green_context_properties(context as *mut _, &mut info));
    let ok = w.judge(status, &e);
    check_info(w, ok, &info);
}

pub(super) fn partition(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let context = w.green(i, &mut e);
    let mut out = Out::<*mut tcuda_sm_partition>::required(i, &mut e);
    let status = status_of!(tcuda_green_context_partition(context as *mut _, out.ptr()));
    if let Some(partition) = out.check(w.judge(status, &e)) {
        add_partition(w, partition);
    }
}

pub(super) fn stream_create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let context = w.green(i, &mut e);
    let mut out = Out::<*mut tcuda_stream>::required(i, &mut e);
    let status = status_of!(tcuda_green_context_stream_create(context as *mut _, out.ptr()));
    if let Some(stream) = out.check(w.judge(status, &e)) {
        w.add_stream(stream, true);
    }
}

pub(super) fn set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let context = w.green(i, &mut e);
    // It may be set already; a captured stream may not be waited for; the stack has an end.
    e.also(&[status::INVALID_STATE, status::CAPTURING, status::OUT_OF_MEMORY]);
    w.judge(status_of!(tcuda_green_context_set(context as *mut _)), &e);
}

pub(super) fn pop(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let context = w.green(i, &mut e);
    e.also(&[status::INVALID_STATE, status::CAPTURING]);
    w.judge(status_of!(tcuda_green_context_pop(context as *mut _)), &e);
}

pub(super) fn native(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let context = w.green(i, &mut e);
    let (mut green, mut context_of) = (null_mut(), null_mut());
    let status =
        status_of!(tcuda_green_context_native(context as *mut _, &mut green, &mut context_of));
    let ok = w.judge(status, &e);
    assert!(ok != green.is_null() && ok != context_of.is_null());
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut handle = w.green(i, &mut e);
    if i.rarely(16) {
        handle = 0;
    }
    if handle == 0 {
        e = Expect::default();
    }
    // Another thread may have set it.
    e.also(&[status::INVALID_STATE]);
    let status = status_of!(tcuda_green_context_destroy(handle as *mut _));
    w.judge(status, &e);
    // An event that could not be recorded is an error, and the context is destroyed.
    if matches!(status, status::INVALID_HANDLE | status::INVALID_STATE) {
        return;
    }
    if let Some(index) = w.greens.iter().position(|live| *live == handle) {
        w.dead.push(w.greens.swap_remove(index));
        w.counted -= 1;
    }
}
