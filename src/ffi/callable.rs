//! Section "Graphs" of the header: host functions that are captured.

use super::boundary::{Call, Sized_, boundary, out, struct_in};
use super::graph::tcuda_capture_mode;
use super::handle::Table;
use super::library::tcuda_destroy_fn;
use super::mem_pool::{MEM_POOLS, tcuda_mem_pool};
use super::status::tcuda_status;
use super::stream::{borrow, optional, tcuda_stream};
use super::tensor::{EMPTY, lent, tcuda_tensor, view};
use super::user_data::UserData;
use crate::base::error::{Error, Result};
use crate::base::thread;
use crate::base::waiting;
use crate::driver::sync_debug;
use crate::gpu::gpus;
use crate::gpu::stream::Stream;
use crate::graph::callable::{self, Callable, Function, Options, Pass, Plan};
use crate::graph::static_buffers::StaticTensor;
use crate::tensor::{Place, Tensor};
use std::ffi::c_void;

/// A host function that was captured, forward and perhaps backward.
pub struct tcuda_graphed_callable {
    _private: [u8; 0],
}

/// Queues the work that computes outputs from inputs on a stream, which is also the current one,
/// and describes the outputs; their shape and strides are copied. It runs several times: see
/// tcuda_graphed_callable_create. Memory of outputs that it allocated with tcuda_malloc belongs to
/// the library once it returns 0, and the library frees it. All other memory stays the host's, and
/// must be the same in each run. Returns 0, or a code of its own for TCUDA_STATUS_CALLBACK_FAILED.
///
/// In a backward pass the inputs are the gradients of the outputs, and the outputs are the
/// gradients of the inputs; an output that is left untouched means that the input has no gradient.
pub type tcuda_callable_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        inputs: *const tcuda_tensor,
        num_inputs: usize,
        stream: *mut tcuda_stream,
        outputs: *mut tcuda_tensor,
        num_outputs: usize,
    ) -> i32,
>;

/// What is to be captured.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_callable {
    /// sizeof(tcuda_callable); also the stride of a list of them.
    pub struct_size: usize,
    /// Computes outputs from inputs.
    pub forward: tcuda_callable_fn,
    /// Computes gradients of inputs from those of outputs; may be NULL: forward only.
    pub backward: tcuda_callable_fn,
    /// Passed to both.
    pub user_data: *mut c_void,
    /// Frees user_data when the callable is destroyed; may be NULL.
    pub destroy: tcuda_destroy_fn,
    /// Tensors like the inputs, in memory of one device; their values are copied.
    pub sample_inputs: *const tcuda_tensor,
    /// Number of them.
    pub num_inputs: usize,
    /// Number of outputs of forward.
    pub num_outputs: usize,
}

// SAFETY: repr(C), the size comes first, and it is plain data.
unsafe impl Sized_ for tcuda_callable {}

/// How it is captured.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_graphed_callable_options {
    /// sizeof(tcuda_graphed_callable_options).
    pub struct_size: usize,
    /// May be NULL: a new one, which all callables share.
    pub pool: *mut tcuda_mem_pool,
    /// Runs of each callable before it is captured; 0: 3.
    pub warmup_iterations: i32,
    /// TCUDA_CAPTURE_...
    pub error_mode: tcuda_capture_mode,
}

// SAFETY: repr(C), the size comes first, and it is plain data.
unsafe impl Sized_ for tcuda_graphed_callable_options {}

const WARMUPS: u32 = 3;
/// A larger count is taken for a mistake.
const MOST: usize = 1 << 20;

/// The host's functions.
struct HostFunction {
    forward: unsafe extern "C" fn(
        *mut c_void,
        *const tcuda_tensor,
        usize,
        *mut tcuda_stream,
        *mut tcuda_tensor,
        usize,
    ) -> i32,
    backward: tcuda_callable_fn,
    user_data: UserData,
}

const NO_ROOM: Error = Error::OutOfHostMemory("the tensors of a callable");

