//! Control of the profiler that is attached to the process.

use crate::base::error::Result;
use crate::gpu::device::CURRENT;
use crate::runtime::Runtime;

/// Starts its recording; no-op without a profiler.
pub fn start(runtime: &Runtime) -> Result<()> {
    let _context = runtime.device(CURRENT)?.enter()?;
    // SAFETY: no pointers; a context is current.
    unsafe { runtime.driver().cuProfilerStart() }?;
    Ok(())
}

/// Stops its recording.
pub fn stop(runtime: &Runtime) -> Result<()> {
    let _context = runtime.device(CURRENT)?.enter()?;
    // SAFETY: no pointers; a context is current.
    unsafe { runtime.driver().cuProfilerStop() }?;
    Ok(())
}
