use super::*;
use proptest::prelude::*;
use tcuda_sim::exec::{Options, Shape};
use tcuda_sim::host::{FIRST, HostMachine};

const fn geometry(multiprocessors: u32, threads_per_multiprocessor: u32) -> Geometry {
    Geometry { multiprocessors, threads_per_multiprocessor, major: 9, minor: 0 }
}

const H100: Geometry = geometry(132, 2048);
const UNIFORM: Distribution = Distribution::Uniform { low: 0.0, high: 1.0 };
const NORMAL: Distribution = Distribution::Normal { mean: 0.0, stddev: 1.0 };

const BASE: u64 = FIRST;

/// The bytes after a launch, of memory that begins at [`BASE`]; those that it does not write stay.
fn run(launch: &Launch, bytes: usize, before: u8) -> Vec<u8> {
    let mut machine = HostMachine::default();
    let buffer = machine.add(&vec![before; bytes]);
    assert_eq!(buffer, BASE);
    let text = launch.image.ptx().unwrap();
    let loaded = machine.load(std::str::from_utf8(&text[..text.len() - 1]).unwrap()).unwrap();
    let words: Vec<u8> =
        launch.parameters.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    let (grid, block) = ([launch.grid, 1, 1], [launch.block, 1, 1]);
    let shape = Shape { grid, block, cluster: [1; 3], dynamic_shared: 0 };
    let name = launch.kernel.to_str().unwrap();
    machine.run(&loaded, name, shape, &words, &Options::default()).unwrap().unwrap();
    machine.get(buffer)
}

/// The bytes that a fill writes.
fn filled(distribution: Distribution, dtype: Dtype, numel: u64, philox: Philox) -> Vec<u8> {
    let view = View::flat(BASE, numel);
    let launch = plan(&distribution, dtype, &view, None, &philox, &H100).unwrap();
    run(&launch, (numel * dtype.bytes()) as usize, 0xee)
}

