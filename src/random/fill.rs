//! Fills tensors with random numbers in the steps of PyTorch. So after each call the generator is
//! at the same position as PyTorch's.

use super::check;
use super::generator::Generator;
use super::plan::{self, Dim, Distribution, Dtype, Launch, Philox, View};
use crate::base::error::{Error, Result};
use crate::base::text::Text;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::sanitizer::{Mode, Touch};
use crate::tensor::order::Ordered;
use crate::tensor::{self, MAX_DIMS, Parts, Tensor, dtype};

/// A tensor to fill, and the options of the call.
#[derive(Clone, Copy)]
pub struct Fill<'a> {
    /// The tensor to write.
    pub tensor: &'a Tensor,
    /// The generator; `None`: the default generator of the device.
    pub generator: Option<&'a Generator>,
    /// The stream; `None`: the current stream of the tensor's device.
    pub stream: Option<&'a Stream>,
    /// Name of the public function.
    pub operation: &'static str,
}

/// The objects of a fill, checked.
struct Target<'a> {
    gpus: &'a Gpus,
    device: &'a Device,
    stream: &'a Stream,
    generator: &'a Generator,
    operation: &'static str,
}

impl<'a> Fill<'a> {
    fn target(&self, gpus: &'a Gpus) -> Result<Target<'a>> {
        let device = gpus.device(self.tensor.require_on(gpus)?)?;
        let ordinal = device.ordinal();
        let stream = self.stream.unwrap_or_else(|| device.streams.current());
        if stream.device() != ordinal {
            return Err(Error::Invalid("the stream is of another device than the tensor"));
        }
        let generator = self.generator.unwrap_or(device.generator());
        if generator.device() != ordinal {
            return Err(Error::Invalid("the generator is of another device than the tensor"));
        }
        Ok(Target { gpus, device, stream, generator, operation: self.operation })
    }

    /// Fills with numbers of a distribution, which `distribution` makes for the type of the
    /// elements. Its second argument: the elements are parts of complex numbers.
    pub fn run(
        &self,
        gpus: &Gpus,
        distribution: impl FnOnce(Dtype, bool) -> Result<Distribution>,
    ) -> Result<()> {
        let (dtype, is_complex) = check::dtype_of(self.tensor.dtype)?;
        let distribution = distribution(dtype, is_complex)?;
        check::require(&distribution, dtype, is_complex)?;
        let parts = if is_complex { Some(parts_of(self.tensor)?) } else { None };
        let tensor = parts.as_ref().unwrap_or(self.tensor);
        let target = self.target(gpus)?;
        let ordered = tensor.ordered()?;
        if tensor.numel == 0 {
            return Ok(());
        }
        require_aligned(tensor, dtype)?;
        let geometry = target.device.random().geometry(target.device)?;
        let take = |numel| {
            let words = plan::increment(&distribution, dtype, numel, geometry);
            target.generator.take(gpus, target.stream, words, target.operation)
        };
        let launch = |part: &Ordered, philox: Philox| {
            let view = view_of(part)?;
            let planned = plan::plan(&distribution, dtype, &view, None, &philox, geometry);
            target.launch(planned.ok_or_else(unplanned)?)
        };
        let philox = take(tensor.numel)?;
        if ordered.fits_32_bits() {
            launch(&ordered, philox)?;
        } else {
            // PyTorch discards the numbers taken for the whole tensor. Each part takes its own.
            ordered.for_each_part(&mut |part| launch(part, take(part.numel())?))?;
        }
        target.report(&[Touch::elements(tensor, Mode::Write)]);
        Ok(())
    }

    /// Fills with 1 and 0, with a probability for each element.
    pub fn bernoulli(&self, gpus: &Gpus, p: &Tensor) -> Result<()> {
        let (dtype, is_complex) = check::dtype_of(self.tensor.dtype)?;
        let distribution = Distribution::BernoulliTensor;
        check::require(&distribution, dtype, is_complex)?;
        let (p_dtype, p_is_complex) = check::dtype_of(p.dtype)?;
        let is_float = matches!(p_dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64);
        if p_is_complex || !is_float {
            return Err(Error::Invalid("p must be of floats: it has the probabilities"));
        }
        let target = self.target(gpus)?;
        if p.require_on(gpus)? != target.device.ordinal() {
            return Err(Error::Invalid("p is on another device than the tensor"));
        }
        // The type in which PyTorch compares the probabilities.
        let compared = if dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
        let (own, others) = self.tensor.ordered_with(p, p_dtype != compared)?;
        if self.tensor.numel == 0 {
            return Ok(());
        }
        require_aligned(self.tensor, dtype)?;
        require_aligned(p, p_dtype)?;
        let geometry = target.device.random().geometry(target.device)?;
        let (own, others) = (view_of(&own)?, view_of(&others)?);
        let words = plan::increment(&distribution, dtype, self.tensor.numel, geometry);
        let philox = target.generator.take(gpus, target.stream, words, target.operation)?;
        let drawn = Some((&others, p_dtype));
        let planned = plan::plan(&distribution, dtype, &own, drawn, &philox, geometry);
        target.launch(planned.ok_or_else(unplanned)?)?;
        target.report(&[Touch::elements(self.tensor, Mode::Write), Touch::elements(p, Mode::Read)]);
        Ok(())
    }
}

/// An internal error: a checked fill always has a plan.
fn unplanned() -> Error {
    Error::Internal(Text::new("random numbers without a plan"))
}

impl Target<'_> {
    /// Reports the fill to the sanitizer.
    fn report(&self, touches: &[Touch<'_>]) {
        sanitizer_reports::operation(self.gpus, self.stream, self.operation, touches);
    }

    fn launch(&self, mut launch: Launch) -> Result<()> {
        let _context = self.device.enter()?;
        let function = self.device.random().function(self.device, launch.image, launch.kernel)?;
        let mut parameters = launch.parameters.pointers();
        // SAFETY: these are the kernel's parameters, which the driver copies; the caller guarantees
        // the tensor, and the stream is alive.
        unsafe {
            self.gpus.driver().cuLaunchKernel(
                function,
                launch.grid,
                1,
                1,
                launch.block,
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

fn view_of(ordered: &Ordered) -> Result<View> {
    let dims = ordered.dims().iter();
    let dims = dims.map(|dim| Dim { size: dim.size as u64, stride: dim.stride });
    View::new(ordered.address, dims).ok_or_else(unplanned)
}

fn require_aligned(tensor: &Tensor, dtype: Dtype) -> Result<()> {
    if tensor.address.is_multiple_of(dtype.bytes()) {
        return Ok(());
    }
    Err(Error::Invalid("the address of a tensor's elements must be a multiple of their size"))
}

/// The complex tensor as one of real numbers, with a last dimension of 2.
fn parts_of(tensor: &Tensor) -> Result<Tensor> {
    let ndim = tensor.shape().len();
    if ndim >= MAX_DIMS {
        return Err(Error::Invalid("a tensor of complex numbers has 63 dimensions at most here"));
    }
    let (mut shape, mut strides) = ([2; MAX_DIMS], [1; MAX_DIMS]);
    shape[..ndim].copy_from_slice(tensor.shape());
    for (to, stride) in strides.iter_mut().zip(tensor.strides()) {
        *to = stride.saturating_mul(2);
    }
    Tensor::new(Parts {
        data: tensor.address,
        byte_offset: 0,
        place: tensor.place,
        dtype: tensor::Dtype::new(dtype::code::FLOAT, tensor.dtype.bits / 2),
        shape: &shape[..=ndim],
        strides: Some(&strides[..=ndim]),
    })
}

#[cfg(test)]
#[path = "fill_tests.rs"]
mod tests;
