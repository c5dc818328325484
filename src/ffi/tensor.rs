//! Section "Tensors" of the header.

use super::boundary::{boundary, boundary_without_guard, out};
use super::status::tcuda_status;
use crate::base::error::{Error, Result};
use crate::base::thread::{self, try_box};
use crate::tensor::bundle::MemberView;
use crate::tensor::owned::{self, CapsuleMemory, ForeignTensor, Moved, SizePointers, Sizes};
use crate::tensor::{self, Dtype, Head, Parts, Place, Tensor};
use std::ffi::c_void;
use std::mem::{offset_of, size_of};

/// tcuda_tensor.device.device_type, as DLPack: plain memory of the host.
pub const TCUDA_DEVICE_CPU: i32 = 1;
/// Memory of a device.
pub const TCUDA_DEVICE_CUDA: i32 = 2;
/// Pinned memory of the host.
pub const TCUDA_DEVICE_CUDA_HOST: i32 = 3;
/// Managed memory.
pub const TCUDA_DEVICE_CUDA_MANAGED: i32 = 13;

/// tcuda_dtype.code, as DLPack; dlpack.h has the rarer ones, which are accepted too.
pub const TCUDA_DTYPE_INT: u8 = 0;
/// Without a sign.
pub const TCUDA_DTYPE_UINT: u8 = 1;
/// IEEE 754, of 16, 32 or 64 bits.
pub const TCUDA_DTYPE_FLOAT: u8 = 2;
/// bfloat16.
pub const TCUDA_DTYPE_BFLOAT: u8 = 4;
/// Two floats; the bits are those of both.
pub const TCUDA_DTYPE_COMPLEX: u8 = 5;
/// A byte that is 0 or 1.
pub const TCUDA_DTYPE_BOOL: u8 = 6;
/// 8 bits.
pub const TCUDA_DTYPE_FLOAT8_E4M3FN: u8 = 10;
/// 8 bits.
pub const TCUDA_DTYPE_FLOAT8_E5M2: u8 = 12;
/// 4 bits.
pub const TCUDA_DTYPE_FLOAT4_E2M1FN: u8 = 17;

/// What the elements of a tensor are; layout of DLDataType.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_dtype {
    /// TCUDA_DTYPE_..., or another code of DLPack.
    pub code: u8,
    /// Bits of one number: 32 for a float.
    pub bits: u8,
    /// 1; more for vectors.
    pub lanes: u16,
}

/// Where the memory of a tensor is; layout of DLDevice.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_tensor_device {
    /// TCUDA_DEVICE_...
    pub device_type: i32,
    /// Ordinal; 0 for memory of the host.
    pub device_id: i32,
}

/// A view of memory; layout of DLTensor, so that a cast works. It owns nothing unless the library
/// filled it in: then tcuda_tensor_release frees what the library put there.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_tensor {
    /// Start of the memory; may be NULL if there are no elements.
    pub data: *mut c_void,
    /// Device of the memory.
    pub device: tcuda_tensor_device,
    /// Number of dimensions, 0 to 64; 0 is one element.
    pub ndim: i32,
    /// What the elements are.
    pub dtype: tcuda_dtype,
    /// ndim sizes; may be NULL if ndim is 0.
    pub shape: *mut i64,
    /// ndim distances between neighbours, in elements; may be NULL: contiguous, row-major.
    pub strides: *mut i64,
    /// Bytes from data to the element whose indices are 0.
    pub byte_offset: u64,
}

const _: () = assert!(size_of::<tcuda_dtype>() == 4 && size_of::<tcuda_tensor_device>() == 8);
const _: () = assert!(size_of::<tcuda_tensor>() == 48);
const _: () = assert!(offset_of!(tcuda_tensor, device) == 8);
const _: () = assert!(offset_of!(tcuda_tensor, ndim) == 16);
const _: () = assert!(offset_of!(tcuda_tensor, dtype) == 20);
const _: () = assert!(offset_of!(tcuda_tensor, shape) == 24);
const _: () = assert!(offset_of!(tcuda_tensor, strides) == 32);
const _: () = assert!(offset_of!(tcuda_tensor, byte_offset) == 40);

pub(super) const EMPTY: tcuda_tensor = tcuda_tensor {
    data: std::ptr::null_mut(),
    device: tcuda_tensor_device { device_type: 0, device_id: 0 },
    ndim: 0,
    dtype: tcuda_dtype { code: 0, bits: 0, lanes: 0 },
    shape: std::ptr::null_mut(),
    strides: std::ptr::null_mut(),
    byte_offset: 0,
};

/// DLPack's capsule, since DLPack 1.0.
#[repr(C)]
pub struct DLManagedTensorVersioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    flags: u64,
    tensor: tcuda_tensor,
}

