//! Sockets between processes of one user. Their random names are in the abstract namespace, so that
//! they vanish with their process and leave no file. Messages keep their boundaries and can carry
//! descriptors.

use super::handle::{BYTES, Handle};
use crate::base::descriptor::{Descriptor, errno, failure};
use crate::base::error::{Error, Result};
use crate::base::host_calls::random_bytes;
use crate::base::waiting;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Timeout for an answer. The exporter answers from a thread that does nothing else.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The most descriptors of a message; the system allows 253.
pub const MAX_FILES: usize = 128;
/// Length of the queue of pending connections.
const BACKLOG: libc::c_int = 128;

const SOCKET: &str = "Unix sockets (AF_UNIX, SOCK_SEQPACKET)";

/// Requests the memory of a handle.
pub const IMPORT: u32 = 1;
/// The same without descriptors, because the importer has the memory mapped already.
pub const IMPORT_MAPPED: u32 = 2;
/// Closes an import.
pub const CLOSE: u32 = 3;

/// A message from the importer to the exporter.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Request {
    pub what: u32,
    pub unused: u32,
    pub handle: Handle,
}

/// A part of the exporter's answer.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Answer {
    /// 1: the handle is valid.
    pub is_known: u32,
    /// Descriptors in this part.
    pub files: u32,
    /// Descriptors in all parts.
    pub all: u32,
    pub unused: u32,
    /// Bytes of memory of each descriptor.
    pub bytes: [u64; MAX_FILES],
}

impl Answer {
    /// The answer for a handle that is not valid.
    pub const NO: Answer =
        Answer { is_known: 0, files: 0, all: 0, unused: 0, bytes: [0; MAX_FILES] };
}

/// Bytes of control data for the descriptors of a message.
const CONTROL: usize = 64 + MAX_FILES * 4;

#[repr(C, align(16))]
struct Control([u8; CONTROL]);

/// Random bytes of cryptographic quality.
pub fn random() -> Result<[u8; 16]> {
    let mut bytes = [0u8; 16];
    if random_bytes(&mut bytes) { Ok(bytes) } else { Err(failure("getrandom")) }
}

/// An address in the abstract namespace, and its length.
fn address(name: &[u8; 16]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: integers, for which zero is valid.
    let mut address = unsafe { std::mem::zeroed::<libc::sockaddr_un>() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 15)];
    let digits = name.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]);
    let text = b"\0tcuda-".iter().copied().chain(digits);
    let mut length = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    for (place, byte) in address.sun_path.iter_mut().zip(text) {
        *place = byte as libc::c_char;
        length += 1;
    }
    (address, length as libc::socklen_t)
}

fn socket() -> Result<Descriptor> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor.
    Descriptor::of(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }.into(), SOCKET)
}

/// A socket that listens under this name.
pub fn listen(name: &[u8; 16]) -> Result<Descriptor> {
    let own = socket()?;
    let (address, length) = address(name);
    // SAFETY: the address has this length.
    if unsafe { libc::bind(own.number(), (&raw const address).cast(), length) } != 0 {
        return Err(failure(SOCKET));
    }
    // SAFETY: an owned socket.
    if unsafe { libc::listen(own.number(), BACKLOG) } != 0 {
        return Err(failure(SOCKET));
    }
    Ok(own)
}

/// The process ID of the other end, if that belongs to the same user.
pub fn same_user(socket: &Descriptor) -> Option<libc::pid_t> {
    let mut other = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `other` has this length.
    let result = unsafe {
        libc::getsockopt(
            socket.number(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut other).cast(),
            &mut length,
        )
    };
    // SAFETY: no preconditions.
    (result == 0 && other.uid == unsafe { libc::geteuid() }).then_some(other.pid)
}

/// No process listens under the name, or another user's process does.
pub const PEER_GONE: Error = Error::PeerGone(
    "the process that exported the memory has ended, or has shut tcuda down; have it export again",
);

const PEER_SILENT: Error = Error::PeerGone(
    "the process that exported the memory did not answer within 10 seconds: it was stopped, or \
     hangs",
);

/// Connects to the process that listens under this name.
pub fn connect(name: &[u8; 16]) -> Result<Descriptor> {
    let own = socket()?;
    let patience = libc::timeval { tv_sec: ANSWER_TIMEOUT.as_secs() as i64, tv_usec: 0 };
    // SAFETY: the value has this length.
    unsafe {
        libc::setsockopt(
            own.number(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&raw const patience).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    };
    let (address, length) = address(name);
    loop {
        // SAFETY: the address has this length.
        if unsafe { libc::connect(own.number(), (&raw const address).cast(), length) } == 0 {
            break;
        }
        match errno() {
            libc::EINTR => (),
            libc::ECONNREFUSED | libc::ENOENT | libc::ECONNRESET => return Err(PEER_GONE),
            libc::EAGAIN => return Err(PEER_SILENT),
            _ => return Err(failure(SOCKET)),
        }
    }
    match same_user(&own) {
        Some(_) => Ok(own),
        None => Err(Error::Invalid("handle is of another user's process")),
    }
}

/// Waits until a socket is ready for `events`. False: timeout or failure.
fn wait(socket: &Descriptor, events: i16, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    let _waiting = waiting::begin();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut poll_entry = libc::pollfd { fd: socket.number(), events, revents: 0 };
        // SAFETY: one valid entry.
        match unsafe { libc::poll(&mut poll_entry, 1, left.as_millis() as libc::c_int) } {
            0 => return false,
            count if count > 0 => return true,
            _ if errno() == libc::EINTR => (),
            _ => return false,
        }
    }
}

