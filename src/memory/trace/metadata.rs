//! The text that a thread attaches to its events: PyTorch's user metadata.
//!
//! A text is kept in the table of stacks, as a stack of one frame with this name. Thus an event
//! refers to it by an id, and it is removed when no event and no thread needs it.

use super::stacks::{self, Pin};
use crate::base::error::{Error, Result};
use crate::base::frames::Named;
use crate::base::thread::try_box;
use std::cell::Cell;
use std::mem::ManuallyDrop;

/// The text of a thread.
struct Metadata {
    text: Vec<u8>,
    /// The stored text, from the first event that needs it.
    stored: Pin,
}

/// Boxed, since thread-local storage is scarce; not dropped at the thread's end.
type Place = ManuallyDrop<Option<Box<Metadata>>>;

const NOTHING: Place = ManuallyDrop::new(None);

thread_local! {
    static METADATA: Cell<Place> = const { Cell::new(NOTHING) };
}

/// Stores a text. The pin has the id 0 if the text is empty or there is no host memory.
pub(in crate::memory) fn store(text: &[u8]) -> Pin {
    if text.is_empty() {
        return Pin::NONE;
    }
    let frame = Named { name: text, filename: b"", line: 0 };
    stacks::keep(&mut std::iter::once(frame), &[])
}

/// Calls a function with this thread's text, which there is not meanwhile. The function must not
/// call the host.
fn with<R>(body: impl FnOnce(Option<&mut Metadata>) -> R) -> R {
    let mut metadata = ManuallyDrop::into_inner(METADATA.replace(NOTHING));
    let result = body(metadata.as_deref_mut());
    METADATA.set(ManuallyDrop::new(metadata));
    result
}

/// Sets the text of this thread; empty: none.
pub fn set(text: &str) -> Result<()> {
    const WHAT: &str = "the metadata of a thread";
    let new = if text.is_empty() {
        None
    } else {
        let mut copy = Vec::new();
        copy.try_reserve_exact(text.len()).map_err(|_| Error::OutOfHostMemory(WHAT))?;
        copy.extend_from_slice(text.as_bytes());
        Some(try_box(Metadata { text: copy, stored: Pin::NONE }, WHAT)?)
    };
    drop(ManuallyDrop::into_inner(METADATA.replace(ManuallyDrop::new(new))));
    Ok(())
}

/// Passes the text of this thread to a function.
pub fn get<R>(read: impl FnOnce(&str) -> R) -> R {
    // `set` copied a `str`.
    with(|metadata| {
        let text = metadata.map_or(&[][..], |metadata| &metadata.text);
        read(std::str::from_utf8(text).unwrap_or(""))
    })
}

/// The id of this thread's text; 0: none.
pub(in crate::memory) fn id() -> u32 {
    with(|metadata| {
        let Some(metadata) = metadata else { return 0 };
        // After a shutdown the table is a new one.
        if metadata.stored.id() == 0 || !stacks::has(&metadata.stored) {
            metadata.stored = store(&metadata.text);
        }
        metadata.stored.id()
    })
}

/// Drops the text of a thread that ends.
pub(crate) fn end_thread() {
    drop(ManuallyDrop::into_inner(METADATA.replace(NOTHING)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_a_text_of_its_own() {
        set("a step").unwrap();
        std::thread::spawn(|| {
            assert_eq!((get(str::len), id()), (0, 0));
            set("another step").unwrap();
            assert_eq!(get(str::to_owned), "another step");
            end_thread();
            assert_eq!(get(str::len), 0);
        })
        .join()
        .unwrap();
        assert_eq!(get(str::to_owned), "a step");
        set("").unwrap();
        assert_eq!((get(str::len), id()), (0, 0));
    }
}