const _: () = assert!(offset_of!(DLManagedTensorVersioned, deleter) == 16);
const _: () = assert!(offset_of!(DLManagedTensorVersioned, tensor) == 32);

/// The implemented version of DLPack: other versions with the same major number have more types and
/// flags.
const VERSION: (u32, u32) = (1, 1);
/// Flag of a capsule: its memory is read-only.
const READ_ONLY: u64 = 1;
/// Flag of a capsule: elements of less than a byte are padded to a byte each.
const PADDED: u64 = 4;

/// A copy of the host's struct.
fn read(tensor: *const tcuda_tensor, name: &'static str) -> Result<tcuda_tensor> {
    if tensor.is_null() {
        return Err(Error::Null { name });
    }
    // SAFETY: not NULL, and readable by the caller's promise.
    Ok(unsafe { tensor.read_unaligned() })
}

/// Sets a view to the host's tensor.
fn set_view(view: &mut Tensor, raw: &tcuda_tensor) -> Result<()> {
    let ndim = tensor::ndim(raw.ndim)?;
    let place = Place::of(raw.device.device_type, raw.device.device_id)?;
    if ndim > 0 && raw.shape.is_null() {
        return Err(Error::Null { name: "shape" });
    }
    // SAFETY: the caller promises as many as the tensor has dimensions; of any alignment.
    let size = |index| unsafe { raw.shape.wrapping_add(index).read_unaligned() };
    // SAFETY: as above.
    let stride = |index| unsafe { raw.strides.wrapping_add(index).read_unaligned() };
    let strides = (!raw.strides.is_null()).then_some(stride);
    let dtype = Dtype { code: raw.dtype.code, bits: raw.dtype.bits, lanes: raw.dtype.lanes };
    let (data, byte_offset) = (raw.data as u64, raw.byte_offset);
    view.set(Head { data, byte_offset, place, dtype, ndim }, size, strides)
}

fn view_of(raw: &tcuda_tensor) -> Result<Tensor> {
    let mut view = Tensor::none();
    set_view(&mut view, raw)?;
    Ok(view)
}

/// The parts of a host's tensor, read in place; `None` where that needs the checks of [`view`].
#[inline]
pub(super) fn parts_of<'a>(raw: &tcuda_tensor) -> Option<Parts<'a>> {
    let ndim = tensor::ndim(raw.ndim).ok()?;
    let list = |from: *const i64| {
        // SAFETY: the caller promises as many as the tensor has dimensions, and it is aligned.
        from.is_aligned().then(|| unsafe { std::slice::from_raw_parts(from, ndim) })
    };
    let (mut shape, mut strides): (&[i64], Option<&[i64]>) = (&[], None);
    if ndim > 0 {
        shape = (!raw.shape.is_null()).then(|| list(raw.shape))??;
        if !raw.strides.is_null() {
            strides = Some(list(raw.strides)?);
        }
    }
    Some(Parts {
        data: raw.data as u64,
        byte_offset: raw.byte_offset,
        place: Place::of(raw.device.device_type, raw.device.device_id).ok()?,
        dtype: Dtype { code: raw.dtype.code, bits: raw.dtype.bits, lanes: raw.dtype.lanes },
        shape,
        strides,
    })
}

/// A required tensor that is read.
pub(super) fn view(tensor: *const tcuda_tensor, name: &'static str) -> Result<Tensor> {
    let mut view = Tensor::none();
    read_view(&mut view, tensor, name)?;
    Ok(view)
}

/// [`view`] into an existing value.
pub(super) fn read_view(
    view: &mut Tensor,
    tensor: *const tcuda_tensor,
    name: &'static str,
) -> Result<()> {
    let raw = read(tensor, name)?;
    set_view(view, &raw)?;
    view.read_only = owned::is_read_only(raw.shape as usize, view);
    Ok(())
}

/// A required tensor that is written.
pub(super) fn writable(tensor: *const tcuda_tensor, name: &'static str) -> Result<Tensor> {
    let mut view = Tensor::none();
    read_writable(&mut view, tensor, name)?;
    Ok(view)
}

/// [`writable`] into an existing value.
pub(super) fn read_writable(
    view: &mut Tensor,
    tensor: *const tcuda_tensor,
    name: &'static str,
) -> Result<()> {
    let raw = read(tensor, name)?;
    set_view(view, &raw)?;
    if owned::is_read_only(raw.shape as usize, view) {
        return Err(Error::Invalid(
            "the tensor must not be written: the capsule that its memory came from is read-only",
        ));
    }
    Ok(())
}

/// Is a tensor read-only, or invalid?
#[cold]
pub(super) fn is_read_only(raw: &tcuda_tensor) -> bool {
    view_of(raw).map_or(true, |view| owned::is_read_only(raw.shape as usize, &view))
}

