//! Element types, as DLPack numbers them.

use crate::base::error::{Error, Result};

/// DLPack's type codes.
#[allow(missing_docs, reason = "DLPack's own names")]
pub mod code {
    pub const INT: u8 = 0;
    pub const UINT: u8 = 1;
    pub const FLOAT: u8 = 2;
    pub const OPAQUE: u8 = 3;
    pub const BFLOAT: u8 = 4;
    pub const COMPLEX: u8 = 5;
    pub const BOOL: u8 = 6;
    pub const FLOAT8_E3M4: u8 = 7;
    pub const FLOAT8_E8M0FNU: u8 = 14;
    pub const FLOAT6_E2M3FN: u8 = 15;
    pub const FLOAT6_E3M2FN: u8 = 16;
    pub const FLOAT4_E2M1FN: u8 = 17;
}

/// An element type: DLPack's `DLDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dtype {
    /// The kind of number: one of [`code`].
    pub code: u8,
    /// Bits of one number.
    pub bits: u8,
    /// Numbers in an element.
    pub lanes: u16,
}

impl Dtype {
    /// A type whose elements are one number each.
    pub const fn new(code: u8, bits: u8) -> Dtype {
        Dtype { code, bits, lanes: 1 }
    }

    /// An error if DLPack has no such type.
    pub(super) fn check(self) -> Result<()> {
        use code::*;
        let widths: &[u8] = match self.code {
            INT | UINT => &[8, 16, 32, 64, 4, 2, 1],
            FLOAT => &[16, 32, 64, 128],
            OPAQUE => &[8, 16, 32, 64, 128],
            BFLOAT => &[16],
            COMPLEX => &[32, 64, 128],
            BOOL | FLOAT8_E3M4..=FLOAT8_E8M0FNU => &[8],
            FLOAT6_E2M3FN | FLOAT6_E3M2FN => &[6],
            FLOAT4_E2M1FN => &[4],
            _ => {
                return Err(Error::OutOfRange {
                    name: "dtype.code",
                    value: self.code.into(),
                    allowed: "use TCUDA_DTYPE_..., or another code of DLPack, up to 17",
                });
            }
        };
        if !widths.contains(&self.bits) {
            return Err(Error::OutOfRange {
                name: "dtype.bits",
                value: self.bits.into(),
                allowed: "that code has no numbers of so many bits; 32 is a float",
            });
        }
        if self.lanes == 0 {
            return Err(Error::OutOfRange {
                name: "dtype.lanes",
                value: 0,
                allowed: "use 1, or more for vectors",
            });
        }
        Ok(())
    }

    /// Bits of an element, all lanes together.
    pub fn element_bits(self) -> u64 {
        u64::from(self.bits) * u64::from(self.lanes)
    }

    /// Bytes of an element, if its bits are a multiple of 8.
    pub fn element_bytes(self) -> Option<u64> {
        let bits = self.element_bits();
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_dlpack_are_accepted() {
        let widths = |code| (0..=255).filter(move |bits| Dtype::new(code, *bits).check().is_ok());
        assert_eq!(widths(code::INT).collect::<Vec<u8>>(), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(widths(code::FLOAT).collect::<Vec<u8>>(), [16, 32, 64, 128]);
        assert_eq!(widths(code::COMPLEX).collect::<Vec<u8>>(), [32, 64, 128]);
        for code in [code::BOOL, 7, 8, 9, 10, 11, 12, 13, 14] {
            assert_eq!(widths(code).collect::<Vec<u8>>(), [8]);
        }
        assert_eq!(widths(15).chain(widths(16)).chain(widths(17)).collect::<Vec<u8>>(), [6, 6, 4]);
        assert!((18..=255).all(|code| widths(code).count() == 0));
        assert!(Dtype { code: 2, bits: 32, lanes: 0 }.check().is_err());
    }

    #[test]
    fn elements_may_be_smaller_than_bytes() {
        let pair = Dtype { code: code::FLOAT4_E2M1FN, bits: 4, lanes: 2 };
        assert_eq!((pair.element_bits(), pair.element_bytes()), (8, Some(1)));
        assert_eq!(Dtype::new(code::FLOAT6_E2M3FN, 6).element_bytes(), None);
        assert_eq!(Dtype::new(code::COMPLEX, 128).element_bytes(), Some(16));
    }
}
