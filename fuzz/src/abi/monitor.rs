//! What devices are doing.

use crate::expect::Expect;
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::World;
use tcuda::ffi::monitor::*;
use tcuda::ffi::status::tcuda_status;

/// One number of a device.
fn number(
    w: &mut World,
    i: &mut Input,
    ask: unsafe extern "C" fn(i32, *mut u32) -> tcuda_status,
) -> Option<u32> {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<u32>::required(i, &mut e);
    let status = status_of!(ask(device, out.ptr()));
    out.check(w.judge(status, &e))
}

pub(super) fn utilization(w: &mut World, i: &mut Input) {
    assert!(number(w, i, tcuda_monitor_utilization).is_none_or(|percent| percent <= 100));
}

pub(super) fn memory_usage(w: &mut World, i: &mut Input) {
    assert!(number(w, i, tcuda_monitor_memory_usage).is_none_or(|percent| percent <= 100));
}

pub(super) fn power_draw_mw(w: &mut World, i: &mut Input) {
    assert!(number(w, i, tcuda_monitor_power_draw_mw).is_none_or(|power| power > 0));
}

pub(super) fn clock_rate_mhz(w: &mut World, i: &mut Input) {
    assert!(number(w, i, tcuda_monitor_clock_rate_mhz).is_none_or(|clock| clock > 0));
}

pub(super) fn temperature_c(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_monitor_temperature_c(device, out.ptr()));
    assert!(out.check(w.judge(status, &e)).is_none_or(|celsius| celsius > 0));
}

pub(super) fn memory_used(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<u64>::required(i, &mut e);
    let status = status_of!(tcuda_monitor_memory_used(device, out.ptr()));
    out.check(w.judge(status, &e));
}
