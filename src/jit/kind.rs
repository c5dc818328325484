//! Element types of compiled functions: their C++ names, and PyTorch's type promotion.

use crate::base::error::{Error, Result};
use crate::tensor::{Dtype, Tensor, dtype::code};

/// PyTorch's types for which functions can be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in PyTorch")]
#[repr(u8)]
pub enum Kind {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    U16,
    U32,
    U64,
    F8E4M3,
    F8E5M2,
    F16,
    BF16,
    F32,
    F64,
    C32,
    C64,
    C128,
}

use Kind::*;

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 18] = [
        Bool, U8, I8, I16, I32, I64, U16, U32, U64, F8E4M3, F8E5M2, F16, BF16, F32, F64, C32, C64,
        C128,
    ];

    /// The kind of this element type.
    pub fn of(dtype: Dtype) -> Result<Kind> {
        let Dtype { code, bits, lanes } = dtype;
        Ok(match (code, bits, lanes) {
            (code::BOOL, 8, 1) => Bool,
            (code::UINT, 8, 1) => U8,
            (code::UINT, 16, 1) => U16,
            (code::UINT, 32, 1) => U32,
            (code::UINT, 64, 1) => U64,
            (code::INT, 8, 1) => I8,
            (code::INT, 16, 1) => I16,
            (code::INT, 32, 1) => I32,
            (code::INT, 64, 1) => I64,
            (code::FLOAT, 16, 1) => F16,
            (code::FLOAT, 32, 1) => F32,
            (code::FLOAT, 64, 1) => F64,
            (code::BFLOAT, 16, 1) => BF16,
            (code::COMPLEX, 32, 1) => C32,
            (code::COMPLEX, 64, 1) => C64,
            (code::COMPLEX, 128, 1) => C128,
            (FLOAT8_E4M3FN, 8, 1) => F8E4M3,
            (FLOAT8_E5M2, 8, 1) => F8E5M2,
            _ => {
                return Err(Error::Invalid(
                    "functions are compiled for bool, integers of 8 to 64 bits, floats of 8 \
                     (e4m3fn, e5m2) to 64 bits, bfloat16 and complex numbers of 32 to 128 bits",
                ));
            }
        })
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Bool | U8 | I8 | F8E4M3 | F8E5M2 => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 | C32 => 4,
            I64 | U64 | F64 | C64 => 8,
            C128 => 16,
        }
    }

    /// The C++ type in memory.
    pub const fn stored(self) -> &'static str {
        match self {
            Bool => "bool",
            U8 => "unsigned char",
            I8 => "signed char",
            I16 => "short",
            I32 => "int",
            I64 => "long long",
            U16 => "unsigned short",
            U32 => "unsigned int",
            U64 => "unsigned long long",
            F8E4M3 => "tcuda::e4m3",
            F8E5M2 => "tcuda::e5m2",
            F16 => "tcuda::half",
            BF16 => "tcuda::bfloat16",
            F32 => "float",
            F64 => "double",
            C32 => "std::complex<tcuda::half>",
            C64 => "std::complex<float>",
            C128 => "std::complex<double>",
        }
    }

    /// The C++ type in which is computed: the function's `T`.
    pub const fn computed(self) -> &'static str {
        match self {
            F8E4M3 | F8E5M2 | F16 | BF16 => "float",
            C32 => "std::complex<float>",
            other => other.stored(),
        }
    }

    /// Is it a complex type?
    pub const fn is_complex(self) -> bool {
        matches!(self, C32 | C64 | C128)
    }

    /// Is it a real floating-point type?
    pub const fn is_float(self) -> bool {
        matches!(self, F8E4M3 | F8E5M2 | F16 | BF16 | F32 | F64)
    }

    /// Does it need the prelude's 16-bit types?
    pub const fn is_short_float(self) -> bool {
        matches!(self, F16 | BF16 | C32)
    }

    /// Is it an 8-bit floating-point type?
    pub const fn is_float8(self) -> bool {
        matches!(self, F8E4M3 | F8E5M2)
    }

    fn is_bare_unsigned(self) -> bool {
        matches!(self, U16 | U32 | U64)
    }

    /// The complex kind whose parts can represent it.
    fn to_complex(self) -> Kind {
        match self {
            F16 => C32,
            F64 => C128,
            C32 | C64 | C128 => self,
            _ => C64,
        }
    }
}

const FLOAT8_E4M3FN: u8 = 10;
const FLOAT8_E5M2: u8 = 12;

const NO_FLOAT8: Error =
    Error::Invalid("PyTorch promotes no float8: pass inputs of one type, or of another");

/// The common type of two kinds: PyTorch's `promoteTypes`.
pub fn promote(a: Kind, b: Kind) -> Result<Kind> {
    if a == b {
        return Ok(a);
    }
    if a.is_float8() || b.is_float8() {
        return Err(NO_FLOAT8);
    }
    if a.is_bare_unsigned() || b.is_bare_unsigned() {
        return match (a, b) {
            (float, _) | (_, float) if float.is_float() => Ok(float),
            _ => Err(Error::Invalid(
                "PyTorch promotes uint16, uint32 and uint64 to floats alone: pass inputs of one \
                 type",
            )),
        };
    }
    // If one is complex, the types of the parts decide.
    if a.is_complex() || b.is_complex() {
        let (a, b) = (part_of(a), part_of(b));
        let part = match (a, b) {
            (Some(a), Some(b)) if a == b => a,
            (Some(F64), _) | (_, Some(F64)) => F64,
            (Some(_), Some(_)) => F32,
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => F32,
        };
        return Ok(part.to_complex());
    }
    if a.is_float() || b.is_float() {
        return Ok(match (a.is_float(), b.is_float()) {
            (true, false) => a,
            (false, true) => b,
            _ if a == F64 || b == F64 => F64,
            // Also for float16 with bfloat16.
            _ => F32,
        });
    }
    Ok(match (a, b) {
        (Bool, other) | (other, Bool) => other,
        (U8, I8) | (I8, U8) => I16,
        _ if a.bytes() > b.bytes() => a,
        _ => b,
    })
}

