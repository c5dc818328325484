//! Rows, their kernels and their recorded answers, as `scripts/gpu/instructions_gpu.py` writes
//! them.

use crate::operands::{BLOCK, operand, splitmix64, storage};
use std::fmt::Write;

/// Bytes of global and of shared memory that a thread may use, and as many for its block.
const MEMORY: u64 = 32;

/// Blocks of a launch, and of one that has all values of 16 bits.
const BLOCKS: u64 = 33;
const ALL_BLOCKS: u64 = 1024;

/// Threads of a launch of `BLOCKS`.
pub const ITEMS: u64 = BLOCKS * BLOCK;

/// How far an approximate result may be from the recorded one: 2^relative or 2^absolute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    pub relative: i32,
    pub absolute: i32,
}

/// One form of one instruction, with what a GPU answered.
pub struct Row {
    /// The row as the answers have it.
    pub text: String,
    /// Kinds of the results.
    pub outputs: Vec<String>,
    /// Kinds of the operands.
    pub inputs: Vec<String>,
    /// Functions and variables before the kernel.
    pub declarations: String,
    /// PTX that computes %d0, %d1, ... from %a0, %a1, ...
    pub body: String,
    /// For approximate results.
    pub bound: Option<Bound>,
    /// The results of the first items, each item's outputs in order.
    pub shown: Vec<u64>,
    /// The status of the synchronisation after the kernel.
    pub status: u32,
    /// A digest of each quarter of all results.
    pub digests: Vec<u32>,
}

impl Row {
    /// Reads a row and its line of answers.
    fn parse(text: &str, answer: &str, is_fault: bool) -> Row {
        let (head, body) = text.split_once(" : ").unwrap();
        let (left, right) = head.split_once('=').unwrap();
        let (declarations, body) = body.split_once(" ;; ").unwrap_or(("", body));
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let mut outputs = words(left);
        let bound = outputs[0].strip_prefix('~').map(|bound| {
            let (relative, absolute) = bound.split_once(',').unwrap();
            Bound { relative: relative.parse().unwrap(), absolute: absolute.parse().unwrap() }
        });
        if bound.is_some() {
            outputs.remove(0);
        }
        let (status, answer) = if is_fault { (answer.parse().unwrap(), "") } else { (0, answer) };
        let mut parts = answer.split(' ');
        let mut digits = parts.next().unwrap();
        let mut shown = Vec::new();
        while !digits.is_empty() {
            let (value, rest) =
                digits.split_at(storage(&outputs[shown.len() % outputs.len()]).digits);
            shown.push(u64::from_str_radix(value, 16).unwrap());
            digits = rest;
        }
        Row {
            text: text.to_owned(),
            inputs: words(right),
            declarations: declarations.to_owned(),
            body: body.to_owned(),
            bound,
            shown,
            status,
            digests: parts.map(|digest| u32::from_str_radix(digest, 16).unwrap()).collect(),
            outputs,
        }
    }

    /// Blocks of the launch.
    pub fn blocks(&self) -> u64 {
        if self.bound.is_some() {
            1
        } else if self.inputs.iter().any(|kind| kind == "all16" || kind == "allf8") {
            ALL_BLOCKS
        } else {
            BLOCKS
        }
    }

    /// Threads of the launch.
    pub fn items(&self) -> u64 {
        self.blocks() * BLOCK
    }

    /// Bytes of zeroed global memory that the kernel's third parameter points to.
    pub fn memory(&self) -> u64 {
        self.blocks() * (BLOCK + 1) * MEMORY
    }

    /// The operands of all items, as the kernel's first parameter points to them.
    pub fn operands(&self) -> Vec<u64> {
        let mut values = Vec::with_capacity(self.items() as usize * self.inputs.len());
        for item in 0..self.items() {
            for (index, kind) in self.inputs.iter().enumerate() {
                values.push(operand(kind, item, index as u64));
            }
        }
        values
    }

