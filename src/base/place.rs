//! Initialisation of values in place: for values larger than a call may use of a thread's stack.

use crate::base::error::{Error, Result};
use std::mem::MaybeUninit;

/// A box that `write` initialises in place. After an error the value is not dropped.
///
/// # Safety
/// If `write` succeeds it has initialised the whole value.
pub unsafe fn try_box_at<T>(
    what: &'static str,
    write: impl FnOnce(*mut T) -> Result<()>,
) -> Result<Box<T>> {
    let mut room: Vec<MaybeUninit<T>> = Vec::new();
    room.try_reserve_exact(1).map_err(|_| Error::OutOfHostMemory(what))?;
    room.push(MaybeUninit::uninit());
    let place = Box::into_raw(room.into_boxed_slice()).cast::<MaybeUninit<T>>();
    let written = write(place.cast::<T>());
    // SAFETY: a slice of one element is that element, with the same layout.
    let place = unsafe { Box::from_raw(place) };
    // SAFETY: the caller's promise.
    written.map(|()| unsafe { place.assume_init() })
}

/// Initialises the fields of a struct in place, one after the other. The caller promises that the
/// pointer is writable. The compiler checks that every field is named. The values must not fail,
/// because fields before would leak: compute fallible values first. A field `@ name: function` is
/// initialised by a function that gets a pointer to it.
macro_rules! write_fields {
    (
        $place:expr,
        $type:ident { $($field:ident: $value:expr,)* $(@ $large:ident: $write:expr,)* }
    ) => {{
        let place: *mut $type = $place;
        let _all_fields = |value: &$type| { let $type { $($field: _,)* $($large: _,)* } = value; };
        $(
            // SAFETY: a field of the caller's place.
            let field = unsafe { &raw mut (*place).$field };
            // SAFETY: as above.
            unsafe { field.write($value) };
        )*
        $(
            // SAFETY: as above.
            $write(unsafe { &raw mut (*place).$large });
        )*
    }};
}
pub(crate) use write_fields;

#[cfg(test)]
mod tests {
    use super::*;

    struct Pair {
        first: String,
        second: u64,
    }

    fn second(place: *mut u64) {
        // SAFETY: the place of a field.
        unsafe { place.write(7) };
    }

    fn pair(first: Result<String>) -> Result<Box<Pair>> {
        let write = |place: *mut Pair| {
            let first = first?;
            write_fields!(place, Pair { first: first, @ second: second, });
            Ok(())
        };
        // SAFETY: all fields are written.
        unsafe { try_box_at("a pair", write) }
    }

    #[test]
    fn a_value_is_made_where_it_is() {
        let made = pair(Ok("one".to_owned())).unwrap();
        assert_eq!((made.first.as_str(), made.second), ("one", 7));
        assert!(pair(Err(Error::OutOfHostMemory("a text"))).is_err());
    }
}
