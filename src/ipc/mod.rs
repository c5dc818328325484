//! Memory that is shared between processes (`docs/ipc.md`).
//!
//! A process that exports memory answers requests on a socket. The first export starts the thread
//! that does so (`server.rs`). An importing process stays connected while it has imports. So the
//! exporter knows the holders without a file of counters, and the system reports a process that
//! dies. Memory with virtual addresses is passed as descriptors on that socket. The 512 bytes of a
//! handle are data without authority: the exporter compares all of them with its own copy.

mod exports;
mod handle;
mod imports;
mod range;
mod server;
mod socket;

pub use handle::{BYTES, Handle};

use crate::base::error::{Error, Result};
use crate::base::lock::{Held, Mutex};
use crate::base::log::{self, Level};
use crate::base::rank::Rank;
use crate::base::text::Count;
use crate::base::{thread, waiting};
use crate::driver::code;
use crate::driver::sys::CUevent;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use crate::gpu::{event, sanitizer_reports};
use crate::memory::device::exported;
use crate::memory::device::exported::Exported;
use crate::memory::device::hooks::Verdict;
use crate::memory::wait_for;
use crate::sanitizer::{self, sync_points};
use exports::{Export, ExportParts, Exports, Range};
use handle::{CHANGED, HandleFields};
use imports::Imports;
use range::open_range;
use server::{Server, ServerState};
use std::sync::atomic::{AtomicBool, Ordering};

/// The most handles that have an event at a time. Beyond that the exporter waits for its stream
/// instead, as in PyTorch.
const MAX_EVENTS: usize = 1000;
/// Freed blocks that other processes hold: beyond this number there is one warning, as in PyTorch.
const MAX_UNWARNED: usize = 1000;

/// What a process shares with others.
pub struct Ipc {
    /// Boxed, because the server thread refers to it.
    state: Box<ServerState>,
    /// Held while exports are added and collected.
    server: Mutex<Option<Server>>,
    imports: Mutex<Imports>,
    has_warned: AtomicBool,
}

const CAPTURED: &str = "other processes cannot wait for what has not run; share memory before the \
                        capture begins, or after it ends";

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for Ipc {
    type Owner = Gpus;
    const KIND: SubsystemKind = SubsystemKind::Ipc;
}

impl Gpus {
    /// The exports to and imports from other processes.
    #[inline(always)]
    pub fn ipc(&self) -> &Ipc {
        self.subsystem()
    }
}

impl Ipc {
    pub(crate) fn new() -> Result<Ipc> {
        let exports = Mutex::new(Rank::LEAF, Exports::new());
        let state = ServerState { exports, needs_collection: AtomicBool::new(false) };
        Ok(Ipc {
            state: crate::base::thread::try_box(state, "what is shared")?,
            server: Mutex::new(Rank::IPC, None),
            imports: Mutex::new(Rank::IPC, Imports::new()),
            has_warned: AtomicBool::new(false),
        })
    }

    /// Exports an address and the block that contains it, for one other process. The other
    /// process's work is ordered after the current work of `stream`.
    pub fn export(&self, gpus: &Gpus, address: u64, stream: &Stream) -> Result<Handle> {
        waiting::refuse_in_callback()?;
        self.collect(gpus);
        if self.imports.lock().contains(address) {
            return Err(Error::InvalidState(
                "memory that was received from another process cannot be sent on; copy it first, \
                 or have its owner export it",
            ));
        }
        let device = gpus.device(stream.device())?;
        let owner = crate::memory::device_of(address);
        if owner.is_some_and(|owner| owner != stream.device()) {
            return Err(Error::OutOfRange {
                name: "stream",
                value: stream.device().into(),
                allowed: "it is of another device than the memory; pass one of the memory's device",
            });
        }
        let mut fields = HandleFields::new();
        fields.nonce = socket::random()?;
        fields.uuid = device.uuid()?;
        let event = self.record_event(gpus, device, stream, &mut fields)?;
        let outcome = self.export_after(device, address, &mut fields, event);
        if outcome.is_err() && !event.is_null() {
            device.events.give_shared(event);
        }
        let num_waiting = self.state.exports.lock().num_waiting();
        if num_waiting > MAX_UNWARNED && !self.has_warned.swap(true, Ordering::Relaxed) {
            log::write(
                Level::Warning,
                format_args!(
                    "{num_waiting} blocks were freed here and are in use by other processes, which \
                     should close what they import (tcuda_ipc_close)"
                ),
            );
        }
        outcome
    }

