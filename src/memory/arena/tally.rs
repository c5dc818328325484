//! What arenas count: blocks by their own class, and free memory by the arena's.
//!
//! Blocks up to 1 MiB are small in every statistic, as in PyTorch. But memory that is kept apart
//! for some of them is missing elsewhere, and the other way round. Programs whose blocks of 64 KiB
//! to 1 MiB came from small arenas needed up to 4 % more memory. So small arenas of mapped memory
//! have blocks of up to 64 KiB only, and large arenas count blocks of both classes.

use crate::memory::arena::{Arena, ArenaGuard};
use crate::memory::config::size::{Class, SMALL, UNIT};
use crate::memory::stats::ledger::Split;

/// The class of a block of mapped memory.
#[inline(always)]
fn class_of_mapped(bytes: i64) -> Class {
    if bytes <= SMALL as i64 { Class::Small } else { Class::Large }
}

impl Arena {
    /// The class of one of its blocks.
    #[inline]
    pub(in crate::memory) fn class_of(&self, units: u32) -> Class {
        if self.segmented { self.class } else { class_of_mapped(i64::from(units) * UNIT as i64) }
    }
}

impl ArenaGuard<'_> {
    /// Counts an allocated block of mapped memory that is not oversize, if the headroom allows.
    /// False: nothing was done.
    #[inline(always)]
    pub(in crate::memory) fn count_alloc(
        &mut self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        let classes = (self.arena().class, class_of_mapped(bytes));
        self.account().count_alloc(classes, (bytes, requested), split)
    }

    /// Counts a freed block in the same way.
    #[inline(always)]
    pub(in crate::memory) fn count_free(
        &mut self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        let classes = (self.arena().class, class_of_mapped(bytes));
        self.account().count_free(classes, (bytes, requested), split)
    }

    /// Counts a freed block that other streams may still use.
    #[inline]
    pub(in crate::memory) fn count_deferred_free(&mut self, bytes: i64, oversize: bool) {
        let class = self.arena().class_of((bytes as u64 / UNIT) as u32);
        self.account().count_deferred_free(class, bytes, oversize);
    }

    /// Bytes of the pending blocks.
    pub(in crate::memory) fn pending_bytes(&mut self) -> u64 {
        self.account().waiting_bytes() as u64
    }
}
