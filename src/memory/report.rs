//! Sizes and failures in words.

use crate::error::{OutOfMemory, Users};
use std::fmt;

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

/// The sentence of an allocation that found no memory.
pub struct OutOfMemoryText<'a>(pub &'a OutOfMemory);

impl fmt::Display for OutOfMemoryText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory { device, wanted, total, free, limit, allocated, cached, .. } = *self.0;
        let OutOfMemory { pooled, users, rejected, .. } = *self.0;
        if wanted >= super::TOO_LARGE {
            return write!(f, "CUDA out of memory. Tried to allocate more than 1EB memory.");
        }
        if rejected {
            return write!(
                f,
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed \
                 per_process_memory_fraction limit. Requested size: {} ({} allowed on GPU \
                 {device}, {} reserved by tcuda). Set throw_on_cudamalloc_oom:false to disable.",
                Size(wanted),
                Size(limit.unwrap_or(total)),
                Size(allocated + cached)
            );
        }
        write!(f, "CUDA out of memory. Tried to allocate {}. ", Size(wanted))?;
        write!(f, "GPU {device} has a total capacity of {} ", Size(total))?;
        write!(f, "of which {} is free. ", Size(free))?;
        write_users(f, &users)?;
        if let Some(limit) = limit {
            write!(f, "{} allowed; ", Size(limit))?;
        }
        let cached = cached.saturating_sub(pooled);
        write!(f, "Of the allocated memory {} is allocated by tcuda, ", Size(allocated + pooled))?;
        if pooled > 0 {
            write!(f, "with {} free in private pools (e.g., CUDA Graphs), ", Size(pooled))?;
        }
        write!(f, "and {} is reserved by tcuda but unallocated.", Size(cached))?;
        if cached > 0 && self.0.segmented {
            write!(
                f,
                " If reserved but unallocated memory is large try setting \
                 TCUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
            )?;
        } else if cached > 0 {
            write!(
                f,
                " What is reserved lies beside blocks in use, in parts too small to give back."
            )?;
        }
        Ok(())
    }
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

/// The sentences of PyTorch where its backend is cudaMallocAsync.
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
        write!(f, "\n                        : {}", Size(limit.unwrap_or(u64::MAX)))
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
            limit: Some(1 << 30),
            allocated: 3 << 30,
            cached: 0,
            pooled: 0,
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
            PoolOutOfMemoryText(&OutOfMemory { limit: None, ..numbers }).to_string(),
            "Allocation on device 1 would exceed allowed memory. (out of memory)\n\
             Currently allocated     : 3.00 GiB\n\
             Requested               : 20.00 MiB\n\
             Device limit            : 16.00 GiB\n\
             Free (according to CUDA): 2.00 MiB\n\
             tcuda limit (set by user-supplied memory fraction)\n\
             \x20                       : 17179869184.00 GiB"
        );
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
}
