//! Lost devices: injects what a real GPU does after a fault. Every call that works with the device
//! or its context returns the same code until shutdown; calls that need no working context still
//! work.
//!
//! The device of a call is determined by its stream, event, handle or address, else by the current
//! context. Drivers cannot be queried for the device of an event, so it is recorded when the event
//! is.

use crate::base::ordinal::MAX_DEVICES;
use crate::driver::sys::{
    CUDA_MEMCPY3D_PEER, CUcontext, CUgreenCtx, CUmemAllocationProp, CUpointer_attribute,
};
use crate::driver::{Call, Table, code};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Handles up to this denote a stream of the current context.
const PER_THREAD: u64 = 2;

/// Lost devices, and the devices of events.
pub(super) struct Lost {
    /// By device: the code that its calls return; 0: not lost.
    codes: [i32; MAX_DEVICES],
    owners: Vec<(u64, u8)>,
}

impl Lost {
    pub(super) const fn new() -> Lost {
        Lost { codes: [0; MAX_DEVICES], owners: Vec::new() }
    }

    pub(super) fn any(&self) -> bool {
        self.codes.iter().any(|code| *code != 0)
    }

    pub(super) fn clear(&mut self) {
        *self = Lost::new();
    }

    /// Loses devices that are not lost yet.
    pub(super) fn lose(&mut self, devices: u64, new: i32) {
        for (device, code) in self.codes.iter_mut().enumerate() {
            if devices >> device & 1 == 1 && *code == 0 {
                *code = new;
            }
        }
    }

    /// The code of a call that works with these devices, if one of them is lost.
    pub(super) fn code(&self, devices: u64) -> Option<i32> {
        let mut lost = self.codes.iter().enumerate();
        lost.find(|(device, code)| devices >> device & 1 == 1 && **code != 0).map(|(_, code)| *code)
    }

    /// The devices that a call works with, as bits; records the event that it binds to them.
    pub(super) fn devices(&mut self, call: Call, seen: &CallDevices) -> u64 {
        if seen.bound != 0 && seen.devices.count_ones() == 1 {
            let device = seen.devices.trailing_zeros() as u8;
            if let Some(known) = self.owners.iter_mut().find(|(event, _)| *event == seen.bound) {
                known.1 = device;
            } else if self.owners.try_reserve(1).is_ok() {
                self.owners.push((seen.bound, device));
            }
        }
        let mut devices = seen.devices;
        for event in seen.events.into_iter().filter(|event| *event != 0) {
            let known = self.owners.iter().position(|(known, _)| *known == event);
            devices |= match known {
                Some(index) => 1 << self.owners[index].1,
                None => seen.current,
            };
            if let Some(index) = known
                && call == Call::cuEventDestroy
            {
                self.owners.swap_remove(index);
            }
        }
        devices
    }
}

/// The devices and events in the arguments of a call.
#[derive(Default)]
pub(super) struct CallDevices {
    /// Known devices, as bits.
    devices: u64,
    /// The device of the current context, for unknown events.
    current: u64,
    /// Events whose device is to be looked up.
    events: [u64; 2],
    /// An event that the call binds to the one known device.
    bound: u64,
}

impl CallDevices {
    pub(super) fn of(table: &Table, call: Call, arguments: &[(&str, u64)]) -> CallDevices {
        #[cfg(any(test, feature = "host_faults"))]
        let _in_driver = crate::base::host_faults::in_driver();
        use Call::*;
        let argument = |wanted: &str| {
            arguments.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, value)| *value)
        };
        let current = current(table);
        let mut seen = CallDevices { current, ..CallDevices::default() };
        match call {
            // They need no working context.
            cuInit
            | cuDriverGetVersion
            | cuDeviceGetCount
            | cuDeviceGet
            | cuDeviceGetName
            | cuDeviceGetUuid
            | cuDeviceTotalMem
            | cuDeviceGetAttribute
            | cuDeviceGetDevResource
            | cuDevSmResourceSplitByCount
            | cuDevSmResourceSplit
            | cuDevResourceGenerateDesc
            | cuDevicePrimaryCtxGetState
            | cuDeviceCanAccessPeer
            | cuCtxGetCurrent
            | cuCtxSetCurrent
            | cuCtxPushCurrent
            | cuCtxPopCurrent
            | cuCtxGetDevice
            | cuThreadExchangeStreamCaptureMode
            | cuMemGetAllocationGranularity
            | cuMemAddressReserve
            | cuMemAddressFree => {}
            cuDevicePrimaryCtxRetain
            | cuDevicePrimaryCtxRelease
            | cuDeviceGetDefaultMemPool
            | cuGreenCtxCreate => {
                seen.devices = bit(argument("device") as i32);
            }
            cuCtxEnablePeerAccess => seen.devices = current | of_context(table, argument("peer")),
            cuEventRecord | cuEventRecordWithFlags => {
                seen.devices = of_stream(table, argument("stream"), current);
                seen.bound = argument("event");
            }
            cuStreamWaitEvent => {
                seen.devices = of_stream(table, argument("stream"), current);
                seen.events[0] = argument("event");
            }
            cuEventQuery | cuEventSynchronize | cuEventDestroy | cuIpcGetEventHandle => {
                seen.events[0] = argument("event");
            }
            cuEventElapsedTime => seen.events = [argument("start"), argument("end")],
            cuMemMap | cuMemRelease | cuMemExportToShareableHandle => {
                seen.devices = of_handle(table, argument("handle"), current);
            }
            cuMemUnmap
            | cuMemSetAccess
            | cuMemGetAccess
            | cuMemFree
            | cuIpcGetMemHandle
            | cuIpcCloseMemHandle
            | cuMemAdvise
            | cuMemRangeGetAttribute => {
                seen.devices = of_address(table, argument("ptr"), current);
            }
            cuMemCreate => seen.devices = of_properties(argument("properties")),
            cuMemcpyPeerAsync => {
                seen.devices = of_stream(table, argument("stream"), current)
                    | of_context(table, argument("dst_context"))
                    | of_context(table, argument("src_context"));
            }
            cuMemcpy3DPeerAsync => {
                seen.devices = of_stream(table, argument("stream"), current)
                    | of_copy(table, argument("copy"));
            }
            cuStreamCreateWithPriority => seen.devices = current,
            cuGreenCtxDestroy
            | cuGreenCtxStreamCreate
            | cuGreenCtxGetDevResource
            | cuCtxFromGreenCtx => {
                seen.devices = of_green(table, argument("green"), current);
            }
            _ if arguments.iter().any(|(name, _)| *name == "stream") => {
                seen.devices = of_stream(table, argument("stream"), current);
            }
            _ => seen.devices = current,
        }
        seen
    }
}

