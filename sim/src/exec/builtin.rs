//! Functions that the driver provides to kernels: `vprintf`, `malloc`, `free`, `__assertfail`,
//! `cudaGraphSetConditional`.

use super::Grid;
use super::warp::thread_of;
use crate::memory::fault::{Fault, FaultKind};
use crate::memory::{Memory, Place};
use crate::program::{Builtin, Call};
use crate::registers::Mask;

/// The longest text of a format or an argument.
const LONGEST: usize = 1 << 16;
/// Arguments that `printf` takes.
const MOST_ARGUMENTS: usize = 32;

/// Which warp calls.
pub(super) struct Origin {
    pub(super) block: [u32; 3],
    pub(super) warp: u32,
}

/// Calls a function for each lane; true if the lanes end.
pub(super) fn call(
    which: Builtin,
    call: &Call,
    base: usize,
    mask: Mask,
    origin: &Origin,
    grid: &mut Grid<'_>,
    memory: &mut Memory<'_>,
) -> Result<bool, Fault> {
    for lane in mask.lanes() {
        let mut calls = Lane { call, base, lane, memory };
        let result = match which {
            Builtin::Vprintf => {
                let text = calls.format()?;
                calls.memory.machine.print(&text.bytes);
                text.arguments
            }
            Builtin::Malloc => {
                let bytes = calls.argument(0)?;
                let address = calls.memory.machine.allocate(bytes);
                if let Some(races) = &mut calls.memory.races {
                    races.forget(address, bytes);
                }
                address
            }
            Builtin::Free => {
                let address = calls.argument(0)?;
                if address != 0 && !calls.memory.machine.free(address) {
                    return Err(Fault::at(FaultKind::IllegalAddress, address).of_lane(lane));
                }
                0
            }
            Builtin::SetConditional => {
                let (handle, value) = (calls.argument(0)?, calls.argument(1)?);
                if !calls.memory.machine.set_condition(handle, value as u32) {
                    return Err(Fault::at(FaultKind::IllegalAddress, handle).of_lane(lane));
                }
                0
            }
            Builtin::AssertFail => {
                let text = calls.assertion(grid, origin)?;
                calls.memory.machine.print_error(&text);
                let fault = Fault {
                    block: origin.block,
                    thread: thread_of(grid.shape.block, origin.warp, lane as u32),
                    ..Fault::new(FaultKind::Assert)
                };
                grid.failed.get_or_insert(fault);
                0
            }
        };
        calls.give(result);
    }
    Ok(which == Builtin::AssertFail)
}

/// A call of one lane.
struct Lane<'c, 'm, 'a> {
    call: &'c Call,
    base: usize,
    lane: usize,
    memory: &'m mut Memory<'a>,
}

/// What `printf` prints.
struct Text {
    bytes: Vec<u8>,
    /// Number of arguments that it took.
    arguments: u64,
}

