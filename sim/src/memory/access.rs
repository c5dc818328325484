//! Loads, stores and atomic operations of the lanes of a warp.

use super::fault::{Fault, FaultKind};
use super::race::Use;
use super::{Memory, Place};
use crate::registers::{LANES, Mask, Wide};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The address of the first lane if those of the active lanes follow each other without gaps.
#[inline(always)]
fn contiguous(addresses: &Wide, active: u32, size: u64) -> Option<(usize, usize)> {
    let first = active.trailing_zeros() as usize;
    let lanes = active >> first;
    if lanes & lanes.wrapping_add(1) != 0 {
        return None;
    }
    let count = lanes.count_ones() as usize;
    let base = addresses[first].wrapping_sub(first as u64 * size);
    let mut differs = 0;
    for (lane, address) in addresses.iter().enumerate() {
        let differs_here = address ^ base.wrapping_add(lane as u64 * size);
        differs |= if active >> lane & 1 != 0 { differs_here } else { 0 };
    }
    (differs == 0).then_some((first, count))
}

/// Checks the alignment of the active lanes' addresses.
#[inline(always)]
fn check_alignment(addresses: &Wide, mask: Mask, size: u64) -> Result<(), Fault> {
    let mut low = 0;
    for (lane, address) in addresses.iter().enumerate() {
        low |= if mask.active >> lane & 1 != 0 { address & (size - 1) } else { 0 };
    }
    if low == 0 {
        return Ok(());
    }
    let lane = mask.lanes().find(|lane| addresses[*lane] & (size - 1) != 0).unwrap_or(0);
    Err(Fault::at(FaultKind::Misaligned, addresses[lane]).of_lane(lane))
}

impl Memory<'_> {
    /// Loads `N` bytes, a power of two, for each active lane.
    #[inline]
    pub fn load<const N: usize>(
        &mut self,
        place: Place,
        addresses: &Wide,
        mask: Mask,
    ) -> Result<[[u8; N]; LANES], Fault> {
        let mut values = [[0; N]; LANES];
        check_alignment(addresses, mask, N as u64)?;
        if self.races.is_some() {
            self.observe_row::<N>(place, addresses, mask, None);
        }
        if let Some((first, count)) = contiguous(addresses, mask.active, N as u64)
            && let (Place::Global, address) = Self::resolve(place, addresses[first])
        {
            let bytes = count * N;
            if let Ok(from) = self.global(address, bytes as u64, false) {
                let to = values[first..first + count].as_flattened_mut().as_mut_ptr();
                // SAFETY: the window has `bytes` readable bytes; `values` is memory of our own.
                unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
                return Ok(values);
            }
        }
        for lane in mask.lanes() {
            values[lane] =
                self.read_one(place, lane, addresses[lane]).map_err(|fault| fault.of_lane(lane))?;
        }
        Ok(values)
    }

    /// Loads `N` bytes for one lane.
    #[inline(always)]
    pub fn load_one<const N: usize>(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
    ) -> Result<[u8; N], Fault> {
        if self.races.is_some() {
            self.observe(place, lane, address, N, Use::Read, None);
        }
        self.read_one(place, lane, address)
    }

    /// As [`load_one`](Self::load_one), without a look at races.
    #[inline(always)]
    pub(super) fn read_one<const N: usize>(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
    ) -> Result<[u8; N], Fault> {
        let mut value = [0; N];
        match Self::resolve(place, address) {
            (Place::Shared, at) => {
                let start = self.shared_index(at, N)?;
                value.copy_from_slice(&self.shared.bytes[start..start + N]);
            }
            (Place::Local, at) => {
                let start = self.local_index(lane, at, N)?;
                value.copy_from_slice(&self.local.bytes[start..start + N]);
            }
            (Place::Param, at) => {
                let from = usize::try_from(at)
                    .ok()
                    .and_then(|at| self.parameters.get(at..at.checked_add(N)?));
                let wild = || Fault::at(FaultKind::IllegalAddress, at);
                value.copy_from_slice(from.ok_or_else(wild)?);
            }
            (Place::Global | Place::Generic, at) => {
                let from = self.global(at, N as u64, false)?;
                // SAFETY: the window has `N` readable bytes; `value` is memory of our own.
                unsafe { ptr::copy_nonoverlapping(from, value.as_mut_ptr(), N) };
            }
        }
        Ok(value)
    }

    /// Stores `N` bytes, a power of two, for each active lane.
    #[inline]
    pub fn store<const N: usize>(
        &mut self,
        place: Place,
        addresses: &Wide,
        mask: Mask,
        values: &[[u8; N]; LANES],
    ) -> Result<(), Fault> {
        check_alignment(addresses, mask, N as u64)?;
        if self.races.is_some() {
            self.observe_row(place, addresses, mask, Some(values));
        }
        if let Some((first, count)) = contiguous(addresses, mask.active, N as u64)
            && let (Place::Global, address) = Self::resolve(place, addresses[first])
        {
            let bytes = count * N;
            if let Ok(to) = self.global(address, bytes as u64, true) {
                let from = values[first..first + count].as_flattened().as_ptr();
                // SAFETY: the window has `bytes` writable bytes; `values` is memory of our own.
                unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
                return Ok(());
            }
        }
        for lane in mask.lanes() {
            self.write_one(place, lane, addresses[lane], &values[lane])
                .map_err(|fault| fault.of_lane(lane))?;
        }
        Ok(())
    }

    /// Stores `N` bytes for one lane.
    #[inline(always)]
    pub fn store_one<const N: usize>(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        value: &[u8; N],
    ) -> Result<(), Fault> {
        if self.races.is_some() {
            self.observe(place, lane, address, N, Use::Write, Some(value));
        }
        self.write_one(place, lane, address, value)
    }

    /// As [`store_one`](Self::store_one), without a look at races.
    #[inline(always)]
    fn write_one<const N: usize>(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        value: &[u8; N],
    ) -> Result<(), Fault> {
        match Self::resolve(place, address) {
            (Place::Shared, at) => {
                let start = self.shared_index(at, N)?;
                self.shared.bytes[start..start + N].copy_from_slice(value);
            }
            (Place::Local, at) => {
                let start = self.local_index(lane, at, N)?;
                self.local.bytes[start..start + N].copy_from_slice(value);
            }
            (Place::Param, at) => return Err(Fault::at(FaultKind::ReadOnly, at)),
            (Place::Global | Place::Generic, at) => {
                let to = self.global(at, N as u64, true)?;
                // SAFETY: the window has `N` writable bytes; `value` is memory of our own.
                unsafe { ptr::copy_nonoverlapping(value.as_ptr(), to, N) };
            }
        }
        Ok(())
    }
}

