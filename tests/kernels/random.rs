//! The random kernels, beside PyTorch's definition of each element: which words of which Philox
//! block it gets, and what becomes of them. Approximate functions may be off by the errors that
//! CUDA's and PTX's documents allow.

use super::machine::{CANARY, bytes_of, program, run};
use super::oracle::{Draw, probability_bits};
use super::philox;
use std::collections::BTreeMap;
use std::ffi::CStr;
use tcuda::random::plan::{
    Dim, Distribution, Dtype, EACH, Geometry, Image, Launch, Philox, View, plan,
};
use tcuda_sim::host::HostMachine;

/// The words of an element of PyTorch's launch, and which of the block's elements it is.
fn words_of(draw: &Draw, case: &Case<'_>, numel: u64, li: u64) -> ([u32; 4], usize) {
    let Philox { seed, offset, .. } = case.philox;
    if *draw.distribution == Distribution::BernoulliTensor {
        return (philox::block(seed, li / 4, offset / 4), li as usize % 4);
    }
    let Geometry { multiprocessors, threads_per_multiprocessor, .. } = case.geometry;
    let most = u64::from(multiprocessors * (threads_per_multiprocessor / 256));
    let threads = 256 * most.min(numel.div_ceil(256));
    let (wave, rest) = (li / (threads * draw.per_block()), li % (threads * draw.per_block()));
    (philox::block(seed, rest % threads, offset / 4 + wave), (rest / threads) as usize)
}

/// The place of an element, in elements.
fn place(dims: &[Dim], li: u64) -> usize {
    let (mut at, mut rest) = (0, li);
    for dim in dims {
        at += (rest % dim.size) * dim.stride as u64;
        rest /= dim.size;
    }
    at as usize
}

/// The elements from the first to the last place.
fn reach(dims: &[Dim]) -> usize {
    1 + dims.iter().map(|dim| (dim.size - 1) * dim.stride as u64).sum::<u64>() as usize
}

fn launch(machine: &mut HostMachine, launch: &Launch) {
    let text = || {
        let text = launch.image.ptx().unwrap();
        CStr::from_bytes_with_nul(&text).unwrap().to_str().unwrap().to_owned()
    };
    let program = program(&format!("{:?}", launch.image), text);
    let (name, parameters) = (launch.kernel.to_str().unwrap(), bytes_of(launch.parameters.words()));
    run(machine, program, name, [launch.grid, launch.block], &parameters);
}

/// A tensor of probabilities.
#[derive(Clone, Copy)]
struct Probabilities<'a> {
    dtype: Dtype,
    dims: &'a [Dim],
}

/// The probability at a place of the tensor.
fn probability(at: u64) -> f64 {
    ((at + 1) * 37 % 101) as f64 / 100.0
}

/// A fill. `dims` are those of the tensor, the fastest first.
#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    distribution: &'a Distribution,
    dtype: Dtype,
    dims: &'a [Dim],
    misaligned: u64,
    philox: Philox,
    geometry: Geometry,
}

