//! Section "Collectives" of the header: one process, many GPUs.

use super::boundary::{Call, boundary};
use super::status::tcuda_status;
use super::stream::{required, tcuda_stream};
use super::tensor::{EMPTY, given, read_view, read_writable, tcuda_tensor};
use crate::base::error::{Error, Result};
use crate::base::inline_vec::Few;
use crate::collectives;
use crate::collectives::outputs::Outputs;
use crate::collectives::team::INLINE_CAPACITY;
use crate::collectives::{Split, Tensors};
use crate::gpu::stream::Stream;
use crate::tensor::Tensor;

/// Checks that a host's list is not NULL, unless it is empty, and that its addresses do not
/// overflow.
fn require_list<T>(list: *const T, count: usize, name: &'static str) -> Result<()> {
    if count > 0 && list.is_null() {
        return Err(Error::Null { name });
    }
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Error::OutOfRange { name, value: -1, allowed: "it is longer than memory" });
    }
    Ok(())
}

/// Applies `make` to each element of a host's list.
fn collect<T, U: Copy>(
    list: *const T,
    count: usize,
    name: &'static str,
    make: impl Fn(*const T) -> Result<U>,
) -> Result<Few<U, INLINE_CAPACITY>> {
    require_list(list, count, name)?;
    let mut made = Few::new();
    for index in 0..count {
        made.push(make(list.wrapping_add(index))?)?;
    }
    Ok(made)
}

/// Reads the tensors of a list that are read.
fn views(
    list: *const tcuda_tensor,
    count: usize,
    name: &'static str,
) -> Result<impl Fn(usize, &mut Tensor) -> Result<()>> {
    require_list(list, count, name)?;
    Ok(move |index: usize, to: &mut Tensor| read_view(to, list.wrapping_add(index), name))
}

/// Reads the tensors of a list that are written.
fn writables(
    list: *const tcuda_tensor,
    count: usize,
    name: &'static str,
) -> Result<impl Fn(usize, &mut Tensor) -> Result<()>> {
    require_list(list, count, name)?;
    Ok(move |index: usize, to: &mut Tensor| read_writable(to, list.wrapping_add(index), name))
}

fn numbers<T: Copy>(
    list: *const T,
    count: usize,
    name: &'static str,
) -> Result<Few<T, INLINE_CAPACITY>> {
    collect(list, count, name, |number| {
        // SAFETY: an element of a list of the caller's, of any alignment.
        Ok(unsafe { number.read_unaligned() })
    })
}

/// One stream for each piece; the current stream where the list or an element is NULL.
fn streams(
    list: *const *mut tcuda_stream,
    count: usize,
    call: &Call,
) -> Result<Few<Option<&Stream>, INLINE_CAPACITY>> {
    if list.is_null() {
        return Ok(Few::new());
    }
    collect(list, count, "streams", |stream| {
        // SAFETY: an element of a list of the caller's, of any alignment.
        let stream = unsafe { stream.read_unaligned() };
        if stream.is_null() { Ok(None) } else { required(stream, "streams", call).map(Some) }
    })
}

/// Number of tensors in `lists` lists of `each`.
fn total(lists: usize, each: usize) -> Result<usize> {
    lists.checked_mul(each).ok_or(Error::OutOfRange {
        name: "num_tensors",
        value: -1,
        allowed: "there are more tensors than memory has room for",
    })
}

/// Destination of tensors that the library fills in.
struct Places {
    outs: *mut tcuda_tensor,
    count: usize,
}

/// Checks a required list of outputs.
fn places(outs: *mut tcuda_tensor, count: usize, name: &'static str) -> Result<Places> {
    require_list(outs, count, name)?;
    Ok(Places { outs, count })
}

impl Places {
    /// Writes the tensors, which are the host's from now on. Elements that are left over are
    /// zeroed.
    fn set(self, outs: Outputs<'_>) {
        let mut index = 0;
        let mut set = |tensor: tcuda_tensor| {
            if index < self.count {
                let place = self.outs.wrapping_add(index);
                // SAFETY: an element of a list of the caller's, writable and of any alignment.
                unsafe { place.write_unaligned(tensor) };
            }
            index += 1;
        };
        let left_over = self.count.saturating_sub(outs.len());
        outs.pass_to_host(|tensor| set(given(&tensor)));
        (0..left_over).for_each(|_| set(EMPTY));
    }
}

