//! NVTX's memory extension (NVIDIA's nvToolsExtMem.h, compatibility number 0x0102), which reports
//! to compute-sanitizer which parts of a segment are blocks. The structures are the extension's
//! own.

use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::driver::library::Library;
use std::convert::Infallible;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicIsize, Ordering};

const VERSION: u16 = 3;
const MEMORY_MODULE: u16 = 1;
const MEMORY_COMPATIBILITY: u16 = 0x0102;
const SUB_ALLOCATOR: u32 = 1;
const VIRTUAL_ADDRESS: u32 = 1;
const BY_POINTER: u32 = 1;

/// Indices of the functions in the module's only group.
const HEAP_REGISTER: usize = 0;
const HEAP_UNREGISTER: usize = 1;
const REGIONS_REGISTER: usize = 3;
const REGIONS_UNREGISTER: usize = 5;
const SLOTS: usize = 63;
/// A tool may store this for a function that it does not have.
const DISABLED: isize = 1;

/// nvtxExtModuleSegment_t
#[repr(C)]
struct Group {
    id: usize,
    slot_count: usize,
    slots: *const AtomicIsize,
}

/// nvtxExtModuleInfo_t
#[repr(C)]
struct Module {
    version: u16,
    struct_size: u16,
    module: u16,
    compatibility: u16,
    group_count: usize,
    groups: *mut Group,
    export_function: *const c_void,
    info: *const c_void,
}

/// nvtxMemVirtualRangeDesc_t
#[repr(C)]
struct Range {
    bytes: usize,
    address: u64,
}

/// nvtxMemHeapDesc_t
#[repr(C)]
struct HeapDescription {
    compatibility: u16,
    struct_size: u16,
    reserved: u32,
    usage: u32,
    memory_type: u32,
    range_size: usize,
    range: *const Range,
    category: u32,
    message_type: u32,
    message: *const c_void,
}

/// nvtxMemRegionsRegisterBatch_t
#[repr(C)]
struct Registration {
    compatibility: u16,
    struct_size: u16,
    memory_type: u32,
    heap: *mut c_void,
    count: usize,
    range_size: usize,
    ranges: *const Range,
    handles: *mut *mut c_void,
}

/// nvtxMemRegionsUnregisterBatch_t
#[repr(C)]
struct Unregistration {
    compatibility: u16,
    struct_size: u16,
    reference_type: u32,
    count: usize,
    reference_size: usize,
    references: *const u64,
}

type Domain = *const c_void;
type HeapRegister = unsafe extern "C" fn(Domain, *const HeapDescription) -> *mut c_void;
type HeapUnregister = unsafe extern "C" fn(Domain, *mut c_void);
type RegionsRegister = unsafe extern "C" fn(Domain, *const Registration);
type RegionsUnregister = unsafe extern "C" fn(Domain, *const Unregistration);

/// The functions of a tool that observes memory.
struct Memory {
    heap_register: HeapRegister,
    heap_unregister: HeapUnregister,
    regions_register: RegionsRegister,
    regions_unregister: RegionsUnregister,
}

/// The tool stores its functions here; it may keep the address.
static FUNCTIONS: [AtomicIsize; SLOTS] = [const { AtomicIsize::new(0) }; SLOTS];
static MEMORY: Once<Option<Memory>> = Once::new(Rank::ONCE);

/// The tool's handle of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap(usize);

fn size_of<T>() -> u16 {
    std::mem::size_of::<T>() as u16
}

/// Gets the functions of the tool, if there is one.
fn load(tool: Option<&Library>) -> Option<Memory> {
    type Initialize = unsafe extern "C" fn(*mut Module) -> c_int;
    let address = tool?.symbol(c"InitializeInjectionNvtxExtension");
    if address.is_null() {
        return None;
    }
    // SAFETY: NVTX's entry point of this name has this signature.
    let initialize = unsafe { std::mem::transmute::<*mut c_void, Initialize>(address) };
    let mut group = Group { id: 1, slot_count: SLOTS, slots: FUNCTIONS.as_ptr() };
    let mut module = Module {
        version: VERSION,
        struct_size: size_of::<Module>(),
        module: MEMORY_MODULE,
        compatibility: MEMORY_COMPATIBILITY,
        group_count: 1,
        groups: &mut group,
        export_function: std::ptr::null(),
        info: std::ptr::null(),
    };
    // SAFETY: `module` and what it points to are valid, and the slots are static.
    if unsafe { initialize(&mut module) } == 0 {
        return None;
    }
    Some(Memory {
        // SAFETY: the tool's function of this slot has this signature.
        heap_register: unsafe { std::mem::transmute::<isize, HeapRegister>(of(HEAP_REGISTER)?) },
        // SAFETY: as above.
        heap_unregister: unsafe {
            std::mem::transmute::<isize, HeapUnregister>(of(HEAP_UNREGISTER)?)
        },
        // SAFETY: as above.
        regions_register: unsafe {
            std::mem::transmute::<isize, RegionsRegister>(of(REGIONS_REGISTER)?)
        },
        // SAFETY: as above.
        regions_unregister: unsafe {
            std::mem::transmute::<isize, RegionsUnregister>(of(REGIONS_UNREGISTER)?)
        },
    })
}

