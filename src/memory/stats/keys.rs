//! Statistics by PyTorch's keys, and all of them as JSON.

use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES,
    REQUESTED_BYTES, Stat, StatArray, Statistics,
};
use std::fmt;

/// Statistics by their keys.
pub struct Keys<'a>(pub &'a Statistics);

const POOLS: [(&str, usize); 3] = [("all", 0), ("large_pool", 2), ("small_pool", 1)];

fn metrics(stat: &Stat) -> [(&'static str, i64); 4] {
    [
        ("allocated", stat.allocated),
        ("current", stat.current),
        ("freed", stat.freed),
        ("peak", stat.peak),
    ]
}

const BY_POOL: &str = "reserved_bytes_by_private_pools.";
/// The name that PyTorch's documents have for "allocation", which its code does not know.
const DOCUMENTED: (&str, &str) = ("allocated", "allocation");

/// A key, except those of private pools: "allocated_bytes.all.peak", "num_ooms".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    name: &'static str,
    pool: Option<&'static str>,
    metric: Option<&'static str>,
}

impl Key {
    fn parts(self) -> impl Iterator<Item = &'static str> {
        let rest = [self.pool, self.metric].into_iter().flatten();
        std::iter::once(self.name).chain(rest.flat_map(|part| [".", part]))
    }

    /// Characters that must be removed from the one and added to make the other.
    fn distance(self, text: &[u8]) -> usize {
        // The longest common subsequence of the text and the part of the key that was read so far.
        let (mut common, mut length) = ([0u8; LONGEST + 1], 0);
        for byte in self.parts().flat_map(str::bytes) {
            length += 1;
            let mut diagonal = 0;
            for (index, other) in text.iter().enumerate() {
                let above = common[index + 1];
                common[index + 1] = match byte.eq_ignore_ascii_case(other) {
                    true => diagonal + 1,
                    false => above.max(common[index]),
                };
                diagonal = above;
            }
        }
        length + text.len() - 2 * usize::from(common[text.len()])
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts().try_for_each(|part| f.write_str(part))
    }
}

/// So many bytes of an unknown key are compared with the known ones.
const LONGEST: usize = 96;

/// The key that is nearest to a text.
pub fn nearest(text: &str) -> Key {
    let text = &text.as_bytes()[..text.len().min(LONGEST)];
    let mut best = (usize::MAX, Key { name: "num_ooms", pool: None, metric: None });
    Keys(&Statistics::default()).each(|key| {
        let distance = key.distance(text);
        if distance < best.0 {
            best = (distance, key);
        }
    });
    best.1
}

/// All keys, sorted, one a line; private pools in the order of the list.
pub struct AllKeys<'a>(pub &'a [((u64, u64), StatArray)]);

impl fmt::Display for AllKeys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut outcome, mut separator) = (Ok(()), "");
        Keys(&Statistics::default()).each(|key| {
            if key.name == "segment" && key.pool == Some("all") && key.metric == Some("allocated") {
                outcome = outcome.and_then(|()| self.write_pools(f));
            }
            outcome = outcome.and_then(|()| write!(f, "{separator}{key}"));
            separator = "\n";
        });
        outcome
    }
}

impl AllKeys<'_> {
    fn write_pools(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metrics = metrics(&Stat::default());
        self.0.iter().try_for_each(|((first, second), _)| {
            POOLS.iter().try_for_each(|(pool, _)| {
                metrics.iter().try_for_each(|(metric, _)| {
                    write!(f, "\n{BY_POOL}{first}_{second}.{pool}.{metric}")
                })
            })
        })
    }
}

/// The pair of numbers of the private pool that a key names, and the rest of the key:
/// "reserved_bytes_by_private_pools.0_1.all.current".
pub fn pool_in(key: &str) -> Option<((u64, u64), &str)> {
    let (pair, rest) = key.strip_prefix(BY_POOL)?.split_once('.')?;
    let (first, second) = pair.split_once('_')?;
    Some(((first.parse().ok()?, second.parse().ok()?), rest))
}

/// The value of a row and metric, "all.current".
pub fn in_row(row: &StatArray, key: &str) -> Option<u64> {
    let (pool, wanted) = key.split_once('.')?;
    let (_, index) = POOLS.iter().find(|(known, _)| *known == pool)?;
    metrics(&row[*index]).iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value as u64)
}

impl<'a> Keys<'a> {
    fn arrays(&self) -> [(&'static str, &'a StatArray); 9] {
        let counters = &self.0.counters;
        [
            ("active", &counters[ACTIVE]),
            ("active_bytes", &counters[ACTIVE_BYTES]),
            ("allocated_bytes", &counters[ALLOCATED_BYTES]),
            ("allocation", &counters[ALLOCATION]),
            ("inactive_split", &counters[INACTIVE_SPLIT]),
            ("inactive_split_bytes", &counters[INACTIVE_SPLIT_BYTES]),
            ("requested_bytes", &counters[REQUESTED_BYTES]),
            ("reserved_bytes", &self.0.reserved_bytes),
            ("segment", &self.0.segment),
        ]
    }

