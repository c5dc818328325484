//! Section "Jiterator and kernels" of the header: elementwise functions.

use super::boundary::{Call, Sized_, boundary, boundary_without_guard, out, struct_in, text};
use super::handle::Table;
use super::status::tcuda_status;
use super::stream::{optional, tcuda_stream};
use super::tensor::{is_read_only, parts_of, tcuda_tensor, view, writable};
use crate::base::error::{Error, Result};
use crate::base::inline_vec::Few;
use crate::base::waiting;
use crate::gpu::stream::Stream;
use crate::jit::call::Scalars;
use crate::jit::recent::UncheckedCall;
use crate::jit::text::MAX_TENSORS;
use crate::jit::{Jit, Scalar, call};
use crate::tensor::{Parts, Tensor, owned};
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// An elementwise function, for tensors of any type and shape. (torch.cuda.jiterator)
pub struct tcuda_jit {
    _private: [u8; 0],
}

/// tcuda_scalar.kind: real, a double.
pub const TCUDA_SCALAR_DOUBLE: i32 = 0;
/// integer.
pub const TCUDA_SCALAR_INT: i32 = 1;
/// integer, 0 or 1.
pub const TCUDA_SCALAR_BOOL: i32 = 2;
/// real and imaginary, doubles.
pub const TCUDA_SCALAR_COMPLEX: i32 = 3;

/// An extra argument, by name. Its kind is the type of the argument that is passed; it is converted
/// to the declared type of the parameter, for example T.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_scalar {
    /// Must be a valid name of a parameter of the function.
    pub name: *const c_char,
    /// TCUDA_SCALAR_...
    pub kind: i32,
    /// The value of an INT or BOOL.
    pub integer: i64,
    /// The value of a DOUBLE; the real part of a COMPLEX.
    pub real: f64,
    /// The imaginary part of a COMPLEX.
    pub imaginary: f64,
}

/// Options of an elementwise function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_jit_options {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// The extra parameters, in the order in which they follow the tensors, with their defaults;
    /// may be NULL if there are none. At most 32.
    pub scalars: *const tcuda_scalar,
    /// Number of them.
    pub num_scalars: usize,
}

// SAFETY: repr(C), the size comes first, and it is plain data.
unsafe impl Sized_ for tcuda_jit_options {}

const DEFAULTS: tcuda_jit_options = tcuda_jit_options {
    struct_size: size_of::<tcuda_jit_options>(),
    scalars: std::ptr::null(),
    num_scalars: 0,
};

pub(super) static JITS: Table<Jit> = Table::new(12, "function");

#[cold]
fn no_bool(value: i64) -> Error {
    Error::OutOfRange { name: "scalars[i].integer", value, allowed: "a bool is 0 or 1" }
}

/// Reads a host's list, each element only when it is needed.
fn scalars<'a>(
    list: *const tcuda_scalar,
    count: usize,
) -> Result<impl ExactSizeIterator<Item = Result<(&'a str, Scalar)>>> {
    if count > 0 && list.is_null() {
        return Err(Error::Null { name: "scalars" });
    }
    let count = u32::try_from(count).map_err(|_| Error::OutOfRange {
        name: "num_scalars",
        value: -1,
        allowed: "it is longer than memory",
    })?;
    Ok((0..count).map(move |index| {
        // SAFETY: not NULL, and as long as the caller says.
        let raw = unsafe { list.wrapping_add(index as usize).read_unaligned() };
        let value = match raw.kind {
            TCUDA_SCALAR_DOUBLE => Scalar::Double(raw.real),
            TCUDA_SCALAR_INT => Scalar::Int(raw.integer),
            TCUDA_SCALAR_BOOL if matches!(raw.integer, 0 | 1) => Scalar::Bool(raw.integer == 1),
            TCUDA_SCALAR_BOOL => return Err(no_bool(raw.integer)),
            TCUDA_SCALAR_COMPLEX => Scalar::Complex(raw.real, raw.imaginary),
            kind => {
                return Err(Error::OutOfRange {
                    name: "scalars[i].kind",
                    value: kind.into(),
                    allowed: "use TCUDA_SCALAR_...",
                });
            }
        };
        Ok((text(raw.name, "scalars[i].name")?, value))
    }))
}