/// A static tensor in the host's form.
fn shown(tensor: &StaticTensor) -> tcuda_tensor {
    lent(tensor.tensor(), tensor.size_pointers(), tensor.tensor().address - tensor.tensor().data)
}

/// Reads the outputs of a host function into a list that has room for them. Not inlined, so that
/// its stack frame does not exist while the host function runs.
#[inline(never)]
fn read_outputs(pass: Pass, outputs: &[tcuda_tensor], to: &mut Vec<Option<Tensor>>) -> Result<()> {
    for output in outputs {
        let is_left_out = pass == Pass::Backward && output.data.is_null() && output.ndim == 0;
        to.push(if is_left_out { None } else { Some(view(output, "outputs")?) });
    }
    Ok(())
}

impl Function for HostFunction {
    fn run(
        &self,
        pass: Pass,
        inputs: &[StaticTensor],
        stream: &Stream,
        num_outputs: usize,
    ) -> Result<Vec<Option<Tensor>>> {
        let (mut from, mut to, mut made) = (Vec::new(), Vec::new(), Vec::new());
        from.try_reserve_exact(inputs.len()).map_err(|_| NO_ROOM)?;
        to.try_reserve_exact(num_outputs).map_err(|_| NO_ROOM)?;
        made.try_reserve_exact(num_outputs).map_err(|_| NO_ROOM)?;
        from.extend(inputs.iter().map(shown));
        to.resize(num_outputs, EMPTY);
        let stream = borrow(stream)?;
        let (name, function) = match (pass, self.backward) {
            (Pass::Backward, Some(backward)) => ("backward", backward),
            _ => ("forward", self.forward),
        };
        let waiting = waiting::in_host_function();
        let inputs = (from.as_ptr(), from.len());
        // SAFETY: the host's own function with its own data; the lists have the lengths that are
        // passed.
        let code = unsafe {
            function(self.user_data.ptr(), inputs.0, inputs.1, stream, to.as_mut_ptr(), to.len())
        };
        drop(waiting);
        if code != 0 {
            return Err(Error::Callback { name, code });
        }
        read_outputs(pass, &to, &mut made)?;
        Ok(made)
    }

    fn has_backward(&self) -> bool {
        self.backward.is_some()
    }

    fn commit(&self) {
        self.user_data.take();
    }
}

pub(super) static CALLABLES: Table<Callable> = Table::new(10, "graphed callable");

/// Reads a list of the host's tensors.
fn views(list: *const tcuda_tensor, count: usize, name: &'static str) -> Result<Vec<Tensor>> {
    let mut views = Vec::new();
    if count == 0 {
        return Ok(views);
    }
    if list.is_null() {
        return Err(Error::Null { name });
    }
    require_few(count, name)?;
    views.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
    for index in 0..count {
        views.push(view(list.wrapping_add(index), name)?);
    }
    Ok(views)
}

fn require_few(count: usize, name: &'static str) -> Result<()> {
    match count {
        0..=MOST => Ok(()),
        _ => Err(Error::OutOfRange { name, value: count as i64, allowed: "there are too many" }),
    }
}

const NO_CALLABLE: tcuda_callable = tcuda_callable {
    struct_size: 0,
    forward: None,
    backward: None,
    user_data: std::ptr::null_mut(),
    destroy: None,
    sample_inputs: std::ptr::null(),
    num_inputs: 0,
    num_outputs: 0,
};

/// Reads one callable of a list; `device` is the device of all inputs so far.
#[inline(never)]
fn plan_of(raw: &tcuda_callable, device: &mut Option<i32>) -> Result<Plan> {
    let forward = raw.forward.ok_or(Error::Null { name: "forward" })?;
    let samples = views(raw.sample_inputs, raw.num_inputs, "sample_inputs")?;
    require_few(raw.num_outputs, "num_outputs")?;
    for sample in &samples {
        let Place::Cuda(own) = sample.place else {
            return Err(Error::Invalid(
                "a sample input is not in memory of a device: use TCUDA_DEVICE_CUDA",
            ));
        };
        if *device.get_or_insert(own) != own {
            return Err(Error::Invalid("sample_inputs are on several devices; use one"));
        }
    }
    let function = HostFunction {
        forward,
        backward: raw.backward,
        user_data: UserData::new(raw.user_data, raw.destroy),
    };
    let function = thread::try_box(function, "a graphed callable")?;
    Ok(Plan { function, samples, num_outputs: raw.num_outputs })
}

