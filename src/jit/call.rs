//! Calls of functions: which kernel the tensors need, and its launch.

use super::iterate::{Iteration, MOST_OPERANDS};
use super::kind::{self, Kind};
use super::store::Loaded;
use super::text::{Layout, MOST_DIMS, MOST_TENSORS, THREADS, UNROLL, UNROLL_STRIDED, Variant};
use super::{Jit, MOST_SCALARS, Scalar};
use crate::device::Device;
use crate::driver::compiler::Program;
use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::sanitizer::{self, Mode, Touch};
use crate::stream::Stream;
use crate::tensor::Tensor;
use crate::text::Text;
use std::ffi::{CStr, c_void};

/// What tells the kernels of a function apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PlanKey {
    inputs: [u8; MOST_TENSORS],
    scalars: u64,
    layout: u16,
    common: u8,
    device: u8,
}

/// A call, with its tensors.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// What is read.
    pub inputs: &'a [Tensor],
    /// What is written.
    pub outputs: &'a [Tensor],
    /// When; `None`: on the current stream of the tensors' device.
    pub stream: Option<&'a Stream>,
}

/// Extra arguments as parameters of a kernel.
struct Scalars {
    kinds: [super::text::ScalarKind; MOST_SCALARS],
    words: [[u64; 2]; MOST_SCALARS],
    len: usize,
}

impl Scalars {
    fn key(&self) -> u64 {
        let kinds = self.kinds[..self.len].iter();
        kinds.rev().fold(0, |key, kind| key << 2 | *kind as u64)
    }
}

impl Jit {
    /// The declared extra arguments, with what a call says instead.
    fn scalars<'a>(
        &self,
        given: impl Iterator<Item = Result<(&'a str, Scalar)>>,
    ) -> Result<Scalars> {
        let mut made = Scalars {
            kinds: [super::text::ScalarKind::Double; MOST_SCALARS],
            words: [[0; 2]; MOST_SCALARS],
            len: self.scalars.len(),
        };
        let mut set = |index: usize, value: Scalar| {
            made.kinds[index] = value.kind();
            made.words[index] = value.words();
        };
        self.scalars.iter().enumerate().for_each(|(index, known)| set(index, known.default));
        for scalar in given {
            let (name, value) = scalar?;
            let index = self.scalars.iter().position(|known| known.name == name);
            set(index.ok_or_else(|| Error::Undeclared { name: Text::new(name) })?, value);
        }
        Ok(made)
    }

    /// Computes the outputs, queued on a stream.
    pub fn call<'a>(
        &self,
        runtime: &Runtime,
        call: &Call<'_>,
        scalars: impl Iterator<Item = Result<(&'a str, Scalar)>>,
    ) -> Result<()> {
        let Call { inputs, outputs, stream } = *call;
        if !(1..=MOST_TENSORS).contains(&inputs.len()) {
            return Err(Error::OutOfRange {
                name: "num_inputs",
                value: inputs.len() as i64,
                allowed: "use 1 to 8",
            });
        }
        self.require_outputs(outputs.len())?;
        let scalars = self.scalars(scalars)?;
        let mut kinds = [Kind::Bool; MOST_TENSORS];
        for (kind, input) in kinds.iter_mut().zip(inputs) {
            *kind = Kind::of(input.dtype)?;
        }
        let kinds = &kinds[..inputs.len()];
        let common = kind::common(inputs, kinds)?;
        for output in outputs {
            if Kind::of(output.dtype)? != common {
                return Err(Error::Invalid(
                    "an output has another type than the inputs have together (PyTorch's \
                     result_type): pass one of that type",
                ));
            }
        }
        let device = device_of(runtime, inputs, outputs)?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.device() != device.ordinal() {
            return Err(Error::Invalid("the stream is of another device than the tensors"));
        }
        let Some(whole) = Iteration::new(inputs, outputs)? else { return Ok(()) };
        let target = Target { jit: self, device, stream, kinds, common, scalars: &scalars };
        match whole.layout(kinds, common) {
            Layout::Strided => whole.for_each_part(&mut |part| {
                // A part may lie side by side where the whole does not.
                target.launch(part, part.layout(kinds, common))
            }),
            flat => target.launch(&whole, flat),
        }?;
        if sanitizer::is_on() {
            tell(runtime, stream, call);
        }
        Ok(())
    }
}