impl Case<'_> {
    /// Checks a fill; the elements' bytes in the order of their numbers, or `None` if PyTorch has
    /// no such fill.
    fn check(&self) -> Option<Vec<u8>> {
        self.check_with(None)
    }

    fn check_with(&self, p: Option<Probabilities<'_>>) -> Option<Vec<u8>> {
        let bytes = self.dtype.bytes() as usize;
        let mut machine = HostMachine::default();
        let first = 32 + self.misaligned as usize * bytes;
        let fresh = vec![CANARY; first + reach(self.dims) * bytes + 64];
        let buffer = machine.add(&fresh);
        let view = View::new(buffer + first as u64, self.dims.iter().copied()).unwrap();
        let p_view = p.map(|Probabilities { dtype, dims }| {
            let values = (0..reach(dims) as u64).flat_map(|at| {
                let bits = probability_bits(dtype, probability(at));
                bits.to_le_bytes().into_iter().take(dtype.bytes() as usize)
            });
            let buffer = machine.add(&values.collect::<Vec<u8>>());
            (View::new(buffer, dims.iter().copied()).unwrap(), dtype)
        });
        let p_view = p_view.as_ref().map(|(view, dtype)| (view, *dtype));
        let planned =
            plan(self.distribution, self.dtype, &view, p_view, &self.philox, &self.geometry)?;
        launch(&mut machine, &planned);

        let found = machine.get(buffer);
        let draw = Draw { distribution: self.distribution, dtype: self.dtype };
        let mut elements = Vec::new();
        let mut untouched = vec![true; found.len()];
        let numel = view.numel();
        for li in 0..numel {
            let at = first + place(self.dims, li) * bytes;
            let element = &found[at..at + bytes];
            let (words, index) = words_of(&draw, self, numel, li);
            let expected = match p {
                Some(Probabilities { dtype, dims }) => {
                    let bits = probability_bits(dtype, probability(place(dims, li) as u64));
                    draw.with_probability(words[index], dtype, bits)
                }
                None => draw.element(words, index),
            };
            assert!(
                expected.is(self.dtype, element),
                "element {li} is {element:x?}, not {expected:x?}; {self:?}"
            );
            untouched[at..at + bytes].fill(false);
            elements.extend_from_slice(element);
        }
        let wrong = (0..found.len()).find(|at| untouched[*at] && found[*at] != CANARY);
        assert_eq!(wrong, None, "{self:?}");
        Some(elements)
    }
}

const SMALL: Geometry =
    Geometry { multiprocessors: 2, threads_per_multiprocessor: 512, major: 9, minor: 0 };

fn flat(numel: u64) -> [Dim; 1] {
    [Dim { size: numel, stride: 1 }]
}

fn distributions() -> Vec<Distribution> {
    use Distribution::*;
    vec![
        Uniform { low: 0.0, high: 1.0 },
        Uniform { low: -3.5, high: 17.25 },
        Uniform { low: 2.0, high: 2.0 },
        Normal { mean: 0.0, stddev: 1.0 },
        Normal { mean: -2.0, stddev: 1e-3 },
        Integers { base: 0, range: 100 },
        Integers { base: -5, range: 10 },
        Integers { base: -1, range: 3 },
        Integers { base: -7, range: 1 },
        Integers { base: 0, range: (1 << 28) - 1 },
        Integers { base: -(1 << 27), range: 1 << 28 },
        Integers { base: i64::MIN, range: u64::MAX },
        Integers { base: 17, range: 1 << 40 },
        IntegersFull,
        IntegersAll,
        Bernoulli { p: 0.0 },
        Bernoulli { p: 0.3 },
        Bernoulli { p: 1.0 },
        Exponential { rate: 1.0 },
        Exponential { rate: 3e-3 },
        LogNormal { mean: 1.0, stddev: 0.25 },
        Cauchy { median: 0.5, sigma: 2.0 },
        Geometric { p: 0.3 },
        Geometric { p: 1e-3 },
    ]
}

#[test]
fn every_kernel_draws_what_pytorch_does() {
    let mut filled = 0;
    // With the last two the number of a block is carried, in the middle, into its high word or
    // lost.
    let offsets = [0, 4, 1 << 33, (1 << 34) - 4, u64::MAX - 3];
    for (turn, distribution) in distributions().into_iter().enumerate() {
        for dtype in Dtype::ALL {
            for (round, numel) in [3, 1023, 5001].into_iter().enumerate() {
                let round = round + 3 * turn;
                let philox = Philox {
                    seed: 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(round as u64 + 1),
                    offset: offsets[round % offsets.len()],
                    ..Philox::default()
                };
                let case = Case {
                    distribution: &distribution,
                    dtype,
                    dims: &flat(numel),
                    misaligned: round as u64 % 4,
                    philox,
                    geometry: SMALL,
                };
                filled += u32::from(case.check().is_some());
            }
        }
    }
    assert!(filled > 450, "{filled}");
}

