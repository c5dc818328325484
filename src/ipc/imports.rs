//! What this process imports: connections to other processes, mapped memory, and the import count
//! of each handle.

use super::handle::{CHANGED, Handle, HandleFields};
use super::socket::{self, Answer, CLOSE, IMPORT, IMPORT_MAPPED, MAX_FILES, PEER_GONE, Received};
use crate::base::descriptor::Descriptor;
use crate::base::error::{Error, Result};
use crate::driver::sys::{
    CUdeviceptr, CUipcMemHandle, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use crate::driver::{Driver, code};
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use std::ffi::c_void;
use std::time::Duration;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag.
const LAZY_PEERS: u32 = 1;

const NO_ROOM: Error = Error::OutOfHostMemory("the list of imported memory");

/// The connection to another process.
struct Peer {
    name: [u8; 16],
    socket: Descriptor,
    /// An answer timed out, so that the next message may be the answer to an earlier request.
    is_broken: bool,
    /// Its handles that are imported.
    imports: usize,
}

/// Memory of another process.
struct Range {
    name: [u8; 16],
    number: u64,
    device: i32,
    base: u64,
    bytes: u64,
    is_plain: bool,
    /// Is memory mapped? Otherwise only the addresses remain to be freed.
    is_mapped: bool,
    /// Imported handles whose blocks are in it.
    imports: usize,
}

/// An imported handle.
struct Import {
    handle: Handle,
    address: u64,
    bytes: u64,
    /// Start of the block that contains the address.
    start: u64,
    device: i32,
    name: [u8; 16],
    range: u64,
    /// How many times it is imported.
    count: usize,
}

/// All imports of this process.
pub struct Imports {
    peers: Vec<Peer>,
    ranges: Vec<Range>,
    list: Vec<Import>,
    /// Memory that the driver failed to release; to be retried.
    stranded: Vec<Range>,
}

impl Imports {
    pub const fn new() -> Imports {
        Imports { peers: Vec::new(), ranges: Vec::new(), list: Vec::new(), stranded: Vec::new() }
    }

    /// Is the address in memory of another process?
    pub fn contains(&self, address: u64) -> bool {
        self.ranges.iter().any(|range| address.wrapping_sub(range.base) < range.bytes)
    }

    /// The device of an imported block.
    pub fn device_of(&self, address: u64) -> Option<i32> {
        self.list.iter().find(|import| import.address == address).map(|import| import.device)
    }

    /// Start of the block that contains an imported address, and the import count of that block
    /// over all handles.
    pub fn block_of(&self, address: u64) -> Option<(u64, usize)> {
        let start = self.list.iter().find(|import| import.address == address)?.start;
        let same = self.list.iter().filter(|import| import.start == start);
        Some((start, same.map(|import| import.count).sum()))
    }

    /// Imports a handle on its device. Returns the exported address, and the bytes from there on.
    pub fn open(
        &mut self,
        device: &Device,
        handle: &Handle,
        fields: &HandleFields,
    ) -> Result<(u64, u64)> {
        if let Some(known) = self.list.iter_mut().find(|import| import.handle == *handle) {
            known.count += 1;
            return Ok((known.address, known.bytes));
        }
        self.prepare()?;
        self.clear_stranded(device.driver());
        let peer = self.peer(&fields.socket)?;
        let range = self.range(fields);
        let outcome = self.open_with(device, handle, fields, peer, range);
        if outcome.is_err() {
            self.forget_peer(&fields.socket);
        }
        outcome
    }

    fn open_with(
        &mut self,
        device: &Device,
        handle: &Handle,
        fields: &HandleFields,
        peer: usize,
        range: Option<usize>,
    ) -> Result<(u64, u64)> {
        let Peer { socket, is_broken, .. } = &mut self.peers[peer];
        if *is_broken {
            return Err(PEER_GONE);
        }
        let what = if range.is_some() { IMPORT_MAPPED } else { IMPORT };
        let answer =
            socket::request(socket, what, handle).and_then(|first| receive_files(socket, first));
        // The other process may have counted the import, even if the request failed.
        let undo = |_: &Error| socket::notify(socket, CLOSE, handle);
        let files = answer.inspect_err(|_| *is_broken = true).inspect_err(undo)?;
        let files = files.ok_or(CHANGED)?;
        let base = match range {
            Some(index) => Ok(self.ranges[index].base),
            None => map(device, fields, files),
        };
        let base = base.inspect_err(undo)?;
        let (name, number) = (fields.socket, fields.range);
        if range.is_none() {
            let (bytes, is_plain) = (fields.range_bytes, fields.is_plain == 1);
            let (device, is_mapped, imports) = (device.ordinal(), true, 0);
            self.ranges.push(Range {
                name,
                number,
                device,
                base,
                bytes,
                is_plain,
                is_mapped,
                imports,
            });
        }
        if let Some(range) = self.range(fields) {
            self.ranges[range].imports += 1;
        }
        self.peers[peer].imports += 1;
        let (address, bytes) = (base + fields.offset, fields.bytes);
        let start = address - fields.before;
        let (handle, device, range, count) = (*handle, device.ordinal(), fields.range, 1);
        self.list.push(Import { handle, address, bytes, start, device, name, range, count });
        Ok((address, bytes))
    }

    fn prepare(&mut self) -> Result<()> {
        self.peers.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.ranges.try_reserve(1).map_err(|_| NO_ROOM)?;
        // Releasing needs no memory.
        let ranges = self.ranges.len() + 1;
        self.stranded.try_reserve(ranges).map_err(|_| NO_ROOM)?;
        self.list.try_reserve(1).map_err(|_| NO_ROOM)
    }

    /// The connection to a process; connects if there is none.
    fn peer(&mut self, name: &[u8; 16]) -> Result<usize> {
        if let Some(index) = self.peers.iter().position(|peer| peer.name == *name) {
            return Ok(index);
        }
        let socket = socket::connect(name)?;
        self.peers.push(Peer { name: *name, socket, is_broken: false, imports: 0 });
        Ok(self.peers.len() - 1)
    }

    /// Closes the connection to a process of which nothing is imported.
    fn forget_peer(&mut self, name: &[u8; 16]) {
        self.peers.retain(|peer| peer.name != *name || peer.imports > 0);
    }

    /// The result of a wait for an event of the process with this name. An error if the process has
    /// ended or has shut the library down: some drivers reject its event then, and others accept
    /// it.
    pub fn require_alive(&self, name: &[u8; 16], waited: Result<()>) -> Result<()> {
        // A process that is about to end may take a moment.
        let patience = match waited {
            Ok(()) => Duration::ZERO,
            Err(Error::Cuda(_)) => Duration::from_millis(100),
            other => return other,
        };
        let peer = self.peers.iter().find(|peer| peer.name == *name);
        match peer.is_none_or(|peer| peer.is_broken || socket::is_closed(&peer.socket, patience)) {
            true => Err(socket::PEER_GONE),
            false => waited,
        }
    }

    fn range(&self, fields: &HandleFields) -> Option<usize> {
        let is_it = |range: &Range| range.number == fields.range && range.name == fields.socket;
        self.ranges.iter().position(is_it)
    }

    /// Undoes one import of a block, and unmaps the memory with the last one.
    pub fn close(&mut self, gpus: &Gpus, address: u64) -> Result<()> {
        self.clear_stranded(gpus.driver());
        let why = "was not imported, or was closed already";
        let unknown = Error::InvalidPointer { ptr: address as usize, why };
        let at = self.list.iter().position(|import| import.address == address).ok_or(unknown)?;
        if self.list[at].count > 1 {
            self.list[at].count -= 1;
            return Ok(());
        }
        let (name, number) = (self.list[at].name, self.list[at].range);
        let is_it = |range: &Range| range.number == number && range.name == name;
        if let Some(index) = self.ranges.iter().position(is_it) {
            if self.ranges[index].imports == 1 {
                let range = &mut self.ranges[index];
                let device = gpus.device(range.device)?;
                range.unmap(device)?;
                let mut range = self.ranges.swap_remove(index);
                if range.free_addresses(gpus.driver()).is_err() {
                    self.stranded.push(range);
                }
            } else {
                self.ranges[index].imports -= 1;
            }
        }
        let import = self.list.swap_remove(at);
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.name == name) {
            peer.imports -= 1;
            socket::notify(&peer.socket, CLOSE, &import.handle);
        }
        self.forget_peer(&name);
        Ok(())
    }

    fn clear_stranded(&mut self, driver: &Driver) {
        self.stranded.retain_mut(|range| range.free_addresses(driver).is_err());
    }

    /// Closes all imports at the end, when nothing uses them.
    pub fn close_all(&mut self, gpus: &Gpus) -> usize {
        let count = self.list.len();
        for _ in 0..2 {
            self.ranges.retain_mut(|range| {
                let Ok(device) = gpus.device(range.device) else { return true };
                range.unmap(device).and_then(|()| range.free_addresses(gpus.driver())).is_err()
            });
            self.clear_stranded(gpus.driver());
        }
        for import in &self.list {
            if let Some(peer) = self.peers.iter().find(|peer| peer.name == import.name) {
                socket::notify(&peer.socket, CLOSE, &import.handle);
            }
        }
        *self = Imports::new();
        count
    }
}

