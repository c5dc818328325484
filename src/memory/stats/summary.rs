//! The table of PyTorch's `memory_summary`, character by character except for the name.

use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES,
    REQUESTED_BYTES, Stat, StatArray, Statistics,
};
use std::fmt;

const WIDTH: usize = 75;

/// The table of a device.
pub struct Summary {
    /// Its ordinal.
    pub device: i32,
    /// Leave out the rows of the pools.
    pub abbreviated: bool,
    /// Its statistics.
    pub statistics: Statistics,
}

#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Count,
}

impl Unit {
    /// The value in the unit that suits `reference`, so that the rows of a group share it.
    fn write(self, f: &mut fmt::Formatter<'_>, value: i64, reference: i64) -> fmt::Result {
        let (mut value, mut reference) = (value, reference);
        match self {
            Unit::Bytes => {
                let mut unit = "B  ";
                for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
                    if reference < 768 * 1024 {
                        break;
                    }
                    (value, reference, unit) = (value / 1024, reference / 1024, larger);
                }
                write!(f, "{value:>6} {unit}")
            }
            Unit::Count => {
                let mut unit = " ";
                for larger in ["K", "M"] {
                    if reference < 750 * 1000 {
                        break;
                    }
                    (value, reference, unit) = (value / 1000, reference / 1000, larger);
                }
                write!(f, "{value:>7} {unit} ")
            }
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, character: char) -> fmt::Result {
    f.write_str("|")?;
    (0..WIDTH).try_for_each(|_| fmt::Write::write_char(f, character))?;
    f.write_str("|\n")
}

fn row(
    f: &mut fmt::Formatter<'_>,
    label: &str,
    unit: Unit,
    stat: &Stat,
    reference: &Stat,
) -> fmt::Result {
    write!(f, "| {label:<21} | ")?;
    unit.write(f, stat.current, reference.current)?;
    f.write_str(" | ")?;
    unit.write(f, stat.peak, reference.peak)?;
    f.write_str(" | ")?;
    unit.write(f, stat.allocated, reference.allocated)?;
    f.write_str(" | ")?;
    unit.write(f, stat.freed, reference.freed)?;
    f.write_str(" |\n")
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = &self.statistics;
        let counters = &all.counters;
        line(f, '=')?;
        let title = "tcuda CUDA memory summary, device ID ";
        writeln!(f, "| {:16} {title}{:<19} |", "", self.device)?;
        line(f, '-')?;
        let (ooms, retries) = (all.num_ooms, all.num_alloc_retries);
        writeln!(
            f,
            "|  {:9} CUDA OOMs: {ooms:<12} | {:6} cudaMalloc retries: {retries:<8}  |",
            "", ""
        )?;
        line(f, '=')?;
        writeln!(
            f,
            "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |"
        )?;
        let groups: [(&str, Unit, &StatArray); 9] = [
            ("Allocated memory", Unit::Bytes, &counters[ALLOCATED_BYTES]),
            ("Active memory", Unit::Bytes, &counters[ACTIVE_BYTES]),
            ("Requested memory", Unit::Bytes, &counters[REQUESTED_BYTES]),
            ("GPU reserved memory", Unit::Bytes, &all.reserved_bytes),
            ("Non-releasable memory", Unit::Bytes, &counters[INACTIVE_SPLIT_BYTES]),
            ("Allocations", Unit::Count, &counters[ALLOCATION]),
            ("Active allocs", Unit::Count, &counters[ACTIVE]),
            ("GPU reserved segments", Unit::Count, &all.segment),
            ("Non-releasable allocs", Unit::Count, &counters[INACTIVE_SPLIT]),
        ];
        for (label, unit, [total, small, large]) in groups {
            line(f, '-')?;
            row(f, label, unit, total, total)?;
            if !self.abbreviated {
                row(f, "      from large pool", unit, large, total)?;
                row(f, "      from small pool", unit, small, total)?;
            }
        }
        for (label, stat) in [
            ("Oversize allocations", &all.oversize_allocations),
            ("Oversize GPU segments", &all.oversize_segments),
        ] {
            line(f, '-')?;
            row(f, label, Unit::Count, stat, stat)?;
        }
        line(f, '=')
    }
}
