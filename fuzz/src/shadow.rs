//! What the first bytes of a block must hold.

/// So many bytes of each block are followed.
pub const FOLLOWED: usize = 256;
const UNKNOWN: u16 = 0x100;

/// The first bytes of a block, each known or not.
#[derive(Clone)]
pub struct Shadow([u16; FOLLOWED]);

impl Default for Shadow {
    fn default() -> Shadow {
        Shadow([UNKNOWN; FOLLOWED])
    }
}

impl Shadow {
    /// Nothing is known any more.
    pub fn forget(&mut self) {
        self.0 = [UNKNOWN; FOLLOWED];
    }

    /// The byte at an offset, if it is followed and known.
    pub fn get(&self, offset: usize) -> Option<u8> {
        self.0.get(offset).and_then(|byte| u8::try_from(*byte).ok())
    }

    /// Notes the byte at an offset, or that it is not known.
    pub fn set(&mut self, offset: usize, byte: Option<u8>) {
        if let Some(place) = self.0.get_mut(offset) {
            *place = byte.map_or(UNKNOWN, u16::from);
        }
    }
}
