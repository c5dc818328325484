//! Filling tensors with random numbers.

use super::tensor::{View, may_be_wrong};
use crate::expect::{Expect, status};
use crate::input::Input;
use crate::status_of;
use crate::world::World;
use tcuda::ffi::generator::tcuda_generator;
use tcuda::ffi::random::*;
use tcuda::ffi::stream::tcuda_stream;
use tcuda::ffi::tensor::tcuda_tensor;

/// Parameters of distributions.
const NUMBERS: [f64; 10] = [0.0, 1.0, 0.5, -1.0, 2.0, 1e-300, 1e300, f64::NAN, f64::INFINITY, -0.0];
/// Bounds.
const BOUNDS: [i64; 10] = [0, 1, 2, 100, -5, 1 << 30, 1 << 40, i64::MIN, i64::MAX, 256];

type Stream = *mut tcuda_stream;

/// Fills a tensor by a function.
fn fill(
    w: &mut World,
    i: &mut Input,
    call: impl FnOnce(&mut Input, *const tcuda_tensor, *mut tcuda_generator, Stream) -> i32,
) {
    let mut e = Expect::default();
    let view = View::choose(w, i);
    let is_null = i.rarely(16);
    let ptr = if is_null { std::ptr::null() } else { &raw const view.tensor };
    let (generator, stream) = (w.generator(i, &mut e), w.stream(i, &mut e));
    if is_null {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if !e.wrong.is_empty() {
        // The tensor may be what is refused.
        let wrong = [status::INVALID_ARGUMENT, status::INVALID_POINTER, status::INVALID_DEVICE];
        wrong.iter().for_each(|status| e.wrong(*status));
    }
    may_be_wrong(&mut e);
    let status = call(i, ptr, generator, stream);
    w.judge(status, &e);
    // Written, or not.
    w.forget_contents();
}

pub(super) fn uniform(w: &mut World, i: &mut Input) {
    fill(w, i, |i, tensor, generator, stream| {
        let (low, high) = (i.one_of(&NUMBERS), i.one_of(&NUMBERS));
        status_of!(tcuda_random_uniform(tensor, low, high, generator, stream))
    });
}

pub(super) fn normal(w: &mut World, i: &mut Input) {
    fill(w, i, |i, tensor, generator, stream| {
        let (mean, stddev) = (i.one_of(&NUMBERS), i.one_of(&NUMBERS));
        status_of!(tcuda_random_normal(tensor, mean, stddev, generator, stream))
    });
}

pub(super) fn integers(w: &mut World, i: &mut Input) {
    fill(w, i, |i, tensor, generator, stream| {
        let (low, high) = (i.one_of(&BOUNDS), i.one_of(&BOUNDS));
        status_of!(tcuda_random_integers(tensor, low, high, generator, stream))
    });
}

pub(super) fn integers_from(w: &mut World, i: &mut Input) {
    fill(w, i, |i, tensor, generator, stream| {
        let low = i.one_of(&BOUNDS);
        status_of!(tcuda_random_integers_from(tensor, low, generator, stream))
    });
}

pub(super) fn integers_all(w: &mut World, i: &mut Input) {
    fill(w, i, |_, tensor, generator, stream| {
        status_of!(tcuda_random_integers_all(tensor, generator, stream))
    });
}

pub(super) fn bernoulli(w: &mut World, i: &mut Input) {
    fill(w, i, |i, tensor, generator, stream| {
        let p = i.one_of(&NUMBERS);
        status_of!(tcuda_random_bernoulli(tensor, p, generator, stream))
    });
}

pub(super) fn bernoulli_tensor(w: &mut World, i: &mut Input) {
    let p = View::choose(w, i);
    fill(w, i, |i, tensor, generator, stream| {
        // Often the tensor itself, which has the same shape.
        let other = if i.u8() < 128 { tensor } else { &raw const p.tensor };
        status_of!(tcuda_random_bernoulli_tensor(tensor, other, generator, stream))
    });
}

pub(super) fn exponential(w: &mut World, i: &mut Input) {
    fill(w, i, |i, tensor, generator, stream| {
        let rate = i.one_of(&NUMBERS);
        status_of!(tcuda_random_exponential(tensor, rate, generator, stream))
    });
}

pub(super) fn log_normal(w: &mut World, i: &mut Input) {
    fill(w, i, |i, tensor, generator, stream| {
        let (mean, stddev) = (i.one_of(&NUMBERS), i.one_of(&NUMBERS));
        status_of!(tcuda_random_log_normal(tensor, mean, stddev, generator, stream))
    });
}

pub(super) fn cauchy(w: &mut World, i: &mut Input) {
    fill(w, i, |i, tensor, generator, stream| {
        let (median, sigma) = (i.one_of(&NUMBERS), i.one_of(&NUMBERS));
        status_of!(tcuda_random_cauchy(tensor, median, sigma, generator, stream))
    });
}

pub(super) fn geometric(w: &mut World, i: &mut Input) {
    fill(w, i, |i, tensor, generator, stream| {
        let p = i.one_of(&NUMBERS);
        status_of!(tcuda_random_geometric(tensor, p, generator, stream))
    });
}