fn create(
    code: *const c_char,
    outputs: Option<i32>,
    options: *const tcuda_jit_options,
    jit: *mut *mut tcuda_jit,
) -> Result<()> {
    let jit = out(jit, "jit")?;
    let code = text(code, "code")?;
    let options = match options.is_null() {
        true => DEFAULTS,
        false => struct_in(options, DEFAULTS, "options")?,
    };
    let scalars = scalars(options.scalars, options.num_scalars)?;
    let made = Jit::new(code, outputs, scalars)?;
    jit.set(JITS.insert(made)? as *mut tcuda_jit);
    Ok(())
}

/// Creates a function from PyTorch's code string: one template with a type T, "template <typename
/// T> T add(T x, T y, T alpha) { return x + alpha * y; }". Functions that it calls may come before
/// it: the last one is the function. It takes one element of each input, then the extra arguments,
/// and returns the element of the output. T is the common type of the inputs, or float where that
/// is float16, bfloat16 or float8. Nothing is compiled yet, and the library is not initialised.
/// (torch.cuda.jiterator._create_jit_fn)
///
/// @param code      CUDA C++ without includes, at most 1 MiB; mathematical functions as std::sin or
///                  ::sin. It may use any names, except tcuda and std, and except macros
/// @param options   may be NULL: no extra arguments
/// @param[out] jit  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_jit_create(
    code: *const c_char,
    options: *const tcuda_jit_options,
    jit: *mut *mut tcuda_jit,
) -> tcuda_status {
    boundary(|_| create(code, None, options, jit))
}

/// tcuda_jit_create for a function whose last parameters are its outputs, T &. It returns void, or
/// a value that is ignored. (torch.cuda.jiterator._create_multi_output_jit_fn)
///
/// @param code         as for tcuda_jit_create
/// @param num_outputs  1 to 8
/// @param options      may be NULL: no extra arguments
/// @param[out] jit     the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_jit_create_multi(
    code: *const c_char,
    num_outputs: i32,
    options: *const tcuda_jit_options,
    jit: *mut *mut tcuda_jit,
) -> tcuda_status {
    boundary(|_| create(code, Some(num_outputs), options, jit))
}

/// Destroys a function; its work that is under way continues. Compiled code stays until
/// tcuda_shutdown, for graphs, and for a function of the same code.
/// (the end of a function of torch.cuda.jiterator)
///
/// @param jit  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_jit_destroy(jit: *mut tcuda_jit) -> tcuda_status {
    boundary(|_| {
        if jit.is_null() {
            return Ok(());
        }
        JITS.remove(jit as usize, "jit")
    })
}