/// A copy of a tensor on each of some devices, of any type and layout. Outputs are contiguous;
/// those on the tensor's own device are the tensor itself, and copy nothing.
///
/// All functions of this section queue their work and do not wait for it: it comes after what the
/// current streams of the devices that take part hold now, and what is queued on any of these
/// streams from then on comes after it. They may be called in a capture, which then spreads to
/// those streams; enable peer access before, if it is wanted. Tensors may be on any device, in
/// pinned or pageable memory of the host, or managed; pageable memory is read or written before the
/// call returns. Elements must be whole bytes; of types below 8 bits, neighbours are packed in
/// pairs, fours or eights. Memory that is written must overlap nothing else that the call uses.
///
/// Outputs that the library fills in (`outs`, `out`) are to be released one by one by
/// tcuda_tensor_release, also those that are the memory of an input: releasing these frees nothing,
/// and the memory stays the input's. Memory of other outputs comes from the current stream of their
/// device, as by tcuda_malloc; on the host it is pinned, and has its values when the call returns.
/// (torch.cuda.comm.broadcast)
///
/// @param src        read
/// @param devices    ordinals, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE; one may be there twice
/// @param count      length of both lists; 0: nothing is done
/// @param[out] outs  one for each device, in their order; the caller's, to be released
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_broadcast(
    src: *const tcuda_tensor,
    devices: *const i32,
    count: usize,
    outs: *mut tcuda_tensor,
) -> tcuda_status {
    boundary(|call| {
        let outs = places(outs, count, "outs")?;
        let mut viewed = Tensor::none();
        read_view(&mut viewed, src, "src")?;
        let devices = numbers(devices, count, "devices")?;
        outs.set(collectives::broadcast(call.gpus()?, &viewed, &devices)?);
        Ok(())
    })
}

/// Copies a tensor into each of some others. Outputs in pinned memory are written in stream order.
/// An output that is the source itself, with the same strides, is left unchanged.
/// (torch.cuda.comm.broadcast(out=))
///
/// @param src    read
/// @param outs   written: of src's shape and type, of any strides that keep elements apart
/// @param count  length of the list; 0: nothing is done
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_broadcast_into(
    src: *const tcuda_tensor,
    outs: *const tcuda_tensor,
    count: usize,
) -> tcuda_status {
    boundary(|call| {
        let mut viewed = Tensor::none();
        read_view(&mut viewed, src, "src")?;
        let read = writables(outs, count, "outs")?;
        collectives::broadcast_into(call.gpus()?, &viewed, Tensors { len: count, read: &read })
    })
}

/// Copies of many tensors on each of some devices, all moved together. Outputs on the device of the
/// tensors are the tensors themselves; the others are contiguous, several in one block, which is
/// freed with the last of them. (torch.cuda.comm.broadcast_coalesced)
///
/// @param tensors       read: all on one device, which need not be in the list, or all on the host;
///                      of any shapes and types
/// @param num_tensors   length of the list; 0: nothing is done
/// @param devices       as in tcuda_comm_broadcast
/// @param num_devices   length of the list, 1 or more
/// @param buffer_bytes  most bytes of a block, unless one tensor has more; 0: 10 MiB
/// @param[out] outs     num_devices x num_tensors, device by device; the caller's, to be released
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_broadcast_coalesced(
    tensors: *const tcuda_tensor,
    num_tensors: usize,
    devices: *const i32,
    num_devices: usize,
    buffer_bytes: usize,
    outs: *mut tcuda_tensor,
) -> tcuda_status {
    boundary(|call| {
        let outs = places(outs, total(num_devices, num_tensors)?, "outs")?;
        let read = views(tensors, num_tensors, "tensors")?;
        let devices = numbers(devices, num_devices, "devices")?;
        let tensors = Tensors { len: num_tensors, read: &read };
        let made =
            collectives::broadcast_coalesced(call.gpus()?, tensors, &devices, buffer_bytes as u64)?;
        outs.set(made);
        Ok(())
    })
}