/// The host's form of a tensor that was filled in with others.
pub(super) fn given(given: &MemberView) -> tcuda_tensor {
    let (device_type, device_id) = given.site.place.numbers();
    let Dtype { code, bits, lanes } = given.site.dtype;
    tcuda_tensor {
        data: given.site.data as *mut c_void,
        device: tcuda_tensor_device { device_type, device_id },
        ndim: given.ndim as i32,
        dtype: tcuda_dtype { code, bits, lanes },
        shape: given.shape,
        strides: given.strides,
        byte_offset: given.site.byte_offset,
    }
}

/// The host's form of a view whose shape and strides are stored elsewhere.
pub(super) fn lent(view: &Tensor, lent: SizePointers, byte_offset: u64) -> tcuda_tensor {
    let (device_type, device_id) = view.place.numbers();
    let Dtype { code, bits, lanes } = view.dtype;
    tcuda_tensor {
        data: view.data as *mut c_void,
        device: tcuda_tensor_device { device_type, device_id },
        ndim: view.shape().len() as i32,
        dtype: tcuda_dtype { code, bits, lanes },
        shape: lent.shape,
        strides: lent.strides,
        byte_offset,
    }
}

/// Frees what the library put into a tensor and zeroes it: the library's memory in the order of its
/// stream, a capsule by its deleter. A tensor that is all zero has nothing: OK. (+)
///
/// @param[in,out] tensor  one that the library filled in, its data, shape and strides as they
///                        were, or TCUDA_STATUS_INVALID_ARGUMENT; may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_tensor_release(tensor: *mut tcuda_tensor) -> tcuda_status {
    boundary_without_guard(|call| {
        if tensor.is_null() {
            return Ok(());
        }
        let raw = read(tensor, "tensor")?;
        if raw.shape.is_null() && raw.data.is_null() {
            return Ok(());
        }
        let taken = owned::take(raw.shape as usize, raw.data as u64)?;
        // Zeroed first: the deleter is the host's code, and might read it.
        out(tensor, "tensor")?.set(EMPTY);
        taken.end(call.inside())
    })
}

/// The device that a tensor is on; -1 when it is on the host, so that tcuda_device_exchange with it
/// changes nothing. It is read from the struct: memory is not looked up, and the library is not
/// initialised. (torch.cuda.device_of)
///
/// @param tensor       not NULL; its device field is read
/// @param[out] device  its ordinal, or -1
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_tensor_device_of(
    tensor: *const tcuda_tensor,
    device: *mut i32,
) -> tcuda_status {
    boundary(|_| {
        let device = out(device, "device")?;
        device.set(view(tensor, "tensor")?.place.device().unwrap_or(-1));
        Ok(())
    })
}

/// Moves a capsule into a tensor: tcuda_tensor_release calls its deleter, once and on its own
/// thread, also after tcuda_shutdown. On failure the capsule stays the caller's. Does not
/// initialise the library, and does not look the memory up; functions that use the tensor do.
/// (torch.from_dlpack)
///
/// @param managed      a DLManagedTensorVersioned of DLPack 1, of any device and type. If its flags
///                     say read-only, then until it is released functions that write refuse the
///                     tensor, and tensors of the host's own that share a byte with it
/// @param[out] tensor  the caller's, to be released; its shape and strides are the library's
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_tensor_from_dlpack(
    managed: *mut DLManagedTensorVersioned,
    tensor: *mut tcuda_tensor,
) -> tcuda_status {
    boundary(|_| {
        let tensor = out(tensor, "tensor")?;
        if managed.is_null() {
            return Err(Error::Null { name: "managed" });
        }
        // SAFETY: not NULL; all versions of a capsule begin with its version.
        let major = unsafe { managed.cast::<u32>().read_unaligned() };
        if major != VERSION.0 {
            return Err(Error::OutOfRange {
                name: "version.major",
                value: major.into(),
                allowed: "tcuda speaks version 1 of DLPack; ask the exporter for that",
            });
        }
        // SAFETY: of this version, so it has all these fields.
        let capsule = unsafe { managed.read_unaligned() };
        let view = view_of(&capsule.tensor)?;
        if capsule.flags & PADDED != 0 && view.dtype.element_bits() % 8 != 0 {
            return Err(Error::NotSupported {
                what: "a capsule whose elements of less than a byte are padded to bytes",
                by: "library",
            });
        }
        // SAFETY: the same function; a pointer is passed as any other.
        let deleter = unsafe {
            std::mem::transmute::<
                Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
                Option<unsafe extern "C" fn(*mut c_void)>,
            >(capsule.deleter)
        };
        let foreign = ForeignTensor { object: managed.cast(), deleter };
        let kept = owned::adopt(&view, foreign, capsule.flags & READ_ONLY != 0)?;
        tensor.set(lent(&view, kept, capsule.tensor.byte_offset));
        Ok(())
    })
}

