//! The random kernels' source on the CPU beside the Rust functions of the simulated machine: two
//! mappings of threads to elements, written twice, that have to agree in every byte.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use tcuda::random::kernels::{self, Call, Memory};
use tcuda::random::plan::{
    Dim, Distribution, Dtype, EACH, FLAT, Geometry, Image, Launch, Philox, STRIDED, View, plan,
};

type Run = unsafe extern "C" fn(*const c_char, u32, u32, *mut *mut c_void) -> bool;

fn on_cpu() -> Run {
    // Compiled once, for all tests.
    static RUN: OnceLock<Run> = OnceLock::new();
    *RUN.get_or_init(|| {
        let address = super::function("random_on_cpu.cc", c"random_on_cpu");
        // SAFETY: the function has this signature.
        unsafe { std::mem::transmute::<*mut c_void, Run>(address) }
    })
}

const CANARY: u8 = 0xee;

/// Memory at the addresses of another, and how often each byte was written.
struct Copy {
    start: u64,
    bytes: RefCell<Vec<u8>>,
    writes: RefCell<Vec<u8>>,
    /// What is only read.
    input: (u64, Vec<u8>),
}

impl Memory for Copy {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), i32> {
        let at = (address - self.input.0) as usize;
        bytes.copy_from_slice(&self.input.1[at..at + bytes.len()]);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), i32> {
        let at = (address - self.start) as usize;
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        for count in &mut self.writes.borrow_mut()[at..at + bytes.len()] {
            *count += 1;
        }
        Ok(())
    }
}

/// A tensor in the middle of memory that must not change.
struct Target {
    bytes: Vec<u8>,
    first: usize,
}

impl Target {
    /// With its first element `misaligned` bytes after a 16-byte boundary.
    fn new(reach: usize, misaligned: usize) -> Target {
        let bytes = vec![CANARY; reach + misaligned + 128];
        let first = bytes.as_ptr().align_offset(16) + 32 + misaligned;
        Target { bytes, first }
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64 + self.first as u64
    }
}

/// Runs a launch both ways; what each wrote, from the first byte of the memory on.
fn both(run: Run, target: &mut Target, launch: &mut Launch, input: (u64, Vec<u8>)) -> [Vec<u8>; 3] {
    let name = launch.kernel.to_str().unwrap();
    let (sizes, body) = kernels::find(name).unwrap();
    assert_eq!(sizes, launch.parameters.sizes());
    let start = target.bytes.as_ptr() as u64;
    let fresh = vec![CANARY; target.bytes.len()];
    let writes = vec![0; target.bytes.len()];
    let copy = Copy { start, bytes: fresh.into(), writes: writes.into(), input };
    body(&Call { words: launch.parameters.words(), memory: &copy }).unwrap();
    let mut pointers = launch.parameters.pointers();
    // SAFETY: the parameters lead to the buffers, which are as large as they say.
    let known =
        unsafe { run(launch.kernel.as_ptr(), launch.grid, launch.block, pointers.as_mut_ptr()) };
    assert!(known, "{name}");
    [std::mem::take(&mut target.bytes), copy.bytes.into_inner(), copy.writes.into_inner()]
}

/// Nearly equal: what differs in a few last places, or in little.
fn close(dtype: Dtype, a: &[u8], b: &[u8]) -> bool {
    let near = |a: f64, b: f64, epsilon: f64| {
        a == b || (a - b).abs() <= 2e-6 || (a - b).abs() <= 8.0 * epsilon * a.abs()
    };
    match dtype {
        Dtype::F32 => {
            let value = |x: &[u8]| f64::from(f32::from_le_bytes(x.try_into().unwrap()));
            near(value(a), value(b), f64::from(f32::EPSILON))
        }
        Dtype::F64 => {
            let value = |x: &[u8]| f64::from_le_bytes(x.try_into().unwrap());
            near(value(a), value(b), f64::EPSILON)
        }
        Dtype::F16 | Dtype::BF16 => {
            // Their values follow each other as their bits do.
            let bits = |x: &[u8]| i32::from(u16::from_le_bytes(x.try_into().unwrap()));
            (bits(a) - bits(b)).abs() <= 1
        }
        _ => a == b,
    }
}