    /// The module with the row's kernel "k".
    pub fn ptx(&self) -> String {
        let mut text = format!(
            ".version 8.6\n.target sm_90\n.address_size 64\n{}\n\
             .visible .entry k(.param .u64 p_in, .param .u64 p_out, .param .u64 p_mem)\n{{\n\
             .reg .b64 %in, %out;\n.reg .b32 %thread, %block, %item;\n",
            self.declarations
        );
        let uses_memory = ["%globalmem", "%sharedmem", "%globalblk", "%sharedblk"]
            .iter()
            .any(|word| self.body.contains(word));
        for (letter, kinds) in [("a", &self.inputs), ("d", &self.outputs)] {
            for (i, kind) in kinds.iter().enumerate() {
                let _ = writeln!(text, ".reg .{} %{letter}{i};", storage(kind).register);
                if kind == "pred" {
                    let _ = writeln!(text, ".reg .b32 %{letter}w{i};");
                }
            }
        }
        if uses_memory {
            text.push_str(".reg .b64 %globalmem, %sharedmem, %globalblk, %sharedblk, %zero;\n");
            let _ = writeln!(text, ".shared .align 16 .b8 sh[{}];", (BLOCK + 1) * MEMORY);
        }
        let _ = write!(
            text,
            "mov.u32 %thread, %tid.x;\nmov.u32 %block, %ctaid.x;\n\
             mad.lo.u32 %item, %block, {BLOCK}, %thread;\n\
             ld.param.u64 %in, [p_in];\nld.param.u64 %out, [p_out];\n\
             mad.wide.u32 %in, %item, {}, %in;\nmad.wide.u32 %out, %item, {}, %out;\n",
            8 * self.inputs.len(),
            8 * self.outputs.len()
        );
        if uses_memory {
            let _ = write!(
                text,
                "ld.param.u64 %globalblk, [p_mem];\n\
                 mad.wide.u32 %globalblk, %block, {}, %globalblk;\n\
                 mad.wide.u32 %globalmem, %thread, {MEMORY}, %globalblk;\n\
                 add.u64 %globalmem, %globalmem, {MEMORY};\n\
                 mov.u64 %sharedblk, sh;\n\
                 mad.wide.u32 %sharedmem, %thread, {MEMORY}, %sharedblk;\n\
                 add.u64 %sharedmem, %sharedmem, {MEMORY};\n\
                 mov.b64 %zero, 0;\n\
                 st.shared.v2.b64 [%sharedblk], {{%zero, %zero}};\n\
                 st.shared.v2.b64 [%sharedblk+16], {{%zero, %zero}};\n\
                 st.shared.v2.b64 [%sharedmem], {{%zero, %zero}};\n\
                 st.shared.v2.b64 [%sharedmem+16], {{%zero, %zero}};\n\
                 bar.sync 0;\n",
                (BLOCK + 1) * MEMORY
            );
        }
        for (i, kind) in self.inputs.iter().enumerate() {
            let offset = 8 * i;
            let _ = match storage(kind).register {
                "pred" => writeln!(
                    text,
                    "ld.global.b32 %aw{i}, [%in+{offset}];\nsetp.ne.b32 %a{i}, %aw{i}, 0;"
                ),
                register => writeln!(text, "ld.global.{register} %a{i}, [%in+{offset}];"),
            };
        }
        text.push_str(&self.body);
        text.push('\n');
        for (i, kind) in self.outputs.iter().enumerate() {
            let offset = 8 * i;
            let _ = match storage(kind).register {
                "pred" => writeln!(
                    text,
                    "selp.b32 %dw{i}, 1, 0, %d{i};\nst.global.b32 [%out+{offset}], %dw{i};"
                ),
                register => writeln!(text, "st.global.{register} [%out+{offset}], %d{i};"),
            };
        }
        text.push_str("ret;\n}\n");
        text
    }