#[test]
fn every_start_and_length() {
    let uniform = Distribution::Uniform { low: 0.0, high: 1.0 };
    let integers = Distribution::Integers { base: 0, range: 256 };
    let geometry = Geometry { multiprocessors: 1, threads_per_multiprocessor: 256, ..SMALL };
    let fills = [
        (uniform, Dtype::F32),
        (uniform, Dtype::BF16),
        (uniform, Dtype::F64),
        (integers, Dtype::U8),
        (integers, Dtype::I64),
    ];
    for (distribution, dtype) in &fills {
        for misaligned in 0..4 {
            for numel in (1..20).chain(250..262).chain(1018..1030).chain(2040..2052) {
                let philox = Philox { seed: numel, offset: 4 * misaligned, ..Philox::default() };
                let dims = &flat(numel);
                let (distribution, dtype) = (distribution, *dtype);
                let case = Case { distribution, dtype, dims, misaligned, philox, geometry };
                assert!(case.check().is_some());
            }
        }
    }
}

#[test]
fn many_launches_share_the_work() {
    // Streams shared by many threads, and by none.
    let distribution = &Distribution::Normal { mean: 0.0, stddev: 1.0 };
    for multiprocessors in [1, 3, 7, 40] {
        let geometry = Geometry { multiprocessors, threads_per_multiprocessor: 1536, ..SMALL };
        for numel in [20_000, 70_003] {
            let philox = Philox { seed: 3, offset: (1 << 34) - 12, ..Philox::default() };
            let (dims, dtype) = (&flat(numel), Dtype::F32);
            let case = Case { distribution, dtype, dims, misaligned: 1, philox, geometry };
            assert!(case.check().is_some());
        }
    }
}

#[test]
fn tensors_with_gaps_have_the_same_elements() {
    let dim = |size, stride| Dim { size, stride };
    let shapes: [&[Dim]; 5] = [
        &[dim(1000, 3)],
        &[dim(33, 2), dim(41, 70)],
        &[dim(7, 40), dim(5, 280), dim(9, 3)],
        &[dim(2, 64), dim(2, 32), dim(2, 16), dim(2, 8), dim(2, 4), dim(2, 2), dim(2, 1)],
        &[dim(3000, 1), dim(2, 3001)],
    ];
    let philox = Philox { seed: 99, offset: (1 << 34) - 4, ..Philox::default() };
    let mut compared = 0;
    for (turn, distribution) in distributions().iter().enumerate() {
        for dtype in Dtype::ALL {
            for dims in [shapes[turn % 5], shapes[(turn + 2) % 5]] {
                let case =
                    Case { distribution, dtype, dims, misaligned: 1, philox, geometry: SMALL };
                let numel = dims.iter().map(|dim| dim.size).product();
                let plain = Case { dims: &flat(numel), ..case };
                assert_eq!(case.check(), plain.check());
                compared += 1;
            }
        }
    }
    assert!(compared > 300);
}

#[test]
fn seed_and_offset_are_read_where_they_are() {
    let distribution = Distribution::Uniform { low: 0.0, high: 1.0 };
    let filled = |is_there: bool, dims: &[Dim]| {
        let mut machine = HostMachine::default();
        let buffer = machine.add(&vec![CANARY; 4096 * 8]);
        let words = machine.add(&bytes_of(&[42, 1 << 20]));
        let philox = match is_there {
            true => Philox { seed: 7, offset: 12, seed_ptr: words, offset_ptr: words + 8 },
            false => Philox { seed: 42, offset: (1 << 20) + 12, ..Philox::default() },
        };
        let view = View::new(buffer, dims.iter().copied()).unwrap();
        let planned = plan(&distribution, Dtype::F32, &view, None, &philox, &SMALL).unwrap();
        launch(&mut machine, &planned);
        machine.get(buffer)
    };
    for dims in [flat(4000), [Dim { size: 4000, stride: 2 }]] {
        assert!(filled(true, &dims) == filled(false, &dims));
    }
}

