//! Selects between the fast paths and the fallback.

use super::path::{self, Block, Part, Rows, Strided, Sum};
use super::team::Team;
use crate::base::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};

static PLAIN_ONLY: AtomicBool = AtomicBool::new(false);

/// Disables the fast paths, for tests of the fallback.
#[doc(hidden)]
pub fn use_plain_only(plain_only: bool) {
    PLAIN_ONLY.store(plain_only, Ordering::Relaxed);
}

fn are_open() -> bool {
    !PLAIN_ONLY.load(Ordering::Relaxed)
}

/// [`path::broadcast`], if the fast paths are enabled.
pub fn broadcast(team: &Team, bytes: u64, src: Part, dsts: &[Part]) -> Result<bool> {
    Ok(are_open() && path::broadcast(team, bytes, src, dsts)?)
}

/// [`path::broadcast_blocks`], if the fast paths are enabled.
pub fn broadcast_blocks(team: &Team, root: i32, blocks: &[Block]) -> Result<bool> {
    Ok(are_open() && path::broadcast_blocks(team, root, blocks)?)
}

/// [`path::copies`], if the fast paths are enabled.
pub fn copies(team: &Team, rows: &[Rows]) -> Result<bool> {
    Ok(are_open() && path::copies(team, rows)?)
}

/// [`path::strided`], if the fast paths are enabled.
pub fn strided(team: &Team, pieces: &[Strided]) -> Result<bool> {
    Ok(are_open() && path::strided(team, pieces)?)
}

/// [`path::sum`], if the fast paths are enabled. Sums on one device have no fallback.
pub fn sum(team: &Team, items: &[Sum]) -> Result<bool> {
    let is_local = |item: &Sum| item.sources.iter().all(|part| part.device == item.dst.device);
    Ok((are_open() || items.iter().all(is_local)) && path::sum(team, items)?)
}
