//! All of `torch.cuda` as one small C library.
//!
//! Two floors, one door, one seam (ARCHITECTURE.md): the core (the modules here) knows nothing of C;
//! [`ffi`] translates and decides nothing; only [`driver`] knows how a GPU is reached.

pub mod driver;
pub mod fill;
