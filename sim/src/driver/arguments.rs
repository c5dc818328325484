//! The arguments of a driver call: pointers of the host, and conditions with their status.

use crate::base::code;
use cudarc::driver::sys::{
    CUdevice_P2PAttribute, CUfunction_attribute, CUgraphConditionalNodeType, CUmemAccess_flags,
    CUmemAllocationType, CUmemLocationType, CUmemcpy3DOperandType, CUmemcpySrcAccessOrder,
    CUmemorytype, CUpointer_attribute,
};
use std::ffi::c_uint;
use std::mem::transmute_copy;

/// Writes a result through a pointer that the host gave; NULL is `INVALID_VALUE`.
macro_rules! put {
    ($pointer:expr, $value:expr) => {{
        let (pointer, value) = ($pointer, $value);
        if pointer.is_null() {
            Err($crate::base::code::INVALID_VALUE)
        } else {
            // SAFETY: the host promised a valid pointer for the result.
            unsafe { pointer.write_unaligned(value) };
            Ok(())
        }
    }};
}
pub(super) use put;

/// Reads the value at a pointer of the host; NULL is `INVALID_VALUE`.
macro_rules! peek {
    ($pointer:expr) => {{
        let pointer = $pointer;
        if pointer.is_null() {
            Err($crate::base::code::INVALID_VALUE)
        } else {
            // SAFETY: the host promised a valid pointer to an argument.
            Ok(unsafe { pointer.read_unaligned() })
        }
    }};
}
pub(super) use peek;

/// `Err(code)` unless the condition holds.
#[inline]
pub(super) fn require(condition: bool, code: i32) -> Result<(), i32> {
    if condition { Ok(()) } else { Err(code) }
}

/// Reads a structure at a pointer of the host. A program may store any number in a field that is an
/// enumeration, so the named fields are checked first.
macro_rules! peek_checked {
    ($pointer:expr, $($($field:ident).+),+) => {{
        let pointer = $pointer;
        if pointer.is_null() {
            Err($crate::base::code::INVALID_VALUE)
        } else {
            let is_known = $({
                // SAFETY: the host promised a valid pointer to an argument.
                let field = unsafe { &raw const (*pointer).$($field).+ };
                $crate::driver::arguments::is_known(field)
            })&&+;
            if is_known { $crate::driver::arguments::peek!(pointer) } else {
                Err($crate::base::code::INVALID_VALUE)
            }
        }
    }};
}
pub(super) use peek_checked;

/// True if the number at a pointer of the host is one of the enumeration.
pub(super) fn is_known<E: Enumeration>(field: *const E) -> bool {
    // SAFETY: enumerations of CUDA have 32 bits; the host promised a valid pointer.
    E::has(unsafe { field.cast::<c_uint>().read_unaligned() })
}

/// The enumerator of a number, since a program may pass any; INVALID_VALUE if there is none.
pub(super) fn enumerator<E: Enumeration>(number: c_uint) -> Result<E, i32> {
    require(E::has(number), code::INVALID_VALUE)?;
    // SAFETY: an enumeration of 32 bits that has this number.
    Ok(unsafe { transmute_copy::<c_uint, E>(&number) })
}

/// An enumeration of CUDA.
pub(super) trait Enumeration: Sized {
    /// True if an enumerator has this number.
    fn has(number: c_uint) -> bool;
}

macro_rules! enumerations {
    ($($name:ident $first:ident to $last:ident;)*) => {$(
        impl Enumeration for $name {
            fn has(number: c_uint) -> bool {
                ($name::$first as c_uint..=$name::$last as c_uint).contains(&number)
            }
        }
    )*};
}

macro_rules! enumerations_with_gaps {
    ($($name:ident $($known:ident)*;)*) => {$(
        impl Enumeration for $name {
            fn has(number: c_uint) -> bool {
                [$($name::$known as c_uint),*].contains(&number)
            }
        }
    )*};
}

enumerations! {
    CUdevice_P2PAttribute
        CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK to CU_DEVICE_P2P_ATTRIBUTE_ACCESS_ACCESS_SUPPORTED;
    CUfunction_attribute
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK to CU_FUNC_ATTRIBUTE_MAX;
    CUgraphConditionalNodeType
        CU_GRAPH_COND_TYPE_IF to CU_GRAPH_COND_TYPE_SWITCH;
    CUmemcpy3DOperandType
        CU_MEMCPY_OPERAND_TYPE_POINTER to CU_MEMCPY_OPERAND_TYPE_ARRAY;
    CUmemcpySrcAccessOrder
        CU_MEMCPY_SRC_ACCESS_ORDER_STREAM to CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    CUmemorytype
        CU_MEMORYTYPE_HOST to CU_MEMORYTYPE_UNIFIED;
    CUpointer_attribute
        CU_POINTER_ATTRIBUTE_CONTEXT to CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
}

// The last enumerators, the largest number of an int, mean nothing.
enumerations_with_gaps! {
    CUmemAccess_flags
        CU_MEM_ACCESS_FLAGS_PROT_NONE
        CU_MEM_ACCESS_FLAGS_PROT_READ
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemAllocationType
        CU_MEM_ALLOCATION_TYPE_INVALID
        CU_MEM_ALLOCATION_TYPE_PINNED;
    CUmemLocationType
        CU_MEM_LOCATION_TYPE_INVALID
        CU_MEM_LOCATION_TYPE_DEVICE
        CU_MEM_LOCATION_TYPE_HOST
        CU_MEM_LOCATION_TYPE_HOST_NUMA
        CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}
