//! The C functions of the library. A status other than OK becomes an error with its message.

use crate::ffi::comm::*;
use crate::ffi::copy::{tcuda_copy, tcuda_fill};
use crate::ffi::device::*;
use crate::ffi::graph::*;
use crate::ffi::host::*;
use crate::ffi::library::*;
use crate::ffi::memory::*;
use crate::ffi::statistics::tcuda_memory_allocated;
use crate::ffi::status::tcuda_status;
use crate::ffi::stream::*;
use crate::ffi::tensor::*;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};

/// Describes a failure.
pub type Outcome<T> = Result<T, String>;

fn done(call: &str, status: tcuda_status) -> Outcome<()> {
    if status == tcuda_status::Ok {
        return Ok(());
    }
    // SAFETY: a NUL-terminated text, valid until this thread's next failure.
    let text = unsafe { CStr::from_ptr(tcuda_last_error()) };
    Err(format!("{call} gave {status:?}: {}", text.to_string_lossy()))
}

macro_rules! call {
    ($function:ident($($argument:expr),*)) => {{
        #[allow(unused_unsafe, reason = "some functions take no pointers")]
        // SAFETY: the library checks handles; outputs are writable, and ranges belong to the test.
        let status = unsafe { $function($($argument),*) };
        done(stringify!($function), status)
    }};
}

/// A stream's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub usize);

impl Stream {
    pub const CURRENT: Stream = Stream(0);

    fn handle(self) -> *mut tcuda_stream {
        self.0 as *mut tcuda_stream
    }
}

pub fn select(options: &str) -> Outcome<()> {
    let options = CString::new(options).unwrap();
    call!(tcuda_backend_select(c"sim".as_ptr(), options.as_ptr()))?;
    call!(tcuda_init())
}

pub fn shutdown() -> Outcome<usize> {
    let mut live = 0;
    call!(tcuda_shutdown(&mut live)).map(|()| live)
}

pub fn device_set(device: i32) -> Outcome<()> {
    call!(tcuda_device_set(device))
}

pub fn enable_peer(device: i32, peer: i32) -> Outcome<()> {
    call!(tcuda_device_enable_peer_access(device, peer))
}

pub fn synchronize(device: i32) -> Outcome<()> {
    call!(tcuda_device_synchronize(device))
}

pub fn allocated(device: i32) -> Outcome<usize> {
    let mut bytes = 0;
    call!(tcuda_memory_allocated(device, &mut bytes)).map(|()| bytes)
}

pub fn stream(device: i32) -> Outcome<Stream> {
    let mut stream = null_mut();
    call!(tcuda_stream_create(device, 0, &mut stream)).map(|()| Stream(stream as usize))
}

pub fn destroy(stream: Stream) -> Outcome<()> {
    call!(tcuda_stream_destroy(stream.handle()))
}

pub fn current(device: i32) -> Outcome<Stream> {
    let mut stream = null_mut();
    call!(tcuda_stream_current(device, &mut stream)).map(|()| Stream(stream as usize))
}

/// Makes a stream current for its device. The current device does not change.
pub fn make_current(stream: Stream) -> Outcome<()> {
    let mut device = 0;
    call!(tcuda_device_current(&mut device))?;
    call!(tcuda_stream_set_current(stream.handle()))?;
    device_set(device)
}

pub fn wait_stream(stream: Stream, other: Stream) -> Outcome<()> {
    call!(tcuda_stream_wait_stream(stream.handle(), other.handle()))
}

/// A graph's handle.
#[derive(Clone, Copy)]
pub struct Graph(usize);

impl Graph {
    fn handle(self) -> *mut tcuda_graph {
        self.0 as *mut tcuda_graph
    }
}

pub fn graph() -> Outcome<Graph> {
    let mut graph = null_mut();
    call!(tcuda_graph_create(0, &mut graph)).map(|()| Graph(graph as usize))
}

pub fn capture_begin(graph: Graph, stream: Stream) -> Outcome<()> {
    let (graph, stream) = (graph.handle(), stream.handle());
    call!(tcuda_graph_capture_begin(graph, stream, null_mut(), TCUDA_CAPTURE_GLOBAL))
}

pub fn capture_end(graph: Graph) -> Outcome<()> {
    call!(tcuda_graph_capture_end(graph.handle()))
}

pub fn capture_abort(graph: Graph) -> Outcome<()> {
    call!(tcuda_graph_capture_abort(graph.handle()))
}

pub fn replay(graph: Graph, stream: Stream) -> Outcome<()> {
    call!(tcuda_graph_replay(graph.handle(), stream.handle()))
}

pub fn destroy_graph(graph: Graph) -> Outcome<()> {
    call!(tcuda_graph_destroy(graph.handle()))
}

pub fn malloc(bytes: usize, device: i32, stream: Stream) -> Outcome<usize> {
    let mut ptr = null_mut();
    call!(tcuda_malloc(bytes, device, stream.handle(), &mut ptr)).map(|()| ptr as usize)
}

pub fn free(ptr: usize) -> Outcome<()> {
    call!(tcuda_free(ptr as *mut c_void))
}

pub fn host_malloc(bytes: usize) -> Outcome<usize> {
    let mut ptr = null_mut();
    call!(tcuda_host_malloc(bytes, &mut ptr)).map(|()| ptr as usize)
}

pub fn host_free(ptr: usize) -> Outcome<()> {
    call!(tcuda_host_free(ptr as *mut c_void))
}

