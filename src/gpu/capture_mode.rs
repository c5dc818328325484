//! The library's own driver calls during captures of the host.

use crate::driver::Driver;
use crate::driver::sys::CUstreamCaptureMode;

/// Allows driver calls that are "unsafe" during a capture, while the guard lives: the library's
/// slow paths never touch what is captured.
pub(crate) struct Relaxed(&'static Driver, CUstreamCaptureMode);

impl Relaxed {
    pub(crate) fn enter(driver: &'static Driver) -> Relaxed {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is exchanged with the thread's own.
        if unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) }.is_err() {
            mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        }
        Relaxed(driver, mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: restores the mode that `enter` replaced.
        let _ = unsafe { self.0.cuThreadExchangeStreamCaptureMode(&mut self.1) };
    }
}
