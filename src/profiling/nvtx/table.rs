//! The tables that connect a tool and a program in NVTX 3. The tool's entry point gets a function
//! that returns tables, and stores its own functions in their slots. Numbers and structures are
//! NVTX's own (nvtxTypes.h). Slots that this library does not call exist too, because tools fill
//! all that they know.

use crate::base::once::Once;
use crate::base::rank::{Rank, before_captured_function};
use crate::driver::library::Library;
use std::convert::Infallible;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const VERSION: u32 = 3;

/// NVTX_ETID_...
const CALLBACKS: u32 = 1;
const VERSION_INFO: u32 = 3;

/// The slots of a module, from index 1 on; the last one is followed by NULL.
type Slots<const N: usize> = [AtomicUsize; N];

/// The addresses of the slots, as tools get them.
#[repr(transparent)]
struct Places<const N: usize>([*const AtomicUsize; N]);

// SAFETY: addresses of statics, which are atomics.
unsafe impl<const N: usize> Sync for Places<N> {}

impl<const N: usize> Places<N> {
    const fn of(slots: &'static Slots<N>) -> Places<N> {
        let mut places = [std::ptr::null(); N];
        let mut index = 1;
        while index + 1 < N {
            places[index] = &slots[index];
            index += 1;
        }
        Places(places)
    }
}

macro_rules! modules {
    ($($slots:ident, $places:ident = $number:literal, $size:literal;)*) => {
        $(static $slots: Slots<{ $size + 1 }> = [const { AtomicUsize::new(0) }; $size + 1];
        static $places: Places<{ $size + 1 }> = Places::of(&$slots);)*

        /// The slot addresses of a module, and their number.
        fn module(number: c_uint) -> Option<(*const *const AtomicUsize, c_uint)> {
            match number {
                $($number => Some(($places.0.as_ptr(), $size)),)*
                _ => None,
            }
        }
    };
}

// NVTX_CB_MODULE_..., and their sizes.
modules! {
    CORE_SLOTS, CORE = 1, 16;
    CUDA_SLOTS, CUDA = 2, 9;
    OPENCL_SLOTS, OPENCL = 3, 15;
    CUDART_SLOTS, CUDART = 4, 7;
    CORE2_SLOTS, CORE2 = 5, 16;
    SYNC_SLOTS, SYNC = 6, 7;
}

// NVTX_CBID_CORE_...
const MARK: usize = 2;
const RANGE_START: usize = 5;
const RANGE_END: usize = 7;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

// NVTX_CBID_CORE2_...
const DOMAIN_RANGE_PUSH: usize = 4;
const DOMAIN_RANGE_POP: usize = 5;
const DOMAIN_CREATE: usize = 12;

/// NvtxExportTableCallbacks
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    module: unsafe extern "C" fn(c_uint, *mut *const *const AtomicUsize, *mut c_uint) -> c_int,
}

/// NvtxExportTableVersionInfo
#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_version: unsafe extern "C" fn(u32),
}

static CALLBACK_TABLE: Callbacks =
    Callbacks { struct_size: size_of::<Callbacks>(), module: module_table };
static VERSION_TABLE: VersionInfo = VersionInfo {
    struct_size: size_of::<VersionInfo>(),
    version: VERSION,
    reserved: 0,
    set_version: ignore_version,
};

unsafe extern "C" fn module_table(
    number: c_uint,
    table: *mut *const *const AtomicUsize,
    size: *mut c_uint,
) -> c_int {
    let Some((places, count)) = module(number) else { return 0 };
    if !table.is_null() {
        // SAFETY: not NULL, and writable by the tool's promise.
        unsafe { table.write(places) };
    }
    if !size.is_null() {
        // SAFETY: as above.
        unsafe { size.write(count) };
    }
    1
}

unsafe extern "C" fn ignore_version(_version: u32) {}

unsafe extern "C" fn export_table(number: u32) -> *const c_void {
    match number {
        CALLBACKS => std::ptr::from_ref(&CALLBACK_TABLE).cast(),
        VERSION_INFO => std::ptr::from_ref(&VERSION_TABLE).cast(),
        _ => std::ptr::null(),
    }
}

/// Several threads may be the first: the tool is initialised once.
static KNOWN: Once<bool> = Once::new(Rank::ONCE);

/// Is a thread initialising the tool?
pub(super) fn is_being_introduced() -> bool {
    KNOWN.is_being_made()
}

/// Initialises a tool with the tables; false: the tool uses none of them.
pub(super) fn introduce(tool: &Library) -> bool {
    type ExportTable = unsafe extern "C" fn(u32) -> *const c_void;
    type Initialize = unsafe extern "C" fn(ExportTable) -> c_int;
    let known = KNOWN.get_or_try_init(|| {
        let address = tool.symbol(c"InitializeInjectionNvtx2");
        if address.is_null() {
            return Ok::<_, Infallible>(false);
        }
        // SAFETY: NVTX's entry point of this name has this signature.
        let initialize = unsafe { std::mem::transmute::<*mut c_void, Initialize>(address) };
        // SAFETY: the function returns static tables.
        Ok(unsafe { initialize(export_table) } != 0)
    });
    known.is_ok_and(|known| *known)
}

/// The function that the tool stored in a slot.
fn function_of<const N: usize>(slots: &Slots<N>, index: usize) -> Option<*mut c_void> {
    let address = slots[index].load(Ordering::Acquire);
    if address == 0 {
        return None;
    }
    before_captured_function();
    Some(std::ptr::with_exposed_provenance_mut(address))
}