impl Lane<'_, '_, '_> {
    /// An argument of up to 8 bytes.
    fn argument(&self, index: usize) -> Result<u64, Fault> {
        let Some(place) = self.call.arguments.get(index) else { return Ok(0) };
        let start = self.lane * self.memory.local.each + self.base + place.offset;
        let mut raw = [0; 8];
        let bytes = place.bytes.min(8);
        raw[..bytes].copy_from_slice(&self.memory.local.bytes[start..start + bytes]);
        Ok(u64::from_le_bytes(raw))
    }

    /// Writes the result.
    fn give(&mut self, value: u64) {
        let Some(place) = self.call.result else { return };
        let start = self.lane * self.memory.local.each + self.base + place.offset;
        let bytes = place.bytes.min(8);
        self.memory.local.bytes[start..start + bytes]
            .copy_from_slice(&value.to_le_bytes()[..bytes]);
    }

    /// A text in memory, up to its NUL.
    fn text(&mut self, address: u64) -> Result<Vec<u8>, Fault> {
        let mut text = Vec::new();
        while text.len() < LONGEST {
            let at = address.wrapping_add(text.len() as u64);
            let [byte] = self.memory.load_one::<1>(Place::Generic, self.lane, at)?;
            if byte == 0 {
                break;
            }
            text.push(byte);
        }
        Ok(text)
    }

    fn assertion(&mut self, grid: &Grid<'_>, origin: &Origin) -> Result<Vec<u8>, Fault> {
        let (message, file) = (self.argument(0)?, self.argument(1)?);
        let (line, function) = (self.argument(2)?, self.argument(3)?);
        let mut texts = Vec::new();
        for address in [message, file, function] {
            let text = self.text(address)?;
            texts.push(String::from_utf8_lossy(&text).into_owned());
        }
        let [x, y, z] = origin.block;
        let [i, j, k] = thread_of(grid.shape.block, origin.warp, self.lane as u32);
        let (message, file, function) = (&texts[0], &texts[1], &texts[2]);
        Ok(format!(
            "{file}:{line}: {function}: block: [{x},{y},{z}], thread: [{i},{j},{k}] Assertion \
             `{message}` failed.\n"
        )
        .into_bytes())
    }

    /// Formats the arguments of `vprintf`, which lie behind each other, aligned to their sizes.
    fn format(&mut self) -> Result<Text, Fault> {
        let (format, mut at) = (self.argument(0)?, self.argument(1)?);
        let format = self.text(format)?;
        let mut text = Text { bytes: Vec::new(), arguments: 0 };
        let mut rest = format.as_slice();
        while let Some(percent) = rest.iter().position(|byte| *byte == b'%') {
            text.bytes.extend_from_slice(&rest[..percent]);
            rest = &rest[percent..];
            let Some(specification) = Specification::read(rest) else {
                // What is no conversion prints itself.
                text.bytes.push(b'%');
                rest = &rest[1..];
                continue;
            };
            rest = &rest[specification.length..];
            if specification.conversion == b'%' {
                text.bytes.push(b'%');
                continue;
            }
            let mut width = specification.width;
            if specification.takes_width {
                width = self.next(&mut at, 4)? as i32 as i64;
                text.arguments += 1;
            }
            if text.arguments >= MOST_ARGUMENTS as u64 {
                continue;
            }
            text.arguments += 1;
            let bytes = if specification.is_wide() { 8 } else { 4 };
            let value = self.next(&mut at, bytes)?;
            let piece = match specification.conversion {
                b's' if value == 0 => b"(null)".to_vec(),
                b's' => self.text(value)?,
                _ => specification.number(value),
            };
            specification.pad(&mut text.bytes, piece, width);
        }
        text.bytes.extend_from_slice(rest);
        Ok(text)
    }

    /// The next argument of `vprintf`.
    fn next(&mut self, at: &mut u64, bytes: u64) -> Result<u64, Fault> {
        if *at == 0 {
            return Ok(0);
        }
        let address = at.next_multiple_of(bytes);
        *at = address + bytes;
        Ok(match bytes {
            8 => u64::from_le_bytes(self.memory.load_one(Place::Generic, self.lane, address)?),
            _ => {
                u32::from_le_bytes(self.memory.load_one(Place::Generic, self.lane, address)?).into()
            }
        })
    }
}

/// A conversion of `printf`, such as `%-8.3f`.
struct Specification {
    length: usize,
    is_left: bool,
    is_zero: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: i64,
    takes_width: bool,
    precision: Option<usize>,
    /// Bytes of an integer: 2 for `h`, 8 for `l` and `ll`.
    size: usize,
    conversion: u8,
}

