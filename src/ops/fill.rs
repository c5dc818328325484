//! Filling memory with a repeated value: chooses the driver call or kernel, and its parameters.
//!
//! Pure functions: they launch nothing.

use std::ffi::CStr;

/// The image that holds the kernel, as build.rs stored it.
pub const STORED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fill"));

/// The kernel's name in the image.
pub const KERNEL: &CStr = c"tcuda_fill_pattern";

/// Sizes in bytes of the kernel's parameters: destination, bytes, four words of pattern, period.
pub const PARAMETER_SIZES: [usize; 7] = [8, 8, 8, 8, 8, 8, 4];

/// Longest value; complex128 is the largest type of an element.
pub const LONGEST: usize = 16;

/// Threads of a block; the kernel is compiled for no more.
pub const BLOCK: u32 = 256;

/// Bytes of one store of a thread.
const VECTOR: u64 = 16;

/// Stores of a thread per round: the kernel's STORES.
const STORES: u64 = 4;

/// Number of blocks that fills any GPU several times over (a round is 128 MiB); for larger fills
/// the blocks loop, which saves block starts.
const MOST_BLOCKS: u64 = 8192;

/// How to fill a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillPlan {
    /// The range is empty.
    Nothing,
    /// cuMemsetD8Async.
    Memset8 {
        /// The byte.
        value: u8,
        /// Number of bytes.
        count: u64,
    },
    /// cuMemsetD16Async; the destination is aligned to 2 bytes.
    Memset16 {
        /// The element.
        value: u16,
        /// Number of elements.
        count: u64,
    },
    /// cuMemsetD32Async; the destination is aligned to 4 bytes.
    Memset32 {
        /// The element.
        value: u32,
        /// Number of elements.
        count: u64,
    },
    /// [`KERNEL`], with `grid` x 1 x 1 blocks of [`BLOCK`] threads.
    Kernel {
        /// Number of blocks.
        grid: u32,
        /// The kernel's parameters.
        parameters: Parameters,
    },
}

/// The kernel's parameters, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Device address; any alignment.
    pub dst: u64,
    /// Bytes to write.
    pub bytes: u64,
    /// The value repeated over 32 bytes, little-endian.
    pub pattern: [u64; 4],
    /// Length of the value in bytes, 1..=16.
    pub period: u32,
}

/// How to write `value` repeatedly to `total` bytes at `ptr`; the last copy may be cut short.
///
/// `None` when the value is not of 1..=[`LONGEST`] bytes or the range leaves the address space.
pub fn plan(ptr: u64, value: &[u8], total: u64) -> Option<FillPlan> {
    ptr.checked_add(total)?;
    if value.is_empty() || value.len() > LONGEST {
        return None;
    }
    if total == 0 {
        return Some(FillPlan::Nothing);
    }
    // Values of equal bytes, such as zeros of any type, use cuMemsetD8: the driver's fill is the
    // fastest.
    let value = shortest_period(value);
    let aligned = |width: u64| ptr.is_multiple_of(width) && total.is_multiple_of(width);
    Some(match *value {
        [a] => FillPlan::Memset8 { value: a, count: total },
        [a, b] if aligned(2) => {
            FillPlan::Memset16 { value: u16::from_le_bytes([a, b]), count: total / 2 }
        }
        [a, b, c, d] if aligned(4) => {
            FillPlan::Memset32 { value: u32::from_le_bytes([a, b, c, d]), count: total / 4 }
        }
        _ => {
            let parameters = Parameters::new(ptr, value, total);
            FillPlan::Kernel { grid: grid(&parameters), parameters }
        }
    })
}

/// The shortest prefix of which `value` is a whole number of copies.
fn shortest_period(value: &[u8]) -> &[u8] {
    let mut period = value;
    // Nearly every length is a power of two, which needs no division.
    while period.len().is_multiple_of(2) {
        let (first, second) = period.split_at(period.len() / 2);
        if first != second {
            break;
        }
        period = first;
    }
    if !value.len().is_power_of_two() {
        for prime in [3, 5, 7, 11, 13] {
            while period.len().is_multiple_of(prime) {
                let part = &period[..period.len() / prime];
                if period.chunks(part.len()).any(|other| other != part) {
                    break;
                }
                period = part;
            }
        }
    }
    period
}

