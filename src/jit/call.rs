//! Calls of elementwise functions: selects the kernel for the tensors, and launches it.

use super::iterate::{Iteration, MAX_OPERANDS};
use super::kind::{self, Kind};
use super::recent::{Launch, RepeatedCall, UncheckedCall};
use super::rows::{self, SHAPE, rows_of_thread};
use super::source;
use super::store::Loaded;
use super::text::{Layout, MAX_TENSORS, ScalarKind, THREADS, UNROLL, Variant};
use super::tile;
use super::{Jit, MAX_SCALARS, Scalar};
use crate::base::error::{Error, Result};
use crate::base::text::Text;
use crate::driver::compiler::{Failure, Linkage, Program};
use crate::driver::sys::CUfunction;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::sanitizer::{self, Mode, Touch};
use crate::tensor::Tensor;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;

/// Identifies a kernel of a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PlanKey {
    inputs: [u8; MAX_TENSORS],
    scalars: u64,
    layout: u32,
    common: u8,
    device: u8,
}

/// A call and its tensors.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The tensors to read.
    pub inputs: &'a [Tensor],
    /// The tensors to write.
    pub outputs: &'a [Tensor],
    /// The stream; `None`: the current stream of the tensors' device.
    pub stream: Option<&'a Stream>,
}

/// Extra arguments, as kernel parameters.
pub struct Scalars {
    kinds: [ScalarKind; MAX_SCALARS],
    /// The first `len` entries are initialised.
    words: [MaybeUninit<[u64; 2]>; MAX_SCALARS],
    len: usize,
}

impl Scalars {
    /// No arguments.
    pub fn new() -> Scalars {
        Scalars {
            kinds: [ScalarKind::Double; MAX_SCALARS],
            words: [const { MaybeUninit::uninit() }; MAX_SCALARS],
            len: 0,
        }
    }

    fn key(&self) -> u64 {
        let kinds = self.kinds[..self.len].iter();
        kinds.rev().fold(0, |key, kind| key << 2 | *kind as u64)
    }
}

impl Jit {
    /// Sets all extra arguments to their defaults, and replaces those that the call passes.
    pub fn read_scalars<'a>(
        &self,
        given: impl Iterator<Item = Result<(&'a str, Scalar)>>,
        to: &mut Scalars,
    ) -> Result<()> {
        let mut set = |index: usize, value: Scalar| {
            to.kinds[index] = value.kind();
            to.words[index].write(value.words());
        };
        self.scalars.iter().enumerate().for_each(|(index, known)| set(index, known.default));
        for scalar in given {
            let (name, value) = scalar?;
            let index = self.scalars.iter().position(|known| known.name == name);
            set(index.ok_or_else(|| Error::Undeclared { name: Text::new(name) })?, value);
        }
        to.len = self.scalars.len();
        Ok(())
    }

    /// Launches a call that repeats a recent one. `false`: there is no such call.
    #[inline]
    pub fn repeat_call(
        &self,
        gpus: &Gpus,
        unchecked: &UncheckedCall<'_>,
        scalars: &Scalars,
        stream: Option<&Stream>,
    ) -> Result<bool> {
        // The sanitizer needs tensors, which do not exist here.
        let mut found = RepeatedCall::new();
        if sanitizer::is_on() || !self.recent.find(gpus, unchecked, scalars.key(), &mut found) {
            return Ok(false);
        }
        let device = gpus.device(found.device)?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.device() != found.device {
            return Ok(false);
        }
        queue(device, stream, &found.launch, found.shape(), found.addresses(), scalars)?;
        Ok(true)
    }