impl Specification {
    fn read(text: &[u8]) -> Option<Specification> {
        let mut found = Specification {
            length: 1,
            is_left: false,
            is_zero: false,
            plus: false,
            space: false,
            alternate: false,
            width: 0,
            takes_width: false,
            precision: None,
            size: 4,
            conversion: 0,
        };
        let mut at = 1;
        while let Some(flag) = text.get(at) {
            match flag {
                b'-' => found.is_left = true,
                b'0' => found.is_zero = true,
                b'+' => found.plus = true,
                b' ' => found.space = true,
                b'#' => found.alternate = true,
                _ => break,
            }
            at += 1;
        }
        if text.get(at) == Some(&b'*') {
            found.takes_width = true;
            at += 1;
        }
        while let Some(digit @ b'0'..=b'9') = text.get(at) {
            found.width = (found.width * 10 + i64::from(digit - b'0')).min(LONGEST as i64);
            at += 1;
        }
        if text.get(at) == Some(&b'.') {
            at += 1;
            let mut precision = 0;
            while let Some(digit @ b'0'..=b'9') = text.get(at) {
                precision = (precision * 10 + usize::from(digit - b'0')).min(LONGEST);
                at += 1;
            }
            found.precision = Some(precision);
        }
        while let Some(modifier @ (b'h' | b'l')) = text.get(at) {
            found.size = if *modifier == b'h' { 2 } else { 8 };
            at += 1;
        }
        found.conversion = *text.get(at)?;
        found.length = at + 1;
        let known = b"%diouxXeEfFgGaAcsp";
        known.contains(&found.conversion).then_some(found)
    }

    /// True for arguments of 8 bytes.
    fn is_wide(&self) -> bool {
        matches!(
            self.conversion,
            b'e' | b'E' | b'f' | b'F' | b'g' | b'G' | b'a' | b'A' | b's' | b'p'
        ) || self.size == 8
    }

    /// The text of a number or character, without the padding of spaces.
    fn number(&self, value: u64) -> Vec<u8> {
        let sign = |is_negative: bool| match (is_negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        };
        let unsigned = match self.size {
            2 => value & 0xffff,
            4 if self.conversion != b'p' => value & 0xffff_ffff,
            _ => value,
        };
        let digits = |text: String| match self.precision {
            Some(least) => format!("{text:0>least$}"),
            None => text,
        };
        match self.conversion {
            b'd' | b'i' => {
                let signed = match self.size {
                    2 => i64::from(value as i16),
                    4 => i64::from(value as i32),
                    _ => value as i64,
                };
                let text = digits(signed.unsigned_abs().to_string());
                format!("{}{text}", sign(signed < 0)).into_bytes()
            }
            b'u' => digits(unsigned.to_string()).into_bytes(),
            b'o' => {
                let text = digits(format!("{unsigned:o}"));
                let prefix = if self.alternate && !text.starts_with('0') { "0" } else { "" };
                format!("{prefix}{text}").into_bytes()
            }
            b'x' => {
                let prefix = if self.alternate && unsigned != 0 { "0x" } else { "" };
                format!("{prefix}{}", digits(format!("{unsigned:x}"))).into_bytes()
            }
            b'X' => {
                let prefix = if self.alternate && unsigned != 0 { "0X" } else { "" };
                format!("{prefix}{}", digits(format!("{unsigned:X}"))).into_bytes()
            }
            b'p' => format!("{value:#x}").into_bytes(),
            b'c' => vec![value as u8],
            _ => self.float(f64::from_bits(value)).into_bytes(),
        }
    }

    fn float(&self, value: f64) -> String {
        let is_upper = self.conversion.is_ascii_uppercase();
        let sign = match (value.is_sign_negative(), self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        };
        let magnitude = value.abs();
        let precision = self.precision.unwrap_or(6);
        let text = if magnitude.is_nan() {
            "nan".to_owned()
        } else if magnitude.is_infinite() {
            "inf".to_owned()
        } else {
            match self.conversion.to_ascii_lowercase() {
                b'e' => exponential(magnitude, precision),
                b'f' => format!("{magnitude:.precision$}"),
                b'a' => hexadecimal(magnitude),
                _ => general(magnitude, precision.max(1), self.alternate),
            }
        };
        let text = format!("{sign}{text}");
        if is_upper { text.to_uppercase() } else { text }
    }

