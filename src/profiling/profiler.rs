//! Control of the profiler that is attached to the process.

use crate::base::error::Result;
use crate::gpu::device::CURRENT;
use crate::gpu::gpus::Gpus;

/// Starts its recording; no-op without a profiler.
pub fn start(gpus: &Gpus) -> Result<()> {
    let _context = gpus.device(CURRENT)?.enter()?;
    // SAFETY: no pointers; a context is current.
    unsafe { gpus.driver().cuProfilerStart() }?;
    Ok(())
}

/// Stops its recording.
pub fn stop(gpus: &Gpus) -> Result<()> {
    let _context = gpus.device(CURRENT)?.enter()?;
    // SAFETY: no pointers; a context is current.
    unsafe { gpus.driver().cuProfilerStop() }?;
    Ok(())
}