fn is_exact(distribution: &Distribution) -> bool {
    use Distribution::*;
    let exact = matches!(distribution, Uniform { .. } | Integers { .. } | IntegersFull);
    exact || matches!(distribution, IntegersAll | Bernoulli { .. } | BernoulliTensor)
}

/// Checks one fill; `dims` are what the tensor is made of, the fastest first. Returns the elements'
/// bytes in the order of their numbers.
struct Case<'a> {
    distribution: &'a Distribution,
    dtype: Dtype,
    dims: &'a [Dim],
    misaligned: u64,
    philox: Philox,
    geometry: Geometry,
}

impl Case<'_> {
    fn check(&self, run: Run) -> Option<Vec<u8>> {
        let bytes = self.dtype.bytes();
        let reach: u64 = self.dims.iter().map(|dim| (dim.size - 1) * dim.stride as u64).sum();
        let mut target =
            Target::new(((reach + 1) * bytes) as usize, (self.misaligned * bytes) as usize);
        let view = View::new(target.address(), self.dims.iter().copied()).unwrap();
        let mut launch =
            plan(self.distribution, self.dtype, &view, None, &self.philox, &self.geometry)?;
        let [cpu, rust, writes] = both(run, &mut target, &mut launch, (0, Vec::new()));
        self.compare(&target, &cpu, &rust, &writes, view.numel())
    }

    fn compare(
        &self,
        target: &Target,
        cpu: &[u8],
        rust: &[u8],
        writes: &[u8],
        numel: u64,
    ) -> Option<Vec<u8>> {
        let bytes = self.dtype.bytes() as usize;
        let case = (self.distribution, self.dtype, self.dims, self.misaligned, self.philox);
        let mut elements = Vec::new();
        let mut untouched = vec![true; cpu.len()];
        for li in 0..numel {
            let (mut at, mut rest) = (target.first, li);
            for dim in self.dims {
                at += (rest % dim.size) as usize * dim.stride as usize * bytes;
                rest /= dim.size;
            }
            let range = at..at + bytes;
            let (a, b) = (&cpu[range.clone()], &rust[range.clone()]);
            let same = a == b || !is_exact(self.distribution) && close(self.dtype, a, b);
            assert!(same, "element {li}: {a:x?} on the CPU, {b:x?} in Rust; {case:?}");
            assert!(writes[range.clone()].iter().all(|count| *count == 1), "{li}; {case:?}");
            untouched[range].fill(false);
            elements.extend_from_slice(a);
        }
        for (at, untouched) in untouched.iter().enumerate() {
            if *untouched {
                assert_eq!((cpu[at], rust[at]), (CANARY, CANARY), "byte {at}; {case:?}");
            }
        }
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
fn every_kernel_on_the_cpu_and_in_rust() {
    let run = on_cpu();
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
                filled += u32::from(case.check(run).is_some());
            }
        }
    }
    assert!(filled > 450, "{filled}");
}

#[test]
fn every_start_and_length() {
    let run = on_cpu();
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
                assert!(case.check(run).is_some());
            }
        }
    }
}

#[test]
fn many_launches_share_the_work() {
    // Streams shared by many threads, and by none.
    let run = on_cpu();
    let distribution = &Distribution::Normal { mean: 0.0, stddev: 1.0 };
    for multiprocessors in [1, 3, 7, 40] {
        let geometry = Geometry { multiprocessors, threads_per_multiprocessor: 1536, ..SMALL };
        for numel in [20_000, 70_003] {
            let philox = Philox { seed: 3, offset: (1 << 34) - 12, ..Philox::default() };
            let (dims, dtype) = (&flat(numel), Dtype::F32);
            let case = Case { distribution, dtype, dims, misaligned: 1, philox, geometry };
            assert!(case.check(run).is_some());
        }
    }
}

#[test]
fn tensors_with_gaps_have_the_same_elements() {
    let run = on_cpu();
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
                assert_eq!(case.check(run), plain.check(run));
                compared += 1;
            }
        }
    }
    assert!(compared > 300);
}

