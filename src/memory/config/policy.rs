//! The effect of the settings on the requests of one device, in words that every request can read.
//! With default settings, a request needs only the largest size that is served without the policy,
//! which it compares anyway.

use super::settings::{INTERVALS, Settings};
use crate::memory::config::fraction::bytes_of;
use crate::memory::config::segment_rules::Rules;
use crate::memory::config::size::{Size, UNIT};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The policy of a device.
pub struct Policy {
    /// Requests up to this size need not read the rest of the policy.
    plain: AtomicU64,
    /// Blocks of at least this size are oversize.
    oversize: AtomicU64,
    /// Binary logarithms of the divisions, a byte for each interval: a request reads one word.
    divisions: [AtomicU64; 2],
    /// `garbage_collection_threshold`, its bits.
    threshold: AtomicU64,
    /// Is growth beyond the limit refused at once?
    rejects: AtomicBool,
    /// Does something else than arenas serve requests? Then all requests read the policy.
    diverts: AtomicBool,
    /// Is idle memory remapped before an arena grows?
    remaps: AtomicBool,
    /// Was it ever, so that there may be views?
    has_remapped: AtomicBool,
    /// Does idle memory of one stream serve another before an arena grows beyond the highest need?
    shares: AtomicBool,
    /// `sharing_threshold`, its bits.
    sharing_threshold: AtomicU64,
    /// Does memory come in segments instead of being mapped?
    segmented: AtomicBool,
    /// The other numbers of the rules of segments.
    max_non_split_rounding: AtomicU64,
    large_segment: AtomicU64,
}

impl Policy {
    /// The default policy of a device whose arenas have `most` bytes of addresses.
    pub fn new(most: u64) -> Policy {
        Policy {
            plain: AtomicU64::new(most),
            oversize: AtomicU64::new(u64::MAX),
            divisions: [AtomicU64::new(0), AtomicU64::new(0)],
            threshold: AtomicU64::new(0),
            rejects: AtomicBool::new(false),
            diverts: AtomicBool::new(false),
            remaps: AtomicBool::new(true),
            has_remapped: AtomicBool::new(true),
            shares: AtomicBool::new(false),
            sharing_threshold: AtomicU64::new(0),
            segmented: AtomicBool::new(false),
            max_non_split_rounding: AtomicU64::new(0),
            large_segment: AtomicU64::new(0),
        }
    }

    /// Applies settings. One thread at a time calls this.
    pub fn configure(&self, settings: &Settings, most: u64) {
        let mut words = [0u64; 2];
        for (index, divisions) in settings.roundup_power2_divisions.iter().enumerate() {
            let log2 = divisions.checked_ilog2().unwrap_or(0);
            words[index / 8] |= u64::from(log2) << (index % 8 * 8);
        }
        let diverts = self.diverts.load(Ordering::Relaxed);
        let plain = if words != [0, 0] || diverts || !settings.expandable_segments {
            0
        } else {
            // The largest request whose block is not oversize.
            most.min(settings.max_split_bytes.saturating_sub(UNIT))
        };
        for (word, value) in self.divisions.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.oversize.store(settings.max_split_bytes, Ordering::Relaxed);
        self.threshold.store(settings.garbage_collection_threshold.to_bits(), Ordering::Relaxed);
        self.rejects.store(settings.throw_on_cudamalloc_oom, Ordering::Relaxed);
        self.segmented.store(!settings.expandable_segments, Ordering::Relaxed);
        self.remaps.store(settings.lend_idle_memory, Ordering::Relaxed);
        self.has_remapped.fetch_or(settings.lend_idle_memory, Ordering::Relaxed);
        self.shares.store(settings.share_between_streams, Ordering::Relaxed);
        self.sharing_threshold.store(settings.sharing_threshold.to_bits(), Ordering::Relaxed);
        let (rounding, large) =
            (settings.max_non_split_rounding_bytes, settings.large_segment_bytes);
        self.max_non_split_rounding.store(rounding, Ordering::Relaxed);
        self.large_segment.store(large, Ordering::Relaxed);
        self.plain.store(plain, Ordering::Relaxed);
    }

    /// The largest request that is served without the policy.
    #[inline]
    pub fn plain(&self) -> u64 {
        self.plain.load(Ordering::Relaxed)
    }

    /// Is idle memory remapped?
    pub fn remaps(&self) -> bool {
        self.remaps.load(Ordering::Relaxed)
    }

    /// Was it ever?
    pub fn has_remapped(&self) -> bool {
        self.has_remapped.load(Ordering::Relaxed)
    }

    /// The reserved memory, of `most`, up to which streams do not share memory.
    pub fn not_shared_below(&self, most: u64) -> u64 {
        let threshold = f64::from_bits(self.sharing_threshold.load(Ordering::Relaxed));
        bytes_of(threshold, most)
    }

    /// Is idle memory shared between streams?
    pub fn shares(&self) -> bool {
        self.shares.load(Ordering::Relaxed)
    }

    /// Sets whether something else than arenas serves requests, from the next `configure` on.
    pub fn divert(&self, diverts: bool) {
        self.diverts.store(diverts, Ordering::Relaxed);
    }

    /// The size of the block for a request of at most 2^60 bytes.
    pub fn size_of(&self, bytes: u64) -> Size {
        let bytes = self.round(bytes);
        Size { bytes, oversize: bytes >= self.oversize.load(Ordering::Relaxed) }
    }