/// The number of blocks that store everything in one round, up to the useful maximum.
fn grid(parameters: &Parameters) -> u32 {
    let blocks = match parameters.period.is_power_of_two() {
        true => parameters.bytes.div_ceil(u64::from(BLOCK) * STORES * VECTOR),
        false => {
            // As in the kernel: the last threads of a block are idle if the period does not divide
            // its width.
            let cycle = parameters.period >> parameters.period.trailing_zeros();
            let width = u64::from(BLOCK - BLOCK % cycle);
            parameters.bytes.div_ceil(width * STORES * VECTOR)
        }
    };
    blocks.clamp(1, MOST_BLOCKS) as u32
}

impl Parameters {
    /// `value` is of 1..=16 bytes.
    fn new(dst: u64, value: &[u8], bytes: u64) -> Parameters {
        Parameters { dst, bytes, pattern: pattern_of(value), period: value.len() as u32 }
    }
}

/// A value of 1..=16 bytes repeated over 32.
fn pattern_of(value: &[u8]) -> [u64; 4] {
    if value.len().is_power_of_two() {
        let mut bytes = [0; LONGEST];
        bytes[..value.len()].copy_from_slice(value);
        let mut all = u128::from_le_bytes(bytes);
        let mut length = value.len();
        while length < LONGEST {
            all |= all << (8 * length);
            length *= 2;
        }
        let (low, high) = (all as u64, (all >> 64) as u64);
        return [low, high, low, high];
    }
    let mut repeated = value.iter().copied().cycle();
    let mut word = || u64::from_le_bytes(std::array::from_fn(|_| repeated.next().unwrap_or(0)));
    [word(), word(), word(), word()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tcuda_sim::exec::{Options, Shape};
    use tcuda_sim::host::HostMachine;

    const BASE: u64 = 0x7f00_0000_0000;

    /// What a plan writes, from its destination on.
    fn written(ptr: u64, plan: FillPlan) -> Vec<u8> {
        match plan {
            FillPlan::Nothing => Vec::new(),
            FillPlan::Memset8 { value, count } => vec![value; count as usize],
            FillPlan::Memset16 { value, count } => {
                assert_eq!(ptr % 2, 0);
                value.to_le_bytes().repeat(count as usize)
            }
            FillPlan::Memset32 { value, count } => {
                assert_eq!(ptr % 4, 0);
                value.to_le_bytes().repeat(count as usize)
            }
            FillPlan::Kernel { grid, parameters } => {
                assert!((1..=MOST_BLOCKS).contains(&u64::from(grid)));
                assert_eq!(parameters.dst, ptr);
                let mut machine = HostMachine::default();
                let ptx = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/fill.ptx"));
                let loaded = machine.load(ptx).unwrap();
                let start = (ptr - BASE) as usize;
                let buffer = machine.add(&vec![0xee; start + parameters.bytes as usize + 64]);
                let Parameters { bytes, pattern: [a, b, c, d], period, .. } = parameters;
                let mut values: Vec<u8> = [buffer + start as u64, bytes, a, b, c, d]
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .collect();
                values.extend_from_slice(&period.to_le_bytes());
                let (grid, block) = ([grid, 1, 1], [BLOCK, 1, 1]);
                let shape = Shape { grid, block, cluster: [1; 3], dynamic_shared: 0 };
                let (name, options) = (KERNEL.to_str().unwrap(), Options::default());
                machine.run(&loaded, name, shape, &values, &options).unwrap().unwrap();
                let mut bytes = machine.get(buffer);
                let rest = bytes.split_off(start + parameters.bytes as usize);
                assert!(rest.iter().chain(&bytes[..start]).all(|byte| *byte == 0xee));
                bytes.drain(..start);
                bytes
            }
        }
    }

    proptest! {
        #[test]
        fn any_plan_writes_the_value_repeatedly(
            // Few different bytes, so that values are often periodic.
            value in proptest::collection::vec(0u8..3, 1..=LONGEST),
            offset in 0u64..32,
            total in 0u64..20_000,
        ) {
            let plan = plan(BASE + offset, &value, total).unwrap();
            let expected: Vec<u8> = value.iter().copied().cycle().take(total as usize).collect();
            prop_assert!(written(BASE + offset, plan) == expected);
        }
    }

    #[test]
    fn common_values_are_left_to_the_driver() {
        let zero = |size: usize| plan(BASE, &vec![0; size], 4800).unwrap();
        for size in 1..=LONGEST {
            assert_eq!(zero(size), FillPlan::Memset8 { value: 0, count: 4800 });
        }
        let bfloat = 0x3f80u16;
        let filled = plan(BASE, &bfloat.to_le_bytes(), 4800).unwrap();
        assert_eq!(filled, FillPlan::Memset16 { value: bfloat, count: 2400 });
        let float = 1f32.to_bits();
        let filled = plan(BASE, &float.to_le_bytes(), 4800).unwrap();
        assert_eq!(filled, FillPlan::Memset32 { value: float, count: 1200 });
        // A complex number with equal parts.
        let filled = plan(BASE, &float.to_le_bytes().repeat(2), 4800).unwrap();
        assert_eq!(filled, FillPlan::Memset32 { value: float, count: 1200 });
    }

    #[test]
    fn the_kernel_fills_what_no_memset_can() {
        let kernel = |ptr, value: &[u8], total| {
            matches!(plan(ptr, value, total), Some(FillPlan::Kernel { .. }))
        };
        assert!(kernel(BASE, &1f64.to_le_bytes(), 8));
        assert!(kernel(BASE + 1, &[1, 2], 8), "unaligned");
        assert!(kernel(BASE + 2, &[1, 2, 3, 4], 8), "unaligned");
        assert!(kernel(BASE, &[1, 2], 7), "cut short");
    }

    #[test]
    fn values_are_reduced_to_their_shortest_period() {
        for length in 1..=LONGEST {
            for period in (1..=length).filter(|period| length.is_multiple_of(*period)) {
                let value: Vec<u8> = (0..length).map(|index| (index % period) as u8).collect();
                assert_eq!(shortest_period(&value).len(), period, "of {length} bytes");
                let pattern: Vec<u8> =
                    pattern_of(&value).iter().flat_map(|word| word.to_le_bytes()).collect();
                assert!((0..32).all(|index| pattern[index] == value[index % length]));
            }
        }
    }

    #[test]
    fn impossible_fills_are_refused() {
        assert_eq!(plan(BASE, &[], 16), None);
        assert_eq!(plan(BASE, &[1; LONGEST + 1], 17), None);
        assert_eq!(plan(u64::MAX, &[1], 2), None);
        assert_eq!(plan(u64::MAX, &[1], 0), Some(FillPlan::Nothing));
    }

    #[test]
    fn large_fills_have_a_bounded_grid() {
        let grid = |bytes| grid(&Parameters::new(BASE, b"abc", bytes));
        assert_eq!(grid(1), 1);
        assert_eq!(grid(255 * 64), 1);
        assert_eq!(grid(255 * 64 + 1), 2);
        assert_eq!(grid(1 << 40), MOST_BLOCKS as u32);
    }

    #[test]
    fn the_image_declares_the_kernel_as_described() {
        let text = String::from_utf8(crate::gpu::image::inflated(STORED).unwrap()).unwrap();
        assert!(text.starts_with(".version 7.8\n.target sm_52\n"));
        let name = KERNEL.to_str().unwrap();
        let declared: Vec<usize> = text
            .lines()
            .filter(|line| line.trim_start().starts_with(".param") && line.contains(name))
            .map(|line| if line.contains(".u64") { 8 } else { 4 })
            .collect();
        assert_eq!(declared, PARAMETER_SIZES);
        assert!(text.contains(&format!(".maxntid {BLOCK}, 1, 1")));
    }
}