    /// What differs between the results of all items and the recorded ones, at most a few lines.
    pub fn differences(&self, results: &[u64]) -> Vec<String> {
        let mut lines = Vec::new();
        let count = self.outputs.len();
        for (item, (ours, theirs)) in
            results.chunks(count).zip(self.shown.chunks(count)).enumerate()
        {
            let operands: Vec<u64> = (0..self.inputs.len())
                .map(|index| operand(&self.inputs[index], item as u64, index as u64))
                .collect();
            let is_same = (0..count).all(|i| match self.bound {
                None => ours[i] == theirs[i],
                Some(bound) => {
                    is_close(&self.outputs[i], bound, ours[i], theirs[i])
                        || self.is_unbounded(&operands, ours[i])
                }
            });
            if !is_same {
                let hex = |values: &[u64], kinds: &[String]| -> String {
                    let words = values.iter().zip(kinds);
                    words
                        .map(|(value, kind)| format!(" {value:0w$x}", w = storage(kind).digits))
                        .collect()
                };
                lines.push(format!(
                    "item {item}:{} gives{}, a GPU{}",
                    hex(&operands, &self.inputs),
                    hex(ours, &self.outputs),
                    hex(theirs, &self.outputs)
                ));
            }
        }
        let quarter = results.len() / 4;
        for (i, &digest) in self.digests.iter().enumerate() {
            if digest_of(&results[i * quarter..(i + 1) * quarter]) != digest {
                lines.push(format!("the digest of quarter {i} differs"));
            }
        }
        lines
    }

    /// True where the PTX ISA bounds no error: sin and cos beyond [-2 pi, 2 pi].
    fn is_unbounded(&self, operands: &[u64], ours: u64) -> bool {
        let is_periodic = self.body.starts_with("sin.") || self.body.starts_with("cos.");
        let x = f32::from_bits(operands[0] as u32);
        let is_sine = f32::from_bits(ours as u32).abs() <= 1.0;
        is_periodic && x.is_finite() && x.abs() > std::f32::consts::TAU && is_sine
    }
}

/// A digest of results.
pub fn digest_of(values: &[u64]) -> u32 {
    (values.iter().fold(0, |h, value| splitmix64(h ^ value)) >> 32) as u32
}

/// The value of a float of a kind.
fn float(kind: &str, bits: u64) -> f64 {
    match kind {
        "f64" => f64::from_bits(bits),
        "f32" => f32::from_bits(bits as u32).into(),
        "bf16" => f32::from_bits((bits as u32) << 16).into(),
        _ => {
            let magnitude = match (bits >> 10 & 31, (bits & 1023) as f64) {
                (31, 0.0) => f64::INFINITY,
                (31, _) => f64::NAN,
                (0, mantissa) => mantissa * 2_f64.powi(-24),
                (exponent, mantissa) => (1024.0 + mantissa) * 2_f64.powi(exponent as i32 - 25),
            };
            if bits & 0x8000 == 0 { magnitude } else { -magnitude }
        }
    }
}

/// True if two results of a kind are within a bound of each other.
fn is_close(kind: &str, bound: Bound, ours: u64, theirs: u64) -> bool {
    if let Some(half) = kind.strip_suffix("x2") {
        return is_close(half, bound, ours & 0xffff, theirs & 0xffff)
            && is_close(half, bound, ours >> 16, theirs >> 16);
    }
    let (x, y) = (float(kind, ours), float(kind, theirs));
    if !y.is_finite() || !x.is_finite() {
        return x == y || x.is_nan() && y.is_nan();
    }
    let difference = (x - y).abs();
    difference <= y.abs() * 2_f64.powi(bound.relative) || difference <= 2_f64.powi(bound.absolute)
}

/// The rows of a family with their answers.
pub fn rows(family: &str) -> Vec<Row> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/instructions");
    let text = std::fs::read_to_string(format!("{folder}/{family}.txt")).unwrap();
    let lines: Vec<&str> = text.lines().skip(1).collect();
    lines.chunks(2).map(|pair| Row::parse(pair[0], pair[1], family == "fault")).collect()
}