/// Warms up and captures callables, which will be called in this order. Each runs warmup_iterations
/// times on tcuda_graph_stream, backward after forward. Then each forward function runs once more
/// and is captured, then each backward function in reverse order. The inputs are the library's own,
/// like the samples, at the same address in each run. All callables share one pool. Waits for the
/// device before and after. If anything fails, nothing of it remains: with
/// TCUDA_STATUS_CALLBACK_FAILED tcuda_last_error_native is the callback's code, and what that run
/// allocated stays the host's. (torch.cuda.make_graphed_callables)
/// (torch.cuda.make_graphed_callables)
///
/// @param callables     a list, each with its struct_size
/// @param count         1 or more
/// @param options       may be NULL: the defaults
/// @param[out] graphed  `count` handles, the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graphed_callable_create(
    callables: *const tcuda_callable,
    count: usize,
    options: *const tcuda_graphed_callable_options,
    graphed: *mut *mut tcuda_graphed_callable,
) -> tcuda_status {
    boundary(|call| {
        let _documented = sync_debug::documented();
        out(graphed, "graphed")?;
        if count == 0 {
            return Err(Error::OutOfRange { name: "count", value: 0, allowed: "use 1 or more" });
        }
        require_few(count, "count")?;
        let first = struct_in(callables, NO_CALLABLE, "callables")?;
        let mut plans = Vec::new();
        plans.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
        let mut device = None;
        for index in 0..count {
            let each = callables.wrapping_byte_add(index * first.struct_size);
            plans.push(plan_of(&struct_in(each, NO_CALLABLE, "callables")?, &mut device)?);
        }
        let options = options_of(options, call)?;
        let gpus = call.gpus()?;
        for sample in plans.iter().flat_map(|plan| &plan.samples) {
            sample.require_on(gpus)?;
        }
        let device = device.unwrap_or(crate::gpu::device::CURRENT);
        // Allocations come first: if one fails, nothing that was captured is lost.
        let mut handles = Vec::new();
        handles.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
        let mut made = Ok(());
        while made.is_ok() && handles.len() < count {
            made = CALLABLES.insert(Callable::empty()).map(|handle| handles.push(handle));
        }
        let captured = made.and_then(|()| callable::make(gpus, device, plans, options));
        let captured = captured.inspect_err(|_| {
            for handle in &handles {
                let _ = CALLABLES.remove(*handle, "graphed");
            }
        })?;
        for (captured, handle) in captured.into_iter().zip(&handles) {
            CALLABLES.get(*handle, "graphed", call)?.fill(captured);
        }
        // From here on nothing fails, except that another thread may be shutting down.
        for (index, handle) in handles.into_iter().enumerate() {
            out(graphed.wrapping_add(index), "graphed")?.set(handle as *mut tcuda_graphed_callable);
        }
        Ok(())
    })
}

#[inline(never)]
fn options_of(raw: *const tcuda_graphed_callable_options, call: &Call) -> Result<Options> {
    let mut options = tcuda_graphed_callable_options {
        struct_size: 0,
        pool: std::ptr::null_mut(),
        warmup_iterations: 0,
        error_mode: 0,
    };
    if !raw.is_null() {
        options = struct_in(raw, options, "options")?;
    }
    let warmups = match options.warmup_iterations {
        0 => WARMUPS,
        more => u32::try_from(more).map_err(|_| Error::OutOfRange {
            name: "warmup_iterations",
            value: more.into(),
            allowed: "use 1 or more, or 0 for 3",
        })?,
    };
    let pool = match options.pool.is_null() {
        true => None,
        false => Some(MEM_POOLS.get(options.pool as usize, "pool", call)?.share()?),
    };
    Ok(Options { pool, warmups, mode: options.error_mode })
}

