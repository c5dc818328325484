//! Images of modules: PTX as text, or in a fat binary of several images.

use super::arguments::require;
use super::hooks;
use crate::base::code;
use std::ffi::{CStr, c_char, c_void};
use std::slice;

/// The first bytes of a structure that holds the address of a fat binary, of a fat binary, and of
/// compiled code: 64 bits, little-endian.
const WRAPPER: &[u8] = &[0xb1, 0x43, 0x62, 0x46];
const FAT_BINARY: &[u8] = &[0x50, 0xed, 0x55, 0xba];
const ELF: &[u8] = b"\x7fELF\x02\x01\x01";

/// Bytes of the header of a fat binary, and the least of each image's header in it.
const FAT_HEADER: usize = 16;
const ENTRY_HEADER: usize = 64;
/// Bytes of the header of compiled code, and its machine number.
const ELF_HEADER: usize = 64;
const ELF_MACHINE: u16 = 190;

/// The kind of an image that is PTX, and the flags of compression.
const PTX: u16 = 1;
const LZ4: u64 = 1 << 13;
const COMPRESSED: u64 = 1 << 12 | LZ4 | 1 << 15;

/// True if the memory of the host begins with these bytes. It is not read beyond the first
/// difference.
fn begins(image: *const u8, bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(at, byte)| {
        // SAFETY: the caller passes an image, which reaches to its first differing byte.
        let own = unsafe { image.wrapping_add(at).read() };
        own == *byte
    })
}

/// Bytes of the host's memory.
fn bytes_at<'a>(image: *const u8, bytes: usize) -> &'a [u8] {
    // SAFETY: the image's header tells that it has these bytes.
    unsafe { slice::from_raw_parts(image, bytes) }
}

/// The image in what programs have for a fat binary, else the image itself. Only libraries are
/// loaded from it, as with the driver (580.159).
pub(super) fn unwrapped(image: *const c_void) -> Result<*const c_void, i32> {
    require(!image.is_null(), code::INVALID_VALUE)?;
    let start = image.cast::<u8>();
    if !begins(start, WRAPPER) {
        return Ok(image);
    }
    let address = number(bytes_at(start, FAT_HEADER), 8, 8).unwrap_or(0);
    require(address != 0, code::INVALID_IMAGE)?;
    Ok(std::ptr::with_exposed_provenance(address as usize))
}

/// The PTX of an image in the memory of the host.
pub(super) fn read(image: *const c_void, capability: u32) -> Result<String, i32> {
    require(!image.is_null(), code::INVALID_VALUE)?;
    let start = image.cast::<u8>();
    require(!begins(start, WRAPPER), code::INVALID_IMAGE)?;
    if begins(start, FAT_BINARY) {
        let bytes = fat_bytes(bytes_at(start, FAT_HEADER)).ok_or(code::INVALID_IMAGE)?;
        return parse(bytes_at(start, bytes), capability);
    }
    if begins(start, ELF) {
        return parse(bytes_at(start, ELF_HEADER), capability);
    }
    // SAFETY: any other image is a NUL-terminated text.
    parse(unsafe { CStr::from_ptr(start.cast::<c_char>()) }.to_bytes(), capability)
}

/// The PTX of an image of known length.
pub(super) fn parse(image: &[u8], capability: u32) -> Result<String, i32> {
    if image.starts_with(FAT_BINARY) {
        return choose(image, capability);
    }
    if image.starts_with(ELF) && number(image, 18, 2) == Some(ELF_MACHINE.into()) {
        hooks::log_error(format_args!("an image is compiled code without PTX, which is needed"));
        return Err(code::NO_BINARY_FOR_GPU);
    }
    text(image)
}

/// A text up to its first NUL.
fn text(bytes: &[u8]) -> Result<String, i32> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| code::INVALID_IMAGE)?;
    Ok(text.to_owned())
}

