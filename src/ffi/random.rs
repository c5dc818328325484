//! Section "Random numbers" of the header: filling tensors.

use super::boundary::boundary;
use super::generator::{GENERATORS, tcuda_generator};
use super::status::tcuda_status;
use super::stream::{optional, tcuda_stream};
use super::tensor::{read_view, read_writable, tcuda_tensor};
use crate::base::error::Result;
use crate::random::check;
use crate::random::fill::Fill;
use crate::random::plan::{Distribution, Dtype};
use crate::tensor::Tensor;

/// Runs `body` on what a call fills.
fn with_fill(
    tensor: *const tcuda_tensor,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
    operation: &'static str,
    body: impl FnOnce(&Fill<'_>, &super::boundary::Call) -> Result<()>,
) -> tcuda_status {
    boundary(|call| {
        let mut written = Tensor::none();
        read_writable(&mut written, tensor, "tensor")?;
        let generator = match generator.is_null() {
            true => None,
            false => Some(GENERATORS.get(generator as usize, "generator", call)?.generator()),
        };
        let stream = optional(stream, call)?;
        body(&Fill { tensor: &written, generator, stream, operation }, call)
    })
}

/// Fills with numbers of a distribution.
fn fill(
    tensor: *const tcuda_tensor,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
    operation: &'static str,
    distribution: impl FnOnce(Dtype, bool) -> Result<Distribution>,
) -> tcuda_status {
    with_fill(tensor, generator, stream, operation, |fill, call| {
        fill.run(call.gpus()?, distribution)
    })
}

/// Fills a tensor with numbers that are uniform in [low, high). The bits of this and the next
/// functions equal those of torch 2.11 on the same device, and so does the generator's state
/// afterwards. Work is queued, in order with what `stream` holds. A tensor without elements:
/// nothing, and the generator is unchanged. Floats, bfloat16, and complex numbers, whose parts are
/// filled. (Tensor.uniform_)
///
/// @param tensor     of any strides that keep its elements apart, and of a type that torch can fill
///                   so, or TCUDA_STATUS_INVALID_ARGUMENT
/// @param low, high  numbers that the type can hold; so must be their difference
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one. While it is captured, the
///                   generator must be registered with the graph, whose replays draw new numbers
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_uniform(
    tensor: *const tcuda_tensor,
    low: f64,
    high: f64,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_uniform", |dtype, _| {
        check::uniform(dtype, low, high)
    })
}

/// Normal numbers: floats, bfloat16, and complex numbers, whose parts have half of the variance
/// each. (Tensor.normal_)
///
/// @param tensor     written; as for tcuda_random_uniform
/// @param mean       any number
/// @param stddev     not negative
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_normal(
    tensor: *const tcuda_tensor,
    mean: f64,
    stddev: f64,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_normal", |_, is_complex| {
        check::normal(mean, stddev, is_complex)
    })
}

/// Integers in [low, high): any integers, floats and bool. (Tensor.random_(low, high), randint)
///
/// @param tensor     written; as for tcuda_random_uniform
/// @param low, high  numbers that the type has; bounds of floats are narrowed so that no number is
///                   rounded past them
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_integers(
    tensor: *const tcuda_tensor,
    low: i64,
    high: i64,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_integers", |dtype, _| {
        check::integers(dtype, low, high)
    })
}

/// Integers from `low` to the largest that the type has, inclusive, which no `high` could express
/// for int64; of floats to 2 to the power of their digits. (Tensor.random_(low, None))
///
/// @param tensor     written; as for tcuda_random_uniform
/// @param low        INT64_MIN: all numbers of 64 bits; int64, float64, float32 and bfloat16 only
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_integers_from(
    tensor: *const tcuda_tensor,
    low: i64,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_integers_from", |dtype, _| {
        check::integers_from(dtype, low)
    })
}

/// Integers from 0 to the largest that the type has; of floats to 2 to the power of their digits.
/// It is a function of its own because torch draws other bits for it than for the same range with
/// bounds. (Tensor.random_())
///
/// @param tensor     written; as for tcuda_random_uniform
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_integers_all(
    tensor: *const tcuda_tensor,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_integers_all", |_, _| {
        Ok(Distribution::IntegersAll)
    })
}

/// 1 with probability p, else 0: integers, floats and bool. (Tensor.bernoulli_)
///
/// @param tensor     written; as for tcuda_random_uniform
/// @param p          0 to 1
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_bernoulli(
    tensor: *const tcuda_tensor,
    p: f64,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_bernoulli", |_, _| check::bernoulli(p))
}

/// tcuda_random_bernoulli with a probability for each element. Invalid probabilities, which torch
/// refuses while it runs, count as 0 below 0 or where they are NaN, and as 1 above 1.
/// (torch.Tensor.bernoulli_ with a tensor)
///
/// @param tensor     written; as for tcuda_random_uniform
/// @param p          floats or bfloat16 on the same device and of the same shape; strides of 0
///                   repeat, as those of Tensor.expand
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_bernoulli_tensor(
    tensor: *const tcuda_tensor,
    p: *const tcuda_tensor,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    let operation = "tcuda_random_bernoulli_tensor";
    with_fill(tensor, generator, stream, operation, |fill, call| {
        let mut chances = Tensor::none();
        read_view(&mut chances, p, "p")?;
        fill.bernoulli(call.gpus()?, &chances)
    })
}

/// Exponential numbers: floats and bfloat16. (Tensor.exponential_)
///
/// @param tensor     written; as for tcuda_random_uniform
/// @param rate       above 0: torch's lambd
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_exponential(
    tensor: *const tcuda_tensor,
    rate: f64,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_exponential", |_, _| check::exponential(rate))
}

/// Log-normal numbers: floats and bfloat16. (Tensor.log_normal_)
///
/// @param tensor        written; as for tcuda_random_uniform
/// @param mean, stddev  of the logarithm; stddev above 0
/// @param generator     of the tensor's device; NULL: its default one
/// @param stream        of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_log_normal(
    tensor: *const tcuda_tensor,
    mean: f64,
    stddev: f64,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_log_normal", |_, _| {
        check::log_normal(mean, stddev)
    })
}

/// Cauchy's numbers: floats and bfloat16. (Tensor.cauchy_)
///
/// @param tensor     written; as for tcuda_random_uniform
/// @param median     any number
/// @param sigma      above 0: half of the range between the quartiles
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_cauchy(
    tensor: *const tcuda_tensor,
    median: f64,
    sigma: f64,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_cauchy", |_, _| check::cauchy(median, sigma))
}

/// Number of trials up to the first success: floats, bfloat16, signed integers and uint8.
/// (Tensor.geometric_)
///
/// @param tensor     written; as for tcuda_random_uniform
/// @param p          of a success, above 0 and below 1
/// @param generator  of the tensor's device; NULL: its default one
/// @param stream     of the tensor's device; NULL: its current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_geometric(
    tensor: *const tcuda_tensor,
    p: f64,
    generator: *mut tcuda_generator,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    fill(tensor, generator, stream, "tcuda_random_geometric", |_, _| check::geometric(p))
}
