//! Sequences of raw driver calls on the simulated machine: reserve, create, map, set access,
//! copies, fills and a kernel, against a model that knows of each granule what is mapped there,
//! which devices may use it, and what its first word holds.

use crate::input::Input;
use std::ffi::{CStr, c_void};
use std::ptr;
use tcuda::driver::sim;
use tcuda::driver::sys::*;
use tcuda::driver::{Driver, code};

const GRANULE: usize = 2 << 20;
/// Granules of the reservation.
const SIZE: usize = 16;
const HANDLES: usize = 6;
const DEVICES: usize = 2;
/// Granules of each device.
const MEMORY: usize = 16;
/// More calls than this make an input slow, not better.
const LONGEST: usize = 200;

/// Makes a call and gives its CUresult.
macro_rules! cu {
    ($driver:expr, $call:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers to results are valid; addresses and handles may be anything: the machine
        // looks them up.
        let outcome = unsafe { $driver.$call($($argument),*) };
        outcome.map_or_else(|error| error.code, |()| code::SUCCESS)
    }};
}

/// Physical memory: its contents live as long as a handle or a mapping.
struct Physical {
    device: usize,
    /// The first word of each granule.
    words: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Granule {
    /// Tells mappings apart.
    mapping: usize,
    /// Of the list of all physical memory.
    physical: usize,
    offset: usize,
    /// 0, 1: read, 3: read and write.
    access: [u32; DEVICES],
}

struct Machine {
    driver: Driver,
    base: u64,
    streams: [CUstream; DEVICES],
    contexts: [CUcontext; DEVICES],
    kernel: [CUfunction; DEVICES],
    physical: Vec<Physical>,
    /// Live handles: number, and index of the physical memory.
    handles: [Option<(u64, usize)>; HANDLES],
    granules: [Option<Granule>; SIZE],
    peers: bool,
    lost: [bool; DEVICES],
}

/// A kernel that adds one to a word.
const ADD_ONE: &CStr = c".version 7.8
.target sm_52
.address_size 64
.visible .entry fuzz_add_one(.param .u64 data)
{
    .reg .u64 %at;
    .reg .u32 %word;
    ld.param.u64 %at, [data];
    ld.global.u32 %word, [%at];
    add.u32 %word, %word, 1;
    st.global.u32 [%at], %word;
    ret;
}
";

fn properties(device: i32) -> CUmemAllocationProp {
    // SAFETY: integers, enums with a zero, and pointers: zero is a value of each.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties
}

impl Machine {
    fn on(input: &mut Input) -> Machine {
        sim::power_off();
        let choice = input.u8();
        let peers = choice.is_multiple_of(2);
        let options = format!(
            "devices={DEVICES},memory={}MiB,peers={},schedule={}",
            (MEMORY * GRANULE) >> 20,
            if peers { "full" } else { "none" },
            if choice & 2 == 0 { "immediate" } else { "threads" },
        );
        let driver = sim::power_on(&options).expect("the machine goes on");
        assert_eq!(cu!(driver, cuInit(0)), 0);
        let mut machine = Machine {
            driver,
            base: 0,
            streams: [ptr::null_mut(); DEVICES],
            contexts: [ptr::null_mut(); DEVICES],
            kernel: [ptr::null_mut(); DEVICES],
            physical: Vec::new(),
            handles: [None; HANDLES],
            granules: [None; SIZE],
            peers,
            lost: [false; DEVICES],
        };
        for device in (0..DEVICES).rev() {
            let driver = &machine.driver;
            let context = &mut machine.contexts[device];
            assert_eq!(cu!(driver, cuDevicePrimaryCtxRetain(context, device as i32)), 0);
            assert_eq!(cu!(driver, cuCtxSetCurrent(*context)), 0);
            let stream = &mut machine.streams[device];
            assert_eq!(cu!(driver, cuStreamCreateWithPriority(stream, 1, 0)), 0);
            let mut module = ptr::null_mut();
            assert_eq!(cu!(driver, cuModuleLoadData(&mut module, ADD_ONE.as_ptr().cast())), 0);
            let (name, kernel) = (c"fuzz_add_one".as_ptr(), &mut machine.kernel[device]);
            assert_eq!(cu!(driver, cuModuleGetFunction(kernel, module, name)), 0);
        }
        let reserve =
            cu!(machine.driver, cuMemAddressReserve(&mut machine.base, SIZE * GRANULE, 0, 0, 0));
        assert_eq!(reserve, 0);
        machine
    }

    fn at(&self, granule: usize) -> u64 {
        self.base + (granule * GRANULE) as u64
    }

    /// Is there no mapping that lies on both sides of the place before this granule?
    fn is_border(&self, at: usize) -> bool {
        let number = |at: usize| self.granules.get(at).copied().flatten().map(|g| g.mapping);
        at == 0 || number(at).is_none() || number(at - 1) != number(at)
    }

    /// Does the range, which may have holes, cut no mapping?
    fn cuts_nothing(&self, start: usize, count: usize) -> bool {
        start + count <= SIZE && self.is_border(start) && self.is_border(start + count)
    }