/// A capsule of this library.
#[repr(C)]
struct Capsule {
    managed: DLManagedTensorVersioned,
    sizes: Sizes,
    share: Option<CapsuleMemory>,
}

/// The deleter of [`Capsule`]; it may run on any thread, at any time.
unsafe extern "C" fn delete_capsule(managed: *mut DLManagedTensorVersioned) {
    if managed.is_null() {
        return;
    }
    // SAFETY: from Box::into_raw below; the consumer calls this once.
    let capsule = unsafe { Box::from_raw(managed.cast::<Capsule>()) };
    if let Some(share) = capsule.share
        && let Ok(inside) = thread::enter()
    {
        // The deleter returns nothing, so that a failure cannot be reported.
        let _ = share.end(&inside);
    }
}

/// The capsule's data points to the first element, because some consumers ignore byte_offset.
fn capsule_of(view: &Tensor, read_only: bool) -> Result<Box<Capsule>> {
    let mut sizes = owned::sizes(view)?;
    let shape = sizes.as_mut_ptr();
    let strides = shape.wrapping_add(view.shape().len());
    let managed = DLManagedTensorVersioned {
        major: VERSION.0,
        minor: VERSION.1,
        manager: std::ptr::null_mut(),
        deleter: Some(delete_capsule),
        flags: if read_only { READ_ONLY } else { 0 },
        tensor: lent(&view.without_offset(), SizePointers { shape, strides }, 0),
    };
    try_box(Capsule { managed, sizes, share: None }, "a capsule")
}

/// Is the capsule equal to the tensor that was made of it, and without a byte_offset?
fn is_as_it_came(object: *mut c_void, view: &Tensor) -> bool {
    // SAFETY: from from_dlpack, a capsule of this version, and not yet given back.
    let capsule = unsafe { object.cast::<DLManagedTensorVersioned>().read_unaligned() };
    let is_same = |lent: Tensor| {
        (lent.address, lent.place, lent.dtype) == (view.address, view.place, view.dtype)
            && (lent.shape(), lent.strides()) == (view.shape(), view.strides())
    };
    capsule.tensor.byte_offset == 0 && view_of(&capsule.tensor).is_ok_and(is_same)
}

/// Moves a tensor into a capsule for other libraries, and zeroes it. Its deleter, which may be
/// called on any thread and after tcuda_shutdown, frees the memory as tcuda_free does: in the order
/// of the stream that it was allocated on. If the consumer uses other streams, call
/// tcuda_record_stream for them. What tcuda_tensor_from_dlpack made becomes its original capsule
/// again, unless the host has changed it: then the new capsule's deleter calls that of the
/// original. The capsule's data is the first element, and its byte_offset 0.
/// (torch.utils.dlpack.to_dlpack)
///
/// @param[in,out] tensor  one that the library filled in; or one of the host's own, with data from
///                        tcuda_malloc: the capsule owns the block, and copies shape and strides
/// @param[out] managed    the caller's, whose deleter is to be called once, by it or a consumer
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_tensor_to_dlpack(
    tensor: *mut tcuda_tensor,
    managed: *mut *mut DLManagedTensorVersioned,
) -> tcuda_status {
    boundary(|call| {
        let managed = out(managed, "managed")?;
        let raw = read(tensor, "tensor")?;
        let (shape, data) = (raw.shape as usize, raw.data as u64);
        let is_ours = owned::is_ours(shape);
        if !is_ours && data != 0 {
            // Looked up before its shape is read: without a block there may be no tensor either. A
            // shutdown waits for calls that are inside; without GPUs there are no
            // blocks.
            match crate::gpu::gpus::existing(call.inside()) {
                Some(_) => crate::memory::find(data)?,
                None => return Err(crate::memory::unknown_pointer(data)),
            };
        }
        let view = view_of(&raw)?;
        let mut capsule = capsule_of(&view, owned::is_read_only(shape, &view))?;
        let share = match is_ours {
            true => match owned::move_out(shape, data)? {
                Moved::Ours(share) => share,
                Moved::Foreign(foreign) if !is_as_it_came(foreign.object, &view) => {
                    CapsuleMemory::Foreign(foreign)
                }
                Moved::Foreign(foreign) => {
                    managed.set(foreign.object.cast());
                    out(tensor, "tensor")?.set(EMPTY);
                    return Ok(());
                }
            },
            false => CapsuleMemory::Block(owned::block_of(call.gpus()?, &view)?),
        };
        capsule.share = Some(share);
        managed.set(Box::into_raw(capsule).cast());
        out(tensor, "tensor")?.set(EMPTY);
        Ok(())
    })
}