/// The type of the parts of a complex kind, or a float kind itself; `None` for integers. bfloat16
/// counts as F32, because there is no complex bfloat16.
fn part_of(kind: Kind) -> Option<Kind> {
    match kind {
        C32 | F16 => Some(F16),
        C64 | F32 | BF16 => Some(F32),
        C128 | F64 => Some(F64),
        _ => None,
    }
}

/// The type of the results: PyTorch's `result_type`. Tensors without dimensions count only if their
/// category is higher than that of the others.
pub fn common(inputs: &[Tensor], kinds: &[Kind]) -> Result<Kind> {
    let of = |wanted: bool| {
        let chosen = inputs.iter().zip(kinds).filter(|(t, _)| t.shape().is_empty() != wanted);
        chosen.map(|(_, kind)| *kind).try_fold(None, |sum: Option<Kind>, kind| {
            Ok::<_, Error>(Some(sum.map_or(Ok(kind), |sum| promote(sum, kind))?))
        })
    };
    match (of(true)?, of(false)?) {
        (Some(higher), Some(lower)) => combine(higher, lower),
        (Some(only), None) | (None, Some(only)) => Ok(only),
        (None, None) => Err(Error::Invalid("there is no input, whose type the outputs would have")),
    }
}

fn combine(higher: Kind, lower: Kind) -> Result<Kind> {
    if higher.is_complex() {
        return Ok(higher);
    }
    if higher.is_float8() && lower.is_complex() {
        return Err(NO_FLOAT8);
    }
    if higher.is_float() {
        return Ok(if lower.is_complex() { higher.to_complex() } else { higher });
    }
    if higher == Bool || lower.is_float() || lower.is_complex() {
        return promote(higher, lower);
    }
    Ok(higher)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PyTorch's table, with its abbreviations.
    #[test]
    fn promotion_is_pytorchs() {
        let order = [U8, I8, I16, I32, I64, F16, F32, F64, C32, C64, C128, Bool, BF16];
        let table = "u1 i2 i2 i4 i8 f2 f4 f8 c2 c4 c8 u1 bf
            i2 i1 i2 i4 i8 f2 f4 f8 c2 c4 c8 i1 bf
            i2 i2 i2 i4 i8 f2 f4 f8 c2 c4 c8 i2 bf
            i4 i4 i4 i4 i8 f2 f4 f8 c2 c4 c8 i4 bf
            i8 i8 i8 i8 i8 f2 f4 f8 c2 c4 c8 i8 bf
            f2 f2 f2 f2 f2 f2 f4 f8 c2 c4 c8 f2 f4
            f4 f4 f4 f4 f4 f4 f4 f8 c4 c4 c8 f4 f4
            f8 f8 f8 f8 f8 f8 f8 f8 c8 c8 c8 f8 f8
            c2 c2 c2 c2 c2 c2 c4 c8 c2 c4 c8 c2 c4
            c4 c4 c4 c4 c4 c4 c4 c8 c4 c4 c8 c4 c4
            c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8
            u1 i1 i2 i4 i8 f2 f4 f8 c2 c4 c8 b1 bf
            bf bf bf bf bf f4 f4 f8 c4 c4 c8 bf bf";
        let letters =
            ["u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c2", "c4", "c8", "b1", "bf"];
        let expected: Vec<Kind> = table
            .split_whitespace()
            .map(|word| order[letters.iter().position(|letter| *letter == word).unwrap()])
            .collect();
        for (i, a) in order.iter().enumerate() {
            for (j, b) in order.iter().enumerate() {
                assert_eq!(promote(*a, *b).unwrap(), expected[13 * i + j], "{a:?} {b:?}");
            }
        }
        assert_eq!(promote(U32, F16).unwrap(), F16);
        assert!(promote(U32, I64).is_err() && promote(F8E5M2, F32).is_err());
        assert_eq!(promote(U64, U64).unwrap(), U64);
    }

    /// PyTorch's `combine_categories`, for kinds with and without dimensions.
    #[test]
    fn categories_are_combined_as_pytorchs() {
        for (higher, lower, expected) in [
            (I8, I64, Some(I8)),
            (I8, F16, Some(F16)),
            (I64, F64, Some(F64)),
            (Bool, U8, Some(U8)),
            (F16, F64, Some(F16)),
            (BF16, C128, Some(C64)),
            (F16, C128, Some(C32)),
            (F64, C32, Some(C128)),
            (C32, F64, Some(C32)),
            (I32, C64, Some(C64)),
            (I64, U32, Some(I64)),
            (U32, I64, Some(U32)),
            (Bool, U32, None),
            (F8E5M2, F64, Some(F8E5M2)),
            (I32, F8E4M3, None),
            (F8E4M3, C64, None),
        ] {
            assert_eq!(combine(higher, lower).ok(), expected, "{higher:?} {lower:?}");
        }
    }
}
