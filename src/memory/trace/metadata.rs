//! The texts that a thread attaches to its events: PyTorch's user metadata, and its contexts of
//! compilation.
//!
//! A text is kept in the table of stacks, as a stack of one frame with this name. Thus an event
//! refers to it by an id, and it is removed when no event and no thread needs it. The name ends
//! in a NUL, since C reads it.

use super::stacks::{self, Pin};
use crate::base::error::{Error, Result};
use crate::base::frames::Named;
use crate::base::thread::try_box;
use std::cell::Cell;
use std::mem::ManuallyDrop;

/// A text of a thread.
struct Own {
    text: Vec<u8>,
    /// The stored text, from the first event that needs it.
    stored: Pin,
}

/// The texts of a thread.
#[derive(Default)]
struct Texts {
    metadata: Option<Own>,
    /// The contexts of compilation, the innermost last.
    compilations: Vec<Own>,
}

/// Boxed, since thread-local storage is scarce; not dropped at the thread's end.
type Place = ManuallyDrop<Option<Box<Texts>>>;

const NOTHING: Place = ManuallyDrop::new(None);

thread_local! {
    static TEXTS: Cell<Place> = const { Cell::new(NOTHING) };
}

const NO_MEMORY: Error = Error::OutOfHostMemory("a text for memory events");

impl Own {
    fn new(text: &str) -> Result<Own> {
        let mut copy = Vec::new();
        copy.try_reserve_exact(text.len()).map_err(|_| NO_MEMORY)?;
        copy.extend_from_slice(text.as_bytes());
        Ok(Own { text: copy, stored: Pin::NONE })
    }

    fn id(&mut self) -> u32 {
        // After a shutdown the table is a new one.
        if self.stored.id() == 0 || !stacks::has(&self.stored) {
            self.stored = store(&self.text);
        }
        self.stored.id()
    }
}

/// Stores a text. The pin has the id 0 if the text is empty or there is no host memory.
pub(in crate::memory) fn store(text: &[u8]) -> Pin {
    let mut terminated = Vec::new();
    if text.is_empty() || terminated.try_reserve_exact(text.len() + 1).is_err() {
        return Pin::NONE;
    }
    terminated.extend_from_slice(text);
    terminated.push(0);
    let frame = Named { name: &terminated, filename: b"", line: 0 };
    stacks::keep(None, &mut std::iter::once(frame), &[])
}

/// Calls a function with this thread's texts, which are absent meanwhile. The function must not
/// call the host.
fn with<R>(body: impl FnOnce(&mut Option<Box<Texts>>) -> R) -> R {
    let mut texts = ManuallyDrop::into_inner(TEXTS.replace(NOTHING));
    let result = body(&mut texts);
    TEXTS.set(ManuallyDrop::new(texts));
    result
}

/// [`with`], for a change that needs the place of texts.
fn change<R>(body: impl FnOnce(&mut Texts) -> Result<R>) -> Result<R> {
    with(|texts| match texts {
        Some(texts) => body(texts),
        None => body(texts.insert(try_box(Texts::default(), "a text for memory events")?)),
    })
}

/// Sets the metadata of this thread; empty: none.
pub fn set(text: &str) -> Result<()> {
    if text.is_empty() {
        with(|texts| texts.as_deref_mut().map(|texts| texts.metadata = None));
        return Ok(());
    }
    let new = Own::new(text)?;
    change(|texts| {
        texts.metadata = Some(new);
        Ok(())
    })
}

/// Passes the metadata of this thread to a function.
pub fn get<R>(read: impl FnOnce(&str) -> R) -> R {
    // `set` copied a `str`.
    with(|texts| {
        let own = texts.as_deref().and_then(|texts| texts.metadata.as_ref());
        let text = own.map_or(&[][..], |own| &own.text);
        read(std::str::from_utf8(text).unwrap_or(""))
    })
}

/// Begins a context of compilation of this thread.
pub fn push_compilation(text: &str) -> Result<()> {
    let new = Own::new(text)?;
    change(|texts| {
        texts.compilations.try_reserve(1).map_err(|_| NO_MEMORY)?;
        texts.compilations.push(new);
        Ok(())
    })
}

/// Ends the innermost context of compilation of this thread.
pub fn pop_compilation() -> Result<()> {
    let popped = with(|texts| texts.as_deref_mut().and_then(|texts| texts.compilations.pop()));
    popped.map(drop).ok_or(Error::InvalidState(
        "this thread has no context of compilation; call tcuda_memory_compile_context_push first",
    ))
}

/// The ids of this thread's metadata and of its innermost context of compilation; 0: none.
pub(in crate::memory) fn ids() -> (u32, u32) {
    with(|texts| {
        let Some(texts) = texts.as_deref_mut() else { return (0, 0) };
        let metadata = texts.metadata.as_mut().map_or(0, Own::id);
        (metadata, texts.compilations.last_mut().map_or(0, Own::id))
    })
}

/// Drops the texts of a thread that ends.
pub(crate) fn end_thread() {
    drop(ManuallyDrop::into_inner(TEXTS.replace(NOTHING)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_texts_of_its_own() {
        set("a step").unwrap();
        std::thread::spawn(|| {
            assert_eq!((get(str::len), ids()), (0, (0, 0)));
            set("another step").unwrap();
            assert_eq!(get(str::to_owned), "another step");
            end_thread();
            assert_eq!(get(str::len), 0);
        })
        .join()
        .unwrap();
        assert_eq!(get(str::to_owned), "a step");
        set("").unwrap();
        assert_eq!((get(str::len), ids()), (0, (0, 0)));
    }

    #[test]
    fn contexts_of_compilation_nest() {
        assert!(matches!(pop_compilation(), Err(Error::InvalidState(_))));
        push_compilation("0/0").unwrap();
        let outer = ids().1;
        push_compilation("1/0").unwrap();
        let inner = ids().1;
        assert!(outer != 0 && inner != 0 && outer != inner);
        let names = stacks::read(|stacks| [outer, inner].map(|id| stacks.text(id).to_owned()));
        assert_eq!(names, [c"0/0".to_owned(), c"1/0".to_owned()]);
        pop_compilation().unwrap();
        assert_eq!(ids(), (0, outer));
        pop_compilation().unwrap();
        assert_eq!(ids(), (0, 0));
        assert!(pop_compilation().is_err());
        end_thread();
    }
}
