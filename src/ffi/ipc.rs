//! Section "Sharing with other processes" of the header.

use super::boundary::{boundary, given, out};
use super::status::tcuda_status;
use super::stream::{optional, or_current, tcuda_stream};
use crate::base::error::Error;
use crate::base::waiting;
use crate::runtime::pointer_kind::{Kind, name_kind};
use std::ffi::c_void;

/// Gives another process access to a block: plain data, to be sent.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_ipc_handle {
    /// Opaque to the host; all of them are part of the handle.
    pub bytes: [u8; 512],
}

/// A handle of an address, for one receiver: send it by any means. There tcuda_ipc_import returns
/// the same byte of the block, so that a part of a block can be shared by its own address. Work
/// that the receiver queues comes after what `stream` holds now. The block is not reused until the
/// receiver has closed it or has ended, also if it is freed here before. Receivers are processes of
/// the same user on this machine; they can also read other memory that is mapped with the block.
/// TCUDA_STATUS_NOT_SUPPORTED for memory that is not of the cache, TCUDA_STATUS_INVALID_STATE for
/// imported memory, TCUDA_STATUS_CAPTURING for a stream that is captured. With more than 1000
/// exports alive it waits for the stream. (torch.multiprocessing)
///
/// @param ptr          any byte of a block of tcuda_malloc's, from the cache
/// @param stream       NULL: the current stream of ptr's device
/// @param[out] handle  valid until all processes that imported it have closed it
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_ipc_export(
    ptr: *mut c_void,
    stream: *mut tcuda_stream,
    handle: *mut tcuda_ipc_handle,
) -> tcuda_status {
    boundary(|call| {
        let handle = out(handle, "handle")?;
        if ptr.is_null() {
            return Err(Error::Null { name: "ptr" });
        }
        let gpus = call.gpus()?;
        let given = optional(stream, call)?;
        let stream = match (given, crate::memory::device_of(ptr as u64)) {
            (None, Some(device)) => gpus.device(device)?.streams.current(),
            _ => or_current(stream, call)?,
        };
        let bytes = (gpus.ipc().export(gpus, ptr as u64, stream))
            .map_err(|error| name_kind(gpus, Kind::Device, error))?;
        handle.set(tcuda_ipc_handle { bytes });
        Ok(())
    })
}

/// Maps another process's block and returns the address that was exported; `stream` waits for what
/// its owner had queued. The same handle again gives the same pointer, to be closed once more. The
/// library sends a request to the owner, which usually answers at once: TCUDA_STATUS_PEER_GONE if
/// it has ended, or does not answer for 10 seconds, as a stopped process.
/// TCUDA_STATUS_INVALID_ARGUMENT for a handle that was changed, that all its receivers have closed,
/// or of another user; TCUDA_STATUS_NO_DEVICE without its device; TCUDA_STATUS_INVALID_STATE in the
/// process that exported it. (torch.multiprocessing)
///
/// @param handle      what tcuda_ipc_export wrote in the other process
/// @param stream      of the device that the block is on; NULL: the current one of that device
/// @param[out] ptr    the byte that tcuda_ipc_export was called with; the caller's, to be closed
/// @param[out] bytes  from there to the end of the requested size of the block; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_ipc_import(
    handle: *const tcuda_ipc_handle,
    stream: *mut tcuda_stream,
    ptr: *mut *mut c_void,
    bytes: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let (ptr, handle) = (out(ptr, "ptr")?, given(handle, "handle")?);
        let stream = optional(stream, call)?;
        let gpus = call.gpus()?;
        let (address, length) = gpus.ipc().import(gpus, &handle.bytes, stream)?;
        ptr.set(address as *mut c_void);
        if !bytes.is_null() {
            out(bytes, "bytes")?.set(length as usize);
        }
        Ok(())
    })
}

/// Closes an imported block once, after the work that `stream` holds now; the host waits for that.
/// Work of other streams with the block must be over, or come before that work.
/// (the end of a tensor of torch.multiprocessing)
///
/// @param ptr     what tcuda_ipc_import gave; may be NULL: no-op
/// @param stream  NULL: the current stream of ptr's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_ipc_close(
    ptr: *mut c_void,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = optional(stream, call)?;
        if ptr.is_null() {
            return Ok(());
        }
        match crate::gpu::gpus::existing(call.inside()) {
            Some(gpus) => (gpus.ipc().close(gpus, ptr as u64, stream))
                .map_err(|error| name_kind(gpus, Kind::Imported, error)),
            None => Err(crate::memory::unknown_pointer(ptr as u64)),
        }
    })
}

/// Withdraws a handle, such as one whose receiver ended before it imported it: from now on no
/// process can import it. A process that has imported it keeps the block until it closes it. (+)
///
/// @param handle  what tcuda_ipc_export wrote in this process
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_ipc_withdraw(handle: *const tcuda_ipc_handle) -> tcuda_status {
    boundary(|call| {
        let handle = given(handle, "handle")?;
        let gpus = call.gpus()?;
        gpus.ipc().withdraw(gpus, &handle.bytes)
    })
}

/// Gives memory back to the cache that was freed here and that no receiver uses any more;
/// allocations do so too before they take more memory from the driver. (torch.cuda.ipc_collect)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_ipc_collect() -> tcuda_status {
    boundary(|call| {
        if let Some(gpus) = crate::gpu::gpus::existing(call.inside()) {
            waiting::refuse_in_callback()?;
            gpus.ipc().collect(gpus);
        }
        Ok(())
    })
}