/// The sum of tensors of several devices. The tensors are added one after the other, and each sum
/// is rounded to the type: first the tensor on `destination` (the last of them if there are
/// several, the first of all if there is none), then the others in their order. So the bits are the
/// same in each call and on each machine. The output has the order of strides of that first tensor;
/// the sum of one tensor that is on `destination` is the tensor itself.
/// (torch.cuda.comm.reduce_add)
///
/// @param tensors      read: of one shape and type: integers, floats of 16 to 64 bits, bfloat16,
///                     complex numbers of these, or bools, whose sum is "or"
/// @param count        length of the list, 1 or more
/// @param destination  ordinal, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE; no tensor need be on it.
///                     For the host the first device that has a tensor adds
/// @param[out] out     the caller's, to be released
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_reduce_add(
    tensors: *const tcuda_tensor,
    count: usize,
    destination: i32,
    out: *mut tcuda_tensor,
) -> tcuda_status {
    boundary(|call| {
        let out = places(out, 1, "out")?;
        let read = views(tensors, count, "tensors")?;
        let tensors = Tensors { len: count, read: &read };
        out.set(collectives::reduce_add(call.gpus()?, tensors, destination)?);
        Ok(())
    })
}

/// tcuda_comm_reduce_add into a tensor, whose device is the destination. (+)
///
/// @param tensors  as in tcuda_comm_reduce_add
/// @param count    length of the list, 1 or more
/// @param out      written: of the same shape and type; may be one of the tensors, with the same
///                 strides
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_reduce_add_into(
    tensors: *const tcuda_tensor,
    count: usize,
    out: *const tcuda_tensor,
) -> tcuda_status {
    boundary(|call| {
        let read = views(tensors, count, "tensors")?;
        let mut viewed = Tensor::none();
        read_writable(&mut viewed, out, "out")?;
        let tensors = Tensors { len: count, read: &read };
        collectives::reduce_add_into(call.gpus()?, tensors, &viewed)
    })
}

/// Many sums at once: tcuda_comm_reduce_add of the first tensors of all lists, of the second, and
/// so on. Several outputs lie in one block, which is freed with the last of them.
/// (torch.cuda.comm.reduce_add_coalesced)
///
/// @param tensors       read: num_devices x num_tensors, list by list
/// @param num_devices   how many lists there are, 1 or more
/// @param num_tensors   how many tensors each of them has; 0: nothing is done
/// @param destination   as in tcuda_comm_reduce_add
/// @param buffer_bytes  most bytes of a block, unless one tensor has more; 0: 10 MiB
/// @param[out] outs     num_tensors of them; the caller's, to be released
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_reduce_add_coalesced(
    tensors: *const tcuda_tensor,
    num_devices: usize,
    num_tensors: usize,
    destination: i32,
    buffer_bytes: usize,
    outs: *mut tcuda_tensor,
) -> tcuda_status {
    boundary(|call| {
        let outs = places(outs, num_tensors, "outs")?;
        let len = total(num_devices, num_tensors)?;
        let read = views(tensors, len, "tensors")?;
        let tensors = Tensors { len, read: &read };
        outs.set(collectives::reduce_add_coalesced(
            call.gpus()?,
            tensors,
            num_devices,
            destination,
            buffer_bytes as u64,
        )?);
        Ok(())
    })
}

