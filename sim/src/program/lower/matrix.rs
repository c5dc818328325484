//! Instructions that move matrices of 8 x 8 numbers of 16 bits between memory and the lanes.
//!
//! A lane holds two neighbours of a row: lane `i` those of row `i / 4` from column `2 * (i % 4)`
//! on.

use super::super::Action;
use super::super::registers::{LANES, Mask, Narrow, store};
use super::Lowering;
use super::name::Name;
use crate::memory::fault::{Fault, FaultKind};
use crate::ptx::Result;
use crate::ptx::tree::Operand;
use crate::ptx::types::Type;

/// Rows and columns of a matrix.
const SIDE: usize = 8;
/// Bytes of a row.
const ROW: usize = 16;

type Matrix = [[u16; SIDE]; SIDE];

/// The matrix whose elements the lanes hold.
fn gather(lanes: &Narrow) -> Matrix {
    let mut matrix = Matrix::default();
    for (lane, pair) in lanes.iter().enumerate() {
        let (row, column) = (lane / 4, 2 * (lane % 4));
        (matrix[row][column], matrix[row][column + 1]) = (*pair as u16, (*pair >> 16) as u16);
    }
    matrix
}

/// What each lane holds of a matrix.
fn scatter(matrix: &Matrix) -> Narrow {
    std::array::from_fn(|lane| {
        let (row, column) = (lane / 4, 2 * (lane % 4));
        u32::from(matrix[row][column]) | u32::from(matrix[row][column + 1]) << 16
    })
}

fn transposed(matrix: &Matrix) -> Matrix {
    std::array::from_fn(|row| std::array::from_fn(|column| matrix[column][row]))
}

/// The address of a row, which a lane has.
fn row_address(addresses: &[u64; LANES], lane: usize) -> std::result::Result<u64, Fault> {
    match addresses[lane] {
        address if address.is_multiple_of(ROW as u64) => Ok(address),
        address => Err(Fault::at(FaultKind::Misaligned, address).of_lane(lane)),
    }
}

impl<'t> Lowering<'_, 't> {
    /// `ldmatrix`, `stmatrix` and `movmatrix`.
    pub(super) fn matrix(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if !matches!(name.base, "ldmatrix" | "stmatrix" | "movmatrix") || !name.takes("m8n8") {
            return Ok(false);
        }
        if name.of_type(0) != Type::B16 {
            return Ok(false);
        }
        name.ignore(&["sync", "aligned"]);
        let is_transposed = name.takes("trans");
        let [first, second] = operands else { return self.operands(2) };
        if name.base == "movmatrix" {
            let to = self.destination::<u32>(first)?;
            let from = self.source::<u32>(second, Type::B32)?;
            self.push(Action::Compute(Box::new(move |registers, mask| {
                let matrix = gather(&registers.narrow[from as usize]);
                store::<u32>(registers, mask, to, &scatter(&transposed(&matrix)));
            })));
            return Ok(true);
        }
        let count = match name.take_of(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some(_) => 4,
            None => return Ok(false),
        };
        let space = self.space(name);
        let is_load = name.base == "ldmatrix";
        let (lanes, address) = if is_load { (first, second) } else { (second, first) };
        let list = match lanes {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != count {
            return self.error("the number of registers differs from that of the matrices");
        }
        let target = self.target(address, space)?;
        let mut rows = Vec::new();
        for register in list {
            rows.push(match is_load {
                true => self.destination::<u32>(register)?,
                false => self.source::<u32>(register, Type::B32)?,
            });
        }
        // The address of row r of matrix m is that of lane 8 m + r.
        let is_active = |mask: Mask, lane: usize| mask.active >> lane & 1 != 0;
        if is_load {
            self.push(Action::Access(Box::new(move |registers, mask, memory| {
                let addresses = target.addresses(registers);
                for (place, to) in rows.iter().enumerate() {
                    let mut matrix = Matrix::default();
                    for (row, values) in matrix.iter_mut().enumerate() {
                        let lane = SIDE * place + row;
                        if !is_active(mask, lane) {
                            continue;
                        }
                        let address = row_address(&addresses, lane)?;
                        let bytes = memory
                            .load_one::<ROW>(target.place, lane, address)
                            .map_err(|fault| fault.of_lane(lane))?;
                        for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                            *value = u16::from_le_bytes([bytes[0], bytes[1]]);
                        }
                    }
                    let matrix = if is_transposed { transposed(&matrix) } else { matrix };
                    store::<u32>(registers, mask, *to, &scatter(&matrix));
                }
                Ok(())
            })));
            return Ok(true);
        }
        self.push(Action::Access(Box::new(move |registers, mask, memory| {
            let addresses = target.addresses(registers);
            for (place, from) in rows.iter().enumerate() {
                let matrix = gather(&registers.narrow[*from as usize]);
                let matrix = if is_transposed { transposed(&matrix) } else { matrix };
                for (row, values) in matrix.iter().enumerate() {
                    let lane = SIDE * place + row;
                    if !is_active(mask, lane) {
                        continue;
                    }
                    let address = row_address(&addresses, lane)?;
                    let mut bytes = [0; ROW];
                    for (bytes, value) in bytes.chunks_exact_mut(2).zip(values) {
                        bytes.copy_from_slice(&value.to_le_bytes());
                    }
                    memory
                        .store_one::<ROW>(target.place, lane, address, &bytes)
                        .map_err(|fault| fault.of_lane(lane))?;
                }
            }
            Ok(())
        })));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_hold_pairs_of_a_row() {
        let matrix: Matrix =
            std::array::from_fn(|row| std::array::from_fn(|column| (10 * row + column) as u16));
        let lanes = scatter(&matrix);
        assert_eq!((lanes[0], lanes[7], lanes[31]), (0x1_0000, 17 << 16 | 16, 77 << 16 | 76));
        assert_eq!(gather(&lanes), matrix);
        assert_eq!(scatter(&transposed(&matrix))[6], 51 << 16 | 41);
    }
}