/// Ends a lost device's context in fact, although the call returns an error: objects that the
/// library can no longer destroy end with it. A green context keeps the primary one.
pub(super) fn finish(table: &Table, call: Call, arguments: &[(&str, u64)], has_lost: bool) {
    #[cfg(any(test, feature = "host_faults"))]
    let _in_driver = crate::base::host_faults::in_driver();
    let Some((_, argument)) = arguments.first().filter(|_| has_lost) else { return };
    match call {
        Call::cuDevicePrimaryCtxRelease => {
            if let Some(release) = table.cuDevicePrimaryCtxRelease {
                // SAFETY: the same call as the caller's.
                unsafe { release(*argument as i32) };
            }
        }
        Call::cuGreenCtxDestroy => {
            if let Some(destroy) = table.cuGreenCtxDestroy {
                // SAFETY: the same call as the caller's.
                unsafe { destroy(*argument as CUgreenCtx) };
            }
        }
        _ => {}
    }
}

fn bit(device: i32) -> u64 {
    if (0..MAX_DEVICES as i32).contains(&device) { 1 << device } else { 0 }
}

/// The device of the current context; without one, the only device.
fn current(table: &Table) -> u64 {
    let mut device = 0;
    if let Some(get) = table.cuCtxGetDevice {
        // SAFETY: `device` is writable.
        if unsafe { get(&mut device) } == code::SUCCESS {
            return bit(device);
        }
    }
    let mut count = 0;
    if let Some(get) = table.cuDeviceGetCount {
        // SAFETY: `count` is writable.
        unsafe { get(&mut count) };
    }
    u64::from(count == 1)
}

fn of_context(table: &Table, context: u64) -> u64 {
    let (Some(push), Some(pop), Some(get)) =
        (table.cuCtxPushCurrent, table.cuCtxPopCurrent, table.cuCtxGetDevice)
    else {
        return 0;
    };
    // SAFETY: the driver looks the context up.
    if unsafe { push(context as CUcontext) } != code::SUCCESS {
        return 0;
    }
    let (mut device, mut popped) = (-1, std::ptr::null_mut());
    // SAFETY: `device` is writable.
    unsafe { get(&mut device) };
    // SAFETY: `popped` is writable.
    unsafe { pop(&mut popped) };
    bit(device)
}

fn of_stream(table: &Table, stream: u64, current: u64) -> u64 {
    let mut context = std::ptr::null_mut();
    match table.cuStreamGetCtx {
        Some(get) if stream > PER_THREAD => {
            // SAFETY: the stream is an argument of the call; `context` is writable.
            match unsafe { get(stream as _, &mut context) } {
                code::SUCCESS => of_context(table, context as u64),
                _ => current,
            }
        }
        _ => current,
    }
}

fn of_green(table: &Table, green: u64, current: u64) -> u64 {
    let mut context = std::ptr::null_mut();
    match table.cuCtxFromGreenCtx {
        // SAFETY: `context` is writable; the green context is the caller's.
        Some(get) if unsafe { get(&mut context, green as CUgreenCtx) } == code::SUCCESS => {
            of_context(table, context as u64)
        }
        _ => current,
    }
}

fn of_address(table: &Table, address: u64, current: u64) -> u64 {
    let mut device = -1i32;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    if let Some(get) = table.cuPointerGetAttribute {
        let data = std::ptr::from_mut(&mut device).cast::<c_void>();
        // SAFETY: `device` has the attribute's type; the address is only looked up.
        if unsafe { get(data, attribute, address) } == code::SUCCESS {
            return bit(device);
        }
    }
    current
}

fn of_handle(table: &Table, handle: u64, current: u64) -> u64 {
    let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
    match table.cuMemGetAllocationPropertiesFromHandle {
        // SAFETY: `properties` is writable; the driver looks the handle up.
        Some(get) if unsafe { get(properties.as_mut_ptr(), handle) } == code::SUCCESS => {
            // SAFETY: the driver has written it.
            bit(unsafe { properties.assume_init() }.location.id)
        }
        _ => current,
    }
}

fn of_properties(properties: u64) -> u64 {
    // SAFETY: an argument of cuMemCreate: NULL or properties of an allocation.
    let properties = unsafe { (properties as *const CUmemAllocationProp).as_ref() };
    properties.map_or(0, |properties| bit(properties.location.id))
}

fn of_copy(table: &Table, copy: u64) -> u64 {
    // SAFETY: an argument of cuMemcpy3DPeerAsync: NULL or a description of a copy.
    let copy = unsafe { (copy as *const CUDA_MEMCPY3D_PEER).as_ref() };
    copy.map_or(0, |copy| {
        of_context(table, copy.srcContext as u64) | of_context(table, copy.dstContext as u64)
    })
}
