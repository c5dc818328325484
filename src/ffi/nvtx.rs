//! Section "NVTX and telemetry" of the header: NVTX, and control of an attached profiler.

use super::boundary::{boundary, boundary_outside, out, terminated};
use super::status::tcuda_status;
use super::stream::{or_current, tcuda_stream};
use crate::ops::stream_range;
use crate::profiling::nvtx;
use crate::profiling::profiler;
use std::ffi::c_char;

/// Writes a depth unless the pointer is NULL.
#[inline(always)]
fn give(depth: *mut i32, value: i32) {
    if !depth.is_null() {
        // SAFETY: not NULL, and writable by the caller's promise.
        unsafe { depth.write_unaligned(value) };
    }
}

/// Marks an instant of this thread. A tool that reads NVTX names its library in
/// NVTX_INJECTION64_PATH, as NVIDIA's tools do; without one nothing is sent, but ranges are
/// counted. Marks and ranges are of the default domain. Those of threads need no GPU and no
/// initialised library, and work in a forked child. (torch.cuda.nvtx.mark)
///
/// @param message  passed to the tool unchanged
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_nvtx_mark(message: *const c_char) -> tcuda_status {
    if nvtx::is_known_absent() && !message.is_null() {
        return tcuda_status::Ok;
    }
    boundary_outside(|| {
        nvtx::mark(terminated(message, "message")?);
        Ok(())
    })
}

/// Opens a range of this thread, inside those that it has open.
/// (torch.cuda.nvtx.range_push, torch.cuda.nvtx.range)
///
/// @param message     UTF-8, copied
/// @param[out] depth  of the range, from 0; counts the ranges opened here; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_nvtx_range_push(
    message: *const c_char,
    depth: *mut i32,
) -> tcuda_status {
    if nvtx::is_known_absent()
        && !message.is_null()
        && let Some(value) = nvtx::open_range()
    {
        give(depth, value);
        return tcuda_status::Ok;
    }
    push(message, depth)
}

#[inline(never)]
fn push(message: *const c_char, depth: *mut i32) -> tcuda_status {
    boundary_outside(|| {
        give(depth, nvtx::push(terminated(message, "message")?)?);
        Ok(())
    })
}

/// Ends the range that this thread opened last; TCUDA_STATUS_INVALID_STATE if it has none open.
/// (torch.cuda.nvtx.range_pop)
///
/// @param[out] depth  of the range that ends; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_nvtx_range_pop(depth: *mut i32) -> tcuda_status {
    if nvtx::is_known_absent()
        && let Some(value) = nvtx::close_range()
    {
        give(depth, value);
        return tcuda_status::Ok;
    }
    pop(depth)
}

#[inline(never)]
fn pop(depth: *mut i32) -> tcuda_status {
    boundary_outside(|| {
        give(depth, nvtx::pop()?);
        Ok(())
    })
}

/// Opens a range that any thread may end, in any order. (torch.cuda.nvtx.range_start)
///
/// @param message  UTF-8, copied
/// @param[out] id  the tool's number of the range
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_nvtx_range_start(
    message: *const c_char,
    id: *mut u64,
) -> tcuda_status {
    boundary_outside(|| {
        let id = out(id, "id")?;
        id.set(nvtx::start(terminated(message, "message")?));
        Ok(())
    })
}

/// Ends a range of tcuda_nvtx_range_start, not one of a stream. (torch.cuda.nvtx.range_end)
///
/// @param id  of tcuda_nvtx_range_start; the tool ignores others
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_nvtx_range_end(id: u64) -> tcuda_status {
    boundary_outside(|| {
        nvtx::end(id);
        Ok(())
    })
}

/// Opens a range when the stream gets there, by a host function, as tcuda_stream_add_callback
/// queues it; in a capture of a tcuda_graph, at each replay. Nothing is queued while no tool is
/// attached. (torch.cuda.nvtx._device_range_start)
///
/// @param message  UTF-8, copied
/// @param stream   NULL is the current stream
/// @param[out] id  for tcuda_nvtx_device_range_end
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_nvtx_device_range_start(
    message: *const c_char,
    stream: *mut tcuda_stream,
    id: *mut u64,
) -> tcuda_status {
    boundary(|call| {
        let id = out(id, "id")?;
        let message = terminated(message, "message")?;
        let stream = or_current(stream, call)?;
        id.set(stream_range::start(call.gpus()?, stream, message)?);
        Ok(())
    })
}

/// Ends a range of a stream when the stream gets there; it may be another stream than that of the
/// start; the two should be ordered. (torch.cuda.nvtx._device_range_end)
///
/// @param id      of tcuda_nvtx_device_range_start, once; numbers are forgotten at tcuda_shutdown
/// @param stream  NULL is the current stream
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_nvtx_device_range_end(
    id: u64,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = or_current(stream, call)?;
        stream_range::end(call.gpus()?, stream, id)
    })
}

/// Makes the attached profiler record from now on, as cudaProfilerStart: "nsys profile
/// --capture-range=cudaProfilerApi" waits for it. Without a profiler a no-op.
/// (torch.cuda.profiler.start)
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_profiler_start() -> tcuda_status {
    boundary(|call| profiler::start(call.gpus()?))
}

/// Makes the attached profiler stop, as cudaProfilerStop. (torch.cuda.profiler.stop)
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_profiler_stop() -> tcuda_status {
    boundary(|call| profiler::stop(call.gpus()?))
}