    /// Does the range begin and end with whole mappings?
    fn is_whole(&self, start: usize, count: usize) -> bool {
        self.cuts_nothing(start, count)
            && self.granules[start].is_some()
            && self.granules[start + count - 1].is_some()
    }

    /// Granules of a device that are in use.
    fn used(&self, device: usize) -> usize {
        let live = |index: usize| {
            self.handles.iter().flatten().any(|(_, physical)| *physical == index)
                || self.granules.iter().flatten().any(|granule| granule.physical == index)
        };
        let own = self.physical.iter().enumerate();
        own.filter(|(index, physical)| physical.device == device && live(*index))
            .map(|(_, physical)| physical.words.len())
            .sum()
    }

    fn create(&mut self, slot: usize, device: usize, count: usize) {
        let mut handle = 0;
        let fits = self.used(device) + count <= MEMORY;
        let properties = properties(device as i32);
        let made = cu!(self.driver, cuMemCreate(&mut handle, count * GRANULE, &properties, 0));
        assert_eq!(made, if fits { 0 } else { code::OUT_OF_MEMORY }, "cuMemCreate");
        if fits {
            assert!(!self.handles.iter().flatten().any(|(known, _)| *known == handle));
            self.handles[slot] = Some((handle, self.physical.len()));
            self.physical.push(Physical { device, words: vec![0; count] });
        }
    }

    fn map(&mut self, slot: usize, start: usize, count: usize, offset: usize, number: usize) {
        let Some((handle, physical)) = self.handles[slot] else { return };
        let room = self.physical[physical].words.len();
        let range = self.granules.get(start..start + count);
        // A handle is mapped as a whole, or not at all.
        let fits = (offset, count) == (0, room)
            && range.is_some_and(|range| range.iter().all(Option::is_none));
        let (ptr, bytes) = (self.at(start), count * GRANULE);
        let made = cu!(self.driver, cuMemMap(ptr, bytes, offset * GRANULE, handle, 0));
        assert_eq!(made == 0, fits, "cuMemMap: {made}");
        for index in 0..if fits { count } else { 0 } {
            self.granules[start + index] = Some(Granule {
                mapping: number,
                physical,
                offset: offset + index,
                access: [0; DEVICES],
            });
        }
    }

