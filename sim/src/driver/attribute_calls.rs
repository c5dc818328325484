//! The calls for attributes of streams.

use super::arguments::{peek, put, require};
use super::entry::entry;
use super::stream_attributes::{DOMAIN, DOMAINS, POLICY, PRIORITY, WINDOW, Window};
use super::sync::lock;
use crate::base::code;
use cudarc::driver::sys::{CUstream, CUstreamAttrValue};
use std::ffi::{c_int, c_uint};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetAttribute(
    stream: CUstream,
    attribute: c_uint,
    value: *mut CUstreamAttrValue,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.records(&stream)?;
        let attributes = *lock(&stream.attributes);
        match attribute {
            WINDOW => put!(value.cast::<Window>(), attributes.window),
            POLICY => put!(value.cast::<c_uint>(), attributes.policy),
            PRIORITY => put!(value.cast::<c_int>(), stream.priority),
            DOMAINS => put!(value.cast::<[u8; 2]>(), attributes.domains),
            DOMAIN => put!(value.cast::<c_uint>(), attributes.domain),
            _ => Err(code::INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamSetAttribute(
    stream: CUstream,
    attribute: c_uint,
    value: *const CUstreamAttrValue,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.records(&stream)?;
        let mut attributes = lock(&stream.attributes);
        let mut new = *attributes;
        match attribute {
            WINDOW => new.window = peek!(value.cast::<Window>())?,
            POLICY => new.policy = peek!(value.cast::<c_uint>())?,
            DOMAINS => new.domains = peek!(value.cast::<[u8; 2]>())?,
            DOMAIN => new.domain = peek!(value.cast::<c_uint>())?,
            _ => return Err(code::INVALID_VALUE),
        }
        require(new.are_valid(), code::INVALID_VALUE)?;
        *attributes = new;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamCopyAttributes(dst: CUstream, src: CUstream) -> c_int {
    entry(|machine| {
        let (dst, src) = (machine.stream(dst)?, machine.stream(src)?);
        machine.captures.records(&dst)?;
        machine.captures.records(&src)?;
        require(dst.is_beside(&src), code::INVALID_VALUE)?;
        let attributes = *lock(&src.attributes);
        *lock(&dst.attributes) = attributes;
        Ok(())
    })
}