/// Tells the sanitizer of a call.
#[cold]
fn tell(runtime: &Runtime, stream: &Stream, call: &Call<'_>) {
    let inputs = call.inputs.iter().map(|input| Touch::tensor(input, Mode::Read));
    let outputs = call.outputs.iter().map(|output| Touch::tensor(output, Mode::Write));
    let mut touches = [Touch::read(0, 0); MOST_OPERANDS];
    let len = inputs.len() + outputs.len();
    touches.iter_mut().zip(inputs.chain(outputs)).for_each(|(to, touch)| *to = touch);
    sanitizer::operation(runtime, stream, "tcuda_jit_call", &touches[..len.min(MOST_OPERANDS)]);
}

/// The one device of all tensors.
fn device_of<'a>(
    runtime: &'a Runtime,
    inputs: &[Tensor],
    outputs: &[Tensor],
) -> Result<&'a Device> {
    let mut found = None;
    for tensor in inputs.iter().chain(outputs) {
        let device = tensor.require_on(runtime)?;
        if found.is_some_and(|found| found != device) {
            return Err(Error::Invalid("the tensors are on several devices; pass tensors of one"));
        }
        found = Some(device);
    }
    runtime.device(found.unwrap_or(crate::device::CURRENT))
}

/// A call with everything found.
struct Target<'a> {
    jit: &'a Jit,
    device: &'a Device,
    stream: &'a Stream,
    kinds: &'a [Kind],
    common: Kind,
    scalars: &'a Scalars,
}

/// The most parameters of a kernel: a count, operands, shape, extra arguments.
const PARAMETERS: usize = 2 + MOST_OPERANDS + MOST_SCALARS;

/// Words of 32 bits of the kernel's shape.
const SHAPE: usize = 1 + 3 * MOST_DIMS + MOST_DIMS * MOST_OPERANDS;

