//! Runs kernels on a machine of the host's buffers, and 16-bit floats by their definition.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use tcuda_sim::exec::{Options, Shape};
use tcuda_sim::host::HostMachine;
use tcuda_sim::program::Program;

/// A byte that no kernel may overwrite.
pub const CANARY: u8 = 0xee;

/// The text of a file of `kernels/`.
pub fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(name);
    std::fs::read_to_string(path.with_extension("ptx")).unwrap()
}

/// A program by its name; it is translated once.
pub fn program(name: &str, text: impl FnOnce() -> String) -> Arc<Program> {
    static PROGRAMS: LazyLock<Mutex<HashMap<String, Arc<Program>>>> = LazyLock::new(Mutex::default);
    let mut programs = PROGRAMS.lock().unwrap();
    let load = || Arc::new(Program::load(&text(), 90).unwrap());
    Arc::clone(programs.entry(name.to_owned()).or_insert_with(load))
}

/// Runs a kernel to its end.
pub fn run(
    machine: &mut HostMachine,
    program: Arc<Program>,
    name: &str,
    [grid, block]: [u32; 2],
    parameters: &[u8],
) {
    let loaded = machine.link(program);
    let (grid, block) = ([grid, 1, 1], [block, 1, 1]);
    let shape = Shape { grid, block, cluster: [1; 3], dynamic_shared: 0 };
    let outcome = machine.run(&loaded, name, shape, parameters, &Options::default());
    outcome.unwrap_or_else(|| panic!("no kernel {name}")).unwrap();
}

/// The bytes of words, as parameters have them.
pub fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A type of floats of 16 bits.
#[derive(Clone, Copy)]
pub struct Short {
    exponent_bits: u32,
}

pub const HALF: Short = Short { exponent_bits: 5 };
pub const BFLOAT: Short = Short { exponent_bits: 8 };

impl Short {
    /// The value of a finite number; of infinity, the power of two that would follow.
    pub fn value(self, bits: u16) -> f64 {
        let digits = 15 - self.exponent_bits;
        let exponent = bits >> digits & ((1 << self.exponent_bits) - 1);
        let rest = bits & ((1 << digits) - 1);
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let one = if exponent == 0 { 0 } else { 1 << digits };
        let power = i32::from(exponent.max(1)) - bias - digits as i32;
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        f64::from(rest + one) * 2f64.powi(power) * sign
    }

    /// The bits of the nearest number; of two as near, the even one.
    pub fn nearest(self, value: f64) -> u16 {
        assert!(!value.is_nan());
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        let magnitude = value.abs();
        let (mut low, mut high) = (0, ((1 << self.exponent_bits) - 1) << (15 - self.exponent_bits));
        while high - low > 1 {
            let middle = (low + high) / 2;
            if self.value(middle) <= magnitude { low = middle } else { high = middle }
        }
        let (below, above) = (magnitude - self.value(low), self.value(high) - magnitude);
        let even = if low % 2 == 0 { low } else { high };
        sign | if below < above {
            low
        } else if above < below {
            high
        } else {
            even
        }
    }
}

#[test]
fn short_floats_of_known_values() {
    let halves = [
        (1.0, 0x3c00),
        (-2.5, 0xc100),
        (65_504.0, 0x7bff),
        (65_519.9, 0x7bff),
        (65_520.0, 0x7c00),
        (f64::INFINITY, 0x7c00),
        (2f64.powi(-24), 0x0001),
        (2f64.powi(-25), 0x0000),
        (-0.0, 0x8000),
        (1.0 + 2f64.powi(-11), 0x3c00),
        (1.0 + 3.0 * 2f64.powi(-11), 0x3c02),
    ];
    for (value, bits) in halves {
        assert_eq!(HALF.nearest(value), bits, "{value}");
    }
    assert_eq!((BFLOAT.nearest(1.0), BFLOAT.nearest(-3.140_625)), (0x3f80, 0xc049));
    assert_eq!((HALF.value(0x3555), BFLOAT.value(0x4049)), (0.333_251_953_125, 3.140_625));
}
