//! The model of pinned memory of the host.

use crate::world::{Mode, World};

/// Live pinned memory.
#[derive(Clone, Copy)]
pub struct Pinned {
    /// Its address.
    pub ptr: usize,
    /// As it was asked for.
    pub bytes: usize,
}

impl Pinned {
    /// The byte at an offset, where nothing writes it meanwhile.
    pub fn get(self, at: usize, world: &World) -> Option<u8> {
        let settled = world.is_immediate() && at < self.bytes;
        // SAFETY: inside a live block, and the work of every stream is done.
        settled.then(|| unsafe { std::ptr::with_exposed_provenance::<u8>(self.ptr).add(at).read() })
    }
}

impl World {
    /// A block came out.
    pub fn add_pinned(&mut self, ptr: usize, bytes: usize) {
        assert_eq!(ptr == 0, bytes == 0, "{bytes} bytes at {ptr:#x}");
        assert_eq!(ptr % 64, 0, "{ptr:#x} is not aligned");
        let clash = self
            .pinned
            .iter()
            .find(|block| ptr < block.ptr + block.bytes && block.ptr < ptr + bytes);
        // Of several threads another may shut down.
        let known = ptr != 0 && !(self.mode == Mode::Threads && self.may_be_shut_down);
        assert!(clash.is_none() || !known, "{bytes} bytes at {ptr:#x} overlap a live block");
        // What was freed once may come again.
        self.dead.retain(|dead| *dead != ptr);
        if ptr != 0 {
            self.pinned.push(Pinned { ptr, bytes });
        }
    }

    /// A block went. Its address is dead if it is certain that the library forgot it.
    pub fn remove_pinned(&mut self, ptr: usize, forgotten: bool) {
        if let Some(index) = self.pinned.iter().position(|block| block.ptr == ptr) {
            self.pinned.swap_remove(index);
            // Of several threads another may get it next.
            if forgotten && self.mode != Mode::Threads {
                self.dead.push(ptr);
            }
        }
    }
}