    /// Adds a piece with its padding.
    fn pad(&self, to: &mut Vec<u8>, mut piece: Vec<u8>, width: i64) {
        if self.conversion == b's'
            && let Some(most) = self.precision
        {
            piece.truncate(most);
        }
        let is_left = self.is_left || width < 0;
        let missing = (width.unsigned_abs() as usize).min(LONGEST).saturating_sub(piece.len());
        // As in C: no zeros before infinities and NaNs, and none besides a precision's.
        let has_zeros = match self.conversion {
            b's' | b'c' | b'p' => false,
            b'd' | b'i' | b'o' | b'u' | b'x' | b'X' => self.precision.is_none(),
            _ => piece.last().is_some_and(u8::is_ascii_digit) || piece.ends_with(b"."),
        };
        if is_left {
            to.extend_from_slice(&piece);
            to.extend(std::iter::repeat_n(b' ', missing));
        } else if self.is_zero && has_zeros {
            let mut signs =
                piece.iter().take_while(|byte| matches!(byte, b'-' | b'+' | b' ')).count();
            if matches!(piece.get(signs..signs + 2), Some(b"0x" | b"0X")) {
                signs += 2;
            }
            to.extend_from_slice(&piece[..signs]);
            to.extend(std::iter::repeat_n(b'0', missing));
            to.extend_from_slice(&piece[signs..]);
        } else {
            to.extend(std::iter::repeat_n(b' ', missing));
            to.extend_from_slice(&piece);
        }
    }
}

/// `%e`: Rust writes the exponent without a sign and leading zero.
fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// `%g`: the shorter of `%e` and `%f`, without zeros at the end.
fn general(value: f64, precision: usize, keeps_zeros: bool) -> String {
    let text = format!("{value:.*e}", precision - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, it)| it.parse().ok()).unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') && !keeps_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= precision as i32 {
        let text = exponential(value, precision - 1);
        return match text.split_once('e') {
            Some((digits, exponent)) => format!("{}e{exponent}", trimmed(digits)),
            None => text,
        };
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    trimmed(&format!("{value:.decimals$}"))
}

/// `%a`.
fn hexadecimal(value: f64) -> String {
    if value == 0.0 {
        return "0x0p+0".to_owned();
    }
    let bits = value.to_bits();
    let (exponent, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let (lead, exponent) = if exponent == 0 { (0, -1022) } else { (1, exponent - 1023) };
    let digits = format!("{fraction:013x}");
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    format!("0x{lead}{point}{digits}p{exponent:+}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(format: &str, value: u64) -> String {
        let found = Specification::read(format.as_bytes()).unwrap();
        let mut text = Vec::new();
        let piece = found.number(value);
        found.pad(&mut text, piece, found.width);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn numbers_are_written_as_c_writes_them() {
        let float = |value: f64| value.to_bits();
        for (format, value, expected) in [
            ("%d", -5i32 as u32 as u64, "-5"),
            ("%5d", 42, "   42"),
            ("%-5d", 42, "42   "),
            ("%05d", -42i32 as u32 as u64, "-0042"),
            ("%+d", 7, "+7"),
            ("%u", u64::MAX, "4294967295"),
            ("%llu", u64::MAX, "18446744073709551615"),
            ("%#x", 255, "0xff"),
            ("%X", 255, "FF"),
            ("%#08x", 255, "0x0000ff"),
            ("%#o", 0, "0"),
            ("%#o", 8, "010"),
            ("%#.3o", 8, "010"),
            ("%08.3d", 7, "     007"),
            ("%05f", float(f64::INFINITY), "  inf"),
            ("%012a", float(1.5), "0x00001.8p+0"),
            ("%hd", 65_535, "-1"),
            ("%.3d", 7, "007"),
            ("%f", float(1.5), "1.500000"),
            ("%.2f", float(-0.005), "-0.01"),
            ("%8.3f", float(3.25), "   3.250"),
            ("%e", float(12_345.678), "1.234568e+04"),
            ("%g", float(0.0001), "0.0001"),
            ("%g", float(1e10), "1e+10"),
            ("%g", float(100_000.0), "100000"),
            ("%a", float(1.5), "0x1.8p+0"),
            ("%f", float(f64::NAN), "nan"),
            ("%c", 65, "A"),
            ("%p", 0x1234, "0x1234"),
        ] {
            assert_eq!(formatted(format, value), expected, "{format}");
        }
    }
}
