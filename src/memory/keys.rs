//! Statistics by PyTorch's keys, and all of them as JSON.

use super::stats::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES,
    REQUESTED_BYTES, Stat, StatRow, Statistics,
};
use std::fmt;

/// Statistics, seen through their keys.
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

/// The pair of numbers of the private pool that a key names, and the rest of the key:
/// "reserved_bytes_by_private_pools.0_1.all.current".
pub fn pool_in(key: &str) -> Option<((u64, u64), &str)> {
    let (pair, rest) = key.strip_prefix(BY_POOL)?.split_once('.')?;
    let (first, second) = pair.split_once('_')?;
    Some(((first.parse().ok()?, second.parse().ok()?), rest))
}

/// The value of a pool and metric, "all.current".
pub fn in_row(row: &StatRow, key: &str) -> Option<u64> {
    let (pool, wanted) = key.split_once('.')?;
    let (_, index) = POOLS.iter().find(|(known, _)| *known == pool)?;
    metrics(&row[*index]).iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value as u64)
}

impl<'a> Keys<'a> {
    fn arrays(&self) -> [(&'static str, &'a StatRow); 9] {
        let lanes = &self.0.lanes;
        [
            ("active", &lanes[ACTIVE]),
            ("active_bytes", &lanes[ACTIVE_BYTES]),
            ("allocated_bytes", &lanes[ALLOCATED_BYTES]),
            ("allocation", &lanes[ALLOCATION]),
            ("inactive_split", &lanes[INACTIVE_SPLIT]),
            ("inactive_split_bytes", &lanes[INACTIVE_SPLIT_BYTES]),
            ("requested_bytes", &lanes[REQUESTED_BYTES]),
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

    /// The value of a key, "allocated_bytes.all.peak".
    pub fn get(&self, key: &str) -> Option<u64> {
        let mut parts = key.split('.');
        let name = parts.next()?;
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

fn write_row(f: &mut fmt::Formatter<'_>, rows: &StatRow) -> fmt::Result {
    for (index, (pool, row)) in POOLS.iter().enumerate() {
        write!(f, "{}\"{pool}\": ", if index == 0 { "{" } else { ", " })?;
        write_stat(f, &rows[*row])?;
    }
    f.write_str("}")
}

/// All statistics as JSON, with what each private pool has from the driver, by its two numbers.
pub struct Json<'a> {
    /// The device's.
    pub statistics: &'a Statistics,
    /// The pools'.
    pub by_pool: &'a [((u64, u64), StatRow)],
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
        statistics.lanes[ALLOCATED_BYTES][2].peak = 7;
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
        for wrong in
            ["", "allocated.all.current", "allocation.all", "num_ooms.all", "segment.x.peak"]
        {
            assert_eq!(keys.get(wrong), None, "{wrong}");
        }
        let mut row = StatRow::default();
        row[2].peak = 5;
        let by_pool = [((0, 1), row), ((3, 0), StatRow::default())];
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
}