/// A little-endian number of some bytes at an offset.
fn number(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(count)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Bytes of a fat binary with its header.
fn fat_bytes(header: &[u8]) -> Option<usize> {
    let (own, rest) = (number(header, 6, 2)?, number(header, 8, 8)?);
    let bytes = usize::try_from(own.checked_add(rest)?).ok()?;
    (own as usize >= FAT_HEADER && isize::try_from(bytes).is_ok()).then_some(bytes)
}

/// An image in a fat binary.
struct Entry<'a> {
    kind: u16,
    /// The compute capability that it is for.
    target: u32,
    flags: u64,
    payload: &'a [u8],
    /// Bytes after decompression.
    full: usize,
    /// Where the next one begins.
    end: usize,
}

/// The image at an offset of a fat binary.
fn entry(fat: &[u8], at: usize) -> Option<Entry<'_>> {
    let field = |offset: usize, count| number(fat, at.checked_add(offset)?, count);
    let (header, padded) = (field(4, 4)? as usize, usize::try_from(field(8, 8)?).ok()?);
    let start = at.checked_add(header).filter(|_| header >= ENTRY_HEADER)?;
    let end = start.checked_add(padded)?;
    let flags = field(40, 8)?;
    let stored = if flags & COMPRESSED == 0 { padded } else { field(16, 4)? as usize };
    Some(Entry {
        kind: field(0, 2)? as u16,
        target: field(28, 4)? as u32,
        flags,
        payload: fat.get(start..end)?.get(..stored)?,
        full: usize::try_from(field(56, 8)?).ok()?,
        end,
    })
}

/// The PTX of a fat binary for the newest target that the device can run.
fn choose(fat: &[u8], capability: u32) -> Result<String, i32> {
    let mut at = number(fat, 6, 2).ok_or(code::INVALID_IMAGE)? as usize;
    let end = fat_bytes(fat).filter(|end| *end <= fat.len()).ok_or(code::INVALID_IMAGE)?;
    let mut newest: Option<Entry<'_>> = None;
    while at < end {
        let found = entry(&fat[..end], at).ok_or(code::INVALID_IMAGE)?;
        at = found.end;
        let is_usable = found.kind == PTX && found.target <= capability;
        if is_usable && newest.as_ref().is_none_or(|other| other.target < found.target) {
            newest = Some(found);
        }
    }
    let refuse = |why| {
        hooks::log_error(format_args!("a fat binary cannot be loaded: {why}"));
        code::NO_BINARY_FOR_GPU
    };
    let found = newest.ok_or_else(|| refuse("it has no PTX that the device can run"))?;
    match found.flags & COMPRESSED {
        0 => text(found.payload),
        LZ4 => text(&decompress(found.payload, found.full).ok_or(code::INVALID_IMAGE)?),
        _ => Err(refuse("its PTX is compressed by a method other than LZ4")),
    }
}