/// The function that the tool stored in a slot.
fn of(slot: usize) -> Option<isize> {
    Some(FUNCTIONS[slot].load(Ordering::Acquire))
        .filter(|address| !matches!(*address, 0 | DISABLED))
}

/// Looks for a tool, once, before anything is reported to it. The caller holds no lock that the
/// tool's initialisation could need.
pub fn find_listener() {
    // It does not fail: the absence of a tool is a valid result.
    let tool = super::tool();
    let _ = MEMORY.get_or_try_init(|| Ok::<_, Infallible>(load(tool)));
}

fn memory() -> Option<&'static Memory> {
    MEMORY.get().and_then(Option::as_ref)
}

/// Registers memory that will be divided into blocks, and whose other parts must not be used.
/// `None`: no tool is attached, or it cannot observe this kind of memory (compute-sanitizer only
/// knows cuMemAlloc).
pub fn add_heap(address: u64, bytes: u64) -> Option<Heap> {
    let memory = memory()?;
    let range = Range { bytes: bytes as usize, address };
    let description = HeapDescription {
        compatibility: MEMORY_COMPATIBILITY,
        struct_size: size_of::<HeapDescription>(),
        reserved: 0,
        usage: SUB_ALLOCATOR,
        memory_type: VIRTUAL_ADDRESS,
        range_size: std::mem::size_of::<Range>(),
        range: &range,
        category: 0,
        message_type: 0,
        message: std::ptr::null(),
    };
    // SAFETY: the description and what it points to are valid; a NULL domain is the default one.
    let heap = unsafe { (memory.heap_register)(std::ptr::null(), &description) };
    Some(Heap(heap as usize)).filter(|heap| heap.0 != 0)
}

/// Unregisters such memory.
pub fn remove_heap(heap: Heap) {
    if let Some(memory) = memory() {
        // SAFETY: a heap of the tool.
        unsafe { (memory.heap_unregister)(std::ptr::null(), heap.0 as *mut c_void) };
    }
}

/// Registers a block of a heap.
pub fn add_region(heap: Heap, address: u64, bytes: u64) {
    let Some(memory) = memory() else { return };
    let range = Range { bytes: bytes as usize, address };
    let registration = Registration {
        compatibility: MEMORY_COMPATIBILITY,
        struct_size: size_of::<Registration>(),
        memory_type: VIRTUAL_ADDRESS,
        heap: heap.0 as *mut c_void,
        count: 1,
        range_size: std::mem::size_of::<Range>(),
        ranges: &range,
        handles: std::ptr::null_mut(),
    };
    // SAFETY: the registration and what it points to are valid.
    unsafe { (memory.regions_register)(std::ptr::null(), &registration) };
}

/// Unregisters a block.
pub fn remove_region(address: u64) {
    let Some(memory) = memory() else { return };
    let unregistration = Unregistration {
        compatibility: MEMORY_COMPATIBILITY,
        struct_size: size_of::<Unregistration>(),
        reference_type: BY_POINTER,
        count: 1,
        reference_size: std::mem::size_of::<u64>(),
        references: &address,
    };
    // SAFETY: the unregistration and what it points to are valid.
    unsafe { (memory.regions_unregister)(std::ptr::null(), &unregistration) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of NVIDIA's structures, by their header.
    #[test]
    fn structures_have_the_sizes_of_the_headers() {
        assert_eq!(size_of::<Group>(), 24);
        assert_eq!(size_of::<Module>(), 40);
        assert_eq!(size_of::<Range>(), 16);
        assert_eq!(size_of::<HeapDescription>(), 48);
        assert_eq!(size_of::<Registration>(), 48);
        assert_eq!(size_of::<Unregistration>(), 32);
    }
}
