//! Operations of the host that the stream sanitizer observes: queries and waits, copies and fills.
//!
//! The library's internal operations use the functions without `for_host`, and are not observed: a
//! program must not rely on the order that results from them.

use crate::base::error::Result;
use crate::base::progress;
use crate::driver::sync_debug;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::ops::copy::{Rows, copy, copy_2d, fill, is_pageable};
use crate::sanitizer::{self, Mode, Touch, sync_points};

impl Stream {
    /// Has all its work finished? For a call of the host.
    #[inline]
    pub fn query(&self, gpus: &Gpus) -> Result<bool> {
        if sanitizer::is_on() {
            let point = sanitizer_reports::point_of_stream(gpus, self);
            return sync_points::queried(point, || self.query_now(gpus));
        }
        self.query_now(gpus)
    }

    #[inline]
    fn query_now(&self, gpus: &Gpus) -> Result<bool> {
        let is_done = self.is_done(gpus)?;
        if is_done {
            progress::notify();
        }
        Ok(is_done)
    }

    /// Waits for all its work, for a call of the host to which sync debug mode applies.
    #[inline]
    pub fn synchronize_for_host(&self, gpus: &Gpus) -> Result<()> {
        sync_debug::check(sync_debug::STREAM)?;
        let _documented = sync_debug::documented();
        self.wait_for_host(gpus)
    }

    /// Waits for all its work, for a call of the host that is documented to wait.
    #[inline]
    pub(crate) fn wait_for_host(&self, gpus: &Gpus) -> Result<()> {
        if sanitizer::is_on() {
            let point = sanitizer_reports::point_of_stream(gpus, self);
            return sync_points::waited(point, || self.synchronize(gpus));
        }
        self.synchronize(gpus)
    }

    /// Makes its further work wait for what `other` holds now, for a call of the host.
    #[inline]
    pub fn wait_stream_for_host(&self, gpus: &Gpus, other: &Stream) -> Result<()> {
        if sanitizer::is_on() {
            self.wait_observed(gpus, other)
        } else {
            self.wait_stream(gpus, other)
        }
    }

    #[cold]
    fn wait_observed(&self, gpus: &Gpus, other: &Stream) -> Result<()> {
        self.wait_stream(gpus, other)?;
        sanitizer_reports::stream_waits(gpus, self, other);
        Ok(())
    }
}

/// Copies bytes, at least one, between any two addresses.
#[inline(always)]
pub fn copy_for_host(gpus: &Gpus, dst: u64, src: u64, bytes: u64, stream: &Stream) -> Result<()> {
    if sanitizer::is_on() {
        return copy_observed(gpus, (dst, src, bytes), stream, "tcuda_copy");
    }
    copy(gpus, dst, src, bytes, stream)
}

/// [`copy_for_host`] while the sanitizer is on; `label` is the name of the host's call.
#[cold]
pub(crate) fn copy_observed(
    gpus: &Gpus,
    (dst, src, bytes): (u64, u64, u64),
    stream: &Stream,
    label: &'static str,
) -> Result<()> {
    copy(gpus, dst, src, bytes, stream)?;
    if dst != src {
        let row = |address| Rows { address, pitch: bytes };
        report_copy(gpus, label, (row(dst), row(src)), (bytes, 1), stream);
    }
    Ok(())
}

/// Reports a copy to the sanitizer; host memory that no device reaches is not checked.
#[cold]
fn report_copy(
    gpus: &Gpus,
    label: &'static str,
    (dst, src): (Rows, Rows),
    (width, rows): (u64, u64),
    stream: &Stream,
) {
    let pageable = |side: Rows| is_pageable(gpus, side.address).unwrap_or(true);
    let (to_host, from_host) = (pageable(dst), pageable(src));
    let of = |side: Rows, is_host, mode| {
        let bytes = if is_host { 0 } else { width };
        Touch::rows(side.address, bytes, rows, side.pitch, mode)
    };
    let touches = [of(dst, to_host, Mode::Write), of(src, from_host, Mode::Read)];
    sanitizer_reports::operation(gpus, stream, label, &touches);
    // Such a copy returns after it is done.
    if to_host && matches!(stream.is_capturing(gpus), Ok(false)) {
        sanitizer::reached(sanitizer_reports::point_of_stream(gpus, stream));
    }
}

/// Copies rows of `width` bytes; neither is 0.
#[inline(always)]
pub fn copy_2d_for_host(
    gpus: &Gpus,
    dst: Rows,
    src: Rows,
    width: u64,
    rows: u64,
    stream: &Stream,
) -> Result<()> {
    if !sanitizer::is_on() {
        return copy_2d(gpus, dst, src, width, rows, stream);
    }
    copy_2d(gpus, dst, src, width, rows, stream)?;
    report_copy(gpus, "tcuda_copy_2d", (dst, src), (width, rows), stream);
    Ok(())
}

/// Writes a value repeatedly.
#[inline(always)]
pub fn fill_for_host(
    gpus: &Gpus,
    ptr: u64,
    value: &[u8],
    count: u64,
    stream: &Stream,
) -> Result<()> {
    if sanitizer::is_on() {
        return fill_observed(gpus, (ptr, value, count), stream, "tcuda_fill");
    }
    fill(gpus, ptr, value, count, stream)
}

/// [`fill_for_host`] while the sanitizer is on; `label` is the name of the host's call.
#[cold]
pub(crate) fn fill_observed(
    gpus: &Gpus,
    (ptr, value, count): (u64, &[u8], u64),
    stream: &Stream,
    label: &'static str,
) -> Result<()> {
    fill(gpus, ptr, value, count, stream)?;
    // No overflow, because the fill had a plan.
    let touch = Touch::write(ptr, value.len() as u64 * count);
    sanitizer_reports::operation(gpus, stream, label, &[touch]);
    Ok(())
}
