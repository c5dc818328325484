//! The calls for devices and their attributes, with the values of an H100.

use super::arguments::{put, require};
use super::config::Config;
use super::entry::{entry, entry_before_init, guard, machine};
use super::kernel::{MAX_SHARED_PER_BLOCK, MAX_THREADS_PER_BLOCK};
use crate::base::code;
use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUuuid};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

/// The CUDA version of the simulated driver.
pub(super) const VERSION: c_int = 12090;

/// cuInit for a host that has powered the machine on.
pub(super) unsafe extern "C" fn initialize(flags: c_uint) -> c_int {
    entry_before_init(|machine| {
        require(flags == 0, code::INVALID_VALUE)?;
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
        let kept = machine.config.name.bytes().take(room - 1).chain([0]);
        for (index, byte) in kept.enumerate() {
            put!(text.wrapping_add(index), byte as c_char)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) -> c_int {
    entry(|machine| {
        require(!uuid.is_null(), code::INVALID_VALUE)?;
        machine.device(device)?;
        let mut bytes = *b"simulated GPU \0\0";
        bytes[15] = device as u8;
        put!(uuid, CUuuid { bytes: bytes.map(|byte| byte as c_char) })
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
        put!(possible, c_int::from(machine.config.can_access_peer(device, peer)))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        require(!value.is_null(), code::INVALID_VALUE)?;
        machine.device(device)?;
        let answer = answer(&machine.config, attribute as c_int, device);
        put!(value, answer.ok_or(code::INVALID_VALUE)?)
    })
}

/// The value of an attribute, by CUDA's numbers; newer drivers have more.
fn answer(config: &Config, attribute: c_int, device: CUdevice) -> Option<c_int> {
    let answer = match attribute {
        // Threads, blocks and grids
        1..=3 => MAX_THREADS_PER_BLOCK as c_int,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        10 => 32,
        16 => config.multiprocessors,
        39 => config.threads_per_multiprocessor,
        75 => config.compute_capability.0,
        76 => config.compute_capability.1,
        106 => 32,
        // Shared memory and registers
        8 => 49_152,
        81 => 233_472,
        97 => MAX_SHARED_PER_BLOCK as c_int,
        111 => 1024,
        12 | 82 => 65_536,
        9 => 65_536,
        // Clocks, buses and caches
        11 => i32::MAX,
        13 => 1_980_000,
        36 => 2_619_000,
        37 => 5120,
        38 => 52_428_800,
        108 => 32_768_000,
        109 => 134_213_632,
        87 => 2,
        // PCI: bus, device, domain
        33 => 1 + device,
        34 | 50 => 0,
        139 => 0x2330_10de,
        140 => 0x16c1_10de,
        // Capabilities
        15 => 1, // GPU overlap
        17 => 0, // kernel time limit
        18 => 0, // integrated
        19 => 1, // map host memory
        20 => 0, // compute mode
        31 => 1, // concurrent kernels
        32 => 1, // ECC
        35 => 0, // TCC
        40 => 3, // copy engines
        41 => 1, // unified addressing
        78 => 1, // stream priorities
        79 | 80 => 1,
        83 => 0, // managed memory
        84 => 0, // several GPUs on a board
        85 => device,
        86 => 0,
        88 | 89 => 0,
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
        120 => 1, // clusters
        121 => 0,
        122 | 123 => 0,
        124 => 0,
        125 => 1, // interprocess events
        126 => 4,
        127 => 1,
        128..=130 => 0,
        131 => -1,
        132 | 133 => 0,
        134 => 0,
        135..=138 | 141..=143 => 0,
        // Textures and surfaces
        14 => 512,
        30 => 512,
        51 => 32,
        44 => 1,
        21..=23 => 131_072,
        24..=26 => 16_384,
        27 | 28 => 32_768,
        29 | 43 | 54 => 2048,
        42 | 45 | 46 | 52 | 53 => 32_768,
        47..=49 => 16_384,
        55..=74 | 77 => 32_768,
        _ => return None,
    };
    Some(answer)
}
