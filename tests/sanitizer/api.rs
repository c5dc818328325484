//! The library calls of the programs, through the C interface; handles are numbers. Every call must
//! succeed.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use tcuda::driver::sys::{CUstream, CUstream_st};
use tcuda::ffi::event::*;
use tcuda::ffi::graph::*;
use tcuda::ffi::host::*;
use tcuda::ffi::jit::*;
use tcuda::ffi::kernel::*;
use tcuda::ffi::memory::*;
use tcuda::ffi::status::tcuda_status;
use tcuda::ffi::stream::*;
use tcuda::ffi::tensor::*;
use tcuda::ffi::{comm, copy, device, library, random};

pub type Handle = usize;

pub fn checked(status: tcuda_status, call: &str) {
    if status != tcuda_status::Ok {
        // SAFETY: a NUL-terminated text, valid until this thread's next failure.
        let text = unsafe { CStr::from_ptr(library::tcuda_last_error()) };
        panic!("{call}: {status:?}: {}", text.to_string_lossy());
    }
}

macro_rules! call {
    ($call:expr) => {{
        #[allow(unused_unsafe, reason = "some calls are safe")]
        // SAFETY: handles are checked by the library; ranges are those of the program's blocks.
        let status = unsafe { $call };
        $crate::api::checked(status, stringify!($call))
    }};
}

pub(crate) use call;

pub fn select(options: &str) {
    let options = CString::new(options).unwrap();
    call!(library::tcuda_backend_select(c"sim".as_ptr(), options.as_ptr()));
    call!(device::tcuda_init());
}

pub fn shutdown() {
    call!(library::tcuda_shutdown(null_mut()));
}

pub fn stream_create(device: i32) -> Handle {
    let mut stream = null_mut();
    call!(tcuda_stream_create(device, 0, &mut stream));
    stream as Handle
}

pub fn stream_default(device: i32) -> Handle {
    let mut stream = null_mut();
    call!(tcuda_stream_default(device, &mut stream));
    stream as Handle
}

pub fn stream_external(device: i32, native: usize) -> Handle {
    let mut stream = null_mut();
    call!(tcuda_stream_from_external(device, native as *mut CUstream_st, &mut stream));
    stream as Handle
}

/// Runs `body` with the driver, as CUDA code of the host would, in the context of a device.
fn with_driver<R>(device: i32, body: impl FnOnce(&tcuda::driver::Driver) -> R) -> R {
    call!(device::tcuda_device_set(device));
    let inside = tcuda::base::thread::enter().unwrap();
    let result = body(tcuda::gpu::gpus::existing_driver(&inside).unwrap());
    drop(inside);
    call!(device::tcuda_device_set(0));
    result
}

/// Creates a CUDA stream outside of the library.
pub fn native(device: i32, is_blocking: bool) -> usize {
    with_driver(device, |driver| {
        let (mut native, flags): (CUstream, _) = (null_mut(), u32::from(!is_blocking));
        // SAFETY: the output is writable, the device's context current.
        unsafe { driver.cuStreamCreateWithPriority(&mut native, flags, 0) }.unwrap();
        native as usize
    })
}

pub fn native_destroy(device: i32, native: usize) {
    with_driver(device, |driver| {
        // SAFETY: made by `native`, and destroyed once.
        unsafe { driver.cuStreamDestroy(native as CUstream) }.unwrap();
    });
}

pub fn stream_destroy(stream: Handle) {
    call!(tcuda_stream_destroy(stream as *mut tcuda_stream));
}

pub fn empty_cache() {
    call!(tcuda_memory_empty_cache());
    call!(tcuda_host_memory_empty_cache());
}

pub fn stream_id(stream: Handle) -> i64 {
    let mut id = 0;
    call!(tcuda_stream_id(stream as *mut tcuda_stream, &mut id));
    id
}

pub fn malloc(bytes: u64, device: i32, stream: Handle) -> u64 {
    let mut ptr = null_mut();
    call!(tcuda_malloc(bytes as usize, device, stream as *mut tcuda_stream, &mut ptr));
    ptr as u64
}

pub fn free(address: u64) {
    call!(tcuda_free(address as *mut c_void));
}

pub fn record_stream(address: u64, stream: Handle) {
    call!(tcuda_record_stream(address as *mut c_void, stream as *mut tcuda_stream));
}

