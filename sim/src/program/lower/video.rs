//! The video instructions: arithmetic of bytes and halves of words.

use super::super::Action;
use super::super::registers::ternary;
use super::Lowering;
use super::name::Name;
use crate::number::video::{Comparison, MultiplyAdd, Operation, Parallel, Part, Scalar, Secondary};
use crate::ptx::Result;
use crate::ptx::tree::Operand;
use crate::ptx::types::Type;

/// The bytes or halves that a selector names, such as `b7610`: the one of the lowest lane first.
fn places(text: &str, letter: char, greatest: u8) -> Option<Vec<u8>> {
    let digits = text.strip_prefix(letter)?;
    let place = |digit: u8| (b'0'..=b'0' + greatest).contains(&digit).then(|| digit - b'0');
    digits.bytes().rev().map(place).collect()
}

/// A selector of one part of a word: `b0` to `b3`, `h0` or `h1`.
fn part(text: &str) -> Option<Part> {
    match text.as_bytes() {
        [b'b', digit @ b'0'..=b'3'] => Some(Part::byte(u32::from(digit - b'0'))),
        [b'h', digit @ b'0'..=b'1'] => Some(Part::half(u32::from(digit - b'0'))),
        _ => None,
    }
}

/// An operand without its sign and its selector.
fn split<'o, 't>(operand: &'o Operand<'t>) -> (&'o Operand<'t>, bool, Option<&'t str>) {
    match operand {
        Operand::Negated(inner) => {
            let (inner, is_negated, selector) = split(inner);
            (inner, !is_negated, selector)
        }
        Operand::Part(inner, selector) => (inner, false, Some(selector)),
        other => (other, false, None),
    }
}

