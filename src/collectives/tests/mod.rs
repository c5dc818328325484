//! Compares the collectives with a model on the host: on machines of up to 16 devices, with and
//! without peer access, in the middle of work that runs as late as possible. Tests also that every
//! wait is needed, and which calls are refused.
//!
//! `TCUDA_MODEL_SEED` repeats a run, `PROPTEST_CASES` sets the number of calls, and
//! `TCUDA_GAUNTLET=1` multiplies it by fifty.

mod api;
mod buffer;
mod captured;
mod case;
mod number;
mod property;
mod random;
mod reference;
mod refused;
mod run;
mod switches;
mod verbs;
mod waits;
