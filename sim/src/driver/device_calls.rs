//! The calls for devices and their attributes.

use super::arguments::{enumerator, put, require};
use super::entry::{entry, entry_before_init, guard, machine};
use super::hardware::Device;
use super::kernel::MAX_THREADS_PER_BLOCK;
use super::machine::{Machine, uuid};
use super::multiprocessors::Domains;
use crate::base::code;
use cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute, CUdevprop, CUuuid};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

/// The CUDA version of the simulated driver.
pub(super) const VERSION: c_int = 12090;

/// cuInit for a host that has powered the machine on.
pub(super) unsafe extern "C" fn initialize(flags: c_uint) -> c_int {
    entry_before_init(|machine| {
        require(flags == 0, code::INVALID_VALUE)?;
        machine.refusal?;
        machine.initialised.store(true, Ordering::Release);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuInit(flags: c_uint) -> c_int {
    let powered = guard(|| {
        require(flags == 0, code::INVALID_VALUE)?;
        super::power_on_for_program()
    });
    if powered != code::SUCCESS {
        return powered;
    }
    entry_before_init(|machine| {
        machine.refusal?;
        machine.initialised.store(true, Ordering::Release);
        machine.is_shared.store(true, Ordering::Release);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    match machine() {
        Some(_) => entry_before_init(|_| put!(version, VERSION)),
        // A program may ask for the version first.
        None => guard(|| put!(version, VERSION)),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    entry(|machine| put!(count, machine.hardware.devices.len() as c_int))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> c_int {
    entry(|machine| {
        require(!device.is_null(), code::INVALID_VALUE)?;
        machine.device(ordinal)?;
        put!(device, ordinal)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetName(
    text: *mut c_char,
    len: c_int,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        machine.device(device)?;
        let room = usize::try_from(len).map_err(|_| code::INVALID_VALUE)?;
        require(!text.is_null() && room > 0, code::INVALID_VALUE)?;
        put_text(text, room, &machine.config.name)
    })
}

/// Without parts of devices, it is the same as the newer one.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetUuid(to: *mut CUuuid, device: CUdevice) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuDeviceGetUuid_v2(to, device) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut CUuuid, device: CUdevice) -> c_int {
    entry(|machine| {
        require(!to.is_null(), code::INVALID_VALUE)?;
        let device = machine.device(device)?;
        let bytes = uuid(device.ordinal).map(|byte| byte as c_char);
        put!(to, CUuuid { bytes })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> c_int {
    entry(|machine| {
        // The driver writes 0 on failure (580.159).
        put!(bytes, 0)?;
        let device = machine.device(device)?.context.device;
        put!(bytes, machine.memory.physical[device].bytes())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceCanAccessPeer(
    possible: *mut c_int,
    device: CUdevice,
    peer: CUdevice,
) -> c_int {
    entry(|machine| {
        require(!possible.is_null(), code::INVALID_VALUE)?;
        let (device, peer) = (machine.device(device)?, machine.device(peer)?);
        let (device, peer) = (device.context.device, peer.context.device);
        put!(possible, c_int::from(machine.can_access_peer(device, peer)))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        require(!value.is_null(), code::INVALID_VALUE)?;
        let answer = answer(machine, attribute as c_int, machine.device(device)?);
        put!(value, answer.ok_or(code::INVALID_VALUE)?)
    })
}

/// The value of an attribute, by CUDA's numbers up to those of CUDA 12.9, and some newer ones.
/// What the simulator cannot do is 0, whatever the model can.
fn answer(machine: &Machine, attribute: c_int, device: &Device) -> Option<c_int> {
    let config = &machine.config;
    let (model, capability) = (config.model, config.compute_capability);
    let since = |major| c_int::from(capability.0 >= major);
    let answer = match attribute {
        // Threads, blocks and grids
        1..=3 => MAX_THREADS_PER_BLOCK as c_int,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        10 => 32,
        16 => config.multiprocessors,
        39 => config.threads_per_multiprocessor,
        75 => capability.0,
        76 => capability.1,
        106 => model.blocks_per_multiprocessor as c_int,
        // Shared memory and registers
        8 => 49_152,
        81 => model.shared_per_multiprocessor as c_int,
        97 => model.shared_per_block as c_int,
        111 => model.shared_reserved as c_int,
        12 | 82 => 65_536,
        9 => 65_536,
        // Clocks, buses and caches
        11 => i32::MAX,
        13 => model.clock,
        36 => model.memory_clock,
        37 => model.bus,
        38 => model.l2,
        108 => model.persisting_l2,
        109 => model.access_window,
        87 => model.double_ratio,
        40 => model.copy_engines,
        // PCI: bus, device, domain, identification
        33 => pci_bus(device.ordinal) as c_int,
        34 | 50 => 0,
        139 => model.pci.0 as c_int,
        140 => model.pci.1 as c_int,
        // Capabilities
        15 => 1, // GPU overlap
        17 => 0, // kernel time limit
        18 => 0, // integrated
        19 => 1, // map host memory
        20 => 0, // compute mode
        31 => 1, // concurrent kernels
        32 => 1, // ECC
        35 => 0, // TCC
        41 => 1, // unified addressing
        78 => 1, // stream priorities
        79 | 80 => 1,
        83 => 1, // managed memory
        84 => 0, // several GPUs on a board
        85 => device.ordinal as c_int,
        86 => 0,
        88 => 0, // pageable memory
        89 => 1, // managed memory at the same time as the host
        90 => 1, // compute preemption
        91 => 1, // registered memory under the host's address
        92..=94 => 0,
        95 => 1, // cooperative launch
        96 => 0,
        98 => 0,
        99 => 1, // register host memory
        100 | 101 => 0,
        102 => c_int::from(config.virtual_memory),
        103 => 1, // as file descriptors
        104 | 105 => 0,
        107 => 0, // compressible memory
        110 => 0, // GPUDirect RDMA with virtual memory
        112 => 0,
        113 => 1,
        114 => 0,
        115 => 1, // pools
        116..=119 => 0,
        120 => since(9), // clusters
        121 => 0,
        122 | 123 => 1, // streams wait for values of 64 bits, and for missing bits
        124 => 0,
        125 => 1, // interprocess events
        126 => 4,
        127 => 1,
        128..=130 => 0,
        131 => -1,
        132 | 133 => 0,
        134 => -1, // no NUMA node
        135..=138 | 141 | 143 => 0,
        142 => 1, // pools of memory of the host
        // Locality domains (CUDA 13.4)
        149 => config.locality_domains as c_int,
        157 => {
            let all = config.multiprocessors.unsigned_abs();
            Domains::new(config.locality_domains, all).multiprocessors() as c_int
        }
        // Textures and surfaces
        14 | 30 => 512,
        51 => 32,
        44 => 1,
        21 | 22 | 56 | 70 => 131_072,
        23 | 57 => 65_536,
        24..=26 | 58..=60 => 16_384,
        27 | 28 | 42 | 45 | 46 | 49 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => {
            32_768
        }
        29 | 43 | 62 | 65 => 2048,
        47 | 48 => 8192,
        54 | 68 => 2046,
        69 => 268_435_456,
        71 => 65_000,
        72 => 2_097_120,
        _ => return None,
    };
    Some(answer)
}

/// The bus of a device; the domain and the number there are 0.
fn pci_bus(ordinal: usize) -> usize {
    1 + ordinal
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetPCIBusId(
    text: *mut c_char,
    len: c_int,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        let bus = pci_bus(machine.device(device)?.ordinal);
        require(!text.is_null(), code::INVALID_VALUE)?;
        let room = usize::try_from(len).map_err(|_| code::INVALID_VALUE)?;
        let id = format!("0000:{bus:02x}:00.0");
        put_text(text, room, &id)?;
        // What fits is written, as by the driver (580.159).
        require(id.len() < room, code::INVALID_VALUE)
    })
}

/// Writes as much of a text as fits, and a NUL.
fn put_text(to: *mut c_char, room: usize, text: &str) -> Result<(), i32> {
    let kept = text.bytes().take(room.saturating_sub(1)).chain([0]).take(room);
    for (index, byte) in kept.enumerate() {
        put!(to.wrapping_add(index), byte as c_char)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetByPCIBusId(
    device: *mut CUdevice,
    id: *const c_char,
) -> c_int {
    entry(|machine| {
        require(!device.is_null() && !id.is_null(), code::INVALID_VALUE)?;
        // SAFETY: not NULL, and NUL-terminated by the caller's promise.
        let id = unsafe { CStr::from_ptr(id) }.to_str().map_err(|_| code::INVALID_VALUE)?;
        let place = pci_place(id).ok_or(code::INVALID_VALUE)?;
        let is_there = |device: &Device| place == (0, pci_bus(device.ordinal) as u32, 0);
        let found = machine.hardware.devices.iter().position(is_there);
        put!(device, found.ok_or(code::INVALID_DEVICE)? as CUdevice)
    })
}

/// Domain, bus and device of [domain:]bus:device[.function], in hexadecimal digits.
fn pci_place(id: &str) -> Option<(u32, u32, u32)> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let mut parts = id.rsplit(':');
    let (device, bus) = (parts.next()?, parts.next()?);
    let device = device.split_once('.').map_or(device, |(device, _)| device);
    let domain = parts.next().map_or(Some(0), number)?;
    parts.next().is_none().then_some((domain, number(bus)?, number(device)?))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetLuid(
    _: *mut c_char,
    _: *mut c_uint,
    device: CUdevice,
) -> c_int {
    // Devices have one under Windows.
    entry(|machine| machine.device(device).and(Err(code::NOT_SUPPORTED)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    attribute: c_uint,
    device: CUdevice,
    peer: CUdevice,
) -> c_int {
    use CUdevice_P2PAttribute::*;
    entry(|machine| {
        require(!value.is_null(), code::INVALID_VALUE)?;
        let (device, peer) = (machine.device(device)?, machine.device(peer)?);
        let (device, peer) = (device.context.device, peer.context.device);
        require(device != peer, code::INVALID_DEVICE)?;
        let is_reachable = c_int::from(machine.can_access_peer(device, peer));
        let answer = match enumerator(attribute)? {
            CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
            CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED => is_reachable,
            CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => is_reachable,
            // There are no arrays.
            CU_DEVICE_P2P_ATTRIBUTE_ACCESS_ACCESS_SUPPORTED => 0,
        };
        put!(value, answer)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceComputeCapability(
    major: *mut c_int,
    minor: *mut c_int,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        require(!major.is_null() && !minor.is_null(), code::INVALID_VALUE)?;
        machine.device(device)?;
        put!(major, machine.config.compute_capability.0)?;
        put!(minor, machine.config.compute_capability.1)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetProperties(
    properties: *mut CUdevprop,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        require(!properties.is_null(), code::INVALID_VALUE)?;
        let device = machine.device(device)?;
        let of = |attribute| answer(machine, attribute, device).unwrap_or(0);
        put!(
            properties,
            CUdevprop {
                maxThreadsPerBlock: of(1),
                maxThreadsDim: [of(2), of(3), of(4)],
                maxGridSize: [of(5), of(6), of(7)],
                sharedMemPerBlock: of(8),
                totalConstantMemory: of(9),
                SIMDWidth: of(10),
                memPitch: of(11),
                regsPerBlock: of(12),
                clockRate: of(13),
                textureAlign: of(14),
            }
        )
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetExecAffinitySupport(
    supported: *mut c_int,
    _: c_uint,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        require(!supported.is_null(), code::INVALID_VALUE)?;
        machine.device(device)?;
        // A part of the multiprocessors is given by MPS, which is not there.
        put!(supported, 0)
    })
}
