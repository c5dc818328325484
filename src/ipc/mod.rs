//! Memory that several processes use (`docs/ipc.md`).
//!
//! A process that exports memory answers the others on a socket, from a thread that is started with
//! the first export (`server.rs`). Who imports stays connected to it while it has anything: so who has
//! what is known without a file in which everyone counts, and the system itself tells of those who die.
//! The memory of virtual addresses is handed over as descriptors on that socket: the handle's 512 bytes
//! are data, and prove nothing; the process that gave it compares all of them with its own.

pub(crate) mod descriptor;
mod exports;
mod handle;
mod imports;
mod range;
mod server;
mod socket;

pub use descriptor::close_in_child;
pub use exports::Verdict;
pub use handle::{BYTES, Handle};

use crate::base::error::{Error, Result};
use crate::base::lock::{Held, Mutex};
use crate::base::log::{self, Level};
use crate::base::rank::Rank;
use crate::base::text::Count;
use crate::base::thread;
use crate::driver::code;
use crate::driver::sys::{CUevent, CUipcEventHandle};
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;
use crate::memory::exported::{self, Exported};
use crate::memory::wait_for;
use crate::ops::callback;
use crate::runtime::Runtime;
use crate::sanitizer::{self, sync_points};
use exports::{Export, ExportParts, Exports, Range};
use handle::{CHANGED, Words};
use imports::Imports;
use range::open_range;
use server::{Desk, Server};
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};

/// So many handles name an event at a time; the exporter waits for its stream instead, as PyTorch.
const MOST_EVENTS: usize = 1000;
/// So many freed blocks that others have are told of, once, as by PyTorch.
const MANY: usize = 1000;

/// What a process shares with others.
pub struct Ipc {
    /// Boxed, since the thread that answers refers to it.
    desk: Box<Desk>,
    /// Held while exports are added and collected.
    server: Mutex<Option<Server>>,
    imports: Mutex<Imports>,
    has_warned: AtomicBool,
}

const CAPTURED: &str = "other processes cannot wait for what has not run; share memory before the \
                        capture begins, or after it ends";

impl Ipc {
    pub(crate) fn new() -> Result<Ipc> {
        let exports = Mutex::new(Rank::LEAF, Exports::new());
        let desk = Desk { exports, has_news: AtomicBool::new(false) };
        Ok(Ipc {
            desk: crate::base::thread::try_box(desk, "what is shared")?,
            server: Mutex::new(Rank::IPC, None),
            imports: Mutex::new(Rank::IPC, Imports::new()),
            has_warned: AtomicBool::new(false),
        })
    }

    /// A handle of an address and the block around it, for one other process: what `stream` holds now
    /// comes before the other's work.
    pub fn export(&self, runtime: &Runtime, address: u64, stream: &Stream) -> Result<Handle> {
        callback::refuse()?;
        self.collect(runtime);
        if self.imports.lock().have(address) {
            return Err(Error::InvalidState(
                "memory that was received from another process cannot be sent on; copy it first, or \
                 have its owner export it",
            ));
        }
        let device = runtime.device(stream.device())?;
        let owner = crate::memory::device_of(address);
        if owner.is_some_and(|owner| owner != stream.device()) {
            return Err(Error::OutOfRange {
                name: "stream",
                value: stream.device().into(),
                allowed: "it is of another device than the memory; pass one of the memory's device",
            });
        }
        let mut words = Words::new();
        words.nonce = socket::random()?;
        words.uuid = device.uuid()?;
        let event = self.mark(runtime, device, stream, &mut words)?;
        let outcome = self.export_after(device, address, &mut words, event);
        if outcome.is_err() && !event.is_null() {
            device.events.give_shared(event);
        }
        let waiting = self.desk.exports.lock().waiting();
        if waiting > MANY && !self.has_warned.swap(true, Ordering::Relaxed) {
            log::write(
                Level::Warning,
                format_args!(
                    "{waiting} blocks were freed here and are in use by other processes, which \
                     should close what they import (tcuda_ipc_close)"
                ),
            );
        }
        outcome
    }

    /// The same, where the handle says when the memory may be used.
    fn export_after(
        &self,
        device: &Device,
        address: u64,
        words: &mut Words,
        event: CUevent,
    ) -> Result<Handle> {
        // Held, so that nothing that is kept is taken for idle before it is listed.
        let mut server = self.server.lock();
        let name = match &*server {
            Some(server) => server.name,
            None => server.insert(Server::begin(&self.desk)?).name,
        };
        words.socket = name;
        let found = exported::keep(address)?;
        words.before = address - found.address;
        words.offset = address - found.base;
        words.range_bytes = found.range_bytes;
        let outcome = match found.bytes.checked_sub(words.before) {
            Some(bytes @ 1..) => {
                words.bytes = bytes;
                self.register(device, &found, words, event)
            }
            _ => {
                let why = "is behind the bytes of its block, of which there are as many as were \
                           asked for";
                Err(Error::InvalidPointer { ptr: address as usize, why })
            }
        };
        if outcome.is_err() && !self.desk.exports.lock().has(found.address) {
            exported::forget(found.address);
        }
        outcome
    }

