//! The texts of sizes and of failed allocations.

use crate::base::error::{OutOfMemory, Users};
use std::fmt;

/// Requests of this size and more are refused in words of their own.
pub(crate) const TOO_LARGE: u64 = 1 << 60;

/// A size as PyTorch writes it: bytes, KiB, MiB or GiB, two decimals.
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let (unit, name) = match bytes {
            0..=1024 => return write!(f, "{bytes} bytes"),
            1025..=1_048_576 => (1u64 << 10, "KiB"),
            1_048_577..=1_073_741_824 => (1 << 20, "MiB"),
            _ => (1 << 30, "GiB"),
        };
        write!(f, "{:.2} {name}", bytes as f64 / unit as f64)
    }
}

/// The error text of an allocation that found no memory.
pub struct OutOfMemoryText<'a>(pub &'a OutOfMemory);

impl fmt::Display for OutOfMemoryText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory { device, wanted, total, free, limit, allocated, cached, .. } = *self.0;
        let OutOfMemory { pooled, users, rejected, .. } = *self.0;
        if wanted >= TOO_LARGE {
            return write!(f, "CUDA out of memory. Tried to allocate more than 1EB memory.");
        }
        if rejected {
            return write!(
                f,
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed \
                 per_process_memory_fraction limit. Requested size: {} ({} allowed on GPU \
                 {device}, {} reserved by tcuda). Set throw_on_cudamalloc_oom:false to disable.",
                Size(wanted),
                Size(limit.min(total)),
                Size(allocated + cached)
            );
        }
        write!(f, "CUDA out of memory. Tried to allocate {}. ", Size(wanted))?;
        write!(f, "GPU {device} has a total capacity of {} ", Size(total))?;
        write!(f, "of which {} is free. ", Size(free))?;
        write_users(f, &users)?;
        if limit != u64::MAX {
            write!(f, "{} allowed; ", Size(limit))?;
        }
        let cached = cached.saturating_sub(pooled);
        write!(f, "Of the allocated memory {} is allocated by tcuda, ", Size(allocated + pooled))?;
        if pooled > 0 {
            write!(f, "with {} free in private pools (e.g., CUDA Graphs), ", Size(pooled))?;
        }
        write!(f, "and {} is reserved by tcuda but unallocated.", Size(cached))?;
        write_rest(f, self.0, cached)
    }
}

/// Says why the rest was not given back before the allocation failed.
fn write_rest(f: &mut fmt::Formatter<'_>, numbers: &OutOfMemory, cached: u64) -> fmt::Result {
    let pending = numbers.pending.min(cached);
    if pending > 0 {
        write!(f, " {} of it was freed, and streams still use it.", Size(pending))?;
    }
    f.write_str(match cached - pending {
        0 => "",
        _ if numbers.segmented => {
            " If reserved but unallocated memory is large try setting \
             TCUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
        }
        _ if numbers.captured => {
            " A capture is under way: memory that it may use is given back after its end."
        }
        _ if numbers.allocated + pending > 0 => {
            " What is reserved lies beside blocks in use, in parts too small to give back."
        }
        _ => {
            " It became free meanwhile, or the driver did not take it back: try again, or call \
             tcuda_memory_empty_cache."
        }
    })
}

fn write_users(f: &mut fmt::Formatter<'_>, users: &Users) -> fmt::Result {
    if let Some(bytes) = users.own_bytes {
        let own = Size(bytes);
        write!(f, "Including non-tcuda memory, this process has {own} memory in use. ")?;
    }
    let named = users.pids.iter().zip(&users.bytes);
    for (pid, bytes) in named.take(users.num_others as usize) {
        write!(f, "Process {pid} has {} memory in use. ", Size(*bytes))?;
    }
    match (users.num_others as usize).saturating_sub(users.pids.len()) {
        0 => Ok(()),
        1 => write!(f, "1 more process uses it. "),
        more => write!(f, "{more} more processes use it. "),
    }
}

/// PyTorch's text if its backend is cudaMallocAsync.
pub struct PoolOutOfMemoryText<'a>(pub &'a OutOfMemory);

