//! Waits and queries from which the host learns that work is complete. They are called while the
//! sanitizer is on. The caller takes `point` before `wait` or `query` runs, because work that is
//! queued meanwhile is not covered.

use super::{Point, reached};
use crate::base::error::Result;

/// Runs `wait`. If it succeeds, the work before `point` is complete.
#[cold]
pub fn waited(point: Option<Point>, wait: impl FnOnce() -> Result<()>) -> Result<()> {
    wait()?;
    reached(point);
    Ok(())
}

/// Runs `query`. If it returns true, the work before `point` is complete.
#[cold]
pub fn queried(point: Option<Point>, query: impl FnOnce() -> Result<bool>) -> Result<bool> {
    let is_over = query()?;
    if is_over {
        reached(point);
    }
    Ok(is_over)
}
