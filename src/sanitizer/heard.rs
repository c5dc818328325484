//! What the host hears of work that is over: told to the sanitizer by whoever waits or asks for it.

use super::{Point, is_on, reached};
use crate::error::Result;

/// Waits by `wait`, after which the host knows that what `point` gives is over.
#[inline(always)]
pub fn waited(
    point: impl FnOnce() -> Option<Point>,
    wait: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if is_on() { waited_watched(point, wait) } else { wait() }
}

#[cold]
#[inline(never)]
fn waited_watched(
    point: impl FnOnce() -> Option<Point>,
    wait: impl FnOnce() -> Result<()>,
) -> Result<()> {
    // Before: what is queued meanwhile is not waited for.
    let point = point();
    wait()?;
    reached(point);
    Ok(())
}

/// Asks by `ask` whether what `point` gives is over; the host hears the answer.
#[inline(always)]
pub fn asked(
    point: impl FnOnce() -> Option<Point>,
    ask: impl FnOnce() -> Result<bool>,
) -> Result<bool> {
    if is_on() { asked_watched(point, ask) } else { ask() }
}

#[cold]
#[inline(never)]
fn asked_watched(
    point: impl FnOnce() -> Option<Point>,
    ask: impl FnOnce() -> Result<bool>,
) -> Result<bool> {
    let point = point();
    let is_over = ask()?;
    if is_over {
        reached(point);
    }
    Ok(is_over)
}