pub fn host_malloc(bytes: u64) -> u64 {
    let mut ptr = null_mut();
    call!(tcuda_host_malloc(bytes as usize, &mut ptr));
    ptr as u64
}

pub fn host_free(address: u64) {
    call!(tcuda_host_free(address as *mut c_void));
}

pub fn host_record(address: u64, stream: Handle) {
    call!(tcuda_host_record(address as *mut c_void, stream as *mut tcuda_stream));
}

pub fn copy(to: u64, from: u64, bytes: u64, stream: Handle) {
    let stream = stream as *mut tcuda_stream;
    call!(copy::tcuda_copy(to as *mut c_void, from as *const c_void, bytes as usize, stream));
}

/// Copies rows of `bytes`. `to` and `from` are address and pitch.
pub fn copy_2d(to: (u64, u64), from: (u64, u64), bytes: u64, rows: u64, stream: Handle) {
    call!(copy::tcuda_copy_2d(
        to.0 as *mut c_void,
        to.1 as usize,
        from.0 as *const c_void,
        from.1 as usize,
        bytes as usize,
        rows as usize,
        stream as *mut tcuda_stream,
    ));
}

pub fn fill(address: u64, bytes: u64, stream: Handle) {
    let value = (&raw const FILLING).cast::<c_void>();
    let stream = stream as *mut tcuda_stream;
    call!(copy::tcuda_fill(address as *mut c_void, value, 1, bytes as usize, stream));
}

static FILLING: u8 = 7;

/// A tensor of 32-bit elements in rows.
pub struct Words {
    pub address: u64,
    pub device: i32,
    /// The type code of the elements.
    pub dtype: u8,
    pub shape: [i64; 2],
    pub strides: [i64; 2],
}

impl Words {
    /// A single row becomes a tensor of one dimension.
    fn tensor(&mut self) -> tcuda_tensor {
        let is_flat = self.shape[0] == 1;
        let first = usize::from(is_flat);
        tcuda_tensor {
            data: self.address as *mut c_void,
            device: tcuda_tensor_device { device_type: TCUDA_DEVICE_CUDA, device_id: self.device },
            ndim: 2 - first as i32,
            dtype: tcuda_dtype { code: self.dtype, bits: 32, lanes: 1 },
            shape: self.shape[first..].as_mut_ptr(),
            strides: self.strides[first..].as_mut_ptr(),
            byte_offset: 0,
        }
    }
}

pub fn uniform(mut words: Words, stream: Handle) {
    let (tensor, stream) = (words.tensor(), stream as *mut tcuda_stream);
    call!(random::tcuda_random_uniform(&tensor, 0.0, 1.0, null_mut(), stream));
}

pub fn broadcast(mut from: Words, to: &mut [Words]) {
    let outs: Vec<_> = to.iter_mut().map(Words::tensor).collect();
    call!(comm::tcuda_comm_broadcast_into(&from.tensor(), outs.as_ptr(), outs.len()));
}

pub fn gather(from: &mut [Words], mut to: Words) {
    let parts: Vec<_> = from.iter_mut().map(Words::tensor).collect();
    call!(comm::tcuda_comm_gather_into(parts.as_ptr(), parts.len(), 0, &to.tensor()));
}

pub fn sum(from: &mut [Words], mut to: Words) {
    let parts: Vec<_> = from.iter_mut().map(Words::tensor).collect();
    call!(comm::tcuda_comm_reduce_add_into(parts.as_ptr(), parts.len(), &to.tensor()));
}

/// A jit function that adds two elements.
pub fn jit_create() -> Handle {
    let code = c"template <typename T> T add(T x, T y) { return x + y; }";
    let mut jit = null_mut();
    call!(tcuda_jit_create(code.as_ptr(), null(), &mut jit));
    jit as Handle
}

pub fn jit_destroy(jit: Handle) {
    call!(tcuda_jit_destroy(jit as *mut tcuda_jit));
}

pub fn jit_call(jit: Handle, inputs: &mut [Words], mut output: Words, stream: Handle) {
    let inputs: Vec<_> = inputs.iter_mut().map(Words::tensor).collect();
    let (jit, stream) = (jit as *mut tcuda_jit, stream as *mut tcuda_stream);
    let output = output.tensor();
    call!(tcuda_jit_call(jit, inputs.as_ptr(), inputs.len(), null(), 0, &output, 1, stream));
}

