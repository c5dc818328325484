//! What a handle of shared memory says: 512 bytes of plain data, which may come from anywhere. Whoever
//! gave it compares all of them with its own before anything that they say is believed.

use crate::base::error::{Error, Result};

/// Bytes of a handle.
pub const BYTES: usize = 512;

/// A handle as it is sent.
pub type Handle = [u8; BYTES];

const MAGIC: [u8; 8] = *b"tcudaipc";
/// Another number with each change of what follows.
const VERSION: u32 = 1;

/// What it says. All numbers are those of the process that gave it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Words {
    magic: [u8; 8],
    version: u32,
    /// 1: the memory came from cuMemAlloc, and `memory` leads to it.
    pub is_plain: u32,
    pub process: u32,
    /// 1: `event` says when the memory may be used.
    pub has_event: u32,
    /// The name of the process's socket, which nobody can guess.
    pub socket: [u8; 16],
    /// Nor these bytes.
    pub nonce: [u8; 16],
    /// Of the device.
    pub uuid: [u8; 16],
    /// Numbers of the export and of the memory that is shared with it.
    pub export: u64,
    pub range: u64,
    /// Length of that memory, where the exported address is in it, and the bytes from there to the
    /// end of the block.
    pub range_bytes: u64,
    pub offset: u64,
    pub bytes: u64,
    pub event: [u8; 64],
    pub memory: [u8; 64],
    /// Bytes of the block before the exported address. tcuda 0.1 writes zeros here, and does not
    /// read them.
    pub before: u64,
}

const _: () = assert!(size_of::<Words>() == 248 && size_of::<Words>() <= BYTES);

impl Words {
    /// With nothing in it.
    pub fn new() -> Words {
        Words {
            magic: MAGIC,
            version: VERSION,
            is_plain: 0,
            process: std::process::id(),
            has_event: 0,
            socket: [0; 16],
            nonce: [0; 16],
            uuid: [0; 16],
            export: 0,
            range: 0,
            range_bytes: 0,
            offset: 0,
            bytes: 0,
            event: [0; 64],
            memory: [0; 64],
            before: 0,
        }
    }

    /// As it is sent.
    pub fn pack(&self) -> Handle {
        let mut handle = [0; BYTES];
        let from = std::ptr::from_ref(self).cast::<u8>();
        // SAFETY: the words are shorter, and have no padding.
        unsafe { from.copy_to_nonoverlapping(handle.as_mut_ptr(), size_of::<Words>()) };
        handle
    }

    /// What a handle says, if it is one of this version, and can be true.
    pub fn unpack(handle: &Handle) -> Result<Words> {
        // SAFETY: as many bytes as are there, and integers take any.
        let words = unsafe { handle.as_ptr().cast::<Words>().read_unaligned() };
        if words.magic != MAGIC {
            return Err(Error::Invalid(
                "handle is none: pass the bytes that tcuda_ipc_export wrote, all 512",
            ));
        }
        if words.version != VERSION {
            return Err(Error::Invalid(
                "handle is of another version of tcuda; both processes must have the same",
            ));
        }
        let end = words.offset.checked_add(words.bytes);
        let is_inside = end.is_some_and(|end| words.bytes > 0 && end <= words.range_bytes);
        if !is_inside || words.before > words.offset || words.is_plain > 1 || words.has_event > 1 {
            return Err(CHANGED);
        }
        Ok(words)
    }
}

/// A handle that its giver does not know.
pub const CHANGED: Error = Error::Invalid(
    "handle was changed on the way, or everyone who imported it has closed it: each receiver needs a \
     handle of its own",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_comes_back() {
        let mut words = Words::new();
        (words.range_bytes, words.offset, words.bytes) = (4096, 512, 3584);
        words.nonce = [7; 16];
        let handle = words.pack();
        let back = Words::unpack(&handle).unwrap();
        assert_eq!((back.offset, back.bytes, back.nonce), (512, 3584, [7; 16]));
        assert_eq!(handle, back.pack());
    }

    #[test]
    fn what_cannot_be_true_is_refused() {
        let mut words = Words::new();
        (words.range_bytes, words.offset, words.bytes) = (4096, 512, 3585);
        assert!(Words::unpack(&words.pack()).is_err());
        (words.offset, words.bytes) = (u64::MAX, 2);
        assert!(Words::unpack(&words.pack()).is_err());
        (words.offset, words.bytes, words.before) = (512, 512, 513);
        assert!(Words::unpack(&words.pack()).is_err());
        (words.offset, words.bytes, words.before) = (0, 0, 0);
        assert!(Words::unpack(&words.pack()).is_err());
        assert!(Words::unpack(&[0; BYTES]).is_err());
    }
}
