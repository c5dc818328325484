//! Collective calls: what a failure leaves of their outputs, scratch memory and orders of streams.

use crate::host::{Done, Failed, Memory, Stream, call, fill, problem};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::ffi::comm::*;
use tcuda::ffi::copy::tcuda_copy;
use tcuda::ffi::graph::*;
use tcuda::ffi::host::{tcuda_host_free, tcuda_host_malloc};
use tcuda::ffi::stream::*;
use tcuda::ffi::tensor::*;

const ROWS: i64 = 60;
const COLUMNS: i64 = 4;
const BYTES: usize = (ROWS * COLUMNS) as usize * 4;

/// Outputs, in the test's own memory: all of them are written by a call, or none.
struct Outs(Vec<tcuda_tensor>);

const UNTOUCHED: i32 = 0x5A5A;

impl Outs {
    /// Room for so many, which a call fills in.
    fn new(count: usize, call: impl FnOnce(*mut tcuda_tensor) -> Done) -> Result<Outs, Failed> {
        // SAFETY: plain data, for which zero is a value.
        let mut untouched: tcuda_tensor = unsafe { std::mem::zeroed() };
        untouched.ndim = UNTOUCHED;
        let mut outs = vec![untouched; count];
        let made = call(outs.as_mut_ptr());
        let written = outs.iter().filter(|out| out.ndim != UNTOUCHED).count();
        if written != if made.is_ok() { count } else { 0 } {
            problem(format!("{written} of {count} outputs are written"));
        }
        if made.is_err() && written == 0 {
            outs.clear();
        }
        made.map(|()| Outs(outs))
    }
}

impl Drop for Outs {
    fn drop(&mut self) {
        for out in &mut self.0 {
            let first = call!(tcuda_tensor_release(out));
            if first.is_err() && !out.shape.is_null() && call!(tcuda_tensor_release(out)).is_err() {
                problem("a tensor could not be released".into());
            }
        }
    }
}

/// A tensor of 32-bit integers, all of one value.
struct View {
    memory: Memory,
    device: i32,
    shape: Box<[i64; 2]>,
}

impl View {
    fn new(device: i32, rows: i64, value: u8, stream: &Stream) -> Result<View, Failed> {
        let memory = Memory::new(BYTES * 2, device, stream.0)?;
        fill(memory.0, &[value, 0, 0, 0], 2 * BYTES / 4, stream.0)?;
        Ok(View { memory, device, shape: Box::new([rows, COLUMNS]) })
    }

    fn tensor(&mut self) -> tcuda_tensor {
        tensor(self.memory.0, TCUDA_DEVICE_CUDA, self.device, &mut self.shape)
    }
}