    /// Queues the computation of the outputs on a stream.
    pub fn call(&self, gpus: &Gpus, call: &Call<'_>, scalars: &Scalars) -> Result<()> {
        let Call { inputs, outputs, stream } = *call;
        if !(1..=MAX_TENSORS).contains(&inputs.len()) {
            return Err(Error::OutOfRange {
                name: "num_inputs",
                value: inputs.len() as i64,
                allowed: "use 1 to 8",
            });
        }
        self.require_outputs(outputs.len())?;
        let mut kinds = [Kind::Bool; MAX_TENSORS];
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
        let device = device_of(gpus, inputs, outputs)?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.device() != device.ordinal() {
            return Err(Error::Invalid("the stream is of another device than the tensors"));
        }
        let mut whole = Iteration::boxed()?;
        if !whole.set(inputs, outputs)? {
            return Ok(());
        }
        let target = Target { jit: self, device, stream, kinds, common, scalars, call };
        match whole.layout(kinds, common) {
            Layout::Rows { .. } | Layout::Tiled { .. } if !whole.fits_32_bits() => whole
                .for_each_part(&mut |part| {
                    // A part may be contiguous even if the whole is not.
                    target.launch(part, part.layout(kinds, common), false)
                }),
            layout => target.launch(&whole, layout, true),
        }?;
        if sanitizer::is_on() {
            report(gpus, stream, call);
        }
        Ok(())
    }
}

/// Reports a call to the sanitizer.
#[cold]
fn report(gpus: &Gpus, stream: &Stream, call: &Call<'_>) {
    let inputs = call.inputs.iter().map(|input| Touch::elements(input, Mode::Read));
    let outputs = call.outputs.iter().map(|output| Touch::elements(output, Mode::Write));
    let mut touches = [Touch::read(0, 0); MAX_OPERANDS];
    let len = inputs.len() + outputs.len();
    touches.iter_mut().zip(inputs.chain(outputs)).for_each(|(to, touch)| *to = touch);
    sanitizer_reports::operation(gpus, stream, "tcuda_jit_call", &touches[..len.min(MAX_OPERANDS)]);
}

/// The device of all tensors; an error if there are several.
fn device_of<'a>(gpus: &'a Gpus, inputs: &[Tensor], outputs: &[Tensor]) -> Result<&'a Device> {
    let mut found = None;
    for tensor in inputs.iter().chain(outputs) {
        let device = tensor.require_on(gpus)?;
        if found.is_some_and(|found| found != device) {
            return Err(Error::Invalid("the tensors are on several devices; pass tensors of one"));
        }
        found = Some(device);
    }
    gpus.device(found.unwrap_or(crate::gpu::device::CURRENT))
}

/// A call with all its objects.
struct Target<'a> {
    jit: &'a Jit,
    device: &'a Device,
    stream: &'a Stream,
    kinds: &'a [Kind],
    common: Kind,
    scalars: &'a Scalars,
    call: &'a Call<'a>,
}

/// The most parameters of a kernel: count, operands, shape, extra arguments.
const MAX_LAUNCH_PARAMETERS: usize = 2 + MAX_OPERANDS + MAX_SCALARS;