/// nvtxMarkA
pub(super) fn mark(message: &CStr) {
    type Mark = unsafe extern "C" fn(*const c_char);
    let Some(address) = function_of(&CORE_SLOTS, MARK) else { return };
    // SAFETY: the tool's function of this slot has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Mark>(address) };
    // SAFETY: the message is NUL-terminated.
    unsafe { function(message.as_ptr()) };
}

/// nvtxRangePushA
pub(super) fn push(message: &CStr) {
    type Push = unsafe extern "C" fn(*const c_char) -> c_int;
    let Some(address) = function_of(&CORE_SLOTS, RANGE_PUSH) else { return };
    // SAFETY: the tool's function of this slot has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Push>(address) };
    // SAFETY: the message is NUL-terminated.
    unsafe { function(message.as_ptr()) };
}

/// nvtxRangePop
pub(super) fn pop() {
    type Pop = unsafe extern "C" fn() -> c_int;
    let Some(address) = function_of(&CORE_SLOTS, RANGE_POP) else { return };
    // SAFETY: the tool's function of this slot has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Pop>(address) };
    // SAFETY: this thread has a range open.
    unsafe { function() };
}

/// nvtxRangeStartA: the tool's id; `None`: it has no such function.
pub(crate) fn start(message: &CStr) -> Option<u64> {
    type Start = unsafe extern "C" fn(*const c_char) -> u64;
    let address = function_of(&CORE_SLOTS, RANGE_START)?;
    // SAFETY: the tool's function of this slot has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Start>(address) };
    // SAFETY: the message is NUL-terminated.
    Some(unsafe { function(message.as_ptr()) })
}

/// nvtxRangeEnd
pub(crate) fn end(id: u64) {
    type End = unsafe extern "C" fn(u64);
    let Some(address) = function_of(&CORE_SLOTS, RANGE_END) else { return };
    // SAFETY: the tool's function of this slot has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, End>(address) };
    // SAFETY: an id that the tool looks up.
    unsafe { function(id) };
}

/// nvtxEventAttributes_t
#[repr(C)]
struct Attributes {
    version: u16,
    struct_size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

/// NVTX_MESSAGE_TYPE_ASCII
const ASCII: i32 = 1;

/// A domain of the tool.
pub(super) struct Domain(AtomicPtr<c_void>);

impl Domain {
    /// A domain that is not created yet.
    pub(super) const fn new() -> Domain {
        Domain(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// nvtxDomainCreateA, which gives the same domain for the same name.
    pub(super) fn create(&self, name: &CStr) -> bool {
        type Create = unsafe extern "C" fn(*const c_char) -> *mut c_void;
        let Some(address) = function_of(&CORE2_SLOTS, DOMAIN_CREATE) else { return false };
        // SAFETY: the tool's function of this slot has this signature.
        let function = unsafe { std::mem::transmute::<*mut c_void, Create>(address) };
        // SAFETY: the name is NUL-terminated.
        let domain = unsafe { function(name.as_ptr()) };
        self.0.store(domain, Ordering::Release);
        !domain.is_null()
    }

    /// nvtxDomainRangePushEx; false: the tool has no such function.
    pub(super) fn push(&self, message: &CStr) -> bool {
        type Push = unsafe extern "C" fn(*mut c_void, *const Attributes) -> c_int;
        let Some(address) = function_of(&CORE2_SLOTS, DOMAIN_RANGE_PUSH) else { return false };
        // SAFETY: the tool's function of this slot has this signature.
        let function = unsafe { std::mem::transmute::<*mut c_void, Push>(address) };
        let attributes = Attributes {
            version: VERSION as u16,
            struct_size: size_of::<Attributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: ASCII,
            message: message.as_ptr(),
        };
        // SAFETY: the tool's own domain; the attributes and their message are valid.
        unsafe { function(self.0.load(Ordering::Acquire), &attributes) };
        true
    }

    /// nvtxDomainRangePop
    pub(super) fn pop(&self) {
        type Pop = unsafe extern "C" fn(*mut c_void) -> c_int;
        let Some(address) = function_of(&CORE2_SLOTS, DOMAIN_RANGE_POP) else { return };
        // SAFETY: the tool's function of this slot has this signature.
        let function = unsafe { std::mem::transmute::<*mut c_void, Pop>(address) };
        // SAFETY: the tool's own domain, in which this thread has a range open.
        unsafe { function(self.0.load(Ordering::Acquire)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of NVIDIA's structures, by their headers.
    #[test]
    fn structures_have_the_sizes_of_the_headers() {
        assert_eq!(size_of::<Callbacks>(), 16);
        assert_eq!(size_of::<VersionInfo>(), 24);
        assert_eq!(size_of::<Attributes>(), 48);
    }

    #[test]
    fn every_place_leads_to_its_slot() {
        for (number, size) in [(1, 16), (2, 9), (3, 15), (4, 7), (5, 16), (6, 7)] {
            let (places, count) = module(number).unwrap();
            assert_eq!(count, size);
            // SAFETY: a table of so many places and one behind them.
            let places = unsafe { std::slice::from_raw_parts(places, size as usize + 1) };
            assert!(places[0].is_null() && places[size as usize].is_null());
            let inner = &places[1..size as usize];
            assert!(inner.iter().all(|place| !place.is_null()));
            assert!(inner.windows(2).all(|pair| pair[0].wrapping_add(1) == pair[1]));
        }
        assert!(module(0).is_none() && module(7).is_none());
    }
}