    fn singles(&self) -> [(&'static str, &'a Stat); 2] {
        [
            ("oversize_allocations", &self.0.oversize_allocations),
            ("oversize_segments", &self.0.oversize_segments),
        ]
    }

    /// Unlimited is -1, as PyTorch prints it.
    fn numbers(&self) -> [(&'static str, u64); 7] {
        [
            ("max_split_size", self.0.max_split_size.unwrap_or(u64::MAX)),
            ("num_alloc_retries", self.0.num_alloc_retries),
            ("num_device_alloc", self.0.num_device_alloc),
            ("num_device_free", self.0.num_device_free),
            ("num_oom_rejections", self.0.num_oom_rejections),
            ("num_ooms", self.0.num_ooms),
            ("num_sync_all_streams", self.0.num_sync_all_streams),
        ]
    }

    /// Passes all keys except those of private pools to `body`, sorted.
    fn each(&self, mut body: impl FnMut(Key)) {
        let metrics = metrics(&Stat::default());
        let arrays = self.arrays();
        let (first, last) = arrays.split_at(arrays.partition_point(|(name, _)| *name < "max"));
        let of_arrays = |arrays: &[(&'static str, &StatArray)], body: &mut dyn FnMut(Key)| {
            for (name, _) in arrays {
                for (pool, _) in POOLS {
                    for (metric, _) in metrics {
                        body(Key { name, pool: Some(pool), metric: Some(metric) });
                    }
                }
            }
        };
        of_arrays(first, &mut body);
        for (name, _) in self.numbers() {
            body(Key { name, pool: None, metric: None });
        }
        for (name, _) in self.singles() {
            for (metric, _) in metrics {
                body(Key { name, pool: None, metric: Some(metric) });
            }
        }
        of_arrays(last, &mut body);
    }

    /// The value of a key, "allocated_bytes.all.peak".
    pub fn get(&self, key: &str) -> Option<u64> {
        let mut parts = key.split('.');
        let name = match parts.next()? {
            name if name == DOCUMENTED.0 => DOCUMENTED.1,
            name => name,
        };
        let parts: [Option<&str>; 3] = [parts.next(), parts.next(), parts.next()];
        let metric = |stat: &Stat, wanted: &str| {
            metrics(stat).iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value as u64)
        };
        match parts {
            [None, None, None] => {
                self.numbers().iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
            }
            [Some(wanted), None, None] => {
                let (_, stat) = self.singles().into_iter().find(|(known, _)| *known == name)?;
                metric(stat, wanted)
            }
            [Some(pool), Some(wanted), None] => {
                let (_, rows) = self.arrays().into_iter().find(|(known, _)| *known == name)?;
                let (_, row) = POOLS.iter().find(|(known, _)| *known == pool)?;
                metric(&rows[*row], wanted)
            }
            _ => None,
        }
    }
}

fn write_stat(f: &mut fmt::Formatter<'_>, stat: &Stat) -> fmt::Result {
    for (index, (name, value)) in metrics(stat).iter().enumerate() {
        write!(f, "{}\"{name}\": {value}", if index == 0 { "{" } else { ", " })?;
    }
    f.write_str("}")
}

fn write_row(f: &mut fmt::Formatter<'_>, rows: &StatArray) -> fmt::Result {
    for (index, (pool, row)) in POOLS.iter().enumerate() {
        write!(f, "{}\"{pool}\": ", if index == 0 { "{" } else { ", " })?;
        write_stat(f, &rows[*row])?;
    }
    f.write_str("}")
}

/// All statistics as JSON, with the reserved bytes of each private pool by its two numbers.
pub struct Json<'a> {
    /// The device's.
    pub statistics: &'a Statistics,
    /// The pools'.
    pub by_pool: &'a [((u64, u64), StatArray)],
}

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = Keys(self.statistics);
        f.write_str("{")?;
        for (name, rows) in keys.arrays() {
            write!(f, "\"{name}\": ")?;
            write_row(f, rows)?;
            f.write_str(", ")?;
        }
        f.write_str("\"reserved_bytes_by_private_pools\": {")?;
        for (index, ((first, second), row)) in self.by_pool.iter().enumerate() {
            write!(f, "{}\"{first}_{second}\": ", if index == 0 { "" } else { ", " })?;
            write_row(f, row)?;
        }
        f.write_str("}, ")?;
        for (name, stat) in keys.singles() {
            write!(f, "\"{name}\": ")?;
            write_stat(f, stat)?;
            f.write_str(", ")?;
        }
        for (index, (name, value)) in keys.numbers().iter().enumerate() {
            write!(f, "{}\"{name}\": {}", if index == 0 { "" } else { ", " }, *value as i64)?;
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_pytorch_is_there() {
        let mut statistics = Statistics::default();
        statistics.counters[ALLOCATED_BYTES][2].peak = 7;
        statistics.num_ooms = 3;
        let keys = Keys(&statistics);
        for name in [
            "allocation",
            "allocated_bytes",
            "active",
            "active_bytes",
            "requested_bytes",
            "segment",
            "reserved_bytes",
            "inactive_split",
            "inactive_split_bytes",
        ] {
            for pool in ["all", "large_pool", "small_pool"] {
                for metric in ["current", "peak", "allocated", "freed"] {
                    assert!(keys.get(&format!("{name}.{pool}.{metric}")).is_some());
                }
            }
        }
        assert_eq!(keys.get("allocated_bytes.large_pool.peak"), Some(7));
        assert_eq!(keys.get("num_ooms"), Some(3));
        assert_eq!(keys.get("oversize_segments.freed"), Some(0));
        for wrong in ["", "allocated.current", "allocation.all", "num_ooms.all", "segment.x.peak"] {
            assert_eq!(keys.get(wrong), None, "{wrong}");
        }
        let mut row = StatArray::default();
        row[2].peak = 5;
        let by_pool = [((0, 1), row), ((3, 0), StatArray::default())];
        let json = Json { statistics: &statistics, by_pool: &by_pool }.to_string();
        assert!(json.contains("\"max_split_size\": -1"));
        let zeros =
            |peak| format!("{{\"allocated\": 0, \"current\": 0, \"freed\": 0, \"peak\": {peak}}}");
        let of_pool = |large| {
            format!(
                "{{\"all\": {}, \"large_pool\": {}, \"small_pool\": {}}}",
                zeros(0),
                zeros(large),
                zeros(0)
            )
        };
        assert!(
            json.contains(&format!(
                "\"reserved_bytes_by_private_pools\": {{\"0_1\": {}, \"3_0\": {}}}, \"oversize",
                of_pool(5),
                of_pool(0)
            )),
            "{json}"
        );
    }

    #[test]
    fn older_documents_have_another_name() {
        let mut statistics = Statistics::default();
        statistics.counters[ALLOCATION][1].freed = 9;
        let keys = Keys(&statistics);
        assert_eq!(keys.get("allocation.small_pool.freed"), Some(9));
        assert_eq!(keys.get("allocated.small_pool.freed"), Some(9));
        assert_eq!(keys.get("allocated"), None);
    }

    #[test]
    fn the_list_has_every_key_once_and_sorted() {
        let none = AllKeys(&[]).to_string();
        let keys: Vec<&str> = none.lines().collect();
        assert_eq!(keys.len(), 9 * 12 + 2 * 4 + 7);
        assert!(keys.is_sorted());
        let statistics = Statistics::default();
        assert!(keys.iter().all(|key| Keys(&statistics).get(key).is_some()));
        let rows = [((0, 1), StatArray::default()), ((3, 0), StatArray::default())];
        let with_pools = AllKeys(&rows).to_string();
        let keys: Vec<&str> = with_pools.lines().collect();
        assert_eq!(keys.len(), 9 * 12 + 2 * 4 + 7 + 2 * 12);
        assert!(keys.is_sorted());
        let of_pool = keys.iter().filter_map(|key| pool_in(key));
        assert!(of_pool.clone().all(|(_, rest)| in_row(&rows[0].1, rest).is_some()));
        assert_eq!(of_pool.filter(|(pair, _)| *pair == (3, 0)).count(), 12);
    }

    #[test]
    fn an_unknown_key_has_a_nearest_one() {
        for (wrong, near) in [
            ("num_oom", "num_ooms"),
            ("allocated_bytes.all.max", "allocated_bytes.all.peak"),
            ("allocated_bytes.current", "allocated_bytes.all.current"),
            ("Active.All.Peak", "active.all.peak"),
            ("reserved.all.current", "reserved_bytes.all.current"),
            ("reserved_byte.large_pool.peak", "reserved_bytes.large_pool.peak"),
            ("segments.small_pool.freed", "segment.small_pool.freed"),
            ("num_alloc_retry", "num_alloc_retries"),
            ("max_split_size_mb", "max_split_size"),
        ] {
            assert_eq!(nearest(wrong).to_string(), near, "{wrong}");
        }
        // Texts of any length, and of any characters.
        nearest("");
        nearest(&"ä".repeat(1000));
    }
}