/// Destroys a callable and its handle.
fn end(handle: usize, call: &Call) -> Result<()> {
    let found = CALLABLES.get(handle, "graphed", call)?;
    waiting::refuse_in_callback()?;
    if let Some(gpus) = gpus::existing(call.inside()) {
        found.close(gpus);
    }
    CALLABLES.remove(handle, "graphed")
}

/// Destroys a callable. Replays that are under way continue. Its outputs become invalid.
/// (the end of a callable of torch.cuda.make_graphed_callables)
///
/// @param graphed  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graphed_callable_destroy(
    graphed: *mut tcuda_graphed_callable,
) -> tcuda_status {
    boundary(|call| if graphed.is_null() { Ok(()) } else { end(graphed as usize, call) })
}

/// Copies inputs into the captured ones, unless they are the same memory, and replays. The host
/// must order the calls of one callable on several streams.
/// (a call of one of torch.cuda.make_graphed_callables)
///
/// @param graphed       from tcuda_graphed_callable_create
/// @param inputs        as the samples in number, dtype, shape and strides; in any memory that
///                      tcuda_copy can read; may be NULL if num_inputs is 0
/// @param num_inputs    as many as were captured
/// @param stream        of the callable's device; NULL is the current one of that device
/// @param[out] outputs  borrowed views, until the callable is destroyed; the next call overwrites
///                      what they show; may be NULL if num_outputs is 0
/// @param num_outputs   as many as were captured
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graphed_callable_call(
    graphed: *mut tcuda_graphed_callable,
    inputs: *const tcuda_tensor,
    num_inputs: usize,
    stream: *mut tcuda_stream,
    outputs: *mut tcuda_tensor,
    num_outputs: usize,
) -> tcuda_status {
    boundary(|call| {
        let (from, to) = ((inputs, num_inputs, "inputs"), (outputs, num_outputs, "outputs"));
        run(graphed, Pass::Forward, from, stream, to, call)
    })
}

/// Replays the backward function, after the call that it belongs to.
/// (the backward of one of torch.cuda.make_graphed_callables)
///
/// @param graphed           from tcuda_graphed_callable_create
/// @param grad_outputs      gradients of the outputs, as those in dtype, shape and strides; may be
///                          NULL if num_outputs is 0
/// @param num_outputs       as many as were captured
/// @param stream            of the callable's device; NULL is the current one of that device
/// @param[out] grad_inputs  borrowed views; all zero where an input has no gradient; may be NULL if
///                          num_inputs is 0
/// @param num_inputs        as many as were captured
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graphed_callable_call_backward(
    graphed: *mut tcuda_graphed_callable,
    grad_outputs: *const tcuda_tensor,
    num_outputs: usize,
    stream: *mut tcuda_stream,
    grad_inputs: *mut tcuda_tensor,
    num_inputs: usize,
) -> tcuda_status {
    boundary(|call| {
        let from = (grad_outputs, num_outputs, "grad_outputs");
        let to = (grad_inputs, num_inputs, "grad_inputs");
        run(graphed, Pass::Backward, from, stream, to, call)
    })
}

fn run(
    graphed: *mut tcuda_graphed_callable,
    pass: Pass,
    (inputs, num_inputs, name): (*const tcuda_tensor, usize, &'static str),
    stream: *mut tcuda_stream,
    (outputs, num_outputs, output): (*mut tcuda_tensor, usize, &'static str),
    call: &Call,
) -> Result<()> {
    let found = CALLABLES.get(graphed as usize, "graphed", call)?;
    if num_outputs > 0 {
        out(outputs, output)?;
    }
    let inputs = views(inputs, num_inputs, name)?;
    let stream = optional(stream, call)?;
    found.call(call.gpus()?, pass, &inputs, stream, num_outputs, |index, tensor| {
        let shown = tensor.map_or(EMPTY, shown);
        // SAFETY: not NULL, and a list of so many, by the caller's promise.
        unsafe { outputs.wrapping_add(index).write_unaligned(shown) };
    })
}