/// A word that atomic operations change.
pub trait Word: Copy + Default + PartialEq + 'static {
    /// Bytes of the word.
    const BYTES: usize;
    /// Replaces the word at an address by `change` of it; returns the old one.
    ///
    /// # Safety
    /// The address is aligned for the word, and readable and writable.
    unsafe fn update(at: *mut u8, change: impl FnMut(Self) -> Self) -> Self;
    /// The word of these bytes.
    fn of(bytes: &[u8]) -> Self;
    /// Writes the word's bytes.
    fn put(self, bytes: &mut [u8]);
}

macro_rules! word {
    ($($type:ty, $atomic:ty, $bytes:literal;)*) => {$(
        impl Word for $type {
            const BYTES: usize = $bytes;
            unsafe fn update(at: *mut u8, mut change: impl FnMut(Self) -> Self) -> Self {
                // SAFETY: the caller promises an aligned word that stays there.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                let mut old = word.load(Ordering::SeqCst);
                loop {
                    let (ok, failed) = (Ordering::SeqCst, Ordering::SeqCst);
                    match word.compare_exchange_weak(old, change(old), ok, failed) {
                        Ok(old) => return old,
                        Err(now) => old = now,
                    }
                }
            }
            fn of(bytes: &[u8]) -> Self {
                let mut raw = [0; $bytes];
                raw.copy_from_slice(bytes);
                Self::from_le_bytes(raw)
            }
            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

word! {
    u8, AtomicU8, 1;
    u16, AtomicU16, 2;
    u32, AtomicU32, 4;
    u64, AtomicU64, 8;
}

impl Word for u128 {
    const BYTES: usize = 16;

    /// A lock makes it atomic among operations on words of this size.
    unsafe fn update(at: *mut u8, mut change: impl FnMut(Self) -> Self) -> Self {
        static LOCK: Mutex<()> = Mutex::new(());
        let _held = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller promises an aligned word that stays there.
        let low = unsafe { AtomicU64::from_ptr(at.cast()) };
        // SAFETY: as above; it is the upper half of the word.
        let high = unsafe { AtomicU64::from_ptr(at.wrapping_add(8).cast()) };
        let old =
            u128::from(high.load(Ordering::SeqCst)) << 64 | u128::from(low.load(Ordering::SeqCst));
        let new = change(old);
        low.store(new as u64, Ordering::SeqCst);
        high.store((new >> 64) as u64, Ordering::SeqCst);
        old
    }

    fn of(bytes: &[u8]) -> Self {
        let mut raw = [0; 16];
        raw.copy_from_slice(bytes);
        Self::from_le_bytes(raw)
    }

    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_le_bytes());
    }
}

impl Memory<'_> {
    /// Replaces a word of memory by `change` of it; returns the old one.
    pub fn update<W: Word>(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        change: impl FnMut(W) -> W,
    ) -> Result<W, Fault> {
        if self.races.is_some() {
            self.observe(place, lane, address, W::BYTES, Use::Update, None);
        }
        self.change(place, lane, address, change)
    }

    /// As [`update`](Self::update), without a look at races.
    pub(super) fn change<W: Word>(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        mut change: impl FnMut(W) -> W,
    ) -> Result<W, Fault> {
        self.updates += 1;
        if !address.is_multiple_of(W::BYTES as u64) {
            return Err(Fault::at(FaultKind::Misaligned, address).of_lane(lane));
        }
        let (bytes, start) = match Self::resolve(place, address) {
            (Place::Shared, at) => {
                let start = self.shared_index(at, W::BYTES).map_err(|it| it.of_lane(lane))?;
                (&mut self.shared.bytes, start)
            }
            (Place::Local, at) => {
                let start = self.local_index(lane, at, W::BYTES).map_err(|it| it.of_lane(lane))?;
                (&mut self.local.bytes, start)
            }
            (Place::Param, at) => {
                return Err(Fault::at(FaultKind::ReadOnly, at).of_lane(lane));
            }
            (Place::Global | Place::Generic, at) => {
                let word = self.global(at, W::BYTES as u64, true).map_err(|it| it.of_lane(lane))?;
                if !word.addr().is_multiple_of(W::BYTES) {
                    return Err(Fault::at(FaultKind::Misaligned, address).of_lane(lane));
                }
                // SAFETY: the window has these bytes, and the word is aligned.
                return Ok(unsafe { W::update(word, change) });
            }
        };
        let word = &mut bytes[start..start + W::BYTES];
        let old = W::of(word);
        change(old).put(word);
        Ok(old)
    }
}
