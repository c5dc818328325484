//! The profiler that is attached to the process, if any.

use crate::base::error::Result;
use crate::gpu::device::CURRENT;
use crate::runtime::Runtime;

/// Starts its recording; none: nothing.
pub fn start(runtime: &Runtime) -> Result<()> {
    let _context = runtime.device(CURRENT)?.enter()?;
    // SAFETY: no pointers; a context is current.
    unsafe { runtime.driver().cuProfilerStart() }?;
    Ok(())
}

/// Stops it.
pub fn stop(runtime: &Runtime) -> Result<()> {
    let _context = runtime.device(CURRENT)?.enter()?;
    // SAFETY: no pointers; a context is current.
    unsafe { runtime.driver().cuProfilerStop() }?;
    Ok(())
}