    /// An event of what a stream holds, and its handle; NULL: that was waited for.
    fn mark(
        &self,
        runtime: &Runtime,
        device: &Device,
        stream: &Stream,
        words: &mut Words,
    ) -> Result<CUevent> {
        let captured = Error::Capturing { operation: "tcuda_ipc_export", why: CAPTURED };
        if stream.is_capturing(runtime)? {
            return Err(captured);
        }
        let wait = || stream.synchronize(runtime).map(|()| std::ptr::null_mut());
        if self.desk.exports.lock().events >= MOST_EVENTS {
            return wait();
        }
        let event = device.events.take_shared(device)?;
        let recorded = stream.unless_captured(runtime, || stream.record(runtime, event));
        let outcome = match recorded {
            Ok(Some(())) => handle_of(device, event),
            Ok(None) => Err(captured),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(handle) => {
                (words.has_event, words.event) = (1, handle);
                Ok(event)
            }
            Err(error) => {
                device.events.give_shared(event);
                // Not every machine has such events.
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
        words: &mut Words,
        event: CUevent,
    ) -> Result<Handle> {
        let first = found.handles.first().map_or(0, |(handle, _)| *handle);
        let (base, bytes) = (found.base, found.range_bytes);
        let (number, memory) = {
            let mut exports = self.desk.exports.lock();
            exports.prepare()?;
            match exports.range_at(base, bytes, first) {
                Some(range) => {
                    // One more, so that nobody takes it away meanwhile.
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
        let mut exports = self.desk.exports.lock();
        if !exports.is_hosts(found.address) {
            if let Some(number) = number {
                exports.leave(number);
            }
            let why = "was freed already; another process still has it";
            return Err(Error::InvalidPointer { ptr: found.address as usize, why });
        }
        words.memory = memory;
        words.is_plain = u32::from(found.handles.is_empty());
        words.range = match (number, fresh) {
            (Some(number), _) => number,
            (None, fresh) => {
                let number = exports.next_number();
                if let Some((files, sizes, memory)) = fresh {
                    words.memory = memory;
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
        words.export = exports.next_number();
        let handle = words.pack();
        let (number, range, address) = (words.export, words.range, found.address);
        let device = device.ordinal();
        exports.add(ExportParts { number, address, device, range, event, handle });
        Ok(handle)
    }

    /// Maps the block of a handle: the exported address, and the bytes from there to the end of the
    /// block. `stream`, or the device's current one, waits for what the other process had queued.
    pub fn import<'a>(
        &self,
        runtime: &'a Runtime,
        handle: &Handle,
        stream: Option<&'a Stream>,
    ) -> Result<(u64, u64)> {
        callback::refuse()?;
        let words = Words::unpack(handle)?;
        let own = self.server.lock().as_ref().map(|server| server.name);
        if own == Some(words.socket) {
            return Err(Error::InvalidState(
                "this process exported the memory itself: use its own pointer",
            ));
        }
        let mut found = None;
        for device in &runtime.devices {
            if device.uuid()? == words.uuid {
                found = Some(device);
            }
        }
        let device = found.ok_or(Error::NoDevice(
            "handle is of memory on a device that this process does not have, or was changed on the \
             way; look at CUDA_VISIBLE_DEVICES",
        ))?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.device() != device.ordinal() {
            return Err(Error::OutOfRange {
                name: "stream",
                value: stream.device().into(),
                allowed: "it is of another device than the memory; pass one of the memory's device",
            });
        }
        if stream.is_capturing(runtime)? {
            return Err(Error::Capturing { operation: "tcuda_ipc_import", why: CAPTURED });
        }
        let mut imports = self.imports.lock();
        let (address, bytes) = imports.open(device, handle, &words)?;
        let waited = match words.has_event {
            0 => Ok(()),
            _ => wait_for_other(runtime, device, stream, &words.event),
        };
        if let Err(error) = imports.unless_gone(&words.socket, waited) {
            // Nothing has used it.
            let _ = imports.close(runtime, address);
            return Err(error);
        }
        let (start, count) = imports.block_of(address).unwrap_or((address, 1));
        drop(imports);
        if words.has_event != 0 {
            // The other process may itself have waited for any work of this one.
            sanitizer::waits_for_everything(runtime, stream);
        }
        if count == 1 {
            sanitizer::allocated(runtime, start, address - start + bytes, stream);
        }
        Ok((address, bytes))
    }

    /// Lets go of an imported block, after what `stream` holds now.
    pub fn close(&self, runtime: &Runtime, address: u64, stream: Option<&Stream>) -> Result<()> {
        callback::refuse()?;
        let why = "was not imported, or was closed already";
        let unknown = Error::InvalidPointer { ptr: address as usize, why };
        let device = self.imports.lock().device_of(address).ok_or(unknown)?;
        let device = runtime.device(device)?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.is_capturing(runtime)? {
            return Err(Error::Capturing { operation: "tcuda_ipc_close", why: CAPTURED });
        }
        // Unmapping waits for nothing, nor does the other process.
        let point = sanitizer::point_of_stream(runtime, stream);
        sync_points::waited(point, || wait_for(runtime, stream))?;
        let mut imports = self.imports.lock();
        if let Some((start, 1)) = imports.block_of(address) {
            sanitizer::freed(start);
        }
        imports.close(runtime, address)
    }

    /// Gives the block of a handle to nobody from now on.
    pub fn withdraw(&self, runtime: &Runtime, handle: &Handle) -> Result<()> {
        callback::refuse()?;
        let words = Words::unpack(handle)?;
        let own = self.server.lock().as_ref().map(|server| server.name);
        if own != Some(words.socket) {
            return Err(Error::Invalid(
                "handle is not of this process, which alone can withdraw it",
            ));
        }
        let ended = self.desk.exports.lock().withdraw(handle).ok_or(CHANGED)?;
        if ended {
            self.desk.has_news.store(true, Ordering::Release);
            self.collect(runtime);
        }
        Ok(())
    }

    /// Is an address in memory of another process?
    pub fn has_import(&self, address: u64) -> bool {
        self.imports.lock().have(address)
    }

    /// Is there something to collect?
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.desk.has_news.load(Ordering::Acquire)
    }

    /// Gives back what no other process has any more.
    pub fn collect(&self, runtime: &Runtime) {
        if thread::is_in_callback() {
            return;
        }
        if self.has_news() {
            let held = self.server.lock();
            self.collect_held(runtime, held);
        }
    }

    /// The same from a cold path, unless another thread is at it.
    pub(crate) fn collect_quickly(&self, runtime: &Runtime) {
        if let Some(held) = self.server.try_lock() {
            self.collect_held(runtime, held);
        }
    }

    fn collect_held(&self, runtime: &Runtime, held: Held<'_, Option<Server>>) {
        self.desk.has_news.store(false, Ordering::Relaxed);
        loop {
            let Some((export, range)) = self.desk.exports.lock().take_over() else { break };
            give_event_back(runtime, &export);
            drop(range);
        }
        let mut freed = [0; 64];
        let mut count = 0;
        while count < freed.len() {
            let idle = self.desk.exports.lock().take_idle();
            match idle {
                None => break,
                Some((address, false)) => exported::forget(address),
                Some((address, true)) => {
                    freed[count] = address;
                    count += 1;
                }
            }
        }
        // Those that found no room are for the next time.
        self.desk.has_news.fetch_or(count == freed.len(), Ordering::Relaxed);
        // A function of the host's may be asked for frames: with no lock held.
        drop(held);
        for address in &freed[..count] {
            exported::free(runtime, *address);
        }
    }

    /// The host frees a block that other processes may have; its arena's lock is held.
    pub(crate) fn freed_by_host(&self, address: u64) -> Verdict {
        self.desk.exports.lock().freed_by_host(address)
    }

    /// A block that only other processes had is about to go; false: it went already.
    pub(crate) fn dismiss(&self, address: u64) -> bool {
        self.desk.exports.lock().dismiss(address)
    }

    /// Lets go of everything and answers nobody any more: nobody is inside, no work is under way.
    pub(crate) fn end(&self, runtime: &Runtime) {
        if let Some(server) = self.server.lock().take() {
            server.end();
        }
        let imported = self.imports.lock().close_all(runtime);
        let mut exports = self.desk.exports.lock();
        let ended = std::mem::replace(&mut *exports, Exports::new());
        drop(exports);
        let held = ended.list.iter().filter(|export| export.is_held()).count();
        ended.list.iter().for_each(|export| give_event_back(runtime, export));
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

fn give_event_back(runtime: &Runtime, export: &Export) {
    if !export.event.is_null()
        && let Ok(device) = runtime.device(export.device)
    {
        device.events.give_shared(export.event);
    }
}

/// The driver's handle of an event.
pub(crate) fn handle_of(device: &Device, event: CUevent) -> Result<[u8; 64]> {
    let _context = device.enter()?;
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    // SAFETY: `handle` is writable, the event is alive.
    unsafe { device.driver().cuIpcGetEventHandle(&mut handle, event) }?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

/// Opens another process's event.
pub(crate) fn open_event(device: &Device, handle: &[u8; 64]) -> Result<CUevent> {
    let _context = device.enter()?;
    let handle = CUipcEventHandle { reserved: handle.map(|byte| byte as c_char) };
    let mut event = std::ptr::null_mut();
    // SAFETY: `event` is writable; the driver looks at the handle's bytes.
    unsafe { device.driver().cuIpcOpenEventHandle(&mut event, handle) }?;
    Ok(event)
}

/// Has a stream wait for another process's event.
fn wait_for_other(
    runtime: &Runtime,
    device: &Device,
    stream: &Stream,
    handle: &[u8; 64],
) -> Result<()> {
    let event = open_event(device, handle)?;
    let waited = stream.wait(runtime, event);
    for _ in 0..2 {
        // SAFETY: opened above; the stream still waits.
        if unsafe { device.driver().cuEventDestroy(event) }.is_ok() {
            break;
        }
    }
    waited
}