    /// Exports the block; `fields` has the event of the stream.
    fn export_after(
        &self,
        device: &Device,
        address: u64,
        fields: &mut HandleFields,
        event: CUevent,
    ) -> Result<Handle> {
        // Held, so that a block that is kept is not collected before it is listed.
        let mut server = self.server.lock();
        let name = match &*server {
            Some(server) => server.name,
            None => server.insert(Server::begin(&self.state)?).name,
        };
        fields.socket = name;
        let found = exported::keep(address)?;
        fields.before = address - found.address;
        fields.offset = address - found.base;
        fields.range_bytes = found.range_bytes;
        let outcome = match found.bytes.checked_sub(fields.before) {
            Some(bytes @ 1..) => {
                fields.bytes = bytes;
                self.register(device, &found, fields, event)
            }
            _ => {
                let why = "is behind the bytes of its block, of which there are as many as were \
                           asked for";
                Err(Error::InvalidPointer { ptr: address as usize, why })
            }
        };
        if outcome.is_err() && !self.state.exports.lock().has(found.address) {
            exported::forget(found.address);
        }
        outcome
    }

    /// Records an event on a stream and stores its handle in `fields`. NULL: the stream was waited
    /// for instead.
    fn record_event(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        fields: &mut HandleFields,
    ) -> Result<CUevent> {
        let captured = Error::Capturing { operation: "tcuda_ipc_export", why: CAPTURED };
        if stream.is_capturing(gpus)? {
            return Err(captured);
        }
        let wait = || stream.synchronize(gpus).map(|()| std::ptr::null_mut());
        if self.state.exports.lock().events >= MAX_EVENTS {
            return wait();
        }
        let event = device.events.take_shared(device)?;
        let recorded = stream.unless_captured(gpus, || stream.record(gpus, event));
        let outcome = match recorded {
            Ok(Some(())) => event::handle_of(device, event),
            Ok(None) => Err(captured),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(handle) => {
                (fields.has_event, fields.event) = (1, handle);
                Ok(event)
            }
            Err(error) => {
                device.events.give_shared(event);
                // Some machines have no IPC events.
                let is_lacking = match &error {
                    Error::NotSupported { .. } => true,
                    Error::Cuda(error) => error.code == code::NOT_SUPPORTED,
                    _ => false,
                };
                if is_lacking { wait() } else { Err(error) }
            }
        }
    }

    /// Lists an export. The caller holds the server's lock.
    fn register(
        &self,
        device: &Device,
        found: &Exported,
        fields: &mut HandleFields,
        event: CUevent,
    ) -> Result<Handle> {
        let first = found.handles.first().map_or(0, |(handle, _)| *handle);
        let (base, bytes) = (found.base, found.range_bytes);
        let (number, memory) = {
            let mut exports = self.state.exports.lock();
            exports.prepare()?;
            match exports.range_at(base, bytes, first) {
                Some(range) => {
                    // Counted now, so that it is not released meanwhile.
                    range.users += 1;
                    (Some(range.number), range.memory)
                }
                None => (None, [0; 64]),
            }
        };
        let fresh = match number {
            Some(_) => None,
            None => Some(open_range(device, found)?),
        };
        let mut exports = self.state.exports.lock();
        if !exports.is_held_by_host(found.address) {
            if let Some(number) = number {
                exports.release_range(number);
            }
            let why = "was freed already; another process still has it";
            return Err(Error::InvalidPointer { ptr: found.address as usize, why });
        }
        fields.memory = memory;
        fields.is_plain = u32::from(found.handles.is_empty());
        fields.range = match (number, fresh) {
            (Some(number), _) => number,
            (None, fresh) => {
                let number = exports.next_number();
                if let Some((files, sizes, memory)) = fresh {
                    fields.memory = memory;
                    let users = 1;
                    exports.ranges.push(Range {
                        number,
                        base,
                        first,
                        bytes,
                        files,
                        sizes,
                        memory,
                        users,
                    });
                }
                number
            }
        };
        fields.export = exports.next_number();
        let handle = fields.pack();
        let (number, range, address) = (fields.export, fields.range, found.address);
        let device = device.ordinal();
        exports.add(ExportParts { number, address, device, range, event, handle });
        Ok(handle)
    }

