//! Nothing: rustc is only asked what a static library of its making links with.