    fn round(&self, bytes: u64) -> u64 {
        let interval = bytes.max(1).ilog2().saturating_sub(20).min(INTERVALS as u32 - 1);
        let word = self.divisions[interval as usize / 8].load(Ordering::Relaxed);
        let log2 = (word >> (interval % 8 * 8) & 0xff) as u32;
        // Only above this, so that a division is at least a unit.
        if (1..=54).contains(&log2) && bytes > UNIT << log2 {
            return bytes.next_multiple_of((1 << bytes.ilog2()) >> log2);
        }
        crate::memory::config::size::round_size(bytes)
    }

    /// The size from which on blocks are oversize; none: no block is.
    pub fn max_split_size(&self) -> Option<u64> {
        Some(self.oversize.load(Ordering::Relaxed)).filter(|bytes| *bytes != u64::MAX)
    }

    /// The reserved bytes above which garbage is collected, for a limit; none: it is not collected.
    pub fn collects_above(&self, limit: u64) -> Option<u64> {
        let threshold = f64::from_bits(self.threshold.load(Ordering::Relaxed));
        (threshold > 0.0 && limit != u64::MAX).then(|| bytes_of(threshold, limit))
    }

    /// Does memory come in segments?
    pub fn is_segmented(&self) -> bool {
        self.segmented.load(Ordering::Relaxed)
    }

    /// The rules of segments; `whole`: those of segments that are never split.
    pub fn rules(&self, whole: bool) -> Rules {
        Rules {
            max_split: self.oversize.load(Ordering::Relaxed),
            max_non_split_rounding: self.max_non_split_rounding.load(Ordering::Relaxed),
            large_segment: self.large_segment.load(Ordering::Relaxed),
            whole,
        }
    }

    /// Is growth beyond the limit refused at once?
    pub fn rejects(&self) -> bool {
        self.rejects.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        let policy = Policy::new(1 << 40);
        let settings = Settings::DEFAULT.changed_by(text, "text").unwrap();
        policy.configure(&settings, 1 << 40);
        policy
    }

    /// PyTorch's own form of the rule: shifts and masks, where this crate computes multiples.
    fn pytorchs(size: u64, divisions: u64) -> u64 {
        if size < 512 {
            512
        } else if divisions > 1 && size > 512 * divisions {
            if size.is_power_of_two() {
                return size;
            }
            let floor = 1u64 << size.ilog2();
            let step = floor >> divisions.ilog2();
            if step == 0 {
                return floor << 1;
            }
            let below = size & !(step - 1);
            if below == size { size } else { below + step }
        } else {
            512 * size.div_ceil(512)
        }
    }

    #[test]
    fn sizes_are_rounded_as_pytorch_rounds_them() {
        const MIB: u64 = 1 << 20;
        assert_eq!(policy("roundup_power2_divisions:4").size_of(1200).bytes, 1536);
        assert_eq!(policy("roundup_power2_divisions:4").size_of(1200 * MIB).bytes, 1280 * MIB);
        for divisions in [0, 1, 2, 4, 8, 64, 1 << 20, 1 << 63] {
            let policy = policy(&format!("roundup_power2_divisions:{divisions}"));
            let mut size = 1u64;
            while size < 1 << 39 {
                for size in [size - 1, size, size + 1, size + size / 3] {
                    let bytes = policy.size_of(size.max(1)).bytes;
                    let divisions = divisions.min(1 << 50);
                    assert_eq!(bytes, pytorchs(size.max(1), divisions), "{size} by {divisions}");
                    assert!(bytes >= size && bytes.is_multiple_of(512));
                }
                size += size / 5 + 1;
            }
        }
    }

    #[test]
    fn each_interval_has_its_divisions() {
        const MIB: u64 = 1 << 20;
        let policy = policy("roundup_power2_divisions:[64:8,256:4,>:2]");
        for (size, bytes) in [
            (65 * 1024, 72 * 1024),
            (63 * MIB, 64 * MIB),
            (65 * MIB, 72 * MIB),
            (129 * MIB + 1, 129 * MIB + 512),
            (257 * MIB, 320 * MIB),
            (513 * MIB, 768 * MIB),
            (200 * 1024 * MIB, 256 * 1024 * MIB),
        ] {
            assert_eq!(policy.size_of(size).bytes, bytes, "{size}");
        }
    }

    #[test]
    fn what_is_plain_is_neither_rounded_nor_oversize() {
        const MIB: u64 = 1 << 20;
        assert_eq!(Policy::new(77).plain(), 77);
        let split = policy("max_split_size_mb:32");
        assert_eq!(split.plain(), 32 * MIB - 512);
        assert_eq!(split.size_of(split.plain()), Size { bytes: split.plain(), oversize: false });
        assert!(split.size_of(split.plain() + 1).oversize);
        assert_eq!(split.max_split_size(), Some(32 * MIB));
        assert_eq!(policy("").max_split_size(), None);
        assert_eq!(policy("roundup_power2_divisions:2").plain(), 0);
        assert_eq!(policy("roundup_power2_divisions:1").plain(), 1 << 40);
    }

    #[test]
    fn garbage_is_collected_above_a_share_of_the_limit() {
        let policy = policy("garbage_collection_threshold:0.8");
        assert_eq!(policy.collects_above(1001), Some(800));
        assert_eq!(policy.collects_above(u64::MAX), None, "without a limit there is no share");
        assert_eq!(Policy::new(1).collects_above(1000), None);
    }
}