/// Has the other end closed the connection?
pub fn is_closed(socket: &Descriptor, patience: Duration) -> bool {
    wait(socket, 0, patience)
}

/// Sends plain data with descriptors. False: the other end is gone, or does not read in time.
pub fn send<T: Copy>(socket: &Descriptor, value: &T, files: &[i32], patience: Duration) -> bool {
    let mut part = libc::iovec {
        iov_base: std::ptr::from_ref(value).cast_mut().cast(),
        iov_len: size_of::<T>(),
    };
    let mut control = Control([0; CONTROL]);
    // SAFETY: integers and pointers, for which zero is valid.
    let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if !files.is_empty() && files.len() <= MAX_FILES {
        let bytes = size_of_val(files) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: computes a length.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as _;
        // SAFETY: the control buffer has space for a header.
        let head = unsafe { libc::CMSG_FIRSTHDR(&message) };
        // SAFETY: computes a length.
        let length = unsafe { libc::CMSG_LEN(bytes) } as _;
        let first = libc::cmsghdr {
            cmsg_len: length,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        // SAFETY: the first header is in `control`.
        unsafe { head.write(first) };
        // SAFETY: as above.
        let to = unsafe { libc::CMSG_DATA(head) };
        // SAFETY: there is space for this many.
        unsafe { to.copy_from_nonoverlapping(files.as_ptr().cast(), bytes as usize) };
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    loop {
        // SAFETY: the message is fully initialised.
        if unsafe { libc::sendmsg(socket.number(), &message, flags) } == part.iov_len as isize {
            return true;
        }
        match errno() {
            libc::EINTR => (),
            libc::EAGAIN if wait(socket, libc::POLLOUT, patience) => (),
            _ => return false,
        }
    }
}

/// A received message: its value, if complete, and its descriptors.
pub struct Received<T> {
    pub value: Option<T>,
    pub files: Vec<Descriptor>,
}

/// Receives a message, if there is one; `None`: the other end is gone.
pub fn receive<T: Copy>(socket: &Descriptor) -> Option<Received<T>> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut part = libc::iovec { iov_base: value.as_mut_ptr().cast(), iov_len: size_of::<T>() };
    let mut control = Control([0; CONTROL]);
    // SAFETY: integers and pointers, for which zero is valid.
    let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    let length = loop {
        // SAFETY: the message is fully initialised.
        let length = unsafe { libc::recvmsg(socket.number(), &mut message, flags) };
        if length >= 0 || errno() != libc::EINTR {
            break length;
        }
    };
    if length < 0 && errno() == libc::EAGAIN {
        return Some(Received { value: None, files: Vec::new() });
    }
    let files = if length >= 0 { files_of(&message) } else { Some(Vec::new()) };
    if length <= 0 {
        return None;
    }
    let is_whole = length as usize == size_of::<T>()
        && message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
    // SAFETY: all bytes were received, and `T` is plain data that accepts any value.
    let value = (is_whole && files.is_some()).then(|| unsafe { value.assume_init() });
    Some(Received { value, files: files.unwrap_or_default() })
}

/// The descriptors of a message; `None`: not enough host memory.
fn files_of(message: &libc::msghdr) -> Option<Vec<Descriptor>> {
    let (mut files, mut is_whole) = (Vec::new(), true);
    // SAFETY: the system wrote the headers.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !head.is_null() {
        // SAFETY: a header that the system wrote.
        let libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type } = unsafe { head.read() };
        if cmsg_level == libc::SOL_SOCKET && cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: computes a length.
            let bytes = cmsg_len - unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: the data follows the header.
            let data = unsafe { libc::CMSG_DATA(head) }.cast::<i32>();
            for index in 0..bytes / size_of::<i32>() {
                // SAFETY: the message has this many.
                let number = unsafe { data.wrapping_add(index).read_unaligned() };
                // Closed again without space for it.
                let file = Descriptor::take(number);
                is_whole &= files.try_reserve(1).is_ok();
                if is_whole {
                    files.push(file);
                }
            }
        }
        // SAFETY: as above.
        head = unsafe { libc::CMSG_NXTHDR(message, head) };
    }
    is_whole.then_some(files)
}

/// Sends a request, and waits for the first part of the answer.
pub fn request(socket: &Descriptor, what: u32, handle: &Handle) -> Result<Received<Answer>> {
    let request = Request { what, unused: 0, handle: *handle };
    if !send(socket, &request, &[], ANSWER_TIMEOUT) {
        return Err(PEER_GONE);
    }
    receive_answer(socket)
}

/// Waits for the next part of an answer.
pub fn receive_answer(socket: &Descriptor) -> Result<Received<Answer>> {
    if !wait(socket, libc::POLLIN, ANSWER_TIMEOUT) {
        return Err(PEER_SILENT);
    }
    receive(socket).ok_or(PEER_GONE)
}

/// Sends a message that has no answer.
pub fn notify(socket: &Descriptor, what: u32, handle: &Handle) {
    let request = Request { what, unused: 0, handle: *handle };
    // An exporter that is gone holds nothing.
    let _ = send(socket, &request, &[], ANSWER_TIMEOUT);
}

const _: () = assert!(size_of::<Request>() == BYTES + 8);