impl Target<'_> {
    fn key(&self, layout: Layout) -> PlanKey {
        let mut inputs = [0; MAX_TENSORS];
        for (to, kind) in inputs.iter_mut().zip(self.kinds) {
            *to = *kind as u8 + 1;
        }
        let layout = match layout {
            Layout::Flat { width, singles } => u32::from_le_bytes([width, singles, 0, 0]),
            Layout::Rows { width, repeated, once, is_deep } => {
                u32::from_le_bytes([width, repeated, once, 1 + u8::from(is_deep)])
            }
            Layout::Tiled { transposed } => u32::from_le_bytes([transposed, 0, 0, 3]),
        };
        let device = self.device.ordinal() as u8;
        PlanKey { inputs, scalars: self.scalars.key(), layout, common: self.common as u8, device }
    }

    /// `is_whole`: the launch is the entire call, which is then remembered.
    fn launch(&self, part: &Iteration, layout: Layout, is_whole: bool) -> Result<()> {
        let key = self.key(layout);
        if let Some(loaded) = self.jit.plans.find(&key).and_then(|entry| entry.get()) {
            return self.launch_kernel(part, layout, loaded, is_whole);
        }
        self.prepare(key, layout)?;
        let entry = self.jit.plans.find(&key);
        match entry.and_then(|entry| entry.get()) {
            Some(loaded) => self.launch_kernel(part, layout, loaded, is_whole),
            None => Err(Error::Internal(Text::new("a kernel that was made and is not there"))),
        }
    }

    /// Compiles the kernel, or reads it from disk.
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
            linkage: Linkage::Whole,
            images: &[],
        };
        let found = self.device.compiled().find(self.device, &program);
        let entry = found.map_err(|error| self.explain(error))?;
        self.jit.plans.add(key, entry)
    }

    /// Replaces a compiler error by a clearer one if the function has another number of parameters.
    #[cold]
    fn explain(&self, error: Error) -> Error {
        let jit = self.jit;
        let (inputs, scalars) = (self.call.inputs.len(), jit.scalars.len());
        let outputs = if jit.by_reference { jit.outputs } else { 0 };
        match (&error, source::parameters(&jit.code)) {
            (Error::Compiler(Failure::Source(_)), Some(parameters))
                if parameters != inputs + scalars + outputs =>
            {
                Error::Parameters { parameters, inputs, scalars, outputs }
            }
            _ => error,
        }
    }

    fn launch_kernel(
        &self,
        part: &Iteration,
        layout: Layout,
        loaded: &Loaded,
        is_whole: bool,
    ) -> Result<()> {
        let numel = part.numel();
        let mut room = [0u32; SHAPE];
        let (grid, shape) = match layout {
            Layout::Flat { width, .. } => {
                (numel.div_ceil(u64::from(width) * u64::from(UNROLL * THREADS)), &room[..0])
            }
            Layout::Rows { width, is_deep, .. } => {
                let unroll = rows_of_thread(width, self.kinds.iter().copied().chain([self.common]));
                let (grid, words) = rows::write(&mut room, part, width, is_deep, unroll);
                (grid, &room[..words])
            }
            Layout::Tiled { .. } => {
                let (grid, words) = tile::write(&mut room, part, self.kinds.len());
                (grid, &room[..words])
            }
        };
        let grid = u32::try_from(grid).ok().filter(|grid| *grid <= i32::MAX as u32);
        let grid =
            grid.ok_or(Error::Invalid("the tensors have more elements than a grid reaches"))?;
        let launch = Launch { function: loaded.function() as usize, grid, numel };
        let addresses = &part.addresses[..part.operands()];
        queue(self.device, self.stream, &launch, shape, addresses, self.scalars)?;
        if is_whole {
            let Call { inputs, outputs, .. } = *self.call;
            self.jit.recent.add(inputs, outputs, self.scalars.key(), &launch, shape);
        }
        Ok(())
    }
}

/// Launches a kernel with these parameters: a count, the operands, its shape if it has one, and the
/// extra arguments.
fn queue(
    device: &Device,
    stream: &Stream,
    launch: &Launch,
    shape: &[u32],
    addresses: &[u64],
    scalars: &Scalars,
) -> Result<()> {
    // The driver only reads the values that the pointers refer to.
    let mut parameters = [const { MaybeUninit::<*mut c_void>::uninit() }; MAX_LAUNCH_PARAMETERS];
    parameters[0].write(std::ptr::from_ref(&launch.numel).cast_mut().cast());
    let mut next = 1;
    for (to, address) in parameters[next..].iter_mut().zip(addresses) {
        to.write(std::ptr::from_ref(address).cast_mut().cast());
    }
    next += addresses.len();
    if !shape.is_empty() {
        parameters[next].write(shape.as_ptr().cast_mut().cast());
        next += 1;
    }
    for (to, words) in parameters[next..].iter_mut().zip(&scalars.words[..scalars.len]) {
        to.write(words.as_ptr().cast_mut().cast());
    }
    let _context = device.enter()?;
    // SAFETY: these are the kernel's parameters, which the driver copies; the caller guarantees the
    // tensors, and the stream is alive.
    unsafe {
        device.driver().cuLaunchKernel(
            launch.function as CUfunction,
            launch.grid,
            1,
            1,
            THREADS,
            1,
            1,
            0,
            stream.native(),
            parameters.as_mut_ptr().cast(),
            std::ptr::null_mut(),
        )
    }?;
    Ok(())
}

/// A device's compute capability, times 10: 90 is 9.0.
pub fn capability(device: &Device) -> Result<u32> {
    let (major, minor) = device.capability()?;
    Ok((major * 10 + minor).unsigned_abs())
}