impl Range {
    /// Unmaps the memory, which nothing uses.
    fn unmap(&mut self, device: &Device) -> Result<()> {
        if !self.is_mapped {
            return Ok(());
        }
        let driver = device.driver();
        if self.is_plain {
            let _context = device.enter()?;
            // SAFETY: opened by this process, once.
            unsafe { driver.cuIpcCloseMemHandle(self.base) }?;
        } else {
            // SAFETY: whole mappings of this reservation.
            unsafe { driver.cuMemUnmap(self.base, self.bytes as usize) }?;
        }
        self.is_mapped = false;
        Ok(())
    }

    /// Frees the addresses of unmapped memory. The driver owns those of `cuMemAlloc` memory.
    fn free_addresses(&mut self, driver: &Driver) -> Result<()> {
        if !self.is_plain {
            // SAFETY: reserved with this length, and unmapped.
            unsafe { driver.cuMemAddressFree(self.base, self.bytes as usize) }?;
        }
        Ok(())
    }
}

/// Maps the memory of a handle; returns its first address.
fn map(device: &Device, fields: &HandleFields, files: Files) -> Result<u64> {
    let _context = device.enter()?;
    let driver = device.driver();
    if fields.is_plain == 1 {
        let handle =
            CUipcMemHandle { reserved: fields.memory.map(|byte| byte as std::ffi::c_char) };
        let mut base: CUdeviceptr = 0;
        // SAFETY: `base` is writable; the other process verified the handle.
        unsafe { driver.cuIpcOpenMemHandle(&mut base, handle, LAZY_PEERS) }?;
        return Ok(base);
    }
    let sum = files.iter().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes));
    if sum != Some(fields.range_bytes) || files.iter().any(|(_, bytes)| *bytes == 0) {
        return Err(DAMAGED);
    }
    let bytes = fields.range_bytes as usize;
    let mut base: CUdeviceptr = 0;
    // SAFETY: `base` is writable.
    match unsafe { driver.cuMemAddressReserve(&mut base, bytes, 0, 0, 0) } {
        Err(error) if error.code == code::OUT_OF_MEMORY => return Err(Error::OutOfAddresses),
        outcome => outcome?,
    }
    let mut mapped = 0;
    let outcome = files.into_iter().try_for_each(|(file, bytes)| {
        map_file(driver, base + mapped, &file, bytes)?;
        mapped += bytes;
        Ok(())
    });
    let outcome = outcome.and_then(|()| allow(device, base, bytes));
    if let Err(error) = outcome {
        if mapped > 0 {
            // SAFETY: whole mappings of this reservation, which nothing has used.
            let _ = unsafe { driver.cuMemUnmap(base, mapped as usize) };
        }
        // SAFETY: reserved above; the driver refuses if memory is still mapped.
        let _ = unsafe { driver.cuMemAddressFree(base, bytes) };
        return Err(error);
    }
    Ok(base)
}

