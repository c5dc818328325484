//! The end of the work that a stream holds: events that are recorded there, and waits for it.

use crate::base::error::{Error, Result};
use crate::driver::sync_debug;
use crate::driver::sys::CUevent;
use crate::gpu::device::Device;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;

/// Records an event at the present end of a stream. `None` while the stream is captured: an event
/// recorded in a capture would pull its waiters into the capture. The caller names the stream.
pub(in crate::memory) fn record_end(
    gpus: &Gpus,
    device: &Device,
    stream: &Stream,
) -> Result<Option<CUevent>> {
    let stream = ordering_stream(device, stream);
    let event = device.events.take_untimed(device)?;
    let recorded = stream.unless_captured(gpus, || stream.record(gpus, event));
    if !matches!(recorded, Ok(Some(()))) {
        device.events.give_untimed(event);
    }
    Ok(recorded?.map(|()| event))
}

/// The stream on which an event covers the work of `stream`. Only its own thread can name a
/// per-thread default stream; the legacy default stream is ordered after it, and after every other
/// blocking stream.
pub(in crate::memory) fn ordering_stream<'a>(device: &'a Device, stream: &'a Stream) -> &'a Stream {
    if stream.is_per_thread() { device.streams.default() } else { stream }
}

/// Waits for the work that a stream holds now, or held at its end; does not wait for a captured
/// stream. The caller holds no lock.
pub(crate) fn wait_for(gpus: &Gpus, stream: &Stream) -> Result<()> {
    let device = gpus.device_of(stream)?;
    let _context = device.enter()?;
    let event = match stream.end_state() {
        EndState::Alive(_named) => match record_end(gpus, device, stream) {
            // There is no room for an event.
            Err(Error::OutOfHostMemory(_)) => {
                let stream = ordering_stream(device, stream);
                return match stream.is_capturing(gpus)? {
                    true => Ok(()),
                    false => stream.synchronize(gpus),
                };
            }
            recorded => recorded?,
        },
        EndState::Gone(None) => return Ok(()),
        EndState::Gone(Some(external_life)) => {
            // SAFETY: our event, recorded.
            unsafe { sync_debug::wait_for_event(gpus.driver(), external_life as CUevent) }?;
            return Ok(());
        }
        EndState::Lost => {
            device.synchronize()?;
            stream.note_context_synced();
            return Ok(());
        }
    };
    let Some(event) = event else { return Ok(()) };
    // SAFETY: our event, recorded.
    let waited = unsafe { sync_debug::wait_for_event(gpus.driver(), event) };
    device.events.give_untimed(event);
    Ok(waited?)
}