/// Reads a list of the host's tensors and appends them; a call that has many keeps them in heap
/// memory.
#[inline(never)]
fn read_views(
    views: &mut Few<Tensor, 2>,
    (list, count): List,
    name: &'static str,
    read: fn(*const tcuda_tensor, &'static str) -> Result<Tensor>,
) -> Result<()> {
    if count > 0 && list.is_null() {
        return Err(Error::Null { name });
    }
    if count > MAX_TENSORS {
        return Err(Error::OutOfRange {
            name,
            value: i64::try_from(count).unwrap_or(i64::MAX),
            allowed: "a function has at most 8 inputs and 8 outputs",
        });
    }
    (0..count).try_for_each(|index| views.push(read(list.wrapping_add(index), name)?))
}

/// Computes the outputs. The inputs broadcast, and are promoted to a common type as in PyTorch. The
/// first call for new types or strides compiles a kernel, which takes tens of milliseconds, or
/// loads it from disk. Tensors without elements: nothing is queued. TCUDA_STATUS_COMPILE_ERROR
/// where the code is invalid for these types, TCUDA_STATUS_NO_LIBRARY without NVRTC.
/// (the call of a function of torch.cuda.jiterator)
///
/// @param jit          from tcuda_jit_create or tcuda_jit_create_multi
/// @param inputs       1 to 8, all on one device, of bool, integers of 8 to 64 bits, float8 e4m3fn
///                     and e5m2, float16 to float64, bfloat16, complex of 32 to 128 bits; addresses
///                     are multiples of an element's size, and strides not negative where there are
///                     elements. At most 25 dimensions, after those that can be merged are merged
/// @param num_inputs   1 to 8
/// @param scalars      instead of their defaults, by name; may be NULL if num_scalars is 0
/// @param num_scalars  how many scalars there are
/// @param outputs      as many as the function has, on that device, of the broadcast shape and the
///                     common type of the inputs. An output may be an input, but must not overlap
///                     one partly, and no two of its elements may have the same address
/// @param num_outputs  as many as the function has
/// @param stream       NULL is the current stream of that device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_jit_call(
    jit: *mut tcuda_jit,
    inputs: *const tcuda_tensor,
    num_inputs: usize,
    scalars: *const tcuda_scalar,
    num_scalars: usize,
    outputs: *const tcuda_tensor,
    num_outputs: usize,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary_without_guard(|call| {
        let jit = JITS.get(jit as usize, "jit", call)?;
        let mut values = Scalars::new();
        jit.read_scalars(self::scalars(scalars, num_scalars)?, &mut values)?;
        jit.require_outputs(num_outputs)?;
        let stream = optional(stream, call)?;
        let lists = [(inputs, num_inputs), (outputs, num_outputs)];
        match repeat_call(jit, call, lists, &values, stream)? {
            true => Ok(()),
            false => call_anew(jit, call, lists, &values, stream),
        }
    })
}

type List = (*const tcuda_tensor, usize);

/// Repeats a call that is like one of the last calls. `false`: it is not; then [`call_anew`] checks
/// and plans it.
fn repeat_call(
    jit: &Jit,
    call: &Call,
    [inputs, outputs]: [List; 2],
    scalars: &Scalars,
    stream: Option<&Stream>,
) -> Result<bool> {
    let mut parts = [const { MaybeUninit::<Parts<'_>>::uninit() }; 2 * MAX_TENSORS];
    let mut len = 0;
    for (list, count) in [inputs, outputs] {
        if list.is_null() || count > MAX_TENSORS {
            return Ok(false);
        }
        for index in 0..count {
            // SAFETY: not NULL, and as long as the caller says.
            let raw = unsafe { list.wrapping_add(index).read_unaligned() };
            let Some(found) = parts_of(&raw) else { return Ok(false) };
            parts[len].write(found);
            len += 1;
        }
    }
    if owned::has_read_only() && any_is_read_only(outputs) {
        return Ok(false);
    }
    // SAFETY: so many were written.
    let operands = unsafe { std::slice::from_raw_parts(parts.as_ptr().cast(), len) };
    jit.repeat_call(call.gpus()?, &UncheckedCall { operands, inputs: inputs.1 }, scalars, stream)
}

#[cold]
fn any_is_read_only((list, count): List) -> bool {
    // SAFETY: not NULL, and as long as the caller says.
    (0..count).any(|index| is_read_only(&unsafe { list.wrapping_add(index).read_unaligned() }))
}

/// A call that is checked and planned anew.
#[inline(never)]
fn call_anew(
    jit: &Jit,
    call: &Call,
    [inputs, outputs]: [List; 2],
    scalars: &Scalars,
    stream: Option<&Stream>,
) -> Result<()> {
    let _uncancelled = waiting::uncancelled();
    let mut views = Few::new();
    read_views(&mut views, inputs, "inputs", view)?;
    read_views(&mut views, outputs, "outputs", writable)?;
    let (inputs, outputs) = views.split_at(inputs.1);
    jit.call(call.gpus()?, &call::Call { inputs, outputs, stream }, scalars)
}
