//! The handle of shared memory: 512 bytes of plain data from an untrusted source. The exporting
//! process compares all bytes with its own copy before it trusts any of them.

use crate::base::error::{Error, Result};

/// Bytes of a handle.
pub const BYTES: usize = 512;

/// A handle as it is transferred.
pub type Handle = [u8; BYTES];

const MAGIC: [u8; 8] = *b"tcudaipc";
/// Incremented with each change of the layout.
const VERSION: u32 = 1;

/// The fields of a handle. All numbers are those of the exporting process.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct HandleFields {
    magic: [u8; 8],
    version: u32,
    /// 1: the memory came from `cuMemAlloc`, and `memory` is its IPC handle.
    pub is_plain: u32,
    pub process: u32,
    /// 1: `event` completes when the memory may be used.
    pub has_event: u32,
    /// Random name of the exporting process's socket.
    pub socket: [u8; 16],
    /// Random bytes, so that a handle cannot be guessed.
    pub nonce: [u8; 16],
    /// UUID of the device.
    pub uuid: [u8; 16],
    /// Numbers of the export, and of the range of memory that is shared.
    pub export: u64,
    pub range: u64,
    /// Bytes of the range, offset of the exported address in it, and bytes from that address to the
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

const _: () = assert!(size_of::<HandleFields>() == 248 && size_of::<HandleFields>() <= BYTES);

impl HandleFields {
    /// Empty fields.
    pub fn new() -> HandleFields {
        HandleFields {
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

    /// Encodes the handle.
    pub fn pack(&self) -> Handle {
        let mut handle = [0; BYTES];
        let from = std::ptr::from_ref(self).cast::<u8>();
        // SAFETY: the fields are shorter than a handle, and have no padding.
        unsafe { from.copy_to_nonoverlapping(handle.as_mut_ptr(), size_of::<HandleFields>()) };
        handle
    }

    /// Decodes a handle. An error unless it has this version and consistent numbers.
    pub fn unpack(handle: &Handle) -> Result<HandleFields> {
        // SAFETY: the handle has enough bytes, and integers accept any value.
        let fields = unsafe { handle.as_ptr().cast::<HandleFields>().read_unaligned() };
        if fields.magic != MAGIC {
            return Err(Error::Invalid(
                "handle is none: pass the bytes that tcuda_ipc_export wrote, all 512",
            ));
        }
        if fields.version != VERSION {
            return Err(Error::Invalid(
                "handle is of another version of tcuda; both processes must have the same",
            ));
        }
        let end = fields.offset.checked_add(fields.bytes);
        let is_inside = end.is_some_and(|end| fields.bytes > 0 && end <= fields.range_bytes);
        if !is_inside
            || fields.before > fields.offset
            || fields.is_plain > 1
            || fields.has_event > 1
        {
            return Err(CHANGED);
        }
        Ok(fields)
    }
}

/// The error for a handle that the exporting process does not know.
pub const CHANGED: Error = Error::Invalid(
    "handle was changed on the way, or every process that imported it has closed it: \
     each receiver needs a handle of its own",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_handle_unpacks_to_the_same_fields() {
        let mut fields = HandleFields::new();
        (fields.range_bytes, fields.offset, fields.bytes) = (4096, 512, 3584);
        fields.nonce = [7; 16];
        let handle = fields.pack();
        let back = HandleFields::unpack(&handle).unwrap();
        assert_eq!((back.offset, back.bytes, back.nonce), (512, 3584, [7; 16]));
        assert_eq!(handle, back.pack());
    }

    #[test]
    fn inconsistent_handles_are_refused() {
        let mut fields = HandleFields::new();
        (fields.range_bytes, fields.offset, fields.bytes) = (4096, 512, 3585);
        assert!(HandleFields::unpack(&fields.pack()).is_err());
        (fields.offset, fields.bytes) = (u64::MAX, 2);
        assert!(HandleFields::unpack(&fields.pack()).is_err());
        (fields.offset, fields.bytes, fields.before) = (512, 512, 513);
        assert!(HandleFields::unpack(&fields.pack()).is_err());
        (fields.offset, fields.bytes, fields.before) = (0, 0, 0);
        assert!(HandleFields::unpack(&fields.pack()).is_err());
        assert!(HandleFields::unpack(&[0; BYTES]).is_err());
    }
}