    fn set_access(&mut self, start: usize, count: usize, device: usize, flags: u32) {
        // SAFETY: an integer and two enums, of which zero is a value.
        let mut access: CUmemAccessDesc = unsafe { std::mem::zeroed() };
        access.location = properties(device as i32).location;
        access.flags = match flags {
            0 => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            1 => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            _ => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let owners = |granule: &Granule| self.physical[granule.physical].device;
        let reachable = self
            .granules
            .iter()
            .skip(start)
            .take(count)
            .flatten()
            .all(|granule| self.peers || owners(granule) == device);
        let whole = self.is_whole(start, count);
        let (ptr, bytes) = (self.at(start), count * GRANULE);
        let set = cu!(self.driver, cuMemSetAccess(ptr, bytes, &access, 1));
        assert!(set == 0 || !whole || !reachable, "cuMemSetAccess: {set}");
        assert!(set != 0 || whole, "access to what is not mapped as a whole");
        if set == 0 {
            let range = self.granules[start..start + count].iter_mut();
            range.flatten().for_each(|granule| granule.access[device] = flags);
        }
    }

    /// Reads and writes the first word of a granule in some way.
    fn touch(&mut self, start: usize, device: usize, how: usize, value: u32) {
        let (ptr, stream) = (self.at(start), self.streams[device]);
        let granule = self.granules[start];
        let access = granule.map_or(0, |granule| granule.access[device]);
        assert_eq!(cu!(self.driver, cuCtxSetCurrent(self.contexts[device])), 0);
        let mut word = [0u8; 4];
        let host = word.as_mut_ptr().expose_provenance() as u64;
        let (queued, needs) = match how {
            0 => (cu!(self.driver, cuMemsetD32Async(ptr, value, 1, stream)), 3),
            1 => (cu!(self.driver, cuMemcpyAsync(host, ptr, 4, stream)), 1),
            2 => {
                word = value.to_le_bytes();
                (cu!(self.driver, cuMemcpyAsync(ptr, host, 4, stream)), 3)
            }
            _ => {
                let mut argument = ptr;
                let mut list = [ptr::from_mut(&mut argument).cast::<c_void>()];
                let function = self.kernel[device];
                let launched = cu!(
                    self.driver,
                    cuLaunchKernel(
                        function,
                        1,
                        1,
                        1,
                        1,
                        1,
                        1,
                        0,
                        stream,
                        list.as_mut_ptr(),
                        ptr::null_mut()
                    )
                );
                (launched, 3)
            }
        };
        let done = cu!(self.driver, cuStreamSynchronize(stream));
        if self.lost[device] {
            assert_eq!(done, code::ILLEGAL_ADDRESS, "a lost context works again");
            return;
        }
        // Copies are staged by the driver, which may do what the device may not.
        let allowed = access & needs == needs;
        let may_be_staged = granule.is_some() && (1..=2).contains(&how);
        let failed = queued != 0 || done != 0;
        assert!(!failed || !allowed, "an access that is allowed failed: {queued}, {done}");
        assert!(failed || allowed || may_be_staged, "an access that is not allowed succeeded");
        if failed {
            assert!([0, code::ILLEGAL_ADDRESS, code::INVALID_VALUE].contains(&queued), "{queued}");
            assert!([0, code::ILLEGAL_ADDRESS].contains(&done), "{done}");
            self.lost[device] = done != 0;
            return;
        }
        let Some(granule) = granule else { return };
        let known = &mut self.physical[granule.physical].words[granule.offset];
        match how {
            0 | 2 => *known = value,
            1 => assert_eq!(u32::from_le_bytes(word), *known, "the word of granule {start}"),
            _ => *known = known.wrapping_add(1),
        }
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut machine = Machine::on(&mut input);
    for number in 0..LONGEST {
        if input.is_empty() {
            break;
        }
        let (what, where_, more) = (input.below(8), input.u8(), input.u8());
        let (start, count) = (usize::from(where_) % SIZE, 1 + usize::from(where_ >> 4) % 5);
        let (slot, device) = (usize::from(more) % HANDLES, usize::from(more >> 7));
        match what {
            0 if machine.handles[slot].is_none() => machine.create(slot, device, count),
            0 if more & 0x40 != 0 => {
                let (handle, _) = machine.handles[slot].take().unwrap_or_default();
                assert_eq!(cu!(machine.driver, cuMemRelease(handle)), 0);
            }
            0 | 1 => {
                let handle = machine.handles[slot];
                let room = handle.map_or(0, |(_, known)| machine.physical[known].words.len());
                let (offset, count) = match more >> 4 {
                    0 => (1, room.max(2) - 1),
                    1 => (0, count),
                    _ => (0, room),
                };
                machine.map(slot, start, count, offset, number);
            }
            2 => {
                // What a range over the reservation's end gives is not known.
                let count = count.min(SIZE - start);
                let whole = machine.cuts_nothing(start, count);
                let (ptr, bytes) = (machine.at(start), count * GRANULE);
                let gone = cu!(machine.driver, cuMemUnmap(ptr, bytes));
                assert_eq!(gone == 0, whole, "cuMemUnmap: {gone}");
                if whole {
                    machine.granules[start..start + count].fill(None);
                }
            }
            3 => machine.set_access(start, count, device, [3, 3, 1, 0][usize::from(more) % 4]),
            4 => refused(&machine, &mut input),
            _ => {
                // A touch that must fail loses the device: seldom, or nothing else would be seen.
                let allowed = machine.granules[start].is_some_and(|g| g.access[device] == 3);
                if allowed || more & 0x7F == 0 {
                    machine.touch(start, device, usize::from(more) % 4, number as u32 + 1);
                }
            }
        }
    }
    let mut live = sim::live_objects();
    assert_eq!(live.handles, machine.handles.iter().flatten().count());
    let mut mappings: Vec<usize> =
        machine.granules.iter().flatten().map(|granule| granule.mapping).collect();
    mappings.dedup();
    assert_eq!(live.mappings, mappings.len());
    assert_eq!(live.reservations, 1);
    sim::power_off();
    live = sim::live_objects();
    assert_eq!(live, sim::LiveObjects::default());
}

/// Calls with arguments that are wrong in one way: refused, and nothing happens.
fn refused(machine: &Machine, input: &mut Input) {
    let driver = &machine.driver;
    let wild = match input.u8() {
        choice @ 0..=127 => machine.base + u64::from(choice) * 4096 + 1,
        128..=191 => machine.base.wrapping_sub(GRANULE as u64),
        _ => input.u64(),
    };
    let (handle, bytes) = (input.u64() | 1, GRANULE);
    let result = match input.below(7) {
        0 => cu!(driver, cuMemMap(machine.base, bytes, 0, handle, 0)),
        1 => cu!(driver, cuMemMap(machine.base, bytes, 0, handle, 1)),
        2 => cu!(driver, cuMemUnmap(wild | 1, bytes)),
        3 => cu!(driver, cuMemRelease(handle)),
        4 => cu!(driver, cuMemAddressFree(machine.base, input.u64() as usize | 1)),
        5 => {
            let mut address = 0;
            cu!(driver, cuMemAddressReserve(&mut address, bytes + 1, 0, 0, 0))
        }
        _ => {
            let mut created = 0;
            let properties = properties(input.one_of(&[-1, 2, i32::MAX, i32::MIN]));
            cu!(driver, cuMemCreate(&mut created, bytes, &properties, 0))
        }
    };
    let known = [code::INVALID_VALUE, code::INVALID_DEVICE, code::INVALID_HANDLE];
    assert!(known.contains(&result), "{result} for a wrong argument");
}