pub fn copy(dst: usize, src: usize, bytes: usize, stream: Stream) -> Outcome<()> {
    if bytes == 0 {
        return Ok(());
    }
    call!(tcuda_copy(dst as *mut c_void, src as *const c_void, bytes, stream.handle()))
}

pub fn fill(dst: usize, value: u8, bytes: usize, stream: Stream) -> Outcome<()> {
    if bytes == 0 {
        return Ok(());
    }
    let value = (&raw const value).cast();
    call!(tcuda_fill(dst as *mut c_void, value, 1, bytes, stream.handle()))
}

pub fn release(tensor: &mut tcuda_tensor) -> Outcome<()> {
    call!(tcuda_tensor_release(tensor))
}

/// The outputs of a call; checks that a failed call wrote none.
fn outs(
    count: usize,
    call: impl FnOnce(*mut tcuda_tensor) -> Outcome<()>,
) -> Outcome<Vec<tcuda_tensor>> {
    // SAFETY: integers and pointers, for which any bytes are valid.
    let untouched: tcuda_tensor =
        unsafe { std::mem::transmute([0xA5u8; size_of::<tcuda_tensor>()]) };
    let mut outs = vec![untouched; count + 1];
    let outcome = call(outs.as_mut_ptr());
    let is_untouched = |out: &tcuda_tensor| {
        out.data == untouched.data
            && out.shape == untouched.shape
            && out.ndim == untouched.ndim
            && out.byte_offset == untouched.byte_offset
    };
    assert!(is_untouched(&outs[count]), "an output behind the last was written");
    if outcome.is_err() {
        assert!(outs.iter().all(is_untouched), "an output of a failed call was written");
    }
    outcome?;
    assert!(!outs[..count].iter().any(is_untouched), "an output was not written");
    outs.truncate(count);
    Ok(outs)
}

pub fn broadcast(src: &tcuda_tensor, devices: &[i32]) -> Outcome<Vec<tcuda_tensor>> {
    outs(devices.len(), |outs| {
        call!(tcuda_comm_broadcast(src, devices.as_ptr(), devices.len(), outs))
    })
}

pub fn broadcast_into(src: &tcuda_tensor, outs: &[tcuda_tensor]) -> Outcome<()> {
    call!(tcuda_comm_broadcast_into(src, outs.as_ptr(), outs.len()))
}

pub fn broadcast_coalesced(
    tensors: &[tcuda_tensor],
    devices: &[i32],
    buffer_bytes: usize,
) -> Outcome<Vec<tcuda_tensor>> {
    let (count, list) = (tensors.len(), devices.as_ptr());
    outs(count * devices.len(), |outs| {
        let tensors = tensors.as_ptr();
        call!(tcuda_comm_broadcast_coalesced(
            tensors,
            count,
            list,
            devices.len(),
            buffer_bytes,
            outs
        ))
    })
}

pub fn reduce_add(tensors: &[tcuda_tensor], destination: i32) -> Outcome<Vec<tcuda_tensor>> {
    outs(1, |out| call!(tcuda_comm_reduce_add(tensors.as_ptr(), tensors.len(), destination, out)))
}

pub fn reduce_add_into(tensors: &[tcuda_tensor], out: &tcuda_tensor) -> Outcome<()> {
    call!(tcuda_comm_reduce_add_into(tensors.as_ptr(), tensors.len(), out))
}

/// Devices x tensors.
pub fn reduce_add_coalesced(
    tensors: &[tcuda_tensor],
    devices: usize,
    destination: i32,
    buffer_bytes: usize,
) -> Outcome<Vec<tcuda_tensor>> {
    let count = tensors.len() / devices;
    outs(count, |outs| {
        let tensors = tensors.as_ptr();
        call!(tcuda_comm_reduce_add_coalesced(
            tensors,
            devices,
            count,
            destination,
            buffer_bytes,
            outs
        ))
    })
}

fn handles(streams: Option<&[Stream]>) -> Vec<*mut tcuda_stream> {
    streams.unwrap_or_default().iter().map(|stream| stream.handle()).collect()
}

pub fn scatter(
    tensor: &tcuda_tensor,
    devices: &[i32],
    sizes: Option<&[i64]>,
    dim: i32,
    streams: Option<&[Stream]>,
) -> Outcome<Vec<tcuda_tensor>> {
    let handles = handles(streams);
    let streams = streams.map_or(null(), |_| handles.as_ptr());
    let sizes = sizes.map_or(null(), <[i64]>::as_ptr);
    let (list, count) = (devices.as_ptr(), devices.len());
    outs(count, |outs| call!(tcuda_comm_scatter(tensor, list, sizes, count, dim, streams, outs)))
}

pub fn scatter_into(
    tensor: &tcuda_tensor,
    outs: &[tcuda_tensor],
    dim: i32,
    streams: Option<&[Stream]>,
) -> Outcome<()> {
    let handles = handles(streams);
    let streams = streams.map_or(null(), |_| handles.as_ptr());
    call!(tcuda_comm_scatter_into(tensor, outs.as_ptr(), outs.len(), dim, streams))
}

pub fn gather(tensors: &[tcuda_tensor], dim: i32, destination: i32) -> Outcome<Vec<tcuda_tensor>> {
    outs(1, |out| call!(tcuda_comm_gather(tensors.as_ptr(), tensors.len(), dim, destination, out)))
}

pub fn gather_into(tensors: &[tcuda_tensor], dim: i32, out: &tcuda_tensor) -> Outcome<()> {
    call!(tcuda_comm_gather_into(tensors.as_ptr(), tensors.len(), dim, out))
}