/// Splits a tensor along a dimension, one piece for each device. A piece of the tensor's own device
/// is a view of the tensor; others are dense, with the tensor's order of strides.
/// (torch.cuda.comm.scatter)
///
/// @param tensor       read; of 1 dimension or more
/// @param devices      as in tcuda_comm_broadcast
/// @param chunk_sizes  size of each piece along dim, which together are the tensor's; may be NULL:
///                     all of ceil(size / count) but the last, and if these are fewer than count,
///                     the outs that are left over are zeroed: all of the struct is 0
/// @param count        length of the lists, 1 or more
/// @param dim          the dimension; negative ones count from the end
/// @param streams      for each piece a stream of its device instead of the current one, to copy to
///                     it and for its memory; may be NULL, and so may each of them: the current one
/// @param[out] outs    one for each device; the caller's, to be released
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_scatter(
    tensor: *const tcuda_tensor,
    devices: *const i32,
    chunk_sizes: *const i64,
    count: usize,
    dim: i32,
    streams: *const *mut tcuda_stream,
    outs: *mut tcuda_tensor,
) -> tcuda_status {
    boundary(|call| {
        let outs = places(outs, count, "outs")?;
        let mut viewed = Tensor::none();
        read_view(&mut viewed, tensor, "tensor")?;
        let devices = numbers(devices, count, "devices")?;
        let sizes = match chunk_sizes.is_null() {
            true => None,
            false => Some(numbers(chunk_sizes, count, "chunk_sizes")?),
        };
        let streams = self::streams(streams, count, call)?;
        let split = Split { sizes: sizes.as_deref(), dim, streams: &streams };
        outs.set(collectives::scatter(call.gpus()?, &viewed, &devices, split)?);
        Ok(())
    })
}

/// Splits a tensor along a dimension into others, whose sizes say how.
/// (torch.cuda.comm.scatter(out=))
///
/// @param tensor   read; of 1 dimension or more
/// @param outs     written: of the tensor's type and shape but for dim, where together they have
///                 its size
/// @param count    length of the lists, 1 or more
/// @param dim      the dimension; negative ones count from the end
/// @param streams  as in tcuda_comm_scatter; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_scatter_into(
    tensor: *const tcuda_tensor,
    outs: *const tcuda_tensor,
    count: usize,
    dim: i32,
    streams: *const *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let mut viewed = Tensor::none();
        read_view(&mut viewed, tensor, "tensor")?;
        let read = writables(outs, count, "outs")?;
        let streams = self::streams(streams, count, call)?;
        let split = Split { sizes: None, dim, streams: &streams };
        let outs = Tensors { len: count, read: &read };
        collectives::scatter_into(call.gpus()?, &viewed, outs, split)
    })
}

/// Joins tensors along a dimension. The output is contiguous, or channels last where all tensors
/// are. (torch.cuda.comm.gather)
///
/// @param tensors      read: of one type and of one shape but for dim; those without dimensions
///                     count as if they had one, of size 1
/// @param count        length of the list, 1 or more
/// @param dim          the dimension; negative ones count from the end
/// @param destination  ordinal, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE. -1 is the current device,
///                     like None in torch; older versions of torch.cuda.comm.gather wrote -1 for
///                     the CPU
/// @param[out] out     the caller's, to be released
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_gather(
    tensors: *const tcuda_tensor,
    count: usize,
    dim: i32,
    destination: i32,
    out: *mut tcuda_tensor,
) -> tcuda_status {
    boundary(|call| {
        let out = places(out, 1, "out")?;
        let read = views(tensors, count, "tensors")?;
        let tensors = Tensors { len: count, read: &read };
        out.set(collectives::gather(call.gpus()?, tensors, dim, destination)?);
        Ok(())
    })
}

/// Joins tensors along a dimension into another. (torch.cuda.comm.gather(out=))
///
/// @param tensors  as in tcuda_comm_gather
/// @param count    length of the list, 1 or more
/// @param dim      the dimension; negative ones count from the end
/// @param out      written: of the shape that they have together, and of their type
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_comm_gather_into(
    tensors: *const tcuda_tensor,
    count: usize,
    dim: i32,
    out: *const tcuda_tensor,
) -> tcuda_status {
    boundary(|call| {
        let read = views(tensors, count, "tensors")?;
        let mut viewed = Tensor::none();
        read_writable(&mut viewed, out, "out")?;
        let tensors = Tensors { len: count, read: &read };
        collectives::gather_into(call.gpus()?, tensors, dim, &viewed)
    })
}