impl Target<'_> {
    fn key(&self, layout: Layout) -> PlanKey {
        let mut inputs = [0; MOST_TENSORS];
        for (to, kind) in inputs.iter_mut().zip(self.kinds) {
            *to = *kind as u8 + 1;
        }
        let layout = match layout {
            Layout::Strided => 0,
            Layout::Flat { width, singles } => u16::from(width) << 8 | u16::from(singles),
        };
        let device = self.device.ordinal() as u8;
        PlanKey { inputs, scalars: self.scalars.key(), layout, common: self.common as u8, device }
    }

    fn launch(&self, part: &Iteration, layout: Layout) -> Result<()> {
        let key = self.key(layout);
        if let Some(loaded) = self.jit.plans.find(&key).and_then(|entry| entry.get()) {
            return self.launch_kernel(part, layout, loaded);
        }
        self.prepare(key, layout)?;
        let entry = self.jit.plans.find(&key);
        match entry.and_then(|entry| entry.get()) {
            Some(loaded) => self.launch_kernel(part, layout, loaded),
            None => Err(Error::Internal(Text::new("a kernel that was made and is not there"))),
        }
    }

    /// Has the kernel compiled, or read from disk.
    #[cold]
    fn prepare(&self, key: PlanKey, layout: Layout) -> Result<()> {
        let signature = self.jit.signature();
        let variant = Variant {
            inputs: self.kinds,
            outputs: self.jit.outputs,
            common: self.common,
            scalars: &self.scalars.kinds[..self.scalars.len],
            layout,
        };
        let (source, name) = (variant.text(&self.jit.code, &signature)?, variant.name(&signature)?);
        let text = |text| {
            CStr::from_bytes_with_nul(text).map_err(|_| Error::Invalid("code has a NUL inside"))
        };
        let program = Program {
            source: text(&source)?,
            title: c"code",
            entry: text(&name)?,
            is_plain: true,
            flags: &[],
            capability: capability(self.device)?,
        };
        let entry = self.device.compiled.find(self.device, &program)?;
        self.jit.plans.add(key, entry)
    }

    fn launch_kernel(&self, part: &Iteration, layout: Layout, loaded: &Loaded) -> Result<()> {
        let numel = part.numel();
        let mut operands = [0u64; 1 + MOST_OPERANDS];
        operands[0] = numel;
        operands[1..].copy_from_slice(&part.addresses);
        let mut next = 1 + part.operands();
        let mut shape = [0u32; SHAPE];
        let mut words = self.scalars.words;
        let mut parameters = [std::ptr::null_mut::<c_void>(); PARAMETERS];
        for (to, word) in parameters.iter_mut().zip(&mut operands[..next]) {
            *to = std::ptr::from_mut(word).cast();
        }
        let elements = match layout {
            Layout::Flat { width, .. } => u64::from(width) * u64::from(UNROLL),
            Layout::Strided => {
                write_shape(&mut shape, part);
                parameters[next] = shape.as_mut_ptr().cast();
                next += 1;
                u64::from(UNROLL_STRIDED)
            }
        };
        for (to, words) in parameters[next..].iter_mut().zip(&mut words[..self.scalars.len]) {
            *to = words.as_mut_ptr().cast();
        }
        let grid = numel.div_ceil(elements * u64::from(THREADS));
        let grid = u32::try_from(grid).ok().filter(|grid| *grid <= i32::MAX as u32);
        let grid =
            grid.ok_or(Error::Invalid("the tensors have more elements than a grid reaches"))?;
        let _context = self.device.enter()?;
        // SAFETY: the kernel has these parameters, which the driver copies; the caller promises the
        // tensors, and the stream is alive.
        unsafe {
            self.device.driver().cuLaunchKernel(
                loaded.function(),
                grid,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                self.stream.native(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }?;
        Ok(())
    }
}

/// A device's compute capability: 90 is 9.0.
pub fn capability(device: &Device) -> Result<u32> {
    let (major, minor) = device.capability()?;
    Ok((major * 10 + minor).unsigned_abs())
}

/// The kernel's shape.
fn write_shape(shape: &mut [u32; SHAPE], part: &Iteration) {
    let operands = part.operands();
    shape[0] = part.dims().len() as u32;
    let (sizes, strides) = shape[1..].split_at_mut(3 * MOST_DIMS);
    for (index, dim) in part.dims().iter().enumerate() {
        let (magic, shift) = magic(dim.size as u32);
        sizes[index] = dim.size as u32;
        sizes[MOST_DIMS + index] = magic;
        sizes[2 * MOST_DIMS + index] = shift;
        let own = &mut strides[index * operands..(index + 1) * operands];
        for (to, stride) in own.iter_mut().zip(&dim.strides) {
            // Fits: the part needs no more than 31 bits.
            *to = *stride as u32;
        }
    }
}

/// With what to multiply, and how far to shift, instead of dividing numbers below 2^31.
fn magic(divisor: u32) -> (u32, u32) {
    let shift = divisor.max(1).next_power_of_two().trailing_zeros();
    let rest = (1u64 << shift) - u64::from(divisor);
    (((rest << 32) / u64::from(divisor) + 1) as u32, shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_multiplication_is_exact() {
        let numbers =
            [0, 1, 2, 3, 6, 7, 99, 1 << 16, 123_456_789, i32::MAX as u32 - 1, i32::MAX as u32];
        for divisor in (1..2000).chain(numbers.into_iter().filter(|number| *number > 0)) {
            let (magic, shift) = magic(divisor);
            let around = (1..50).map(|times| divisor.saturating_mul(times) & 0x7fff_ffff);
            for number in numbers.into_iter().chain(around.flat_map(|n| [n.max(1) - 1, n])) {
                let high = ((u64::from(number) * u64::from(magic)) >> 32) as u32;
                assert_eq!((high + number) >> shift, number / divisor, "{number} / {divisor}");
            }
        }
    }
}