#[test]
fn a_probability_for_each_element() {
    let dim = |size, stride| Dim { size, stride };
    // What is written and what is read, of as many elements.
    let shapes: [(&[Dim], &[Dim]); 6] = [
        (&[dim(1, 1)], &[dim(1, 1)]),
        (&[dim(9, 1)], &[dim(9, 1)]),
        (&[dim(4099, 1)], &[dim(4099, 1)]),
        (&[dim(4099, 1)], &[dim(4099, 0)]),
        (&[dim(50, 3), dim(20, 151)], &[dim(1000, 1)]),
        (&[dim(50, 3), dim(20, 151)], &[dim(50, 0), dim(20, 2)]),
    ];
    let mut filled = 0;
    for dtype in Dtype::ALL {
        for p_dtype in [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::BF16] {
            for (round, (dims, p_dims)) in shapes.iter().enumerate() {
                let misaligned = round as u64 % 3;
                let philox = Philox { seed: 5, offset: 4 << round, ..Philox::default() };
                let distribution = &Distribution::BernoulliTensor;
                let case = Case { distribution, dtype, dims, misaligned, philox, geometry: SMALL };
                let p = Probabilities { dtype: p_dtype, dims: p_dims };
                filled += u32::from(case.check_with(Some(p)).is_some());
            }
        }
    }
    assert_eq!(filled, 10 * 4 * shapes.len() as u32);
}

/// The kernels that plans name, with the sizes of their parameters.
fn planned_kernels() -> BTreeMap<&'static str, &'static [usize]> {
    let each = View::flat(1 << 40, 8);
    let strided = View::new(1 << 40, [Dim { size: 8, stride: 2 }]).unwrap();
    let philox = Philox::default();
    let mut kernels = BTreeMap::new();
    let mut add = |launch: Option<Launch>| {
        if let Some(launch) = launch {
            kernels.insert(launch.kernel.to_str().unwrap(), launch.parameters.sizes());
        }
    };
    for dtype in Dtype::ALL {
        for distribution in distributions() {
            for view in [&each, &strided] {
                add(plan(&distribution, dtype, view, None, &philox, &SMALL));
            }
        }
        let p = Some((&each, Dtype::F32));
        add(plan(&Distribution::BernoulliTensor, dtype, &each, p, &philox, &SMALL));
    }
    kernels
}

#[test]
fn the_images_declare_the_kernels_as_described() {
    let mut declared = BTreeMap::new();
    for image in Image::ALL {
        let text = image.ptx().unwrap();
        let text = CStr::from_bytes_with_nul(&text).unwrap().to_str().unwrap();
        assert!(text.starts_with(".version 7.8\n.target sm_52\n"));
        for part in text.split(".entry ").skip(1) {
            let (name, rest) = part.split_once('(').unwrap();
            let parameters = rest.split_once(')').unwrap().0;
            let size = |line: &str| match line.split_once('[') {
                Some((_, rest)) => rest.split_once(']').unwrap().0.parse().unwrap(),
                None => 8,
            };
            let sizes: Vec<usize> = parameters
                .lines()
                .filter(|line| line.trim_start().starts_with(".param"))
                .map(size)
                .collect();
            assert!(rest.contains(".maxntid 256, 1, 1"), "{name}");
            declared.insert(name.to_owned(), sizes);
        }
    }
    let named = planned_kernels();
    assert!(named.values().all(|sizes| sizes.iter().all(|size| size % 8 == 0)));
    assert_eq!(named["tcuda_random_bernoulli_each_b8"], EACH);
    let named: BTreeMap<String, Vec<usize>> =
        named.into_iter().map(|(name, sizes)| (name.to_owned(), sizes.to_vec())).collect();
    assert_eq!(declared, named);
}
