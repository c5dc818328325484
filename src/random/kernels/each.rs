//! The kernel of `bernoulli` with a probability for each element.

use super::{Call, words_before};
use crate::driver::code;
use crate::random::number::{of_bfloat, of_half};
use crate::random::philox;
use crate::random::plan::{EACH, MAX_DIMS};
use crate::random::recipe::uniform32;

/// Byte offset of element `li` in tensor `which` (0: output, 1: probabilities).
fn place(call: &Call<'_>, which: usize, li: u64, bytes: u64) -> u64 {
    let pair = words_before(EACH, 4);
    let dims = (call.word(pair) >> (32 * which)) as u32 as usize;
    if dims == 0 {
        return li.wrapping_mul(bytes);
    }
    let (mut offset, mut rest) = (0u64, li);
    for dim in 0..dims.min(MAX_DIMS) {
        let size = call.word(pair + 1 + MAX_DIMS * which + dim).max(1);
        let stride = call.word(pair + 1 + MAX_DIMS * (which + 2) + dim);
        offset = offset.wrapping_add((rest % size).wrapping_mul(stride));
        rest /= size;
    }
    offset
}

pub fn each<const BYTES: usize>(call: &Call<'_>) -> Result<(), i32> {
    let (seed, block) = call.state(words_before(EACH, 2))?;
    let [numel, one, kind, doubles] = call.four(words_before(EACH, 3));
    let p_bytes: usize = match kind {
        0 => 4,
        1 => 8,
        2 | 3 => 2,
        _ => return Err(code::INVALID_VALUE),
    };
    for group in 0..numel.div_ceil(4) {
        // PyTorch numbers threads with 32 bits.
        let words = philox::block(seed, u64::from(group as u32), block);
        for (li, word) in (4 * group..numel).zip(words) {
            let u = uniform32(word);
            let mut bytes = [0; 8];
            let at = call.word(1).wrapping_add(place(call, 1, li, p_bytes as u64));
            call.memory.read(at, &mut bytes[..p_bytes])?;
            let bits = u64::from_le_bytes(bytes);
            let p = match kind {
                0 => f64::from(f32::from_bits(bits as u32)),
                1 => f64::from_bits(bits),
                2 => f64::from(of_half(bits as u16)),
                _ => f64::from(of_bfloat(bits as u16)),
            };
            let drawn = if doubles != 0 { f64::from(u) <= p } else { u <= p as f32 };
            let value = if drawn { one } else { 0 };
            let at = call.word(0).wrapping_add(place(call, 0, li, BYTES as u64));
            call.memory.write(at, &value.to_le_bytes()[..BYTES])?;
        }
    }
    Ok(())
}