#[test]
fn seed_and_offset_are_read_where_they_are() {
    let run = on_cpu();
    let words = [42u64, 1 << 20];
    let address = words.as_ptr() as u64;
    let distribution = Distribution::Uniform { low: 0.0, high: 1.0 };
    let filled = |philox: &Philox, dims: &[Dim]| {
        let mut target = Target::new(4096 * 8, 0);
        let view = View::new(target.address(), dims.iter().copied()).unwrap();
        let mut launch = plan(&distribution, Dtype::F32, &view, None, philox, &SMALL).unwrap();
        let input = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let first = target.first;
        let [cpu, rust, _] = both(run, &mut target, &mut launch, (address, input));
        assert!(cpu == rust);
        cpu[first..].to_vec()
    };
    for dims in [flat(4000), [Dim { size: 4000, stride: 2 }]] {
        let there = Philox { seed: 7, offset: 12, seed_ptr: address, offset_ptr: address + 8 };
        let here = Philox { seed: 42, offset: (1 << 20) + 12, ..Philox::default() };
        assert!(filled(&there, &dims) == filled(&here, &dims));
    }
}

/// Probabilities of each element, as their bytes.
fn probabilities(dtype: Dtype, count: u64) -> Vec<u8> {
    let value = |index: u64| (index * 37 % 101) as f64 / 100.0;
    let bits = |p: f64| match dtype {
        Dtype::F32 => (p as f32).to_bits().into(),
        Dtype::F16 => tcuda::random::number::half_of(p as f32).into(),
        Dtype::BF16 => tcuda::random::number::bfloat_of(p as f32).into(),
        _ => p.to_bits(),
    };
    let bytes = dtype.bytes() as usize;
    (0..count).flat_map(|index| bits(value(index)).to_le_bytes()[..bytes].to_vec()).collect()
}

#[test]
fn a_probability_for_each_element() {
    let run = on_cpu();
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
                let bytes = dtype.bytes();
                let mut target = Target::new(5000 * bytes as usize, (misaligned * bytes) as usize);
                let view = View::new(target.address(), dims.iter().copied()).unwrap();
                let p = probabilities(p_dtype, 5000);
                // As aligned as what it is of.
                let input: Vec<u64> = vec![0; p.len().div_ceil(8)];
                let address = input.as_ptr() as u64;
                // SAFETY: as long; nothing else uses it.
                unsafe { std::ptr::copy(p.as_ptr(), address as *mut u8, p.len()) };
                let p_view = View::new(address, p_dims.iter().copied()).unwrap();
                let p_of = Some((&p_view, p_dtype));
                let launch = plan(distribution, dtype, &view, p_of, &philox, &SMALL);
                let Some(mut launch) = launch else { continue };
                let [cpu, rust, writes] = both(run, &mut target, &mut launch, (address, p));
                case.compare(&target, &cpu, &rust, &writes, view.numel());
                filled += 1;
            }
        }
    }
    assert_eq!(filled, 10 * 4 * shapes.len());
}

#[test]
fn the_images_declare_the_kernels_as_described() {
    let mut declared = 0;
    for image in Image::ALL {
        let text = image.ptx().unwrap();
        let text = CStr::from_bytes_with_nul(&text).unwrap().to_str().unwrap();
        assert!(text.starts_with(".version 7.8\n.target sm_52\n"));
        for part in text.split(".entry ").skip(1) {
            let (name, rest) = part.split_once('(').unwrap();
            let (sizes, _) = kernels::find(name).unwrap_or_else(|| panic!("{name}"));
            let parameters = rest.split_once(')').unwrap().0;
            let size = |line: &str| match line.split_once('[') {
                Some((_, rest)) => rest.split_once(']').unwrap().0.parse().unwrap(),
                None => 8,
            };
            let found: Vec<usize> = parameters
                .lines()
                .filter(|line| line.trim_start().starts_with(".param"))
                .map(size)
                .collect();
            assert_eq!(found, sizes, "{name}");
            assert!(rest.contains(".maxntid 256, 1, 1"), "{name}");
            declared += 1;
        }
    }
    assert_eq!(declared, kernels::NAMES.len());
    assert!([FLAT, STRIDED, EACH].iter().all(|sizes| sizes.iter().all(|size| size % 8 == 0)));
}