/// A kernel with two pointer arguments that accesses neither.
pub fn kernel_compile() -> Handle {
    let source = c"extern \"C\" __global__ void touch(float *one, float *other) {}";
    let mut kernel = null_mut();
    call!(tcuda_kernel_compile(source.as_ptr(), c"touch".as_ptr(), null(), &mut kernel));
    kernel as Handle
}

pub fn kernel_destroy(kernel: Handle) {
    call!(tcuda_kernel_destroy(kernel as *mut tcuda_kernel));
}

pub fn kernel_launch(kernel: Handle, mut addresses: [u64; 2], accesses: [i32; 2], on: Handle) {
    let options = tcuda_launch_options {
        struct_size: size_of::<tcuda_launch_options>(),
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        accesses: accesses.as_ptr(),
        cluster: [0; 3],
        cooperative: 0,
        programmatic: 0,
        priority: 0,
        shared_carveout_percent: 0,
    };
    let args = addresses.each_mut().map(|address| std::ptr::from_mut(address).cast::<c_void>());
    let (kernel, stream) = (kernel as *mut tcuda_kernel, on as *mut tcuda_stream);
    call!(tcuda_kernel_launch(kernel, &options, args.as_ptr(), 2, stream));
}

pub fn event_create() -> Handle {
    let mut event = null_mut();
    call!(tcuda_event_create(0, &mut event));
    event as Handle
}

pub fn event_destroy(event: Handle) {
    call!(tcuda_event_destroy(event as *mut tcuda_event));
}

pub fn event_record(event: Handle, stream: Handle) {
    call!(tcuda_event_record(event as *mut tcuda_event, stream as *mut tcuda_stream));
}

pub fn event_wait(event: Handle, stream: Handle) {
    call!(tcuda_event_wait(event as *mut tcuda_event, stream as *mut tcuda_stream));
}

pub fn event_synchronize(event: Handle) {
    call!(tcuda_event_synchronize(event as *mut tcuda_event));
}

pub fn event_query(event: Handle) -> bool {
    let mut done = false;
    call!(tcuda_event_query(event as *mut tcuda_event, &mut done));
    done
}

pub fn stream_wait_stream(stream: Handle, other: Handle) {
    call!(tcuda_stream_wait_stream(stream as *mut tcuda_stream, other as *mut tcuda_stream));
}

pub fn stream_synchronize(stream: Handle) {
    call!(tcuda_stream_synchronize(stream as *mut tcuda_stream));
}

pub fn stream_query(stream: Handle) -> bool {
    let mut done = false;
    call!(tcuda_stream_query(stream as *mut tcuda_stream, &mut done));
    done
}

pub fn device_synchronize(device: i32) {
    call!(device::tcuda_device_synchronize(device));
}

pub fn add_callback(stream: Handle, callback: tcuda_host_fn, user_data: *mut c_void) {
    call!(tcuda_stream_add_callback(stream as *mut tcuda_stream, callback, user_data, None));
}

/// Runs `body` with `streams` as the current streams of their devices.
pub fn with_current(streams: &[Handle], body: impl FnOnce()) {
    let exchanged = streams.iter().map(|stream| {
        let (mut previous, mut device) = (null_mut(), 0);
        let stream = *stream as *mut tcuda_stream;
        call!(tcuda_stream_exchange(stream, &mut previous, &mut device));
        (previous, device)
    });
    let exchanged: Vec<_> = exchanged.collect();
    body();
    for (previous, device) in exchanged.into_iter().rev() {
        call!(tcuda_stream_set_current(previous));
        call!(device::tcuda_device_set(device));
    }
}

pub fn graph_create() -> Handle {
    let mut graph = null_mut();
    call!(tcuda_graph_create(0, &mut graph));
    graph as Handle
}

pub fn graph_destroy(graph: Handle) {
    call!(tcuda_graph_destroy(graph as *mut tcuda_graph));
}

pub fn capture_begin(graph: Handle, stream: Handle) {
    let (graph, stream) = (graph as *mut tcuda_graph, stream as *mut tcuda_stream);
    call!(tcuda_graph_capture_begin(graph, stream, null_mut(), TCUDA_CAPTURE_RELAXED));
}

pub fn capture_end(graph: Handle) {
    call!(tcuda_graph_capture_end(graph as *mut tcuda_graph));
}

pub fn graph_replay(graph: Handle, stream: Handle) {
    call!(tcuda_graph_replay(graph as *mut tcuda_graph, stream as *mut tcuda_stream));
}
