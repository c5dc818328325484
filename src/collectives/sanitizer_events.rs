//! Reports collective calls to the stream sanitizer: the streams of a call, and the memory that it
//! reads and writes.
//!
//! Internal streams are not reported. The host may rely only on the order in `docs/collectives.md`.

use super::check::Home;
use super::team::Team;
use crate::collectives::contiguous::Flat;
use crate::collectives::layout::Form;
use crate::gpu::device::MAX_DEVICES;
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
pub struct Told {
    operation: &'static str,
    /// For each access its device; `None` for pinned memory.
    touched: Vec<(Option<i32>, Mode, Bytes)>,
    /// Tensors that are not contiguous.
    tensors: Vec<Tensor>,
    /// The call writes pageable memory, and so has waited.
    has_waited: bool,
}

impl Told {
    /// An empty list, if the sanitizer is on.
    #[inline]
    pub fn begin(operation: &'static str) -> Option<Told> {
        let told =
            || Told { operation, touched: Vec::new(), tensors: Vec::new(), has_waited: false };
        sanitizer::is_on().then(told)
    }

    /// Without host memory the access is not checked, but the order is still reported.
    fn add(&mut self, home: Home, mode: Mode, bytes: Bytes) {
        if self.touched.try_reserve(1).is_ok() {
            self.touched.push((home.device(), mode, bytes));
        }
    }

    fn tensor(&mut self, home: Home, tensor: &Tensor, mode: Mode) {
        if tensor.numel == 0 {
            return;
        }
        if home == Home::Pageable {
            self.has_waited |= mode == Mode::Write;
            return;
        }
        if tensor.is_compact()
            && let Ok((first, end)) = tensor.range()
        {
            return self.add(home, mode, Bytes::Range(first, end - first));
        }
        if self.tensors.try_reserve(1).is_ok() {
            self.tensors.push(*tensor);
            self.add(home, mode, Bytes::Tensor(self.tensors.len() - 1));
        }
    }

    /// Records a read of a tensor.
    pub fn read(&mut self, home: Home, tensor: &Tensor) {
        self.tensor(home, tensor, Mode::Read);
    }

    /// Records a write of a tensor.
    pub fn written(&mut self, home: Home, tensor: &Tensor) {
        self.tensor(home, tensor, Mode::Write);
    }

    fn range(&mut self, (home, address): (Home, u64), bytes: u64, mode: Mode) {
        match home {
            Home::Pageable => self.has_waited |= mode == Mode::Write,
            _ => self.add(home, mode, Bytes::Range(address, bytes)),
        }
    }

    /// Records a read of contiguous bytes.
    pub fn read_flat(&mut self, flat: &Flat) {
        self.range((flat.home, flat.address), flat.bytes, Mode::Read);
    }

    /// Records a read of a range.
    pub fn read_range(&mut self, home: Home, address: u64, bytes: u64) {
        self.range((home, address), bytes, Mode::Read);
    }

    /// Records a write of a range.
    pub fn written_range(&mut self, home: Home, address: u64, bytes: u64) {
        self.range((home, address), bytes, Mode::Write);
    }

    /// Records a copy of contiguous bytes, unless source and destination are the same.
    pub fn sent(&mut self, flat: &Flat, to: (Home, u64)) {
        if (flat.home, flat.address) != to {
            self.read_flat(flat);
            self.range(to, flat.bytes, Mode::Write);
        }
    }

    /// Records a copy between tensors, unless they are the same memory.
    pub fn moved(&mut self, (from, src): (Home, &Tensor), (to, dst): (Home, &Tensor)) {
        match Form::of(src, dst) {
            Ok(Some(form)) if from != to || !form.stays() => {
                self.read(from, src);
                self.written(to, dst);
            }
            _ => (),
        }
    }

    /// Reports the call, after all work is queued.
    #[cold]
    pub fn tell(&self, team: &Team<'_>) {
        let devices = team.devices();
        let Some(first) = devices.iter().next() else { return };
        let mut touches = Vec::new();
        // Without host memory accesses are omitted, as in `add`.
        let _ = touches.try_reserve_exact(self.touched.len());
        let mut ends = [0; MAX_DEVICES];
        for (end, device) in ends.iter_mut().zip(devices.iter()) {
            let own = |home: Option<i32>| home.map_or(first, |home| home) == device;
            for (_, mode, bytes) in self.touched.iter().filter(|touched| own(touched.0)) {
                if touches.len() < touches.capacity() {
                    touches.push(match *bytes {
                        Bytes::Range(ptr, bytes) => Touch::rows(ptr, bytes, 1, 0, *mode),
                        Bytes::Tensor(place) => Touch::tensor(&self.tensors[place], *mode),
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
        sanitizer::collective(team.runtime(), self.operation, members);
        if self.has_waited && !team.is_capturing() {
            for (stream, _) in members {
                sanitizer::reached(sanitizer::point_of_stream(team.runtime(), stream));
            }
        }
    }
}

/// Reports a call whose work is queued. `touched` records its accesses.
#[inline]
pub fn tell(team: &Team<'_>, operation: &'static str, touched: impl FnOnce(&mut Told)) {
    if let Some(mut told) = Told::begin(operation) {
        touched(&mut told);
        told.tell(team);
    }
}
