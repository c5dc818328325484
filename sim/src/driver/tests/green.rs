//! Green contexts: what a GPU cannot be asked.

use super::*;
use crate::driver::resource::{MULTIPROCESSORS, NONE, Resource};

/// The multiprocessors of a device.
fn whole(bench: &Bench, device: i32) -> Resource {
    let mut resource = Resource::none();
    let to = (&raw mut resource).cast();
    ok!(bench, cuDeviceGetDevResource(device, to, MULTIPROCESSORS));
    resource
}

fn create(bench: &Bench, device: i32) -> CUgreenCtx {
    let mut green = ptr::null_mut();
    ok!(bench, cuGreenCtxCreate(&mut green, ptr::null_mut(), device, 1));
    green
}

#[test]
fn wrong_handles_are_refused() {
    let bench = Bench::new("");
    let green = create(&bench, 0);
    let (mut context, mut found, mut id) = (ptr::null_mut(), ptr::null_mut(), 0);
    ok!(bench, cuCtxFromGreenCtx(&mut context, green));
    let mut resource = Resource::none();
    let to: *mut CUdevResource = (&raw mut resource).cast();
    // The handle of a context is none of a green context, and vice versa.
    for wrong in [garbage(), context.cast(), bench.context.cast(), green.wrapping_byte_add(8)] {
        assert_eq!(cu!(bench, cuGreenCtxDestroy(wrong)), code::INVALID_CONTEXT);
        assert_eq!(cu!(bench, cuCtxFromGreenCtx(&mut found, wrong)), code::INVALID_CONTEXT);
        assert_eq!(cu!(bench, cuGreenCtxGetId(wrong, &mut id)), code::INVALID_CONTEXT);
        let status = cu!(bench, cuGreenCtxGetDevResource(wrong, to, MULTIPROCESSORS));
        assert_eq!(status, code::INVALID_CONTEXT);
        let mut stream = ptr::null_mut();
        let status = cu!(bench, cuGreenCtxStreamCreate(&mut stream, wrong, 1, 0));
        assert_eq!(status, code::INVALID_CONTEXT);
        let status = cu!(bench, cuGreenCtxRecordEvent(wrong, ptr::null_mut()));
        assert_eq!(status, code::INVALID_CONTEXT);
    }
    for wrong in [green.cast(), context.wrapping_byte_add(64), context.wrapping_byte_add(8)] {
        assert_eq!(cu!(bench, cuCtxPushCurrent(wrong)), code::INVALID_CONTEXT);
    }
    for wrong in [garbage(), green.cast()] {
        let mut other = ptr::null_mut();
        assert_eq!(cu!(bench, cuGreenCtxCreate(&mut other, wrong, 0, 1)), code::INVALID_VALUE);
    }
    ok!(bench, cuGreenCtxDestroy(green));
}

#[test]
fn resources_of_two_devices_do_not_mix() {
    let bench = Bench::new("devices=2");
    let mut both = [whole(&bench, 0), whole(&bench, 1)];
    let (mut description, mut green) = (ptr::null_mut(), ptr::null_mut());
    let resources = both.as_mut_ptr().cast();
    let status = cu!(bench, cuDevResourceGenerateDesc(&mut description, resources, 2));
    assert_eq!(status, code::INVALID_RESOURCE_CONFIGURATION);
    ok!(bench, cuDevResourceGenerateDesc(&mut description, resources, 1));
    let mut again = ptr::null_mut();
    ok!(bench, cuDevResourceGenerateDesc(&mut again, resources, 1));
    assert_eq!(description, again, "equal descriptions are one");
    let status = cu!(bench, cuGreenCtxCreate(&mut green, description, 1, 1));
    assert_eq!(status, code::INVALID_VALUE);
    ok!(bench, cuGreenCtxCreate(&mut green, description, 0, 1));
    ok!(bench, cuGreenCtxDestroy(green));
    assert_eq!(
        cu!(bench, cuDevResourceGenerateDesc(&mut again, resources, 0)),
        code::INVALID_VALUE
    );
    let mut nothing = Resource::none();
    let of_none = (&raw mut nothing).cast();
    let status = cu!(bench, cuDevResourceGenerateDesc(&mut again, of_none, 1));
    assert_eq!(status, code::INVALID_RESOURCE_TYPE);
}

#[test]
fn destroyed_ones_leave_nothing() {
    let bench = Bench::new("schedule=threads");
    let before = live_objects();
    let first = create(&bench, 0);
    ok!(bench, cuGreenCtxDestroy(first));
    for _ in 0..3000 {
        let (green, mut stream) = (create(&bench, 0), ptr::null_mut());
        ok!(bench, cuGreenCtxStreamCreate(&mut stream, green, 1, 0));
        assert_eq!(live_objects().streams, before.streams + 1);
        assert_eq!(live_objects().contexts, before.contexts + 1);
        ok!(bench, cuGreenCtxDestroy(green));
        assert_eq!(cu!(bench, cuStreamDestroy(stream)), code::CONTEXT_IS_DESTROYED);
    }
    assert_eq!(live_objects(), before);
    // Its handle means another one by now, or none.
    let status = cu!(bench, cuGreenCtxDestroy(first));
    assert!([code::CONTEXT_IS_DESTROYED, code::INVALID_CONTEXT].contains(&status));
}

#[test]
fn they_end_with_a_primary_context_that_is_released_too_often() {
    let bench = Bench::new("");
    let (green, mut stream) = (create(&bench, 0), ptr::null_mut());
    ok!(bench, cuGreenCtxStreamCreate(&mut stream, green, 1, 0));
    assert_eq!(cu!(bench, cuDevicePrimaryCtxReset(0)), code::NOT_PERMITTED);
    ok!(bench, cuDevicePrimaryCtxRelease(0));
    ok!(bench, cuStreamQuery(stream));
    ok!(bench, cuDevicePrimaryCtxRelease(0));
    assert_eq!(cu!(bench, cuStreamQuery(stream)), code::CONTEXT_IS_DESTROYED);
    assert_eq!(cu!(bench, cuGreenCtxDestroy(green)), code::CONTEXT_IS_DESTROYED);
    assert_eq!(cu!(bench, cuDevicePrimaryCtxRelease(0)), code::INVALID_CONTEXT);
    let mut context = ptr::null_mut();
    ok!(bench, cuDevicePrimaryCtxRetain(&mut context, 0));
}

#[test]
fn a_split_writes_only_what_was_requested() {
    let bench = Bench::new("multiprocessors=7,compute_capability=7.5");
    let input = whole(&bench, 0);
    let mut parts = [Resource::none(); 4];
    let to: *mut CUdevResource = parts.as_mut_ptr().cast();
    let (mut number, mut rest) = (2, whole(&bench, 0));
    let (from, left) = ((&raw const input).cast(), (&raw mut rest).cast());
    ok!(bench, cuDevSmResourceSplitByCount(to, &mut number, from, left, 0, 2));
    assert_eq!(number, 2);
    assert!(parts[2].has_type(NONE) && parts[1].has_type(MULTIPROCESSORS));
    number = 4;
    ok!(bench, cuDevSmResourceSplitByCount(to, &mut number, from, left, 0, 2));
    assert_eq!(number, 3);
    ok!(bench, cuDevSmResourceSplitByCount(to, &mut number, from, left, 0, 7));
    assert!(number == 1 && rest.has_type(NONE));
}