impl<'t> Lowering<'_, 't> {
    /// The video instructions.
    pub(super) fn video(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let Some(rest) = name.base.strip_prefix('v') else { return Ok(false) };
        let (base, lanes) = match rest.as_bytes().last() {
            Some(b'2') => (&rest[..rest.len() - 1], 2),
            Some(b'4') => (&rest[..rest.len() - 1], 4),
            _ => (rest, 1),
        };
        let operation = match base {
            "mad" if lanes == 1 => return self.video_multiply(name, operands),
            "add" => Operation::Add,
            "sub" => Operation::Subtract,
            "absdiff" => Operation::AbsoluteDifference,
            "min" => Operation::Minimum,
            "max" => Operation::Maximum,
            "avrg" if lanes > 1 => Operation::Average,
            "shl" if lanes == 1 => match name.take_of(&["clamp", "wrap"]) {
                Some("wrap") => Operation::ShiftLeftWrap,
                _ => Operation::ShiftLeftClamp,
            },
            "shr" if lanes == 1 => match name.take_of(&["clamp", "wrap"]) {
                Some("wrap") => Operation::ShiftRightWrap,
                _ => Operation::ShiftRightClamp,
            },
            "set" => {
                Operation::Compare(match name.take_of(&["eq", "ne", "lt", "le", "gt", "ge"]) {
                    Some("eq") => Comparison::Equal,
                    Some("ne") => Comparison::NotEqual,
                    Some("lt") => Comparison::Less,
                    Some("le") => Comparison::LessOrEqual,
                    Some("gt") => Comparison::Greater,
                    Some(_) => Comparison::GreaterOrEqual,
                    None => return self.error("the comparison is unknown"),
                })
            }
            _ => return Ok(false),
        };
        match lanes {
            2 => self.video_parallel::<2>(name, operands, operation),
            4 => self.video_parallel::<4>(name, operands, operation),
            _ => self.video_scalar(name, operands, operation),
        }
    }

    /// The types of the operands, and whether the result is signed. `vset` has no result type.
    fn video_types(&self, name: &Name<'t>, operation: Operation) -> Result<[bool; 3]> {
        if name.types.iter().any(|of| !matches!(of, Type::U32 | Type::S32)) {
            return self.error("the types of a video instruction are u32 and s32");
        }
        let is_signed = |place: usize| name.of_type(place) == Type::S32;
        match (operation, name.types.len()) {
            (Operation::Compare(_), 2) => Ok([is_signed(0), is_signed(1), true]),
            (Operation::Compare(_), _) | (_, 0..=2 | 4..) => self.error("a type is missing"),
            _ => Ok([is_signed(1), is_signed(2), is_signed(0)]),
        }
    }

    /// A part of a word that an operand is.
    fn video_part(&mut self, selector: Option<&str>) -> Result<Part> {
        match selector {
            None => Ok(Part::WORD),
            Some(text) => match part(text) {
                Some(part) => Ok(part),
                None => self.error(format!(".{text} is no part of a word")),
            },
        }
    }

    fn video_rows(
        &mut self,
        to: &Operand<'t>,
        sources: [&Operand<'t>; 3],
    ) -> Result<(u32, [u32; 3])> {
        let to = self.destination::<u32>(to)?;
        let [a, b, c] = sources;
        let a = self.source::<u32>(a, Type::B32)?;
        let b = self.source::<u32>(b, Type::B32)?;
        Ok((to, [a, b, self.source::<u32>(c, Type::B32)?]))
    }

    fn video_scalar(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        operation: Operation,
    ) -> Result<bool> {
        let (to, a, b, c) = match operands {
            [to, a, b] => (to, a, b, None),
            [to, a, b, c] => (to, a, b, Some(c)),
            _ => return self.operands(3),
        };
        let [a_signed, b_signed, signed] = self.video_types(name, operation)?;
        let saturate = name.takes("sat");
        let second = name.take_of(&["add", "min", "max"]);
        let (to, _, merged) = split(to);
        let secondary = match (merged, second) {
            (Some(selector), None) => Secondary::Merge(self.video_part(Some(selector))?),
            (None, Some("add")) => Secondary::Add,
            (None, Some("min")) => Secondary::Minimum,
            (None, Some(_)) => Secondary::Maximum,
            (None, None) => Secondary::None,
            (Some(_), Some(_)) => return self.error("only one operation can follow"),
        };
        if c.is_some() != (secondary != Secondary::None) {
            return self.error("the third operand does not fit the operation");
        }
        let ((a, _, a_part), (b, _, b_part)) = (split(a), split(b));
        let (to, [a, b, c]) = self.video_rows(to, [a, b, c.unwrap_or(a)])?;
        let it = Scalar {
            operation,
            a: self.video_part(a_part)?,
            a_signed,
            b: self.video_part(b_part)?,
            b_signed,
            signed,
            saturate,
            secondary,
        };
        let compute = ternary(to, a, b, c, move |a: u32, b: u32, c: u32| it.apply(a, b, c));
        self.push(Action::Compute(compute));
        Ok(true)
    }

    fn video_multiply(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let [to, a, b, c] = operands else { return self.operands(4) };
        let [a_signed, b_signed, _] = self.video_types(name, Operation::Add)?;
        let ((a, a_negated, a_part), (b, b_negated, b_part)) = (split(a), split(b));
        let (c, negate_addend, _) = split(c);
        let (to, [a, b, c]) = self.video_rows(to, [a, b, c])?;
        let it = MultiplyAdd {
            a: self.video_part(a_part)?,
            a_signed,
            b: self.video_part(b_part)?,
            b_signed,
            negate_product: a_negated != b_negated,
            negate_addend,
            plus_one: name.takes("po"),
            shift: match name.take_of(&["shr7", "shr15"]) {
                Some("shr7") => 7,
                Some(_) => 15,
                None => 0,
            },
            saturate: name.takes("sat"),
        };
        let compute = ternary(to, a, b, c, move |a: u32, b: u32, c: u32| it.apply(a, b, c));
        self.push(Action::Compute(compute));
        Ok(true)
    }

    fn video_parallel<const LANES: usize>(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        operation: Operation,
    ) -> Result<bool> {
        let [to, a, b, c] = operands else { return self.operands(4) };
        let [a_signed, b_signed, signed] = self.video_types(name, operation)?;
        let letter = if LANES == 2 { 'h' } else { 'b' };
        let ((to, _, mask), (a, _, a_places), (b, _, b_places)) = (split(to), split(a), split(b));
        let mut selected = [[0; LANES]; 2];
        for (which, text) in [a_places, b_places].into_iter().enumerate() {
            let list = match text {
                // The lanes of the operand itself.
                None => Some((0..LANES as u8).map(|lane| lane + (which * LANES) as u8).collect()),
                Some(text) => places(text, letter, 2 * LANES as u8 - 1),
            };
            match list.and_then(|list: Vec<u8>| <[u8; LANES]>::try_from(list).ok()) {
                Some(list) => selected[which] = list,
                None => return self.error("a selector does not name the lanes"),
            }
        }
        let mut computed = [mask.is_none(); LANES];
        if let Some(text) = mask {
            match places(text, letter, LANES as u8 - 1) {
                Some(list) => list.iter().for_each(|lane| computed[usize::from(*lane)] = true),
                None => return self.error(format!(".{text} is no mask")),
            }
        }
        let it = Parallel::<LANES> {
            operation,
            a: selected[0],
            a_signed,
            b: selected[1],
            b_signed,
            signed: signed && !matches!(operation, Operation::Compare(_)),
            saturate: name.takes("sat"),
            mask: computed,
            accumulate: name.takes("add"),
        };
        let (to, [a, b, c]) = self.video_rows(to, [a, b, c])?;
        let compute = ternary(to, a, b, c, move |a: u32, b: u32, c: u32| it.apply(a, b, c));
        self.push(Action::Compute(compute));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_name_lanes_from_the_highest() {
        assert_eq!(places("h20", 'h', 3), Some(vec![0, 2]));
        assert_eq!(places("b7654", 'b', 7), Some(vec![4, 5, 6, 7]));
        assert_eq!((places("b8", 'b', 7), places("h0", 'b', 7)), (None, None));
        assert_eq!((part("b3"), part("h1")), (Some(Part::byte(3)), Some(Part::half(1))));
        assert_eq!((part("h2"), part("x")), (None, None));
    }
}