fn words32(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn words64(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn seed(seed: u64) -> Philox {
    Philox { seed, ..Philox::default() }
}

#[test]
fn rand_matches_published_values() {
    let first = [
        0x3ecc_4fd2,
        0x3f04_4516,
        0x3ccc_3acf,
        0x3f70_a90b,
        0x3f72_237f,
        0x3f4b_f694,
        0x3ed4_7cbb,
        0x3f51_fc5c,
    ];
    assert_eq!(words32(&filled(UNIFORM, Dtype::F32, 8, seed(0))), first);
    let first = [
        0x3f1c_eaf0,
        0x3c24_cdda,
        0x3ecb_fce1,
        0x3d25_1a6b,
        0x3e20_0464,
        0x3ef7_06b6,
        0x3f3c_7ab4,
        0x3ecf_dcde,
    ];
    assert_eq!(words32(&filled(UNIFORM, Dtype::F32, 8, seed(42))), first);
    let second = [
        0x3f7c_db21,
        0x3e03_fe45,
        0x3f0f_e60f,
        0x3f05_a8df,
        0x3f3e_9616,
        0x3f18_712c,
        0x3f76_f709,
        0x3f65_dde9,
    ];
    let later = Philox { offset: 4, ..seed(42) };
    assert_eq!(words32(&filled(UNIFORM, Dtype::F32, 8, later)), second);
    let doubles = [
        0x3fdd_fd53_7715_e0a7,
        0x3fc0_28f4_83cc_dda6,
        0x3fe0_a5cb_693e_70a6,
        0x3fdc_8522_b0e3_4d65,
    ];
    assert_eq!(words64(&filled(UNIFORM, Dtype::F64, 4, seed(42))), doubles);
}

#[test]
fn randn_matches_published_values() {
    let values = [0.19402, 2.16137, -0.17205, 0.84906, -1.92440, 0.65299, -0.64944, -0.81752];
    for (word, value) in words32(&filled(NORMAL, Dtype::F32, 8, seed(42))).iter().zip(values) {
        assert!((f32::from_bits(*word) - value).abs() < 1e-5, "{} {value}", f32::from_bits(*word));
    }
}

#[test]
fn integers_of_known_seeds() {
    let below = |base, to: i64, seeded, numel| {
        let range = (to - base) as u64;
        let bytes = filled(Distribution::Integers { base, range }, Dtype::I64, numel, seed(seeded));
        words64(&bytes).iter().map(|word| *word as i64).collect::<Vec<_>>()
    };
    assert_eq!(below(0, 100, 42, 8), [43, 9, 98, 50, 93, 47, 42, 76]);
    assert_eq!(below(-5, 5, 0, 8), [-4, 2, -4, -3, -2, -1, -2, -2]);
    let wide = [358_494_849_339, 451_513_805_075, 715_198_978_150, 766_418_127_505];
    assert_eq!(below(0, 1 << 40, 42, 4), wide);
}

#[test]
fn increments_of_known_devices() {
    let float = |numel| increment(&UNIFORM, Dtype::F32, numel, &H100);
    assert_eq!(float(0), 0);
    assert_eq!(float(1), 4);
    assert_eq!(float(270_336), 4);
    assert_eq!(float(1_081_344), 4);
    assert_eq!(float(1_081_345), 8);
    assert_eq!(float(1_000_000_000), 3700);
    let double = |numel| increment(&UNIFORM, Dtype::F64, numel, &H100);
    assert_eq!((double(540_672), double(540_673)), (4, 8));
    assert_eq!(increment(&Distribution::BernoulliTensor, Dtype::F32, 5, &H100), 10);
    // The width of a draw depends on the range, or on the type.
    let integers = |range, dtype| {
        increment(&Distribution::Integers { base: 0, range }, dtype, 1_000_000, &H100)
    };
    assert_eq!(integers((1 << 28) - 1, Dtype::I64), 4);
    assert_eq!(integers(1 << 28, Dtype::I32), 8);
    let all = |dtype| increment(&Distribution::IntegersAll, dtype, 1_000_000, &H100);
    assert_eq!((all(Dtype::I32), all(Dtype::I64), all(Dtype::F64)), (4, 8, 8));
}

#[test]
fn threads_of_known_devices() {
    let threads = |device: Geometry| TorchLaunch::new(1 << 30, 4, &device).threads();
    assert_eq!(threads(H100), 270_336);
    assert_eq!(threads(geometry(108, 2048)), 221_184);
    assert_eq!(threads(geometry(148, 2048)), 303_104);
    assert_eq!(threads(geometry(142, 1536)), 218_112);
    assert_eq!(threads(geometry(128, 1536)), 196_608);
    assert_eq!(threads(geometry(28, 1536)), 43_008);
    // Fewer threads than a block per multiprocessor: no such device exists, but it must not panic.
    assert_eq!(threads(geometry(0, 0)), 256);
}

#[test]
fn types_that_pytorch_refuses() {
    use Distribution::*;
    let view = View::flat(BASE, 10);
    let taken = |distribution: Distribution| {
        let planned =
            |dtype: &Dtype| plan(&distribution, *dtype, &view, None, &seed(0), &H100).is_some();
        Dtype::ALL.into_iter().filter(planned).collect::<Vec<_>>()
    };
    use Dtype::*;
    let floats = [F16, BF16, F32, F64];
    assert_eq!(taken(UNIFORM), floats);
    assert_eq!(taken(NORMAL), floats);
    assert_eq!(taken(LogNormal { mean: 0.0, stddev: 1.0 }), floats);
    assert_eq!(taken(Exponential { rate: 1.0 }), floats);
    assert_eq!(taken(Cauchy { median: 0.0, sigma: 1.0 }), floats);
    assert_eq!(taken(Geometric { p: 0.5 }), [U8, I8, I16, I32, I64, F16, BF16, F32, F64]);
    let signed = [Bool, U8, I8, I16, I32, I64, F16, BF16, F32, F64];
    assert_eq!(taken(Bernoulli { p: 0.5 }), signed);
    assert_eq!(taken(IntegersAll), signed);
    assert_eq!(taken(IntegersFull), [I64, BF16, F32, F64]);
    assert_eq!(taken(Integers { base: 0, range: 2 }), Dtype::ALL);
    let wide = [U32, I32, U64, I64, BF16, F32, F64];
    assert_eq!(taken(Integers { base: 0, range: 1 << 28 }), wide);
    assert_eq!(taken(Integers { base: 0, range: 0 }), []);
    assert_eq!(taken(Bernoulli { p: 1.1 }), []);
    assert_eq!(taken(BernoulliTensor), []);
}

#[test]
fn views_that_have_no_plan() {
    let planned = |view: &View, dtype| plan(&UNIFORM, dtype, view, None, &seed(0), &H100).is_some();
    assert!(!planned(&View::flat(BASE, 0), Dtype::F32));
    assert!(!planned(&View::flat(BASE + 2, 4), Dtype::F32));
    assert!(planned(&View::flat(BASE + 2, 4), Dtype::F16));
    assert!(planned(&View::flat(BASE, i32::MAX as u64), Dtype::F32));
    assert!(!planned(&View::flat(BASE, i32::MAX as u64 + 1), Dtype::F32));
    let dim = Dim { size: 2, stride: 2 };
    assert!(View::new(BASE, [dim; MAX_DIMS]).is_some());
    assert!(View::new(BASE, [dim; MAX_DIMS + 1]).is_none());

    let each = |out: &View, p: &View, dtype, p_dtype| {
        let p = Some((p, p_dtype));
        plan(&Distribution::BernoulliTensor, dtype, out, p, &seed(0), &H100).is_some()
    };
    let flat = |numel| View::flat(BASE, numel);
    assert!(each(&flat(1 << 33), &flat(1 << 33), Dtype::Bool, Dtype::F32));
    assert!(!each(&flat(8), &flat(9), Dtype::Bool, Dtype::F32));
    assert!(!each(&flat(8), &flat(8), Dtype::Bool, Dtype::I32));
    assert!(!each(&flat(8), &flat(8), Dtype::U32, Dtype::F32));
    assert!(!each(&flat(8), &View::flat(BASE + 4, 8), Dtype::F32, Dtype::F64));
    let p = Some((&flat(8), Dtype::F32)).map(|(view, dtype)| (*view, dtype));
    let (view, dtype) = p.as_ref().map(|(view, dtype)| (view, *dtype)).unwrap();
    assert!(plan(&UNIFORM, Dtype::F32, &flat(8), Some((view, dtype)), &seed(0), &H100).is_none());
}

proptest! {
    /// The launch covers everything once: each subsequence has a thread, and each Philox block of
    /// it.
    #[test]
    fn the_launch_covers_every_subsequence_once(
        numel in 1..=i32::MAX as u64,
        shift in 0u32..24,
        multiprocessors in 1u32..160,
        resident in 1u32..9,
        misaligned in 0u64..16,
        kind in 0usize..13,
        gaps: bool,
    ) {
        let (numel, dtype) = ((numel >> shift).max(1), Dtype::ALL[kind]);
        let device = geometry(multiprocessors, resident * 256);
        let stride = if gaps { 2 } else { 1 };
        let address = BASE + misaligned * dtype.bytes();
        let view = View::new(address, [Dim { size: numel, stride }]).unwrap();
        let distribution = Distribution::Integers { base: 0, range: 2 };
        let launch = plan(&distribution, dtype, &view, None, &seed(0), &device).unwrap();
        let mut parameters = launch.parameters;
        let target = parameters.parameter(2).to_vec();
        let low = |word: u64| word & u64::from(u32::MAX);
        let (threads, waves, slices, lead) =
            (target[0] >> 32, low(target[1]), target[1] >> 32, low(target[2]));
        prop_assert_eq!(target[2] >> 32, numel / (threads * 4));
        prop_assert_eq!(low(target[0]), numel);
        let lanes = if !gaps || numel == 1 { if dtype.bytes() == 8 { 2 } else { 4 } } else { 1 };
        prop_assert!(lead < lanes);
        // Vectors are aligned.
        prop_assert_eq!((address / dtype.bytes()).wrapping_sub(lead) % lanes, 0);
        prop_assert!((1..=waves).contains(&slices));
        prop_assert_eq!(u64::from(launch.grid) % slices, 0);
        let columns = u64::from(launch.grid) / slices;
        prop_assert!(columns * 256 * lanes >= threads + lead);
        prop_assert!((columns - 1) * 256 * lanes < threads + lead);
        // As in PyTorch; every element number on the way fits in 32 bits.
        prop_assert!(threads <= u64::from(multiprocessors * resident) * 256);
        prop_assert!(waves * threads * 4 >= numel);
        prop_assert!((waves - 1) * threads * 4 < numel);
        prop_assert!(waves * threads * 4 < 1 << 32);
        prop_assert_eq!(increment(&distribution, dtype, numel, &device), waves * 4);
    }

    #[test]
    fn the_shape_is_that_of_the_view(
        sizes in proptest::collection::vec(1u64..6, 1..7),
        gap in 1i64..4,
    ) {
        let mut stride = gap;
        let dims: Vec<Dim> = sizes
            .iter()
            .map(|&size| {
                let dim = Dim { size, stride };
                stride *= size as i64 + gap;
                dim
            })
            .collect();
        let view = View::new(BASE, dims.iter().copied()).unwrap();
        let device = geometry(1, 256);
        let integers = Distribution::Integers { base: 0, range: 1 << 20 };
        let bytes = |view: &View, reach: usize| {
            let launch = plan(&integers, Dtype::I32, view, None, &seed(7), &device).unwrap();
            // A byte that is written differs from one of the two fillings.
            let (zeros, ones) = (run(&launch, reach, 0), run(&launch, reach, 0xff));
            let both = zeros.into_iter().zip(ones);
            both.map(|(a, b)| (a == b).then_some(a)).collect::<Vec<Option<u8>>>()
        };
        let numel = view.numel() as usize;
        let plain = bytes(&View::flat(BASE, view.numel()), 4 * numel);
        let apart = bytes(&view, 4 * stride as usize);
        prop_assert_eq!(apart.iter().flatten().count(), 4 * numel);
        for li in 0..numel {
            let (mut at, mut rest) = (0, li as u64);
            for dim in &dims {
                at += (rest % dim.size) as usize * dim.stride as usize * 4;
                rest /= dim.size;
            }
            prop_assert_eq!(&apart[at..at + 4], &plain[4 * li..4 * li + 4]);
        }
    }
}
