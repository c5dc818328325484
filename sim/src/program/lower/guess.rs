//! Loads whose value is only the first guess of a loop of `atom.cas`.

use super::name::Name;
use crate::ptx::tree::{Body, Operand, Statement};
use std::collections::HashSet;

/// The registers with which an `atom.cas` of a function compares memory, and those that are copied
/// to them.
///
/// A plain load of such a register starts the loop that the CUDA programming guide shows for new
/// atomic operations. It may read any value, since the compare-and-swap verifies it. So the search
/// for races takes it for a relaxed one.
pub(super) fn guesses(body: &Body<'_>) -> HashSet<u32> {
    let mut found = HashSet::new();
    let mut copies = Vec::new();
    for statement in &body.statements {
        let Statement::Instruction(instruction) = statement else { continue };
        match instruction.operands.as_slice() {
            [.., Operand::Address(..), Operand::Register(compared), _]
                if instruction.name.starts_with("atom.")
                    && Name::of(instruction.name).takes("cas") =>
            {
                found.insert(*compared);
            }
            [Operand::Register(to), Operand::Register(from)]
                if instruction.name.starts_with("mov.") =>
            {
                copies.push((*to, *from));
            }
            _ => {}
        }
    }
    if found.is_empty() {
        return found;
    }
    loop {
        let before = found.len();
        for (to, from) in &copies {
            if found.contains(to) {
                found.insert(*from);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
