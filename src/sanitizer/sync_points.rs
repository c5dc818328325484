//! What the host hears of work that is over, while somebody watches. What `point` gives is taken before
//! `wait` or `ask` runs: what is queued meanwhile is not waited for.

use super::{Point, reached};
use crate::base::error::Result;

/// After `wait` the host knows that what `point` has is over.
#[cold]
pub fn waited(point: Option<Point>, wait: impl FnOnce() -> Result<()>) -> Result<()> {
    wait()?;
    reached(point);
    Ok(())
}

/// The same if `ask` says that it is.
#[cold]
pub fn queried(point: Option<Point>, query: impl FnOnce() -> Result<bool>) -> Result<bool> {
    let is_over = query()?;
    if is_over {
        reached(point);
    }
    Ok(is_over)
}
