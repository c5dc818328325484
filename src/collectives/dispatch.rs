//! Selects between the fast paths and the fallback.

use super::path::{self, Block, Part, Rows, Strided, Sum};
use super::team::Team;
use crate::base::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};

static FAST_PATHS_DISABLED: AtomicBool = AtomicBool::new(false);

/// Disables the fast paths, for tests of the fallback.
#[doc(hidden)]
pub fn disable_fast_paths(disabled: bool) {
    FAST_PATHS_DISABLED.store(disabled, Ordering::Relaxed);
}

fn fast_paths_enabled() -> bool {
    !FAST_PATHS_DISABLED.load(Ordering::Relaxed)
}

/// [`path::broadcast`], if the fast paths are enabled.
pub fn broadcast(team: &Team, bytes: u64, src: Part, dsts: &[Part]) -> Result<bool> {
    Ok(fast_paths_enabled() && path::broadcast(team, bytes, src, dsts)?)
}

/// [`path::broadcast_blocks`], if the fast paths are enabled.
pub fn broadcast_blocks(team: &Team, root: i32, blocks: &[Block]) -> Result<bool> {
    Ok(fast_paths_enabled() && path::broadcast_blocks(team, root, blocks)?)
}

/// [`path::copies`], if the fast paths are enabled.
pub fn copies(team: &Team, rows: &[Rows]) -> Result<bool> {
    Ok(fast_paths_enabled() && path::copies(team, rows)?)
}

/// [`path::strided`], if the fast paths are enabled.
pub fn strided(team: &Team, pieces: &[Strided]) -> Result<bool> {
    Ok(fast_paths_enabled() && path::strided(team, pieces)?)
}

/// [`path::sum`], if the fast paths are enabled. Sums on one device have no fallback.
pub fn sum(team: &Team, items: &[Sum]) -> Result<bool> {
    let is_local = |item: &Sum| item.sources.iter().all(|part| part.device == item.dst.device);
    Ok((fast_paths_enabled() || items.iter().all(is_local)) && path::sum(team, items)?)
}
