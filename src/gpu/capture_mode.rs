//! Calls of our own beside the captures of hosts.

use crate::driver::Driver;
use crate::driver::sys::CUstreamCaptureMode;

/// Allows driver calls that are "unsafe" during a capture, for the life of the guard: our own cold
/// paths never touch what is captured.
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
        // SAFETY: gives back the mode that `enter` took.
        let _ = unsafe { self.0.cuThreadExchangeStreamCaptureMode(&mut self.1) };
    }
}