/// Decompresses a block of LZ4 that has at most `most` bytes.
fn decompress(block: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut input = block.iter().copied();
    let mut output = Vec::new();
    // A length of 15 goes on in the next bytes, the last of which is not 255.
    let length = |first: u8, input: &mut dyn Iterator<Item = u8>| {
        let mut length = usize::from(first);
        let mut more = first == 15;
        while more {
            let next = input.next()?;
            length += usize::from(next);
            more = next == 255;
        }
        Some(length)
    };
    while let Some(token) = input.next() {
        let literals = length(token >> 4, &mut input)?;
        let before = output.len();
        output.extend(input.by_ref().take(literals));
        if output.len() - before < literals || output.len() > most {
            return None;
        }
        // The last sequence ends with its literals.
        let Some(low) = input.next() else { break };
        let distance = usize::from(low) | usize::from(input.next()?) << 8;
        let from = output.len().checked_sub(distance).filter(|_| distance > 0)?;
        let matched = length(token & 15, &mut input)? + 4;
        if matched > most.saturating_sub(output.len()) {
            return None;
        }
        // The copy can overlap what it writes.
        for at in from..from + matched {
            output.push(output[at]);
        }
    }
    Some(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_lz4_are_decompressed() {
        assert_eq!(decompress(&[0x30, b'a', b'b', b'c'], 3).unwrap(), b"abc");
        // Two literals, and a match of nine bytes at a distance of two.
        let block = [0x25, b'a', b'b', 2, 0, 0x10, b'!'];
        assert_eq!(decompress(&block, 12).unwrap(), b"abababababa!");
        assert_eq!(decompress(&block, 11), None, "longer than promised");
        assert_eq!(decompress(&[0x20, b'a'], 9), None, "too short");
        assert_eq!(decompress(&[0x14, b'a', 2, 0], 99), None, "before the start");
        let mut long = vec![0xf0, 255, 1];
        long.extend([b'x'; 271]);
        assert_eq!(decompress(&long, 271).unwrap(), [b'x'; 271]);
    }

    /// A fat binary of images: kind, target, flags, payload and its full size.
    fn fat(images: &[(u16, u32, u64, &[u8], usize)]) -> Vec<u8> {
        let mut rest = Vec::new();
        for (kind, target, flags, payload, full) in images {
            let padded = payload.len().next_multiple_of(8);
            let mut header = vec![0; ENTRY_HEADER];
            header[0..2].copy_from_slice(&kind.to_le_bytes());
            header[4..8].copy_from_slice(&(ENTRY_HEADER as u32).to_le_bytes());
            header[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
            header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            header[28..32].copy_from_slice(&target.to_le_bytes());
            header[40..48].copy_from_slice(&flags.to_le_bytes());
            header[56..64].copy_from_slice(&(*full as u64).to_le_bytes());
            rest.extend(header);
            rest.extend(*payload);
            rest.resize(rest.len() + padded - payload.len(), 0);
        }
        let mut fat = FAT_BINARY.to_vec();
        fat.extend([1, 0, FAT_HEADER as u8, 0]);
        fat.extend((rest.len() as u64).to_le_bytes());
        fat.extend(rest);
        fat
    }

    #[test]
    fn the_newest_ptx_that_the_device_can_run_is_chosen() {
        let images: &[(u16, u32, u64, &[u8], usize)] = &[
            (2, 90, 0, b"code", 0),
            (PTX, 52, 0, b"fifty-two", 0),
            (PTX, 70, LZ4, &[0x25, b'a', b'b', 2, 0, 0x10, b'!'], 12),
            (PTX, 100, 0, b"hundred", 0),
        ];
        let all = fat(images);
        assert_eq!(parse(&all, 60).unwrap(), "fifty-two");
        assert_eq!(parse(&all, 90).unwrap(), "abababababa!");
        assert_eq!(parse(&all, 120).unwrap(), "hundred");
        assert_eq!(parse(&all, 50), Err(code::NO_BINARY_FOR_GPU));
        assert_eq!(parse(&fat(&images[..1]), 90), Err(code::NO_BINARY_FOR_GPU));
        assert_eq!(parse(&fat(&[(PTX, 52, 1 << 15, b"zstd", 9)]), 90), Err(209));
        for end in 0..all.len() {
            let _ = parse(&all[..end], 90);
        }
        let wrapper = [0x1_4662_43b1u64.to_le_bytes(), (all.as_ptr().addr() as u64).to_le_bytes()];
        let _ = all.as_ptr().expose_provenance();
        let wrapper = wrapper.as_ptr().cast();
        assert_eq!(unwrapped(wrapper).unwrap(), all.as_ptr().cast());
        assert_eq!(read(wrapper, 60), Err(code::INVALID_IMAGE), "only libraries take it");
        assert_eq!(unwrapped(all.as_ptr().cast()).unwrap(), all.as_ptr().cast());
        assert_eq!(read(all.as_ptr().cast(), 60).unwrap(), "fifty-two");
    }

    #[test]
    fn compiled_code_is_refused() {
        let mut image = [0u8; ELF_HEADER];
        image[..ELF.len()].copy_from_slice(ELF);
        assert_eq!(read(image.as_ptr().cast(), 90).unwrap().as_bytes(), ELF, "of a host");
        image[18] = 190;
        assert_eq!(read(image.as_ptr().cast(), 90), Err(code::NO_BINARY_FOR_GPU));
    }
}