    /// Imports a handle. Returns the exported address, and the bytes from there to the end of the
    /// block. `stream`, by default the device's current one, waits for the exporter's work.
    pub fn import<'a>(
        &self,
        gpus: &'a Gpus,
        handle: &Handle,
        stream: Option<&'a Stream>,
    ) -> Result<(u64, u64)> {
        waiting::refuse_in_callback()?;
        let fields = HandleFields::unpack(handle)?;
        let own = self.server.lock().as_ref().map(|server| server.name);
        if own == Some(fields.socket) {
            return Err(Error::InvalidState(
                "this process exported the memory itself: use its own pointer",
            ));
        }
        let mut found = None;
        for device in &gpus.devices {
            if device.uuid()? == fields.uuid {
                found = Some(device);
            }
        }
        let device = found.ok_or(Error::NoDevice(
            "handle is of memory on a device that this process does not have, or was changed on \
             the way; look at CUDA_VISIBLE_DEVICES",
        ))?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.device() != device.ordinal() {
            return Err(Error::OutOfRange {
                name: "stream",
                value: stream.device().into(),
                allowed: "it is of another device than the memory; pass one of the memory's device",
            });
        }
        if stream.is_capturing(gpus)? {
            return Err(Error::Capturing { operation: "tcuda_ipc_import", why: CAPTURED });
        }
        let mut imports = self.imports.lock();
        let (address, bytes) = imports.open(device, handle, &fields)?;
        let waited = match fields.has_event {
            0 => Ok(()),
            _ => wait_for_other(gpus, device, stream, &fields.event),
        };
        if let Err(error) = imports.require_alive(&fields.socket, waited) {
            // No work uses it yet.
            let _ = imports.close(gpus, address);
            return Err(error);
        }
        let (start, count) = imports.block_of(address).unwrap_or((address, 1));
        drop(imports);
        if fields.has_event != 0 {
            // The other process may have waited for any work of this one.
            sanitizer_reports::waits_for_everything(gpus, stream);
        }
        if count == 1 {
            sanitizer_reports::allocated(gpus, start, address - start + bytes, stream);
        }
        Ok((address, bytes))
    }

    /// Closes an import after the current work of `stream`.
    pub fn close(&self, gpus: &Gpus, address: u64, stream: Option<&Stream>) -> Result<()> {
        waiting::refuse_in_callback()?;
        let why = "was not imported, or was closed already";
        let unknown = Error::InvalidPointer { ptr: address as usize, why };
        let device = self.imports.lock().device_of(address).ok_or(unknown)?;
        let device = gpus.device(device)?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.is_capturing(gpus)? {
            return Err(Error::Capturing { operation: "tcuda_ipc_close", why: CAPTURED });
        }
        // Neither the unmapping nor the other process waits for the stream.
        let point = sanitizer_reports::point_of_stream(gpus, stream);
        sync_points::waited(point, || wait_for(gpus, stream))?;
        let mut imports = self.imports.lock();
        if let Some((start, 1)) = imports.block_of(address) {
            sanitizer::freed(start);
        }
        imports.close(gpus, address)
    }

    /// Withdraws a handle, so that no further process can import it.
    pub fn withdraw(&self, gpus: &Gpus, handle: &Handle) -> Result<()> {
        waiting::refuse_in_callback()?;
        let fields = HandleFields::unpack(handle)?;
        let own = self.server.lock().as_ref().map(|server| server.name);
        if own != Some(fields.socket) {
            return Err(Error::Invalid(
                "handle is not of this process, which alone can withdraw it",
            ));
        }
        let ended = self.state.exports.lock().withdraw(handle).ok_or(CHANGED)?;
        if ended {
            self.state.needs_collection.store(true, Ordering::Release);
            self.collect(gpus);
        }
        Ok(())
    }

    /// Is the address in memory of another process?
    pub fn has_import(&self, address: u64) -> bool {
        self.imports.lock().contains(address)
    }

    /// Is there something to collect?
    #[inline]
    pub(crate) fn needs_collection(&self) -> bool {
        self.state.needs_collection.load(Ordering::Acquire)
    }

    /// Releases what no other process holds any more.
    pub fn collect(&self, gpus: &Gpus) {
        if thread::is_in_callback() {
            return;
        }
        if self.needs_collection() {
            let held = self.server.lock();
            self.collect_with_lock(gpus, held);
        }
    }

    /// The same for slow paths; does nothing if another thread is collecting.
    pub(crate) fn try_collect(&self, gpus: &Gpus) {
        if let Some(held) = self.server.try_lock() {
            self.collect_with_lock(gpus, held);
        }
    }

    fn collect_with_lock(&self, gpus: &Gpus, held: Held<'_, Option<Server>>) {
        self.state.needs_collection.store(false, Ordering::Relaxed);
        loop {
            let Some((export, range)) = self.state.exports.lock().take_ended() else { break };
            return_event(gpus, &export);
            drop(range);
        }
        let mut freed = [0; 64];
        let mut count = 0;
        while count < freed.len() {
            let idle = self.state.exports.lock().take_idle();
            match idle {
                None => break,
                Some((address, false)) => exported::forget(address),
                Some((address, true)) => {
                    freed[count] = address;
                    count += 1;
                }
            }
        }
        // If the list is full, the next collection continues.
        self.state.needs_collection.fetch_or(count == freed.len(), Ordering::Relaxed);
        // A free may call the host's stack trace function, so that no lock is held.
        drop(held);
        for address in &freed[..count] {
            exported::free(gpus, *address);
        }
    }

    /// The host frees a block that other processes may hold. The caller holds the arena's lock.
    pub(crate) fn freed_by_host(&self, address: u64) -> Verdict {
        self.state.exports.lock().freed_by_host(address)
    }

    /// Removes a block that is about to be freed here. False: already removed.
    pub(crate) fn remove_freed(&self, address: u64) -> bool {
        self.state.exports.lock().remove_freed(address)
    }

    /// Closes all imports and ends the server. No thread is inside, and no work is running.
    pub(crate) fn end(&self, gpus: &Gpus) {
        if let Some(server) = self.server.lock().take() {
            server.end();
        }
        let imported = self.imports.lock().close_all(gpus);
        let mut exports = self.state.exports.lock();
        let ended = std::mem::replace(&mut *exports, Exports::new());
        drop(exports);
        let held = ended.list.iter().filter(|export| export.is_held()).count();
        ended.list.iter().for_each(|export| return_event(gpus, export));
        if held > 0 {
            log::write(
                Level::Warning,
                format_args!(
                    "tcuda_shutdown: other processes have {} of this process, and keep the memory",
                    Count(held, "block")
                ),
            );
        }
        if imported > 0 {
            log::write(
                Level::Warning,
                format_args!("tcuda_shutdown: closed {}", Count(imported, "imported block")),
            );
        }
    }
}

fn return_event(gpus: &Gpus, export: &Export) {
    if !export.event.is_null()
        && let Ok(device) = gpus.device(export.device)
    {
        device.events.give_shared(export.event);
    }
}

/// Makes a stream wait for an event of another process.
fn wait_for_other(gpus: &Gpus, device: &Device, stream: &Stream, handle: &[u8; 64]) -> Result<()> {
    let event = event::open_native(device, handle)?;
    let waited = stream.wait(gpus, event);
    for _ in 0..2 {
        // SAFETY: opened above; a queued wait does not need the handle.
        if unsafe { device.driver().cuEventDestroy(event) }.is_ok() {
            break;
        }
    }
    waited
}