/// Descriptors, with the bytes of memory of each.
type Files = Vec<(Descriptor, u64)>;

const DAMAGED: Error =
    Error::Invalid("the process that exported the memory gave what makes no sense");

/// The descriptors of all parts of an answer; `None`: the other process does not know the handle.
fn receive_files(socket: &Descriptor, first: Received<Answer>) -> Result<Option<Files>> {
    let (mut all, mut disconnect) = (Vec::new(), first);
    loop {
        let Received { value: Some(answer), files } = disconnect else { return Err(DAMAGED) };
        if answer.is_known == 0 {
            return Ok(None);
        }
        if answer.files as usize != files.len() || files.len() > MAX_FILES {
            return Err(DAMAGED);
        }
        all.try_reserve(files.len()).map_err(|_| NO_ROOM)?;
        all.extend(files.into_iter().zip(answer.bytes));
        if all.len() >= answer.all as usize {
            return Ok(Some(all));
        }
        if answer.files == 0 {
            return Err(DAMAGED);
        }
        disconnect = socket::receive_answer(socket)?;
    }
}

fn map_file(driver: &Driver, address: u64, file: &Descriptor, bytes: u64) -> Result<()> {
    let mut handle: CUmemGenericAllocationHandle = 0;
    let shareable = std::ptr::without_provenance_mut::<c_void>(file.number() as usize);
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: `handle` is writable; the driver validates the descriptor.
    unsafe { driver.cuMemImportFromShareableHandle(&mut handle, shareable, kind) }?;
    // SAFETY: unmapped addresses of this reservation; the driver checks the length.
    let mapped = unsafe { driver.cuMemMap(address, bytes as usize, 0, handle, 0) };
    // The mapping keeps the memory.
    // SAFETY: imported above, once.
    let released = unsafe { driver.cuMemRelease(handle) };
    if mapped.is_ok() && released.is_err() {
        // SAFETY: as above; after a transient failure the handle still exists.
        let _ = unsafe { driver.cuMemRelease(handle) };
    }
    Ok(mapped?)
}

/// Gives access to the device, and to devices with peer access to its memory.
fn allow(device: &Device, base: u64, bytes: usize) -> Result<()> {
    let access = CUmemAccessDesc {
        location: CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device.handle(),
        },
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: one descriptor, the range is mapped.
    unsafe { device.driver().cuMemSetAccess(base, bytes, &access, 1) }?;
    Ok(())
}