fn tensor(data: *mut c_void, kind: i32, device: i32, shape: &mut [i64; 2]) -> tcuda_tensor {
    tcuda_tensor {
        data,
        device: tcuda_tensor_device { device_type: kind, device_id: device },
        ndim: 2,
        dtype: tcuda_dtype { code: TCUDA_DTYPE_INT, bits: 32, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

/// Where every call gave OK, the values are right.
fn expect(data: *const c_void, value: u8, bytes: usize, stream: &Stream) -> Done {
    crate::host::expect(data, &[value, 0, 0, 0], bytes / 4, stream.0)
}

fn expect_out(out: &tcuda_tensor, value: u8, streams: &[Stream; 2]) -> Done {
    // SAFETY: as many sizes as the tensor has dimensions, while it is not released.
    let rows = unsafe { *out.shape };
    let start = out.data.wrapping_byte_add(out.byte_offset as usize);
    let device = out.device.device_id as usize;
    expect(start, value, (rows * COLUMNS) as usize * 4, &streams[device])
}

/// A stream of each device, current as long as this lives.
struct Streams([Stream; 2]);

impl Drop for Streams {
    fn drop(&mut self) {
        // One of them may be captured for ever.
        for device in [1, 0] {
            let mut stream = null_mut();
            let found = call!(tcuda_stream_default(device, &mut stream));
            let _ = found.and_then(|()| call!(tcuda_stream_set_current(stream)));
        }
    }
}

impl std::ops::Deref for Streams {
    type Target = [Stream; 2];

    fn deref(&self) -> &[Stream; 2] {
        &self.0
    }
}

fn streams() -> Result<Streams, Failed> {
    let streams = Streams([Stream::new(0, 0)?, Stream::new(1, 0)?]);
    call!(tcuda_stream_set_current(streams[1].0))?;
    call!(tcuda_stream_set_current(streams[0].0))?;
    Ok(streams)
}

const LIST: [i32; 2] = [0, 1];

/// The verbs that allocate.
pub fn verbs() -> Done {
    let streams = streams()?;
    let mut a = View::new(0, ROWS, 5, &streams[0])?;
    let mut b = View::new(1, ROWS, 7, &streams[1])?;
    let both = [a.tensor(), b.tensor()];
    let list = LIST.as_ptr();
    let outs = Outs::new(2, |outs| call!(tcuda_comm_broadcast(&both[0], list, 2, outs)))?;
    expect_out(&outs.0[1], 5, &streams)?;
    drop(outs);
    let sum = Outs::new(1, |out| call!(tcuda_comm_reduce_add(both.as_ptr(), 2, 1, out)))?;
    expect_out(&sum.0[0], 12, &streams)?;
    let parts =
        Outs::new(2, |outs| call!(tcuda_comm_scatter(&both[1], list, null(), 2, 0, null(), outs)))?;
    expect_out(&parts.0[0], 7, &streams)?;
    drop(sum);
    let whole = Outs::new(1, |out| call!(tcuda_comm_gather(both.as_ptr(), 2, 0, 0, out)))?;
    let rest = whole.0[0].data.wrapping_byte_add(BYTES);
    expect(whole.0[0].data, 5, BYTES, &streams[0])?;
    expect(rest, 7, BYTES, &streams[0])
}

/// Many tensors at once.
pub fn coalesced() -> Done {
    let streams = streams()?;
    let mut views = [View::new(0, 9, 5, &streams[0])?, View::new(0, 30, 6, &streams[0])?];
    let [first, second] = &mut views;
    let list = [first.tensor(), second.tensor(), first.tensor()];
    let copies = Outs::new(6, |outs| {
        call!(tcuda_comm_broadcast_coalesced(list.as_ptr(), 3, LIST.as_ptr(), 2, 0, outs))
    })?;
    for (index, value) in [(3, 5), (4, 6), (5, 5)] {
        expect_out(&copies.0[index], value, &streams)?;
    }
    let sums = Outs::new(3, |outs| {
        call!(tcuda_comm_reduce_add_coalesced(copies.0.as_ptr(), 2, 3, 0, 700, outs))
    })?;
    for (index, value) in [(0, 10), (1, 12), (2, 10)] {
        expect_out(&sums.0[index], value, &streams)?;
    }
    Ok(())
}

/// The verbs that write to the host's own tensors.
pub fn into() -> Done {
    let streams = streams()?;
    let mut a = View::new(0, ROWS, 5, &streams[0])?;
    let mut b = View::new(1, ROWS, 7, &streams[1])?;
    let mut c = View::new(0, ROWS, 9, &streams[0])?;
    let mut d = View::new(1, ROWS, 11, &streams[1])?;
    let (sources, outs) = ([a.tensor(), b.tensor()], [c.tensor(), d.tensor()]);
    call!(tcuda_comm_broadcast_into(&sources[0], outs.as_ptr(), 2))?;
    expect(d.memory.0, 5, BYTES, &streams[1])?;
    call!(tcuda_comm_reduce_add_into(sources.as_ptr(), 2, &outs[1]))?;
    expect(d.memory.0, 12, BYTES, &streams[1])?;
    // What lies behind it is not touched.
    expect(d.memory.at(BYTES), 11, BYTES, &streams[1])?;
    let mut shape = [ROWS * 2, COLUMNS];
    let whole = tensor(c.memory.0, TCUDA_DEVICE_CUDA, 0, &mut shape);
    call!(tcuda_comm_gather_into(sources.as_ptr(), 2, 0, &whole))?;
    expect(c.memory.at(BYTES), 7, BYTES, &streams[0])?;
    let parts = [sources[1], sources[0]];
    call!(tcuda_comm_scatter_into(&whole, parts.as_ptr(), 2, 0, null()))?;
    expect(a.memory.0, 7, BYTES, &streams[0])
}

/// Columns: what a copy of bytes cannot do; and the host.
pub fn odd() -> Done {
    let streams = streams()?;
    let mut a = View::new(0, ROWS, 5, &streams[0])?;
    let mut b = View::new(1, ROWS, 7, &streams[1])?;
    let both = [a.tensor(), b.tensor()];
    let parts = Outs::new(2, |outs| {
        call!(tcuda_comm_scatter(&both[0], LIST.as_ptr(), null(), 2, 1, null(), outs))
    })?;
    expect(parts.0[1].data, 5, BYTES / 2, &streams[1])?;
    drop(parts);
    let whole = Outs::new(1, |out| call!(tcuda_comm_gather(both.as_ptr(), 2, 1, 1, out)))?;
    drop(whole);
    let hosts = [TCUDA_CPU, 1];
    let copies =
        Outs::new(2, |outs| call!(tcuda_comm_broadcast(&both[0], hosts.as_ptr(), 2, outs)))?;
    let sum =
        Outs::new(1, |out| call!(tcuda_comm_reduce_add(copies.0.as_ptr(), 2, TCUDA_CPU, out)))?;
    // SAFETY: complete when the call is over; so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(sum.0[0].data.cast::<u8>(), BYTES) };
    if bytes.chunks(4).any(|part| part != [10, 0, 0, 0]) {
        problem("every call gave OK, but the sum on the host is another".into());
    }
    let (mut pinned, mut plain) = (null_mut(), vec![3u8; BYTES]);
    call!(tcuda_host_malloc(BYTES, &mut pinned))?;
    let mut shape = [ROWS, COLUMNS];
    let outs = [
        tensor(pinned, TCUDA_DEVICE_CUDA_HOST, 0, &mut shape),
        tensor(plain.as_mut_ptr().cast(), TCUDA_DEVICE_CPU, 0, &mut shape),
    ];
    let done = call!(tcuda_comm_broadcast_into(&both[1], outs.as_ptr(), 2));
    let freed = call!(tcuda_host_free(pinned));
    done.and(freed)?;
    if plain.chunks(4).any(|part| part != [7, 0, 0, 0]) {
        problem("every call gave OK, but what the host has is another".into());
    }
    Ok(())
}

const TCUDA_CPU: i32 = -2;

/// In a capture, which spreads to the other device; on a thread of its own, since its current
/// stream stays captured where nothing can end that.
pub fn captured() -> Done {
    std::thread::scope(|scope| match scope.spawn(captured_here).join() {
        Ok(done) => done,
        Err(_) => {
            problem("the thread of a capture panicked".into());
            Ok(())
        }
    })
}

fn captured_here() -> Done {
    let streams = streams()?;
    let mut a = View::new(0, ROWS, 5, &streams[0])?;
    let mut b = View::new(1, ROWS, 7, &streams[1])?;
    let both = [a.tensor(), b.tensor()];
    call!(tcuda_comm_broadcast_into(&both[0], &both[1], 1))?;
    call!(tcuda_comm_reduce_add_into(both.as_ptr(), 2, &both[1]))?;
    let mut graph = null_mut();
    call!(tcuda_graph_create(0, &mut graph))?;
    let replayed = replayed(graph, &both, &streams);
    let destroyed = call!(tcuda_graph_destroy(graph));
    replayed.and(destroyed)?;
    expect(b.memory.0, 10, BYTES, &streams[1])
}

fn replayed(graph: *mut tcuda_graph, both: &[tcuda_tensor; 2], streams: &[Stream; 2]) -> Done {
    let stream = streams[0].0;
    call!(tcuda_graph_capture_begin(graph, stream, null_mut(), TCUDA_CAPTURE_RELAXED))?;
    let body = || {
        call!(tcuda_comm_broadcast_into(&both[0], &both[1], 1))?;
        call!(tcuda_comm_reduce_add_into(both.as_ptr(), 2, &both[1]))?;
        call!(tcuda_stream_wait_stream(stream, streams[1].0))
    };
    if let Err(failed) = body() {
        let _ = call!(tcuda_graph_capture_abort(graph));
        return Err(failed);
    }
    call!(tcuda_graph_capture_end(graph))?;
    call!(tcuda_stream_wait_stream(stream, streams[1].0))?;
    call!(tcuda_graph_replay(graph, stream))?;
    call!(tcuda_stream_wait_stream(streams[1].0, stream))?;
    let mut word = [0u8; 4];
    call!(tcuda_copy(word.as_mut_ptr().cast(), both[0].data, 4, stream))
}