impl fmt::Display for PoolOutOfMemoryText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory { device, wanted, total, free, limit, allocated, .. } = *self.0;
        write!(f, "Allocation on device {device} would exceed allowed memory. (out of memory)")?;
        write!(f, "\nCurrently allocated     : {}", Size(allocated))?;
        write!(f, "\nRequested               : {}", Size(wanted))?;
        write!(f, "\nDevice limit            : {}", Size(total))?;
        write!(f, "\nFree (according to CUDA): {}", Size(free))?;
        write!(f, "\ntcuda limit (set by user-supplied memory fraction)")?;
        match limit {
            u64::MAX => write!(f, "\n                        : none"),
            limit => write!(f, "\n                        : {}", Size(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_pytorchs() {
        let texts = [
            (0, "0 bytes"),
            (1024, "1024 bytes"),
            (1025, "1.00 KiB"),
            (1 << 20, "1024.00 KiB"),
            ((1 << 20) + 1, "1.00 MiB"),
            (20 << 20, "20.00 MiB"),
            (1 << 30, "1024.00 MiB"),
            (3 << 30, "3.00 GiB"),
        ];
        for (bytes, text) in texts {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn the_sentence_has_pytorchs_parts() {
        let numbers = OutOfMemory {
            device: 1,
            wanted: 20 << 20,
            total: 16 << 30,
            free: 2 << 20,
            limit: 1 << 30,
            allocated: 3 << 30,
            cached: 0,
            pooled: 0,
            pending: 0,
            captured: false,
            users: Users::default(),
            rejected: false,
            segmented: false,
        };
        assert_eq!(
            OutOfMemoryText(&numbers).to_string(),
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of \
             16.00 GiB of which 2.00 MiB is free. 1024.00 MiB allowed; Of the allocated memory \
             3.00 GiB is allocated by tcuda, and 0 bytes is reserved by tcuda but unallocated."
        );
        assert_eq!(
            PoolOutOfMemoryText(&OutOfMemory { limit: u64::MAX, ..numbers }).to_string(),
            "Allocation on device 1 would exceed allowed memory. (out of memory)\n\
             Currently allocated     : 3.00 GiB\n\
             Requested               : 20.00 MiB\n\
             Device limit            : 16.00 GiB\n\
             Free (according to CUDA): 2.00 MiB\n\
             tcuda limit (set by user-supplied memory fraction)\n\
             \x20                       : none"
        );
        let limited = PoolOutOfMemoryText(&numbers).to_string();
        assert!(limited.ends_with("fraction)\n                        : 1024.00 MiB"), "{limited}");
        let hint = "try setting TCUDA_ALLOC_CONF=expandable_segments:True";
        let segmented = OutOfMemory { cached: 1 << 20, segmented: true, ..numbers };
        assert!(OutOfMemoryText(&segmented).to_string().contains(hint));
        let mapped = OutOfMemory { segmented: false, ..segmented };
        assert!(!OutOfMemoryText(&mapped).to_string().contains(hint));
        let mut users = Users { own_bytes: Some(4 << 30), ..Users::default() };
        (users.pids, users.bytes) = ([10, 11], [1 << 21; 2]);
        users.num_others = 2;
        let crowded = OutOfMemory { users, cached: 3 << 20, pooled: 1 << 21, ..numbers };
        assert_eq!(
            OutOfMemoryText(&crowded).to_string(),
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of \
             16.00 GiB of which 2.00 MiB is free. Including non-tcuda memory, this process has \
             4.00 GiB memory in use. Process 10 has 2.00 MiB memory in use. Process 11 has \
             2.00 MiB memory in use. 1024.00 MiB allowed; Of the allocated memory 3.00 GiB is \
             allocated by tcuda, with 2.00 MiB free in private pools (e.g., CUDA Graphs), and \
             1024.00 KiB is reserved by tcuda but unallocated. What is reserved lies beside blocks \
             in use, in parts too small to give back."
        );
        users.num_others = 8;
        let crowded = OutOfMemory { users, ..numbers };
        assert!(OutOfMemoryText(&crowded).to_string().contains(
            "Process 11 has 2.00 MiB memory in use. 6 more processes use it. 1024.00 MiB allowed"
        ));
        let rejected = OutOfMemory { rejected: true, ..numbers };
        assert_eq!(
            OutOfMemoryText(&rejected).to_string(),
            "CUDA out of memory. Allocation was preemptively rejected because it would exceed \
             per_process_memory_fraction limit. Requested size: 20.00 MiB (1024.00 MiB allowed on \
             GPU 1, 3.00 GiB reserved by tcuda). Set throw_on_cudamalloc_oom:false to disable."
        );
    }

    /// The end of the text, by what is reserved beside the host's blocks.
    #[test]
    fn the_rest_has_its_reason() {
        const MIB: u64 = 1 << 20;
        let none = OutOfMemory {
            device: 0,
            wanted: 60 * MIB,
            total: 64 * MIB,
            free: 58 * MIB,
            limit: u64::MAX,
            allocated: 0,
            cached: 0,
            pooled: 0,
            pending: 0,
            captured: false,
            users: Users::default(),
            rejected: false,
            segmented: false,
        };
        let six = OutOfMemory { cached: 6 * MIB, ..none };
        let held = OutOfMemory { allocated: MIB, ..six };
        let used = OutOfMemory { pending: 5 * MIB, ..six };
        let beside =
            " What is reserved lies beside blocks in use, in parts too small to give back.";
        let hint = " If reserved but unallocated memory is large try setting \
                    TCUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";
        let later = " A capture is under way: memory that it may use is given back after its end.";
        let freed = " 5.00 MiB of it was freed, and streams still use it.";
        let again = " It became free meanwhile, or the driver did not take it back: try again, or \
                     call tcuda_memory_empty_cache.";
        for (numbers, end) in [
            (none, String::new()),
            (OutOfMemory { captured: true, segmented: true, ..none }, String::new()),
            (OutOfMemory { pooled: 6 * MIB, ..six }, String::new()),
            (six, again.into()),
            (held, beside.into()),
            (OutOfMemory { segmented: true, ..held }, hint.into()),
            (OutOfMemory { segmented: true, ..six }, hint.into()),
            (OutOfMemory { captured: true, ..six }, later.into()),
            (OutOfMemory { captured: true, ..held }, later.into()),
            (used, format!("{freed}{beside}")),
            (OutOfMemory { captured: true, ..used }, format!("{freed}{later}")),
            (OutOfMemory { segmented: true, ..used }, format!("{freed}{hint}")),
            (OutOfMemory { pending: 5 * MIB, cached: 5 * MIB, ..none }, freed.into()),
        ] {
            let text = OutOfMemoryText(&numbers).to_string();
            let (_, rest) = text.split_once("reserved by tcuda but unallocated.").unwrap();
            assert_eq!(rest, end, "{numbers:?}");
        }
        let huge = OutOfMemory { wanted: 1 << 60, ..none };
        assert_eq!(
            OutOfMemoryText(&huge).to_string(),
            "CUDA out of memory. Tried to allocate more than 1EB memory."
        );
    }

    /// Other processes that use the device, by how many are known.
    #[test]
    fn others_are_counted() {
        struct Text(Users);
        impl fmt::Display for Text {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_users(f, &self.0)
            }
        }
        let two = "Process 10 has 2.00 MiB memory in use. Process 11 has 3.00 MiB memory in use. ";
        for (num_others, text) in [
            (0, String::new()),
            (1, "Process 10 has 2.00 MiB memory in use. ".into()),
            (2, two.into()),
            (3, format!("{two}1 more process uses it. ")),
            (4, format!("{two}2 more processes use it. ")),
        ] {
            let (pids, bytes) = ([10, 11], [2 << 20, 3 << 20]);
            let users = Users { own_bytes: None, pids, bytes, num_others };
            assert_eq!(Text(users).to_string(), text);
        }
        let own = Users { own_bytes: Some(7), ..Users::default() };
        assert_eq!(
            Text(own).to_string(),
            "Including non-tcuda memory, this process has 7 bytes memory in use. "
        );
    }
}
