//! Reports collective calls to the stream sanitizer: the streams of a call, and the memory that it
//! reads and writes.
//!
//! Internal streams are not reported. The host may rely only on the order in `docs/collectives.md`.

use super::check::MemoryKind;
use super::team::Team;
use crate::collectives::contiguous::ContiguousBytes;
use crate::collectives::layout::Form;
use crate::gpu::device::MAX_DEVICES;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::sanitizer::{self, Mode, Touch};
use crate::tensor::Tensor;

/// The bytes of an access.
enum Bytes {
    /// First byte and length.
    Range(u64, u64),
    /// Index in the list of tensors.
    Tensor(usize),
}

/// The accesses of a call, collected while the sanitizer is on.
pub struct SanitizerEvents {
    operation: &'static str,
    /// For each access its device; `None` for pinned memory.
    touched: Vec<(Option<i32>, Mode, Bytes)>,
    /// Tensors that are not contiguous.
    tensors: Vec<Tensor>,
    /// The call writes pageable memory, and so has waited.
    has_waited: bool,
}

impl SanitizerEvents {
    /// An empty list, if the sanitizer is on.
    #[inline]
    pub fn begin(operation: &'static str) -> Option<SanitizerEvents> {
        let events = || SanitizerEvents {
            operation,
            touched: Vec::new(),
            tensors: Vec::new(),
            has_waited: false,
        };
        sanitizer::is_on().then(events)
    }

    /// Without host memory the access is not checked, but the order is still reported.
    fn add(&mut self, kind: MemoryKind, mode: Mode, bytes: Bytes) {
        if self.touched.try_reserve(1).is_ok() {
            self.touched.push((kind.device(), mode, bytes));
        }
    }

    fn tensor(&mut self, kind: MemoryKind, tensor: &Tensor, mode: Mode) {
        if tensor.numel == 0 {
            return;
        }
        if kind == MemoryKind::Pageable {
            self.has_waited |= mode == Mode::Write;
            return;
        }
        if tensor.is_compact()
            && let Ok((first, end)) = tensor.range()
        {
            return self.add(kind, mode, Bytes::Range(first, end - first));
        }
        if self.tensors.try_reserve(1).is_ok() {
            self.tensors.push(*tensor);
            self.add(kind, mode, Bytes::Tensor(self.tensors.len() - 1));
        }
    }

    /// Records a read of a tensor.
    pub fn read(&mut self, kind: MemoryKind, tensor: &Tensor) {
        self.tensor(kind, tensor, Mode::Read);
    }

    /// Records a write of a tensor.
    pub fn written(&mut self, kind: MemoryKind, tensor: &Tensor) {
        self.tensor(kind, tensor, Mode::Write);
    }

    fn range(&mut self, (kind, address): (MemoryKind, u64), bytes: u64, mode: Mode) {
        match kind {
            MemoryKind::Pageable => self.has_waited |= mode == Mode::Write,
            _ => self.add(kind, mode, Bytes::Range(address, bytes)),
        }
    }

    /// Records a read of contiguous bytes.
    pub fn read_flat(&mut self, flat: &ContiguousBytes) {
        self.range((flat.kind, flat.address), flat.bytes, Mode::Read);
    }

    /// Records a read of a range.
    pub fn read_range(&mut self, kind: MemoryKind, address: u64, bytes: u64) {
        self.range((kind, address), bytes, Mode::Read);
    }

    /// Records a write of a range.
    pub fn written_range(&mut self, kind: MemoryKind, address: u64, bytes: u64) {
        self.range((kind, address), bytes, Mode::Write);
    }

    /// Records a copy of contiguous bytes, unless source and destination are the same.
    pub fn sent(&mut self, flat: &ContiguousBytes, to: (MemoryKind, u64)) {
        if (flat.kind, flat.address) != to {
            self.read_flat(flat);
            self.range(to, flat.bytes, Mode::Write);
        }
    }

    /// Records a copy between tensors, unless they are the same memory.
    pub fn moved(&mut self, (from, src): (MemoryKind, &Tensor), (to, dst): (MemoryKind, &Tensor)) {
        match Form::of(src, dst) {
            Ok(Some(form)) if from != to || !form.is_identity() => {
                self.read(from, src);
                self.written(to, dst);
            }
            _ => (),
        }
    }

    /// Reports the call, after all work is queued.
    #[cold]
    pub fn report(&self, team: &Team<'_>) {
        let devices = team.devices();
        let Some(first) = devices.iter().next() else { return };
        let mut touches = Vec::new();
        // Without host memory accesses are omitted, as in `add`.
        let _ = touches.try_reserve_exact(self.touched.len());
        let mut ends = [0; MAX_DEVICES];
        for (end, device) in ends.iter_mut().zip(devices.iter()) {
            let own = |kind: Option<i32>| kind.map_or(first, |kind| kind) == device;
            for (_, mode, bytes) in self.touched.iter().filter(|touched| own(touched.0)) {
                if touches.len() < touches.capacity() {
                    touches.push(match *bytes {
                        Bytes::Range(ptr, bytes) => Touch::rows(ptr, bytes, 1, 0, *mode),
                        Bytes::Tensor(place) => Touch::elements(&self.tensors[place], *mode),
                    });
                }
            }
            *end = touches.len();
        }
        let mut members: [(&Stream, &[Touch<'_>]); MAX_DEVICES] =
            [(team.stream(first), &[]); MAX_DEVICES];
        let mut begin = 0;
        for ((member, device), end) in members.iter_mut().zip(devices.iter()).zip(ends) {
            *member = (team.stream(device), &touches[begin..end]);
            begin = end;
        }
        let members = &members[..devices.len()];
        sanitizer_reports::collective(team.gpus(), self.operation, members);
        if self.has_waited && !team.is_capturing() {
            for (stream, _) in members {
                sanitizer::reached(sanitizer_reports::point_of_stream(team.gpus(), stream));
            }
        }
    }
}

/// Reports a call whose work is queued. `touched` records its accesses.
#[inline]
pub fn report(
    team: &Team<'_>,
    operation: &'static str,
    touched: impl FnOnce(&mut SanitizerEvents),
) {
    if let Some(mut events) = SanitizerEvents::begin(operation) {
        touched(&mut events);
        events.report(team);
    }
}
