//! The types of PTX.

/// A type of a register, a variable or an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "PTX names them")]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F32,
    F64,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    E4m3x2,
    E5m2x2,
    U16x2,
    S16x2,
}

impl Type {
    /// The type of this name, without a dot.
    pub fn named(name: &str) -> Option<Type> {
        use Type::*;
        Some(match name {
            "pred" => Pred,
            "b8" => B8,
            "b16" => B16,
            "b32" => B32,
            "b64" => B64,
            "b128" => B128,
            "u8" => U8,
            "u16" => U16,
            "u32" => U32,
            "u64" => U64,
            "s8" => S8,
            "s16" => S16,
            "s32" => S32,
            "s64" => S64,
            "f16" => F16,
            "f32" => F32,
            "f64" => F64,
            "f16x2" => F16x2,
            "bf16" => Bf16,
            "bf16x2" => Bf16x2,
            "tf32" => Tf32,
            "e4m3x2" => E4m3x2,
            "e5m2x2" => E5m2x2,
            "u16x2" => U16x2,
            "s16x2" => S16x2,
            _ => return None,
        })
    }

    /// Bytes in memory; 0 for a predicate.
    pub fn bytes(self) -> usize {
        use Type::*;
        match self {
            Pred => 0,
            B8 | U8 | S8 => 1,
            B16 | U16 | S16 | F16 | Bf16 | E4m3x2 | E5m2x2 => 2,
            B32 | U32 | S32 | F32 | F16x2 | Bf16x2 | Tf32 | U16x2 | S16x2 => 4,
            B64 | U64 | S64 | F64 => 8,
            B128 => 16,
        }
    }

    /// True for a signed integer.
    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// True for a floating-point type of one value.
    pub fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::F32 | Type::F64 | Type::Bf16 | Type::Tf32)
    }
}
